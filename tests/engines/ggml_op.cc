// Computes flash attention operations by ggml's CPU backend, with whatever plug-in
// GGML_BACKEND_PATH names, compares them with attention in double, and times them. Each line of the
// input is an operation, each line of the output a JSON object.
//
// usage: ggml_op THREADS < operations
// An operation is words like
//     queries=1 keys=4096 heads=32 heads_kv=8 d=128 d_v=128 batch=1 k=q8_0 v=f16 mask=1
//     mask_heads=1 sinks=0 softcap=0 max_bias=0 strided=0 check=1 repeats=20
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iostream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr float kHidden = -INFINITY;

/* The words of an operation. One that is missing or unknown ends the program. */
class Words {
  public:
    explicit Words(const std::string &line) {
        std::istringstream stream(line);
        for (std::string word; stream >> word;)
            words_[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
    }

    const std::string &text(const char *name) const {
        return words_.at(name);
    }

    int number(const char *name) const {
        return std::stoi(text(name));
    }

  private:
    std::map<std::string, std::string> words_;
};

ggml_type type_of(const std::string &name) {
    for (int type = 0; type < GGML_TYPE_COUNT; type++)
        if (name == ggml_type_name(static_cast<ggml_type>(type)))
            return static_cast<ggml_type>(type);
    std::fprintf(stderr, "no type %s\n", name.c_str());
    std::exit(2);
}

/* An operation with its tensors, and what they hold in fp32. */
struct Operation {
    ggml_context *context;
    ggml_cgraph *graph;
    ggml_backend_buffer_t buffer;
    ggml_tensor *q, *k, *v, *mask, *sinks, *o;
    std::vector<float> q_values, k_values, v_values, mask_values, sink_values;
    float scale, softcap, max_bias;
};

/* K or V: [d, keys, heads, batch], as a cache has it, token after token; strided: the first half of
 * the heads of a wider one. */
ggml_tensor *new_cache(ggml_context *context, ggml_type type, int d, const Words &words) {
    const int keys = words.number("keys"), heads = words.number("heads_kv");
    const int batch = words.number("batch");
    const int room = words.number("strided") ? 2 * heads : heads;
    ggml_tensor *whole = ggml_new_tensor_4d(context, type, d, room, keys, batch);
    ggml_tensor *part = ggml_view_4d(context, whole, d, heads, keys, batch, whole->nb[1],
                                     whole->nb[2], whole->nb[3], 0);
    return ggml_permute(context, part, 0, 2, 1, 3);
}

Operation new_operation(const Words &words) {
    Operation op{};
    const int d = words.number("d"), heads = words.number("heads"), batch = words.number("batch");
    const int queries = words.number("queries");
    op.context = ggml_init({ggml_tensor_overhead() * 32 + ggml_graph_overhead(), nullptr, true});
    op.q = ggml_permute(op.context,
                        ggml_new_tensor_4d(op.context, GGML_TYPE_F32, d, heads, queries, batch), 0,
                        2, 1, 3);
    op.k = new_cache(op.context, type_of(words.text("k")), d, words);
    op.v = new_cache(op.context, type_of(words.text("v")), words.number("d_v"), words);
    if (words.number("mask"))
        op.mask = ggml_new_tensor_4d(op.context, GGML_TYPE_F16, words.number("keys"), queries,
                                     words.number("mask_heads"), batch);
    op.scale = 1 / std::sqrt(static_cast<float>(d));
    op.softcap = static_cast<float>(words.number("softcap"));
    op.max_bias = static_cast<float>(words.number("max_bias"));
    op.o = ggml_flash_attn_ext(op.context, op.q, op.k, op.v, op.mask, op.scale, op.max_bias,
                               op.softcap);
    if (words.number("sinks")) {
        op.sinks = ggml_new_tensor_1d(op.context, GGML_TYPE_F32, heads);
        ggml_flash_attn_ext_add_sinks(op.o, op.sinks);
    }
    op.graph = ggml_new_graph(op.context);
    ggml_build_forward_expand(op.graph, op.o);
    return op;
}

void free_operation(const Operation &op) {
    ggml_backend_buffer_free(op.buffer);
    ggml_free(op.context);
}

/* ---- Values ---- */

std::mt19937 generator(1);

/* Stores a row of fp32 in a tensor's type, and returns in the row what was stored. */
void store(ggml_type type, std::vector<float> *row, char *to) {
    const auto n = static_cast<int64_t>(row->size());
    if (type == GGML_TYPE_F32) {
        std::memcpy(to, row->data(), 4 * row->size());
        return;
    }
    ggml_quantize_chunk(type, row->data(), to, 0, 1, n, nullptr);
    ggml_get_type_traits(type)->to_float(to, row->data(), n);
}

/* Fills rows with what next() gives for (batch, head, token, element), and returns the values in
 * the order [batch, head, token, element]. */
template <class Next> std::vector<float> fill(ggml_tensor *tensor, Next next) {
    std::vector<float> values, row(static_cast<std::size_t>(tensor->ne[0]));
    for (int64_t b = 0; b < tensor->ne[3]; b++)
        for (int64_t h = 0; h < tensor->ne[2]; h++)
            for (int64_t i = 0; i < tensor->ne[1]; i++) {
                for (int64_t e = 0; e < tensor->ne[0]; e++)
                    row[static_cast<std::size_t>(e)] = next(b, h, i, e);
                store(tensor->type, &row,
                      static_cast<char *>(tensor->data) + b * static_cast<int64_t>(tensor->nb[3]) +
                          h * static_cast<int64_t>(tensor->nb[2]) +
                          i * static_cast<int64_t>(tensor->nb[1]));
                values.insert(values.end(), row.begin(), row.end());
            }
    return values;
}

std::vector<float> fill_normal(ggml_tensor *tensor) {
    std::normal_distribution<float> normal;
    return fill(tensor, [&](auto...) { return normal(generator); });
}

/* Causal order over the first three quarters of the keys of a sequence; some numbers, some hidden
 * keys where mask is 2. */
std::vector<float> fill_mask(ggml_tensor *mask, int kind) {
    const int64_t used = mask->ne[0] - mask->ne[0] / 4, queries = mask->ne[1];
    return fill(mask, [=](int64_t b, int64_t, int64_t i, int64_t j) {
        if (j > used - queries + i - 3 * b)
            return kHidden;
        if (kind == 1 || generator() % 3 != 0)
            return 0.0f;
        return generator() % 2 == 0 ? kHidden : -static_cast<float>(generator() % 64) / 16;
    });
}

void fill_operation(Operation *op, int mask_kind) {
    op->q_values = fill_normal(op->q);
    op->k_values = fill_normal(op->k);
    op->v_values = fill_normal(op->v);
    if (op->mask != nullptr)
        op->mask_values = fill_mask(op->mask, mask_kind);
    if (op->sinks != nullptr)
        op->sink_values = fill_normal(op->sinks);
}

/* ---- Attention in double ---- */

double slope(const Operation &op, int64_t h) {
    if (op.max_bias == 0)
        return 1;
    const int64_t heads = op.q->ne[2];
    const auto regular = static_cast<int64_t>(std::exp2(std::floor(std::log2(heads))));
    return h < regular ? std::exp2(-op.max_bias / regular * (h + 1))
                       : std::exp2(-op.max_bias / 2 / regular * (2 * (h - regular) + 1));
}

/* Element (b, h, i, 0) of values in the order that fill() returns. */
const float *at(const std::vector<float> &values, const ggml_tensor *of, int64_t b, int64_t h,
                int64_t i) {
    const int64_t row = (b % of->ne[3] * of->ne[2] + h % of->ne[2]) * of->ne[1] + i;
    return values.data() + row * of->ne[0];
}

double dot(const float *a, const float *b, int64_t n) {
    double sum = 0;
    for (int64_t e = 0; e < n; e++)
        sum += static_cast<double>(a[e]) * b[e];
    return sum;
}

std::vector<double> scores(const Operation &op, int64_t b, int64_t h, int64_t i) {
    const int64_t head_kv = h / (op.q->ne[2] / op.k->ne[2]);
    const float *q = at(op.q_values, op.q, b, h, i);
    std::vector<double> result;
    for (int64_t j = 0; j < op.k->ne[1]; j++) {
        double score = op.scale * dot(q, at(op.k_values, op.k, b, head_kv, j), op.q->ne[0]);
        if (op.softcap != 0)
            score = op.softcap * std::tanh(score / op.softcap);
        if (op.mask != nullptr)
            score += slope(op, h) * at(op.mask_values, op.mask, b, h, i)[j];
        result.push_back(score);
    }
    return result;
}

std::vector<double> reference_row(const Operation &op, int64_t b, int64_t h, int64_t i) {
    const int64_t head_kv = h / (op.q->ne[2] / op.k->ne[2]);
    const double sink = op.sinks == nullptr ? kHidden : op.sink_values[static_cast<std::size_t>(h)];
    std::vector<double> weights = scores(op, b, h, i);
    const double most = std::max(sink, *std::max_element(weights.begin(), weights.end()));
    double sum = most == kHidden ? 1 : std::exp(sink - most);
    std::vector<double> row(static_cast<std::size_t>(op.v->ne[0]));
    for (int64_t j = 0; most != kHidden && j < op.v->ne[1]; j++) {
        const double weight = std::exp(weights[static_cast<std::size_t>(j)] - most);
        sum += weight;
        for (std::size_t e = 0; e < row.size(); e++)
            row[e] += weight * at(op.v_values, op.v, b, head_kv, j)[e];
    }
    for (double &element : row)
        element /= sum;
    return row;
}

/* The largest error of an element of O, whose order is [batch, query, head, element]. */
double largest_error(const Operation &op) {
    double error = 0;
    const auto *o = static_cast<const float *>(op.o->data);
    for (int64_t b = 0; b < op.o->ne[3]; b++)
        for (int64_t i = 0; i < op.o->ne[2]; i++)
            for (int64_t h = 0; h < op.o->ne[1]; h++)
                for (double exact : reference_row(op, b, h, i)) {
                    const double difference = std::fabs(exact - *o++);
                    error = difference <= error ? error : difference; // NaN is kept
                }
    return error;
}

/* ---- Time ---- */

double processor_seconds() {
    timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/* The median of runs of the operation. */
double median_seconds(ggml_backend_t backend, const Operation &op, int repeats) {
    std::vector<double> times;
    for (int i = 0; i < repeats; i++) {
        const double begin = processor_seconds();
        ggml_backend_graph_compute(backend, op.graph);
        times.push_back(processor_seconds() - begin);
    }
    std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
    return times[static_cast<std::size_t>(repeats / 2)];
}

void run(ggml_backend_t backend, const Words &words) {
    Operation op = new_operation(words);
    op.buffer = ggml_backend_alloc_ctx_tensors(op.context, backend);
    fill_operation(&op, words.number("mask"));
    ggml_backend_graph_compute(backend, op.graph);
    std::printf("{");
    if (words.number("check"))
        std::printf("\"error\": %.3g, ", largest_error(op));
    const int repeats = words.number("repeats");
    std::printf("\"seconds\": %.9g}\n", repeats ? median_seconds(backend, op, repeats) : 0.0);
    std::fflush(stdout);
    free_operation(op);
}

} // namespace

int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    ggml_backend_load_all();
    ggml_backend_t backend = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
    ggml_backend_cpu_set_n_threads(backend, std::atoi(argv[1]));
    for (std::string line; std::getline(std::cin, line);)
        run(backend, Words(line));
    ggml_backend_free(backend);
}
