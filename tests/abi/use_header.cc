/*
 * flashattn.hpp in a program of its own: attention of one query over two keys, also in pages, with
 * scales and with a sink, appending to a cache, and a refusal.
 */
#include "flashattn.hpp"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <type_traits>
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

static float compute(flashattn::Forward call) {
    float o[1] = {0};
    call.o(o, {1, 1, 1, 1});
    std::vector<unsigned char> workspace(static_cast<std::size_t>(call.workspace_size()) + 1);
    call.run(workspace.data(), workspace.size());
    return o[0];
}

/* Keys of 1 and 2, values of 3 and 5, each in a page of its own; then the second key alone. */
static bool reads_pages() {
    const flashattn::Shape pool = {3, 1, 1, 1};
    const float q[1] = {0}, k[3] = {2, 0, 1}, v[3] = {5, 0, 3};
    const std::int32_t two[2] = {2, 0}, last[2] = {0, -1}, all[1] = {2}, one[1] = {1};
    flashattn::Forward call;
    call.q(q, {1, 1, 1, 1}).k(k, pool).v(v, pool);
    call.paging(flashattn::page_table(pool, two, 2)).lengths(all, 2);
    const flashattn::Forward copy = call;
    call.paging(flashattn::page_table(pool, last, 2)).lengths(one, 2);
    flashattn::Forward holes = call; /* the second page is one */
    holes.lengths(all, 2).page_holes();
    return compute(copy) == 4.0f && compute(call) == 5.0f && compute(holes) == 5.0f;
}

/* Elements of 1 (0x38) and 2 (0x40) in V, scaled. */
static bool takes_scales() {
    const unsigned char k[2] = {0x38, 0x40}, v[2] = {0x38, 0x40};
    const float q[1] = {0}, v_scale[1] = {4};
    flashattn::Forward call;
    call.q(q, {1, 1, 1, 1}).k(k, {1, 2, 1, 1}).v(v, {1, 2, 1, 1}).kv_dtype(FLASH_DTYPE_E4M3);
    const float plain = compute(call);
    call.scales(flashattn::scale_arrays(nullptr, v_scale, 1));
    const flashattn::Shape pool = {2, 1, 1, 1};
    const float of_pages[2] = {2, 8};
    const std::int32_t ids[2] = {1, 0}, used[1] = {2};
    flashattn::Forward paged;
    paged.q(q, {1, 1, 1, 1}).k(k, pool).v(v, pool).kv_dtype(FLASH_DTYPE_E4M3).page_scales();
    paged.paging(flashattn::page_table(pool, ids, 2)).lengths(used, 2);
    paged.scales(flashattn::scale_arrays(nullptr, of_pages, 1));
    return plain == 1.5f && compute(call) == 6.0f && compute(paged) == 9.0f;
}

/* A latent token whose elements are all 1, with scales of 2. */
static bool takes_latent_tokens() {
    unsigned char token[FLASH_LATENT_TOKEN_BYTES] = {0};
    const float q[576] = {0}, scales[4] = {2, 2, 2, 2};
    float o[512];
    std::memset(token, 0x38, 512);
    std::memcpy(token + 512, scales, sizeof scales);
    flashattn::Forward call;
    call.q(q, {1, 1, 1, 576}).latent(token, {1, 1, 1, FLASH_LATENT_TOKEN_BYTES});
    call.o(o, {1, 1, 1, 512});
    std::vector<unsigned char> workspace(static_cast<std::size_t>(call.workspace_size()) + 1);
    call.run(workspace.data(), workspace.size());
    return o[0] == 2.0f && o[511] == 2.0f;
}

/* Rows of sixes are appended to K of Q4_0 and V of Q8_0, two heads, and read. */
static bool takes_quantised_blocks() {
    unsigned char k[2 * FLASH_Q4_0_BYTES] = {0}, v[2 * FLASH_Q8_0_BYTES] = {0};
    const std::int32_t before[1] = {0};
    std::vector<float> q(64), o(64), six(64, 6.0f);
    const flashattn::Shape one = {1, 1, 2, 32};
    flashattn::Append append;
    append.k_new(six.data(), one).v_new(six.data(), one).k(k, one).v(v, one).lengths(before);
    append.cache_dtype(FLASH_DTYPE_Q4_0, FLASH_DTYPE_Q8_0).run();
    flashattn::Forward call;
    call.q(q.data(), one).k(k, one).v(v, one).o(o.data(), one);
    call.kv_dtype(FLASH_DTYPE_Q4_0, FLASH_DTYPE_Q8_0);
    std::vector<unsigned char> workspace(static_cast<std::size_t>(call.workspace_size()) + 1);
    call.run(workspace.data(), workspace.size());
    return v[FLASH_Q8_0_BYTES + 2] == 127 && std::fabs(o[63] - 6.0f) < 0.01f;
}

/* A sink of ln 2 weighs as much as both keys. */
static bool takes_sinks() {
    const float q[1] = {0}, k[2] = {1, 2}, v[2] = {3, 5}, sink[1] = {0.69314718f};
    flashattn::Forward call;
    call.q(q, {1, 1, 1, 1}).k(k, {1, 2, 1, 1}).v(v, {1, 2, 1, 1}).sinks(sink);
    return std::fabs(compute(call) - 2.0f) < 1e-6f;
}

/* A token of (1, 2) turns by a quarter, and becomes key 1 of a sequence whose second page is 0;
 * then it goes, as e4m3 of scale 0.5, to slot 1, and of that page's scale 1. */
static bool appends() {
    const flashattn::Shape one = {1, 1, 1, 2}, pool = {2, 1, 1, 2};
    const float k_new[2] = {1, 2}, v_new[2] = {3, 4}, q[2] = {5, 6}, cos[2] = {1, 0},
                sin[2] = {0, 1};
    const float scale[1] = {0.5f}, scales_of_pages[2] = {0.5f, 1};
    const std::int32_t ids[2] = {-1, 0}, used[1] = {1};
    const std::int64_t slots[1] = {1};
    float k[4] = {}, v[4] = {}, q_out[2] = {};
    unsigned char codes[4] = {};
    std::int32_t after[1] = {0};
    flashattn::Append call;
    call.k_new(k_new, one).v_new(v_new, one).k(k, pool).v(v, pool).q(q, q_out, one);
    call.paging(flashattn::page_table(pool, ids, 2)).lengths(used, after);
    call.rotary(flashattn::rotary_tables(cos, sin, 2, 2));
    call.run();
    flashattn::Append to_slots;
    to_slots.k_new(k_new, one).k(codes, pool).slots(slots, pool).cache_dtype(FLASH_DTYPE_E4M3);
    to_slots.scales(flashattn::scale_arrays(scale, nullptr, 1)).run();
    const bool has_one_scale = codes[2] == 0x40 && codes[3] == 0x48;
    to_slots.scales(flashattn::scale_arrays(scales_of_pages, nullptr, 1)).page_scales().run();
    return k[0] == -2 && k[1] == 1 && k[2] == 0 && v[0] == 3 && v[1] == 4 && q_out[0] == -6 &&
           q_out[1] == 5 && after[0] == 2 && has_one_scale && codes[2] == 0x38 && codes[3] == 0x40;
}

/* A token whose V has half the columns of its K. */
static bool appends_a_narrow_v() {
    const flashattn::Shape wide = {1, 1, 1, 2}, narrow = {1, 1, 1, 1};
    const float k_new[2] = {1, 2}, v_new[1] = {3};
    const std::int32_t used[1] = {0};
    float k[2] = {}, v[2] = {};
    flashattn::Append call;
    call.k_new(k_new, wide).v_new(v_new, narrow).k(k, wide).v(v, narrow).lengths(used).run();
    return k[0] == 1 && k[1] == 2 && v[0] == 3 && v[1] == 0;
}

/* Two heads of two tokens: 3 is the largest code of the first, and its mean 2. */
static bool quantises() {
    const flashattn::Shape shape = {1, 2, 2, 1}, tokens = {1, 4, 1, 1};
    const float x[4] = {1, 448, 3, -448};
    const std::int32_t ends[3] = {0, 1, 4};
    unsigned char codes[4] = {}, by_token[4] = {};
    float scale[2] = {}, mean[2] = {}, token_scale[4] = {};
    flashattn::Quantise call, ragged;
    call.x(x, FLASH_DTYPE_FP32, shape).codes(codes, shape).scale(scale).minus_mean(mean).run();
    ragged.x(x, FLASH_DTYPE_FP32, tokens).codes(by_token, tokens).token_scale(token_scale);
    ragged.ragged(ends, 2, 3).hadamard().run();
    return mean[0] == 2 && mean[1] == 0 && codes[0] == 0xfe && codes[2] == 0x7e && scale[1] == 1 &&
           by_token[3] == 0xfe && token_scale[1] == 1;
}

/* Key 0 is a step away, and weighs half as much; bits hide key 1. */
static bool takes_slopes_and_masks() {
    const float q[1] = {0}, k[2] = {1, 2}, v[2] = {3, 6}, slope[1] = {0.69314718f};
    const std::uint32_t bits[1] = {1};
    flash_mask_t mask = FLASH_MASK_INIT;
    mask.kind = FLASH_MASK_BITS;
    mask.data = bits;
    mask.n_keys = 2;
    flashattn::Forward call;
    call.q(q, {1, 1, 1, 1}).k(k, {1, 2, 1, 1}).v(v, {1, 2, 1, 1}).alibi(slope);
    const float sloping = compute(call);
    call.mask(mask);
    return std::fabs(sloping - 5.0f) < 1e-5f && std::fabs(compute(call) - 3.0f) < 1e-5f;
}

/* The query stands at key 2, the first of its chunk; with a key less, at the last of the other. */
static bool takes_chunks_and_padding() {
    const float q[1] = {0}, k[3] = {1, 2, 3}, v[3] = {3, 6, 10};
    const std::int32_t padding[1] = {1};
    flashattn::Forward call;
    call.q(q, {1, 1, 1, 1}).k(k, {1, 3, 1, 1}).v(v, {1, 3, 1, 1}).chunk(2);
    const float alone = compute(call);
    call.leftpad(padding);
    const float padded = compute(call);
    call.diagonal(1);
    return alone == 10.0f && padded == 8.0f && compute(call) == 0.0f;
}

/* Runs tasks one after the other, and counts the calls. */
static void run_tasks(void *context, std::int32_t n_tasks, flash_task_t task,
                      void *argument) noexcept {
    ++*static_cast<int *>(context);
    for (std::int32_t i = 0; i < n_tasks; i++)
        task(argument, i);
}

using Throwing = void (*)(void *, std::int32_t, flash_task_t, void *);
static_assert(!std::is_convertible<Throwing, flashattn::ParallelFor>::value,
              "a function that may throw is no ParallelFor");

/* Enough work to share: the process' hook runs it, then a call's own threads do. */
static bool lends_threads() {
    const flashattn::Shape many = {8, 64, 8, 64};
    const std::vector<float> zeros(8 * 64 * 8 * 64);
    std::vector<float> o(zeros.size(), 1.0f);
    int of_process = 0, of_call = 0;
    flashattn::Forward call;
    call.q(zeros.data(), many).k(zeros.data(), many).v(zeros.data(), many).o(o.data(), many);
    flashattn::set_parallel_for(run_tasks, &of_process, 2);
    std::vector<unsigned char> workspace(static_cast<std::size_t>(call.workspace_size()));
    call.run(workspace.data(), workspace.size());
    call.executor(flashattn::own_threads(run_tasks, &of_call, 2));
    call.run(workspace.data(), workspace.size());
    flashattn::set_parallel_for(nullptr, nullptr, 0);
    return of_process == 1 && of_call == 1 && o[0] == 0.0f;
}

/* A query sees two keys of weights 1/2 and values 0 and 8, and O is 4. */
static bool computes_gradients() {
    const flashattn::Shape one = {1, 1, 1, 1}, two = {1, 2, 1, 1};
    const float q[1] = {1}, k[2] = {0, 0}, v[2] = {0, 8}, d_o[1] = {1}, sinks[1] = {-INFINITY};
    float o[1], lse[1], dq[1], dk[2], dv[2] = {1, 1}, d_sinks[1];
    flashattn::Forward forward;
    forward.q(q, one).k(k, two).v(v, two).o(o, one).lse(lse).sinks(sinks);
    std::vector<unsigned char> workspace(static_cast<std::size_t>(forward.workspace_size()));
    forward.run(workspace.data(), workspace.size());
    flashattn::Backward call(forward);
    call.d_o(d_o, one).dq(dq, one).dk(dk, two).dv(dv, two).d_sinks(d_sinks);
    flashattn::Backward copy = call;
    copy.kernels(call.select().first, call.select().second).d_lse(lse);
    workspace.resize(static_cast<std::size_t>(copy.workspace_size()));
    copy.prepare();
    copy.d_lse(nullptr).run(workspace.data(), copy.least_workspace_size());
    const bool good = dq[0] == 0.0f && dk[0] == -2.0f && dk[1] == 2.0f && dv[0] == 0.5f &&
                      dv[1] == 0.5f && d_sinks[0] == 0.0f;
    copy.add().run(workspace.data(), workspace.size());
    return good && dk[1] == 4.0f && dv[1] == 1.0f;
}

/* With one key O is 0 or twice V. */
static bool drops_weights() {
    const flashattn::Shape one = {1, 64, 1, 1}, key = {1, 1, 1, 1};
    const float q[64] = {0}, k[1] = {1}, v[1] = {3};
    float o[64];
    int dropped = 0, kept = 0;
    flash_dropout_t dropout = FLASH_DROPOUT_INIT;
    dropout.p = 0.5f;
    dropout.seed = 7;
    flashattn::Forward call;
    call.q(q, one).k(k, key).v(v, key).o(o, one).dropout(dropout);
    std::vector<unsigned char> workspace(static_cast<std::size_t>(call.workspace_size()));
    call.run(workspace.data(), workspace.size());
    for (const float value : o) {
        dropped += value == 0.0f;
        kept += value == 6.0f;
    }
    return dropped > 10 && kept > 10 && dropped + kept == 64;
}

/* The CPU has no multiprocessors. */
static bool refuses_multiprocessors() {
    try {
        const float one[1] = {1};
        flashattn::Forward().q(one, {1, 1, 1, 1}).k(one, {1, 1, 1, 1}).multiprocessors(4).select();
    } catch (const flashattn::Error &error) {
        return std::strstr(error.what(), "n_multiprocessors is 4") != nullptr;
    }
    return false;
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
    const bool good = computes() && reads_pages() && takes_scales() && takes_latent_tokens() &&
                      takes_quantised_blocks() && takes_sinks() && takes_slopes_and_masks() &&
                      takes_chunks_and_padding() && appends() && appends_a_narrow_v() &&
                      quantises() && computes_gradients() && drops_weights() && lends_threads() &&
                      refuses_multiprocessors() && refuses();
    std::puts(good ? "right" : "wrong");
    return good ? 0 : 1;
}
