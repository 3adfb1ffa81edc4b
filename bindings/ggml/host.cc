// Finds the functions of the ggml that loads the plug-in.
#include "host.h"

#include <dlfcn.h>

namespace flashattn_ggml {

namespace {

// Of ggml.c, where the struct before a tensor in a context is not in any header.
constexpr std::size_t kObjectSize = 32;

/* The loaded library that has the code at an address; NULL: none that can be asked. */
void *library_of(const void *code) {
    Dl_info where;
    if (code == nullptr || dladdr(code, &where) == 0)
        return nullptr;
    return dlopen(where.dli_fname, RTLD_NOW | RTLD_NOLOAD);
}

/* Looks in a library and in those that it needs. */
class Finder {
  public:
    explicit Finder(const void *code) : library_(library_of(code)) {
    }

    template <class Function> void find(const char *name, Function *function) {
        *function =
            reinterpret_cast<Function>(library_ == nullptr ? nullptr : dlsym(library_, name));
        if (*function == nullptr && missing_.empty())
            missing_ = name;
    }

    const std::string &missing() const {
        return missing_;
    }

  private:
    void *library_;
    std::string missing_;
};

} // namespace

std::string find_host(const void *code, Host *host) {
    Finder finder(code);
    finder.find("ggml_version", &host->version);
    finder.find("ggml_tensor_overhead", &host->tensor_overhead);
    finder.find("ggml_op_name", &host->op_name);
    finder.find("ggml_type_name", &host->type_name);
    finder.find("ggml_backend_reg_by_name", &host->reg_by_name);
    finder.find("ggml_backend_reg_dev_get", &host->reg_dev_get);
    finder.find("ggml_backend_reg_get_proc_address", &host->reg_get_proc_address);
    if (!finder.missing().empty())
        return "the ggml that loads it exports no " + finder.missing() +
               ": it must be a shared library";
    host->cpu = host->reg_by_name("CPU");
    return host->cpu == nullptr ? "this ggml has no CPU backend: load that first" : "";
}

std::string find_cpu_backend(Host *host) {
    Finder finder(host->reg_get_proc_address(host->cpu, "ggml_backend_set_n_threads"));
    finder.find("ggml_barrier", &host->barrier);
    // ggml_backend_cpu_get_extra_buffer_types(), a function of C++
    finder.find("_Z39ggml_backend_cpu_get_extra_buffer_typesv", &host->extra_buffer_types);
    return finder.missing().empty() ? "" : "ggml's CPU backend exports no " + finder.missing();
}

Facts facts_of(const Host &host) {
    return {host.version(), host.cpu->api_version, host.tensor_overhead() - kObjectSize,
            host.op_name(GGML_OP_FLASH_ATTN_EXT)};
}

Facts built_facts() {
    return {FLASHATTN_GGML_VERSION, GGML_BACKEND_API_VERSION, sizeof(ggml_tensor),
            "FLASH_ATTN_EXT"};
}

} // namespace flashattn_ggml
