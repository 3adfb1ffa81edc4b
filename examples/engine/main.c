/*
 * Answers questions: each line of standard input is one, and all that have come are answered at
 * once. Answers are printed in the order of the questions, token by token.
 *
 *     engine [--device cpu|cuda] MODEL.gguf [TOKENS [THREADS [PAGES]]]
 *
 * THREADS are the processor's, and matter only there; PAGES are those of the cache. The README says
 * how it is compiled, with CUDA and without.
 */
#define _POSIX_C_SOURCE 200809L /* poll, read */
#include "engine.h"
#include "support.h"
#include "tokenizer.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_LINE = 8192, MOST_PROMPT = 2 * MOST_LINE };
static const char SYSTEM[] = "You are a helpful AI assistant named SmolLM, trained by Hugging Face";

typedef struct program {
    const tokenizer_t *tokenizer;
    engine_t *engine;
    int most_new;         /* tokens of an answer */
    char line[MOST_LINE]; /* that is being read */
    size_t line_size;
    bool input_ended;
    int n_questions, n_shown; /* answers that are printed whole */
    int n_tokens_shown;       /* of the next one */
} program_t;

/* ---- Questions ---- */

static void add_turn(const tokenizer_t *t, const char *role, const char *text, int32_t *tokens,
                     int *count) {
    tokens[(*count)++] = tokenizer_named(t, "<|im_start|>");
    char turn[MOST_LINE + 16];
    snprintf(turn, sizeof turn, "%s\n%s", role, text);
    tokenizer_encode(t, turn, tokens, count);
}

static void end_turn(const tokenizer_t *t, int32_t *tokens, int *count) {
    tokens[(*count)++] = tokenizer_named(t, "<|im_end|>");
    tokenizer_encode(t, "\n", tokens, count);
}

/* Makes a dialogue of the question, up to where the model is to answer. */
static void ask(program_t *p, const char *question) {
    const tokenizer_t *t = p->tokenizer;
    static int32_t tokens[MOST_PROMPT];
    int count = 0;
    add_turn(t, "system", SYSTEM, tokens, &count);
    end_turn(t, tokens, &count);
    add_turn(t, "user", question, tokens, &count);
    end_turn(t, tokens, &count);
    add_turn(t, "assistant", "", tokens, &count);
    const int32_t end = tokenizer_named(t, "<|im_end|>");
    if (engine_submit(p->engine, tokens, count, p->most_new, end) < 0)
        fail(
            "a question of %d tokens, with an answer of %d, is too long for the model or its cache",
            count, p->most_new);
    p->n_questions++;
}

/* Reads what has come of the input; waits for it only if there is nothing else to do. */
static void read_questions(program_t *p, bool waits) {
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    while (!p->input_ended && poll(&input, 1, waits ? -1 : 0) > 0) {
        char c = 0;
        const bool ends = read(STDIN_FILENO, &c, 1) <= 0;
        p->input_ended = ends;
        if (c == '\0' && !ends)
            fail("a line has a byte of 0");
        if (!ends && c != '\n') {
            if (p->line_size + 1 == MOST_LINE)
                fail("a line is longer than %d bytes", MOST_LINE - 1);
            p->line[p->line_size++] = c;
            continue;
        }
        p->line[p->line_size] = '\0';
        if (p->line_size > 0)
            ask(p, p->line);
        waits = waits && p->line_size == 0;
        p->line_size = 0;
    }
}

/* ---- Answers ---- */

static void show_token(const program_t *p, int32_t token) {
    char bytes[256];
    fwrite(bytes, 1, tokenizer_decode(p->tokenizer, token, bytes), stdout);
}

/* Prints what is there of the answer that is next, and of those behind it once it is whole. */
static void show(program_t *p) {
    while (p->n_shown < p->n_questions) {
        const sequence_t *s = engine_sequence(p->engine, p->n_shown);
        for (int i = s->n_prompt + p->n_tokens_shown; i < s->n_tokens; i++, p->n_tokens_shown++)
            if (s->tokens[i] != s->end)
                show_token(p, s->tokens[i]);
        if (!s->is_done)
            break;
        putchar('\n');
        p->n_shown++;
        p->n_tokens_shown = 0;
    }
    if (fflush(stdout) != 0 || ferror(stdout))
        fail("the answers cannot be written");
}

static void report(const program_t *p, int32_t n_pages) {
    const engine_counts_t *c = engine_counts(p->engine);
    if (c->steps == 0)
        return;
    fprintf(stderr,
            "%" PRId64 " steps, %.2f ms each, of which attention has %.0f %% (%s)\n"
            "%" PRId64 " tokens, %.1f per second; %" PRId64 " more had their pages already\n"
            "%" PRId32 " of %" PRId32 " pages of %d tokens in use at most, %" PRId64
            " times given back\n",
            c->steps, 1e3 * c->seconds / (double)c->steps, 100 * c->attention_seconds / c->seconds,
            c->kernel, c->tokens, (double)c->tokens / c->seconds, c->shared_tokens, c->most_pages,
            n_pages, 16, c->preemptions);
}

/* ---- The program ---- */

static int number(int argc, char **argv, int place, const char *name, int otherwise) {
    char *end;
    if (place >= argc)
        return otherwise;
    const long value = strtol(argv[place], &end, 10);
    if (*end != '\0' || value < 1 || value > 1000000)
        fail("%s is %s: not a number from 1 to 1000000", name, argv[place]);
    return (int)value;
}

int main(int argc, char **argv) {
    static program_t p;
    const char *device_name = device_argument(&argc, &argv);
    if (argc < 2 || argc > 5)
        fail("usage: engine [--device cpu|cuda] MODEL.gguf [TOKENS [THREADS [PAGES]]]");
    p.most_new = number(argc, argv, 2, "TOKENS", 128);
    const int n_threads = number(argc, argv, 3, "THREADS", flash_num_threads());
    const limits_t limits = {.n_pages = number(argc, argv, 4, "PAGES", 1024),
                             .cache_dtype = FLASH_DTYPE_FP16,
                             .most_running = 16,
                             .most_tokens = 256};
    device_t *device = device_open(device_name, n_threads);
    gguf_t *file = gguf_open(argv[1]);
    tokenizer_t *tokenizer = tokenizer_make(file);
    model_t *model = model_read(file, tokenizer_count(tokenizer));
    p.tokenizer = tokenizer;
    p.engine = engine_make(model, device, &limits, NULL, NULL);
    bool busy = false;
    do {
        read_questions(&p, !busy);
        busy = engine_step(p.engine);
        show(&p);
    } while (busy || !p.input_ended);
    report(&p, limits.n_pages);
    engine_free(p.engine);
    device->close(device);
    model_free(model);
    tokenizer_free(tokenizer);
    gguf_close(file);
    return EXIT_SUCCESS;
}
