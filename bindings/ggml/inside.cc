// Enters ggml's CPU backend as an "extra buffer type". The backend asks each of these before it
// computes an op, on all of its threads, and while it plans how large its work buffer must be. No
// tensor is ever in a buffer of this type.
#include "inside.h"

#include "call.h"
#include "run.h"
#include "trace.h"

// The backend has these too, but exports them only where it is linked.
ggml::cpu::tensor_traits::~tensor_traits() {
}
ggml::cpu::extra_buffer_type::~extra_buffer_type() {
}

namespace flashattn_ggml {

namespace {

Host host;

class Attention final : public ggml::cpu::tensor_traits {
  public:
    /* false: ggml adds what it needs itself, for ops that are left to it. */
    bool work_size(int n_threads, const ggml_tensor *op, size_t &size) override {
        Call call;
        if (make_call(op, n_threads, &call) == nullptr)
            size = flashattn_ggml::work_size(call);
        return false;
    }

    bool compute_forward(ggml_compute_params *params, ggml_tensor *op) override {
        if (params->use_ref) // ggml tests other ways by its own reference
            return false;
        Call call;
        const char *why = make_call(op, params->nth, &call);
        if (why == nullptr)
            why = run(&call, params, host.barrier);
        if (params->ith == 0)
            count(op, why);
        return why == nullptr;
    }

  private:
    static void count(const ggml_tensor *op, const char *why_not) {
        if (why_not == nullptr)
            count_served();
        else
            count_left(host, op, why_not);
    }
};

class Door final : public ggml::cpu::extra_buffer_type {
  public:
    bool supports_op(ggml_backend_dev_t, const ggml_tensor *) override {
        return false; // asked for tensors in buffers of this type
    }

    ggml::cpu::tensor_traits *get_tensor_traits(const ggml_tensor *op) override {
        return op->op == GGML_OP_FLASH_ATTN_EXT ? &attention_ : nullptr;
    }

  private:
    Attention attention_;
};

const char *name(ggml_backend_buffer_type_t) {
    return "flashattn";
}

ggml_backend_buffer_t allocate_nothing(ggml_backend_buffer_type_t, size_t) {
    return nullptr;
}

size_t alignment(ggml_backend_buffer_type_t) {
    return 64;
}

bool is_host(ggml_backend_buffer_type_t) {
    return false;
}

} // namespace

void enter(const Host &entered) {
    static Door door;
    static ggml_backend_buffer_type type{};
    host = entered;
    type.iface.get_name = name;
    type.iface.alloc_buffer = allocate_nothing;
    type.iface.get_alignment = alignment;
    type.iface.is_host = is_host;
    type.device = host.reg_dev_get(host.cpu, 0);
    type.context = static_cast<ggml::cpu::extra_buffer_type *>(&door);
    host.extra_buffer_types().push_back(&type);
}

} // namespace flashattn_ggml
