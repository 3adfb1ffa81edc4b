// The function that ggml calls when it loads the plug-in, as for a backend of its own.
#include "fit.h"
#include "host.h"
#include "inside.h"
#include "trace.h"

#include <flashattn.h>

#include <cstdio>
#include <string>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace flashattn_ggml {

namespace {

std::string refusal;

const char *name(ggml_backend_reg_t) {
    return "flashattn";
}

size_t no_devices(ggml_backend_reg_t) {
    return 0; // ops come by the CPU's
}

ggml_backend_dev_t no_device(ggml_backend_reg_t, size_t) {
    return nullptr;
}

ggml_backend_reg_t registry() {
    static ggml_backend_reg reg{};
    reg.api_version = GGML_BACKEND_API_VERSION;
    reg.iface.get_name = name;
    reg.iface.get_device_count = no_devices;
    reg.iface.get_device = no_device;
    return &reg;
}

std::string find_fitting_host(const void *caller, Host *host) {
    std::string reason = library_misfit(FLASH_ABI_VERSION, FLASH_VERSION_NUMBER,
                                        flash_abi_version(), flash_version_number());
    if (reason.empty())
        reason = find_host(caller, host);
    if (reason.empty())
        reason = misfit(built_facts(), facts_of(*host));
    return reason.empty() ? find_cpu_backend(host) : reason;
}

void refuse(const std::string &reason) {
    refusal = reason;
    std::fprintf(stderr, "flashattn: ggml: not loaded: %s\n", refusal.c_str());
}

/* Returns the CPU backend of the host that is entered; nullptr: none is. */
ggml_backend_reg_t enter_host(const void *caller) {
    Host host;
    const std::string reason = find_fitting_host(caller, &host);
    if (!reason.empty()) {
        refuse(reason);
        return nullptr;
    }
    enter(host);
    trace_begin();
    return host.cpu;
}

/* Whether the code at an address belongs to the host that was entered. */
bool is_of_host(const void *caller, ggml_backend_reg_t cpu) {
    Host host;
    std::string reason = find_host(caller, &host);
    if (reason.empty() && host.cpu != cpu)
        reason = "it is in another ggml of this process, and can be in one";
    if (!reason.empty())
        refuse(reason);
    return reason.empty();
}

} // namespace

} // namespace flashattn_ggml

/** Returns the registry of a backend without devices; NULL: why is printed to standard error. */
EXPORTED ggml_backend_reg_t ggml_backend_init() {
    const void *caller = __builtin_return_address(0);
    // ggml may load it again, and the host stays the same.
    static const ggml_backend_reg_t cpu = flashattn_ggml::enter_host(caller);
    const bool is_inside = cpu != nullptr && flashattn_ggml::is_of_host(caller, cpu);
    return is_inside ? flashattn_ggml::registry() : nullptr;
}

/** Why ggml_backend_init() last returned NULL; "": it never did. */
EXPORTED const char *flashattn_ggml_refusal() {
    return flashattn_ggml::refusal.c_str();
}
