// The ggml that loads the plug-in: the functions of it that are called.
#pragma once

#include "fit.h"

// These are internal headers of ggml, without which there is no way in.
#include <ggml-backend-impl.h>
#include <ggml-cpu.h>
#include <ggml.h>
#include <traits.h>

#include <string>
#include <vector>

namespace flashattn_ggml {

/** The plug-in links no ggml. A process may hold several copies of it, each with a registry of its
 * own, and only that of the caller counts. */
struct Host {
    // libggml and libggml-base
    decltype(&::ggml_version) version;
    decltype(&::ggml_tensor_overhead) tensor_overhead;
    decltype(&::ggml_op_name) op_name;
    decltype(&::ggml_type_name) type_name;
    decltype(&::ggml_backend_reg_by_name) reg_by_name;
    decltype(&::ggml_backend_reg_dev_get) reg_dev_get;
    decltype(&::ggml_backend_reg_get_proc_address) reg_get_proc_address;
    // libggml-cpu, which may be a library that was loaded at run time, and exports to nobody
    decltype(&::ggml_barrier) barrier;
    std::vector<ggml_backend_buffer_type_t> &(*extra_buffer_types)();

    ggml_backend_reg_t cpu; // the registry of the CPU backend
};

/** Finds the ggml that has the code at an address, but for the functions of its CPU backend.
 * Returns what is missing; "": nothing. */
std::string find_host(const void *code, Host *host);

/** Finds the functions of the host's CPU backend. Returns what is missing; "": nothing. */
std::string find_cpu_backend(Host *host);

/** Returns what can be compared of a host. */
Facts facts_of(const Host &host);

/** Returns the same of the ggml whose headers were compiled in. */
Facts built_facts();

} // namespace flashattn_ggml
