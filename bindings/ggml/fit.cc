// Compares the ggml and the libflashattn that were compiled in with those that are loaded.
#include "fit.h"

namespace flashattn_ggml {

namespace {

std::string version_text(int number) {
    return std::to_string(number / 10000) + "." + std::to_string(number / 100 % 100) + "." +
           std::to_string(number % 100);
}

template <class T> std::string differ(const char *what, const T &built, const T &loaded) {
    return std::string(what) + " is " + loaded + ", this plug-in was built for " + built;
}

} // namespace

std::string misfit(const Facts &built, const Facts &loaded) {
    if (built.version != loaded.version)
        return differ("ggml's version", built.version, loaded.version);
    if (built.backend_api != loaded.backend_api)
        return differ("ggml's backend API version", std::to_string(built.backend_api),
                      std::to_string(loaded.backend_api));
    if (built.tensor_size != loaded.tensor_size)
        return differ("the size of ggml's tensor struct", std::to_string(built.tensor_size),
                      std::to_string(loaded.tensor_size));
    if (built.op_name != loaded.op_name)
        return differ("the operation of FLASH_ATTN_EXT's number", built.op_name, loaded.op_name);
    return "";
}

std::string library_misfit(int built_abi, int built_version, int loaded_abi, int loaded_version) {
    if (built_abi != loaded_abi)
        return differ("libflashattn's ABI version", std::to_string(built_abi),
                      std::to_string(loaded_abi));
    if (built_abi == 0 && built_version / 100 != loaded_version / 100)
        return differ("libflashattn's version", version_text(built_version),
                      version_text(loaded_version));
    return "";
}

} // namespace flashattn_ggml
