// Counts ops, and prints those that are left to ggml.
#include "trace.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>

namespace flashattn_ggml {

namespace {

std::atomic<int64_t> served, left;

std::string tensor_text(const Host &host, const char *name, const ggml_tensor *tensor) {
    if (tensor == nullptr)
        return "";
    std::string text = std::string(", ") + name + " " + host.type_name(tensor->type) + " [";
    for (int axis = 0; axis < GGML_MAX_DIMS; axis++)
        text += (axis > 0 ? ", " : "") + std::to_string(tensor->ne[axis]);
    return text + "]";
}

std::string op_text(const Host &host, const ggml_tensor *op) {
    static const char *const names[] = {"Q", "K", "V", "mask", "sinks"};
    std::string text;
    for (int i = 0; i < 5; i++)
        text += tensor_text(host, names[i], op->src[i]);
    return text.substr(2);
}

/* Ops of a layer differ in lengths from call to call, and count as one: types, heads and head
 * dimensions make the others. */
std::string kind_of(const ggml_tensor *op) {
    std::string kind;
    for (int i = 0; i < 5; i++) {
        const ggml_tensor *source = op->src[i];
        if (source != nullptr)
            kind += std::to_string(i) + ":" + std::to_string(source->type) + ":" +
                    std::to_string(i < 3 ? source->ne[0] : 0) + ":" +
                    std::to_string(source->ne[2]) + " ";
    }
    return kind;
}

bool is_new(const std::string &kind) {
    static std::mutex mutex;
    static std::set<std::string> printed;
    const std::lock_guard<std::mutex> guard(mutex);
    return printed.insert(kind).second;
}

void print_counts() {
    std::fprintf(stderr, "flashattn: ggml: %lld ops computed, %lld left to ggml\n",
                 static_cast<long long>(served.load()), static_cast<long long>(left.load()));
}

} // namespace

bool trace_is_on() {
    static const char *const value = std::getenv("FLASHATTN_TRACE");
    return value != nullptr && std::strcmp(value, "1") == 0;
}

void trace_begin() {
    if (trace_is_on())
        std::atexit(print_counts);
}

void count_served() {
    served++;
}

void count_left(const Host &host, const ggml_tensor *op, const char *reason) {
    left++;
    if (trace_is_on() && is_new(kind_of(op) + reason))
        std::fprintf(stderr, "flashattn: ggml: left to ggml: %s: %s\n", op_text(host, op).c_str(),
                     reason);
}

} // namespace flashattn_ggml

void flashattn_ggml_counts(int64_t *n_served, int64_t *n_left) {
    *n_served = flashattn_ggml::served;
    *n_left = flashattn_ggml::left;
}
