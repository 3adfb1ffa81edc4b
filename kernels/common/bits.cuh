/*
 * This file takes the bits of an element as an unsigned integer, for code that moves elements
 * without computing.
 */
#ifndef FLASH_KERNELS_COMMON_BITS_CUH
#define FLASH_KERNELS_COMMON_BITS_CUH

#include <stdint.h>

template <int BYTES> struct unsigned_of_size;
template <> struct unsigned_of_size<1> { typedef uint8_t type; };
template <> struct unsigned_of_size<2> { typedef uint16_t type; };

template <int BYTES> using bits_of = typename unsigned_of_size<BYTES>::type;

#endif
