/*
 * Structs are copied by their struct_size, which says how old their side of the interface is.
 */
#include "core/struct_size.h"

#include "core/status.h"

#include <stdbool.h>
#include <string.h>

enum {
    STRUCT_SIZE_CAP = 4096, /* no struct of this interface will ever be larger */
    STRUCT_SIZE_STEP = 4    /* the smallest field */
};

static bool is_zero(const char *bytes, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (bytes[i] != 0)
            return false;
    return true;
}

static flash_status_t check_size(const void *theirs, uint32_t step, const char *type,
                                 uint32_t *their_size) {
    FLASH_REQUIRE(theirs != NULL, FLASH_ERROR_INVALID_ARGUMENT, "the %s is NULL", type);
    memcpy(their_size, theirs, sizeof *their_size);
    FLASH_REQUIRE(*their_size != 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "%s.struct_size is 0: initialise the struct with its ..._INIT macro", type);
    FLASH_REQUIRE(*their_size % step == 0 && *their_size <= STRUCT_SIZE_CAP,
                  FLASH_ERROR_INVALID_ARGUMENT,
                  "%s.struct_size is %u: not a multiple of %u up to %d", type, *their_size, step,
                  STRUCT_SIZE_CAP);
    return FLASH_SUCCESS;
}

flash_status_t struct_read(void *ours, size_t size, size_t alignment, const void *theirs,
                           const char *type) {
    uint32_t their_size = 0;
    FLASH_TRY(check_size(theirs, (uint32_t)alignment, type, &their_size));
    if (their_size > size)
        FLASH_REQUIRE(is_zero((const char *)theirs + size, their_size - size),
                      FLASH_ERROR_UNSUPPORTED,
                      "%s.struct_size is %u, this library knows %zu bytes, and a field beyond them "
                      "is not zero: the caller's header is newer than the library",
                      type, their_size, size);

    const size_t common = their_size < size ? their_size : size;
    const uint32_t our_size = (uint32_t)size;
    memset(ours, 0, size);
    memcpy(ours, theirs, common);
    memcpy(ours, &our_size, sizeof our_size);
    return FLASH_SUCCESS;
}

static void fill(const void *ours, size_t size, void *theirs, uint32_t their_size) {
    const size_t header = sizeof their_size;
    const size_t common = their_size < size ? their_size : size;
    memset((char *)theirs + header, 0, their_size - header);
    memcpy((char *)theirs + header, (const char *)ours + header, common - header);
}

flash_status_t struct_write(const void *ours, size_t size, void *theirs, const char *type) {
    uint32_t their_size = 0;
    FLASH_TRY(check_size(theirs, STRUCT_SIZE_STEP, type, &their_size));
    if (their_size < size)
        FLASH_REQUIRE(
            is_zero((const char *)ours + their_size, size - their_size), FLASH_ERROR_UNSUPPORTED,
            "%s.struct_size is %u, and a field beyond it is not zero: the caller's header "
            "is older than the library",
            type, their_size);
    fill(ours, size, theirs, their_size);
    return FLASH_SUCCESS;
}

flash_status_t struct_write_facts(const void *ours, size_t size, void *theirs, const char *type) {
    uint32_t their_size = 0;
    FLASH_TRY(check_size(theirs, STRUCT_SIZE_STEP, type, &their_size));
    fill(ours, size, theirs, their_size);
    return FLASH_SUCCESS;
}
