/*
 * flashattn.hpp in a program of its own: attention of one query over two keys, and a refusal.
 */
#include "flashattn.hpp"

#include <cstdio>
#include <cstring>
#include <vector>

static bool computes() {
    const float q[1] = {0}, k[2] = {1, 2}, v[2] = {3, 5};
    float o[1] = {0};
    flashattn::Forward call;
    call.q(q, {1, 1, 1, 1}).k(k, {1, 2, 1, 1}).v(v, {1, 2, 1, 1}).o(o, {1, 1, 1, 1});
    std::vector<unsigned char> workspace(static_cast<std::size_t>(call.workspace_size()) + 1);
    const flashattn::Kernel kernel = call.select();
    call.prepare(kernel);
    call.run(workspace.data(), workspace.size(), kernel);
    return o[0] == 4.0f && flashattn::Kernel::lookup(kernel.config()).get() == kernel.get();
}

static bool refuses() {
    try {
        flashattn::Forward().workspace_size();
    } catch (const flashattn::Error &error) {
        return error.status() == FLASH_ERROR_INVALID_ARGUMENT &&
               std::strstr(error.what(), "n_heads is 0") != nullptr;
    }
    return false;
}

int main() {
    const bool good = computes() && refuses();
    std::puts(good ? "right" : "wrong");
    return good ? 0 : 1;
}
