/*
 * This file checks the boundaries of ragged batches.
 */
#include "arguments/lengths.h"

#include "core/status.h"
#include "kernels/common/sequence.h"

#include <inttypes.h>

flash_status_t lengths_check_cu_seqlens(const char *name, const int32_t *cu_seqlens, int32_t batch,
                                        int32_t seqlen, int64_t *total) {
    int32_t last = flash_load_length(cu_seqlens, 0);
    FLASH_REQUIRE(last == 0, FLASH_ERROR_INVALID_ARGUMENT, "%s[0] is %" PRId32 ": not 0", name,
                  last);
    for (int32_t b = 0; b < batch; b++) {
        const int32_t next = flash_load_length(cu_seqlens, (int64_t)b + 1);
        FLASH_REQUIRE(next >= last, FLASH_ERROR_INVALID_ARGUMENT,
                      "%s[%" PRId32 "] is %" PRId32 ": below the %" PRId32 " before it", name,
                      b + 1, next, last);
        FLASH_REQUIRE(next - last <= seqlen, FLASH_ERROR_INVALID_ARGUMENT,
                      "%s[%" PRId32 "] - %s[%" PRId32 "] is %" PRId32 ": longer than %" PRId32
                      ", the call's bound",
                      name, b + 1, name, b, next - last, seqlen);
        last = next;
    }
    *total = last;
    return FLASH_SUCCESS;
}
