/*
 * The processor's own AMX, in a library that emulates AMX.
 */
#ifndef FLASH_TOOLS_AMX_PROCESSOR_H
#define FLASH_TOOLS_AMX_PROCESSOR_H

#include <stdbool.h>

/* Says whether the processor has AMX and the system permits it. */
bool processor_has_amx(void);

#endif
