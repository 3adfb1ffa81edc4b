// What the benchmarks share.
#ifndef FLASH_BENCHMARKS_CEILINGS_H
#define FLASH_BENCHMARKS_CEILINGS_H

#include "flashattn.h"

#include <cstdint>

// Whether the processor has the instruction set (FLASH_ISA_...). Asking makes AMX usable.
bool machine_has(std::uint32_t isa);

#endif
