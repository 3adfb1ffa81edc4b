/*
 * This file is included before an AMX kernel, and replaces the tile intrinsics by the emulation.
 */
#ifndef FLASH_TOOLS_AMX_INTRINSICS_H
#define FLASH_TOOLS_AMX_INTRINSICS_H

#include "tiles.h"

#include <immintrin.h>

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_dpbf16ps

#define _tile_loadconfig(config)               emulated_tile_loadconfig(config)
#define _tile_release()                        emulated_tile_release()
#define _tile_zero(tile)                       emulated_tile_zero(tile)
#define _tile_loadd(tile, from, stride)        emulated_tile_loadd(tile, from, stride)
#define _tile_stream_loadd(tile, from, stride) emulated_tile_loadd(tile, from, stride)
#define _tile_stored(tile, to, stride)         emulated_tile_stored(tile, to, stride)
#define _tile_dpbf16ps(result, left, right)    emulated_tile_dpbf16ps(result, left, right)

#endif
