// Attention of ggml's CUDA backend. ggml has no hook there, but its backend calls two functions
// about each FLASH_ATTN_EXT by the dynamic linker: those of a library that is loaded before ggml,
// by LD_PRELOAD, are found first. They make the library's calls on ggml's stream, with a workspace
// of ggml's pool; what the library has not goes to ggml's own functions, where ggml was built with
// them.
#include "call.h"
#include "fit.h"

// This header of ggml has the context of its backend, an internal struct.
#include <common.cuh>

#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>

using flashattn_ggml::Call;

namespace {

std::atomic<long long> served, left;

bool trace_is_on() {
    static const char *const value = std::getenv("FLASHATTN_TRACE");
    return value != nullptr && std::strcmp(value, "1") == 0;
}

/* Prints a reason once, if the trace is on. */
void trace(const std::string &reason) {
    static std::mutex mutex;
    static std::set<std::string> printed;
    const std::lock_guard<std::mutex> guard(mutex);
    if (trace_is_on() && printed.insert(reason).second)
        std::fprintf(stderr, "flashattn: ggml-cuda: left to ggml: %s\n", reason.c_str());
}

void print_counts() {
    std::fprintf(stderr, "flashattn: ggml-cuda: %lld ops computed, %lld left to ggml\n",
                 served.load(), left.load());
}

/* Says why this library must not look into the ggml that is loaded; "": it may. */
std::string find_misfit() {
    std::string reason = flashattn_ggml::library_misfit(
        FLASH_ABI_VERSION, FLASH_VERSION_NUMBER, flash_abi_version(), flash_version_number());
    if (reason.empty() && std::strcmp(ggml_version(), FLASHATTN_GGML_VERSION) != 0)
        reason = std::string("ggml's version is ") + ggml_version() +
                 ", this library was built for " FLASHATTN_GGML_VERSION;
    if (!reason.empty())
        std::fprintf(stderr, "flashattn: ggml-cuda: not used: %s\n", reason.c_str());
    else if (trace_is_on())
        std::atexit(print_counts);
    return reason;
}

/* Fills the call of an op on the current device. Returns why ggml must compute it; "": it need not.
 */
std::string make_call(const ggml_tensor *op, Call *call) {
    static const std::string misfit = find_misfit();
    if (!misfit.empty())
        return misfit;
    const char *why = flashattn_ggml::describe(op, call);
    if (why != nullptr)
        return why;
    if (call->mask.head_scale != nullptr)
        return "the factors of ALiBi would have to be in the device's memory";
    call->args.device = FLASH_DEVICE_CUDA_CURRENT;
    if (flash_query_support(&call->args, nullptr, nullptr, 0) != FLASH_SUCCESS)
        return flash_last_error();
    return "";
}

/* Enqueues the call. Returns why it was refused; "": it was not. */
std::string forward(ggml_backend_cuda_context &ctx, Call *call) {
    uint64_t size = 0;
    if (flash_workspace_size(&call->args, nullptr, &size) != FLASH_SUCCESS)
        return flash_last_error();
    ggml_cuda_pool_alloc<char> workspace(ctx.pool());
    call->args.workspace = size > 0 ? workspace.alloc(size) : nullptr;
    call->args.workspace_size = size;
    const bool is_done = flash_forward(&call->args, nullptr, ctx.stream()) == FLASH_SUCCESS;
    return is_done ? "" : flash_last_error();
}

/* Finds ggml's own function of a name, behind this library's. */
template <class Function> Function *next(const char *name) {
    return reinterpret_cast<Function *>(dlsym(RTLD_NEXT, name));
}

} // namespace

bool ggml_cuda_flash_attn_ext_supported(int device, const ggml_tensor *op) {
    static auto *const own = next<bool(int, const ggml_tensor *)>(
        "_Z34ggml_cuda_flash_attn_ext_supportediPK11ggml_tensor");
    Call call;
    ggml_cuda_set_device(device);
    const std::string why = make_call(op, &call);
    if (why.empty())
        return true;
    trace(why);
    return own != nullptr && own(device, op);
}

void ggml_cuda_flash_attn_ext(ggml_backend_cuda_context &ctx, ggml_tensor *op) {
    static auto *const own = next<void(ggml_backend_cuda_context &, ggml_tensor *)>(
        "_Z24ggml_cuda_flash_attn_extR25ggml_backend_cuda_contextP11ggml_tensor");
    Call call;
    ggml_cuda_set_device(ctx.device);
    std::string why = make_call(op, &call);
    if (why.empty())
        why = forward(ctx, &call);
    if (why.empty()) {
        served++;
        return;
    }
    left++;
    trace(why);
    if (own == nullptr)
        GGML_ABORT("flashattn: ggml-cuda: %s", why.c_str());
    own(ctx, op);
}
