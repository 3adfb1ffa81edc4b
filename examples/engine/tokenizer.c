/*
 * See tokenizer.h. In the file a token is written in printable characters: each byte is a character
 * of its own, byte_character(), in UTF-8.
 */
#include "tokenizer.h"
#include "support.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 256 };

/* Two tokens that lie side by side become one; the first of the file's merges come first. */
typedef struct merge {
    int32_t first, second; /* first -1: no merge is here */
    int32_t rank, merged;
} merge_t;

struct tokenizer {
    text_t *names;   /* of tokens */
    int32_t *places; /* hash table of tokens by name; -1: none */
    merge_t *merges; /* hash table by first and second */
    size_t n_tokens, n_places, n_merges;
    int32_t of_byte[256];
};

/* ---- Tables ---- */

static uint64_t hash(const void *bytes, size_t size) {
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    for (size_t i = 0; i < size; i++)
        h = (h ^ ((const unsigned char *)bytes)[i]) * 1099511628211u;
    return h ^ h >> 29;
}

/* Returns where a name is in the table, or the empty place that it would take. */
static int32_t *place_of(const tokenizer_t *t, text_t name) {
    uint64_t i = hash(name.bytes, name.size);
    for (;; i++) {
        int32_t *place = &t->places[i % t->n_places];
        if (*place < 0 || (t->names[*place].size == name.size &&
                           memcmp(t->names[*place].bytes, name.bytes, name.size) == 0))
            return place;
    }
}

static merge_t *merge_of(const tokenizer_t *t, int32_t first, int32_t second) {
    const int32_t pair[2] = {first, second};
    uint64_t i = hash(pair, sizeof pair);
    for (;; i++) {
        merge_t *merge = &t->merges[i % t->n_merges];
        if (merge->first < 0 || (merge->first == first && merge->second == second))
            return merge;
    }
}

static int32_t token_of(const tokenizer_t *t, text_t name) {
    const int32_t token = *place_of(t, name);
    if (token < 0)
        fail("the model has no token %.*s", SHOWN(name));
    return token;
}

int32_t tokenizer_named(const tokenizer_t *t, const char *name) {
    return token_of(t, (text_t){name, strlen(name)});
}

/* ---- Bytes and characters ---- */

static int is_printable(int byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
}

/* Returns the character of a byte: itself if it is printable, else one from 256 on. */
static int byte_character(int byte) {
    int n_before = 0;
    for (int i = 0; i < byte; i++)
        n_before += !is_printable(i);
    return is_printable(byte) ? byte : 256 + n_before;
}

static text_t byte_name(int byte, char utf8[2]) {
    const int c = byte_character(byte);
    utf8[0] = (char)(c < 0x80 ? c : 0xc0 | c >> 6);
    utf8[1] = (char)(0x80 | (c & 0x3f));
    return (text_t){utf8, c < 0x80 ? 1 : 2};
}

size_t tokenizer_decode(const tokenizer_t *t, int32_t token, char *bytes) {
    const text_t name = t->names[token];
    size_t count = 0;
    for (size_t at = 0; at < name.size && count < MOST_BYTES;) {
        char utf8[2];
        int byte = 0;
        text_t one = byte_name(byte, utf8);
        while (byte < 255 &&
               (one.size > name.size - at || memcmp(one.bytes, name.bytes + at, one.size)))
            one = byte_name(++byte, utf8);
        bytes[count++] = (char)byte;
        at += one.size;
    }
    return count;
}

/* ---- From the file ---- */

static void add_tokens(tokenizer_t *t, const gguf_t *file) {
    t->names = gguf_texts(file, "tokenizer.ggml.tokens", &t->n_tokens);
    t->n_places = 2 * t->n_tokens + 1;
    t->places = allocate(t->n_places, sizeof *t->places);
    memset(t->places, -1, t->n_places * sizeof *t->places);
    for (size_t i = 0; i < t->n_tokens; i++)
        *place_of(t, t->names[i]) = (int32_t)i;
    for (int byte = 0; byte < 256; byte++) {
        char utf8[2];
        t->of_byte[byte] = *place_of(t, byte_name(byte, utf8));
    }
}

/* A merge is written as both tokens, with a blank between them. */
static void add_merge(tokenizer_t *t, text_t text, int32_t rank) {
    char merged[2 * MOST_BYTES];
    const char *blank = text.size < 3 ? NULL : memchr(text.bytes + 1, ' ', text.size - 1);
    if (text.size > sizeof merged || blank == NULL)
        fail("the model merges \"%.*s\"", SHOWN(text));
    const text_t first = {text.bytes, (size_t)(blank - text.bytes)};
    const text_t second = {blank + 1, text.size - first.size - 1};
    memcpy(merged, first.bytes, first.size);
    memcpy(merged + first.size, second.bytes, second.size);
    const int32_t a = token_of(t, first), b = token_of(t, second);
    *merge_of(t, a, b) = (merge_t){a, b, rank, token_of(t, (text_t){merged, text.size - 1})};
}

static void check_kind(const gguf_t *file) {
    const text_t model = gguf_text(file, "tokenizer.ggml.model");
    const text_t pre = gguf_text(file, "tokenizer.ggml.pre");
    if (!text_is(model, "gpt2") || !text_is(pre, "smollm"))
        fail("the tokenizer is %.*s, %.*s: gpt2, smollm is what is here", SHOWN(model), SHOWN(pre));
}

tokenizer_t *tokenizer_make(const gguf_t *file) {
    tokenizer_t *t = allocate(1, sizeof *t);
    size_t count;
    check_kind(file);
    add_tokens(t, file);
    text_t *merges = gguf_texts(file, "tokenizer.ggml.merges", &count);
    t->n_merges = 2 * count + 1;
    t->merges = allocate(t->n_merges, sizeof *t->merges);
    for (size_t i = 0; i < t->n_merges; i++)
        t->merges[i].first = -1;
    for (size_t i = 0; i < count; i++)
        add_merge(t, merges[i], (int32_t)i);
    free(merges);
    return t;
}

void tokenizer_free(tokenizer_t *t) {
    free(t->names);
    free(t->places);
    free(t->merges);
    free(t);
}

int32_t tokenizer_count(const tokenizer_t *t) {
    return (int32_t)t->n_tokens;
}

/* ---- Pieces of a text ---- */

typedef enum kind { END, SPACE, DIGIT, LETTER, SIGN } kind_t;

static kind_t kind_of(char c) {
    const unsigned char byte = (unsigned char)c;
    return byte == 0                       ? END
           : isspace(byte)                 ? SPACE
           : isdigit(byte)                 ? DIGIT
           : byte >= 0x80 || isalpha(byte) ? LETTER
                                           : SIGN;
}

static size_t run_of(const char *text, kind_t kind) {
    size_t size = 0;
    while (kind_of(text[size]) == kind)
        size++;
    return size;
}

static size_t contraction(const char *text) {
    static const char *const ENDINGS[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    for (size_t i = 0; i < sizeof ENDINGS / sizeof ENDINGS[0]; i++)
        if (strncmp(text, ENDINGS[i], strlen(ENDINGS[i])) == 0)
            return strlen(ENDINGS[i]);
    return 0;
}

/* A piece is a digit, an ending, a word or signs with a blank before them, or blanks: of several
 * before a word or signs all but the last. */
static size_t piece_of(const char *text) {
    const size_t blanks = run_of(text, SPACE), ending = contraction(text);
    const kind_t next = kind_of(text[blanks]);
    if (blanks == 0)
        return next == DIGIT ? 1 : ending > 0 ? ending : run_of(text, next);
    if (next == END || next == DIGIT)
        return blanks;
    if (blanks > 1)
        return blanks - 1;
    return text[0] == ' ' ? 1 + run_of(text + 1, next) : 1;
}

/* Merges the tokens of a piece; returns how many are left. */
static int merge_all(const tokenizer_t *t, int32_t *tokens, int count) {
    for (;;) {
        const merge_t *best = NULL;
        int at = 0;
        for (int i = 0; i + 1 < count; i++) {
            const merge_t *merge = merge_of(t, tokens[i], tokens[i + 1]);
            if (merge->first >= 0 && (best == NULL || merge->rank < best->rank)) {
                best = merge;
                at = i;
            }
        }
        if (best == NULL)
            return count;
        tokens[at] = best->merged;
        count--;
        memmove(tokens + at + 1, tokens + at + 2, (size_t)(count - at - 1) * sizeof *tokens);
    }
}

/* Writes the tokens of a piece; returns how many. A byte that the model has no token for is left
 * out. */
static int encode_piece(const tokenizer_t *t, const char *piece, size_t size, int32_t *tokens) {
    int count = 0;
    for (size_t i = 0; i < size; i++) {
        const int32_t token = t->of_byte[(unsigned char)piece[i]];
        if (token >= 0)
            tokens[count++] = token;
    }
    return merge_all(t, tokens, count);
}

void tokenizer_encode(const tokenizer_t *t, const char *text, int32_t *tokens, int *count) {
    while (*text != '\0') {
        const size_t size = piece_of(text);
        *count += encode_piece(t, text, size, tokens + *count);
        text += size;
    }
}
