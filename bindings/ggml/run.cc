// Runs a call on ggml's threads: the first makes it, as leader of a team, and the others help. What
// they share, and the library's workspace, lie in ggml's work buffer, so that nothing is allocated.
#include "run.h"

#include <cstdint>

namespace flashattn_ggml {

namespace {

/* What the threads of an op share, at the beginning of the work buffer. */
struct Shared {
    flash_team_t team;
    const char *why_not; // the leader's answer, from the second barrier on
};

constexpr std::size_t kLine = 64;

char *align(void *address) {
    const auto value = reinterpret_cast<std::uintptr_t>(address);
    return reinterpret_cast<char *>((value + kLine - 1) / kLine * kLine);
}

constexpr std::size_t kSharedSize = (sizeof(Shared) + kLine - 1) / kLine * kLine;

std::size_t workspace_size(const Call &call) {
    uint64_t size = 0;
    return flash_workspace_size(&call.args, nullptr, &size) == FLASH_SUCCESS ? size : 0;
}

/* Gives the call what the work buffer has beside the shared state. Where the buffer was planned for
 * less, the library makes do with it, or refuses. */
void lend_workspace(Call *call, const ggml_compute_params *params) {
    char *begin = align(params->wdata) + kSharedSize;
    char *end = static_cast<char *>(params->wdata) + params->wsize;
    call->args.workspace = begin;
    call->args.workspace_size = end > begin ? static_cast<uint64_t>(end - begin) : 0;
}

bool has_room(const ggml_compute_params *params) {
    return params->wsize >= kLine + kSharedSize;
}

/* Returns why the library refused; nullptr: it did not. */
const char *forward(Call *call, const ggml_compute_params *params) {
    lend_workspace(call, params);
    const bool is_done = flash_forward(&call->args, nullptr, nullptr) == FLASH_SUCCESS;
    return is_done ? nullptr : flash_last_error();
}

void lead(Call *call, const ggml_compute_params *params, Shared *shared) {
    call->executor.context = &shared->team;
    shared->why_not = forward(call, params);
    flash_team_finish(&shared->team);
    flash_team_destroy(&shared->team);
}

} // namespace

std::size_t work_size(const Call &call) {
    return kLine + kSharedSize + workspace_size(call);
}

const char *run(Call *call, const ggml_compute_params *params, decltype(&::ggml_barrier) barrier) {
    if (!has_room(params))
        return "ggml planned no work buffer for it";
    if (params->nth == 1)
        return forward(call, params);
    auto *shared = reinterpret_cast<Shared *>(align(params->wdata));
    if (params->ith == 0)
        flash_team_init(&shared->team, params->nth);
    barrier(params->threadpool);
    if (params->ith == 0)
        lead(call, params, shared);
    else
        flash_team_help(&shared->team);
    barrier(params->threadpool);
    const char *why_not = shared->why_not;
    if (why_not != nullptr)
        barrier(params->threadpool); // ggml's own way writes over the shared state from here on
    return why_not;
}

} // namespace flashattn_ggml
