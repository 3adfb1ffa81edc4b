/*
 * What the processor itself offers, in a library that emulates AMX.
 */
#ifndef FLASH_TESTS_AMX_PROCESSOR_H
#define FLASH_TESTS_AMX_PROCESSOR_H

#include <stdbool.h>

/* AMX, permitted by the system. */
bool processor_has_amx(void);

#endif
