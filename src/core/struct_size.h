/*
 * Structs between libraries and callers of different age: see "Growth" in flashattn.h.
 */
#ifndef FLASH_STRUCT_SIZE_H
#define FLASH_STRUCT_SIZE_H

#include "flashattn.h"

/*
 * Copies a caller's struct into ours[0 ... size). Fields that the caller lacks become zero; fields
 * that we lack must be zero. ours->struct_size becomes size. A caller's size that is no multiple of
 * the alignment would end within a field, and is refused. `type` is the name in messages.
 */
flash_status_t struct_read(void *ours, size_t size, size_t alignment, const void *theirs,
                           const char *type);

#define STRUCT_READ(type, ours, theirs)                                                            \
    struct_read(ours, sizeof(type), _Alignof(type), theirs, #type)

/* Fills a caller's struct up to its own struct_size, which does not change. Returns UNSUPPORTED
 * where a field that is not zero would not fit. */
flash_status_t struct_write(const void *ours, size_t size, void *theirs, const char *type);

/* Does the same for facts, of which those that would not fit are left out. */
flash_status_t struct_write_facts(const void *ours, size_t size, void *theirs, const char *type);

#endif
