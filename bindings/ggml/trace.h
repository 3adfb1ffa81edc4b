// The plug-in says here what it does: counts, and with FLASHATTN_TRACE=1 the ops that it leaves to
// ggml.
#pragma once

#include "host.h"

namespace flashattn_ggml {

/** Whether FLASHATTN_TRACE is 1. */
bool trace_is_on();

/** Prints the counts at the end of the process, if the trace is on. */
void trace_begin();

/** Counts an op that the library computed. */
void count_served();

/** Counts an op that is left to ggml, and prints it with the reason, if the trace is on and no such
 * op was printed before. */
void count_left(const Host &host, const ggml_tensor *op, const char *reason);

} // namespace flashattn_ggml

/** The ops that the library computed in this process so far, and those that it left to ggml. */
extern "C" __attribute__((visibility("default"))) void flashattn_ggml_counts(int64_t *served,
                                                                             int64_t *left);
