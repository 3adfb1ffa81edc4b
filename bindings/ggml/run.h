// Runs a call on ggml's threads, all of which enter an op at the same time.
#pragma once

#include "call.h"

#include <traits.h>

#include <cstddef>

namespace flashattn_ggml {

/** The bytes of ggml's work buffer that an op takes. */
std::size_t work_size(const Call &call);

/** Computes the call. Each of ggml's threads calls it with its own copy of the same call. Returns
 * nullptr when O is complete, otherwise why ggml must compute the op: in all threads one or the
 * other. barrier: ggml's. */
const char *run(Call *call, const ggml_compute_params *params, decltype(&::ggml_barrier) barrier);

} // namespace flashattn_ggml
