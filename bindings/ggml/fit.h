// Whether a plug-in may enter the ggml that loads it. ggml's internal structs and classes change
// between versions without notice, so that it must be the version whose headers were compiled in.
#pragma once

#include <cstddef>
#include <string>

namespace flashattn_ggml {

/** These facts can be compared between the ggml that was compiled in and the one that is loaded. */
struct Facts {
    std::string version;     // as "0.25.3"
    int backend_api;         // GGML_BACKEND_API_VERSION
    std::size_t tensor_size; // of struct ggml_tensor, in bytes
    std::string op_name;     // of the number that GGML_OP_FLASH_ATTN_EXT has in the headers
};

/** Returns why a plug-in that was built for one ggml must not enter another; "": it may. */
std::string misfit(const Facts &built, const Facts &loaded);

/** Does the same for libflashattn: versions as flash_version_number() has them. While the ABI
 * version is 0, each minor version has an ABI of its own. */
std::string library_misfit(int built_abi, int built_version, int loaded_abi, int loaded_version);

} // namespace flashattn_ggml
