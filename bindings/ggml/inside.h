// The place inside ggml's CPU backend from which ops are computed.
#pragma once

#include "host.h"

namespace flashattn_ggml {

/** Enters a host, which stays: ggml cannot do without it then. Once in a process. */
void enter(const Host &host);

} // namespace flashattn_ggml
