/*
 * The tile instructions of AMX in C: what each does to the registers of the calling thread (Intel
 * SDM volume 1, chapter 18, and volume 2, the instructions' operations). Misuse for which the
 * processor raises #UD or #GP ends the program with a message.
 */
#ifndef FLASH_TOOLS_AMX_TILES_H
#define FLASH_TOOLS_AMX_TILES_H

#include <stddef.h>
#include <stdint.h>

/* The operand of LDTILECFG. */
typedef struct emulated_tile_config {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} emulated_tile_config_t;

/* config: an emulated_tile_config_t, or a kernel's own type with that layout. */
void emulated_tile_loadconfig(const void *config);
void emulated_tile_release(void);
void emulated_tile_zero(int tile);
void emulated_tile_loadd(int tile, const void *from, ptrdiff_t stride);
void emulated_tile_stored(int tile, void *to, ptrdiff_t stride);

/* Computes result += left * right, with pairs of bf16. */
void emulated_tile_dpbf16ps(int result, int left, int right);

#endif
