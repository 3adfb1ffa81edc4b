/*
 * A measured result is written as a line, which parse.c reads: the key's fields in their order, the
 * time, and the short form of the kernel's configuration.
 *
 *   cc=90 sms=132 dtype=BF16 d_head=128 features=none q=512 k=512 heads=16 ns=155020: (BF16, ...
 *
 * An operation other than the forward pass stands before dtype, as in "op=...". Sizes are written
 * as the power of two to which they were rounded. All numbers are integers,
 * because the C library writes and reads others by the process's locale.
 */
#include "select/tuning/format.h"

#include "config/config.h"
#include "config/kernel_table.h"
#include "config/words.h"
#include "core/status.h"
#include "core/text_writer.h"

#include <inttypes.h>

static void put_features(text_writer_t *w, int32_t features) {
    w->separator = " features=";
    if (features == 0)
        text_put_word(w, "none");
    words_put_features(w, features);
}

static void put_key(text_writer_t *w, const tuning_key_t *key) {
    const int32_t *f = key->fields;
    text_put(w, "cc=%" PRId32 " sms=%" PRId32, f[TUNING_COMPUTE_CAPABILITY],
             f[TUNING_MULTIPROCESSORS]);
    if (f[TUNING_OP] != FLASH_OP_FORWARD)
        text_put(w, " op=%s", words_op(f[TUNING_OP]));
    text_put(w, " dtype=%s d_head=%" PRId32, config_dtype_name(f[TUNING_DTYPE]), f[TUNING_D_HEAD]);
    put_features(w, f[TUNING_FEATURES]);
    text_put(w, " q=%" PRId64 " k=%" PRId64 " heads=%" PRId64, (int64_t)1 << f[TUNING_LOG2_Q],
             (int64_t)1 << f[TUNING_LOG2_K], (int64_t)1 << f[TUNING_LOG2_HEADS]);
}

flash_status_t tuning_write(const tuning_row_t *row, char *text, size_t size) {
    text_writer_t w = {.length = 0};
    char config[FLASH_CONFIG_TEXT_SIZE];
    FLASH_TRY(flash_config_format(&row->kernel->config, config, sizeof config));
    put_key(&w, &row->key);
    text_put(&w, " ns=%" PRId64 ": %s", row->nanoseconds, config);
    return text_copy(&w, "the line", text, size);
}
