/*
 * See device.h.
 */
#include "device.h"
#include "support.h"

#include <string.h>

const char *device_argument(int *argc, char ***argv) {
    char **arguments = *argv;
    if (*argc < 2 || strcmp(arguments[1], "--device") != 0)
        return "cpu";
    if (*argc < 3)
        fail("--device is the last argument: it needs a name");
    *argc -= 2;
    *argv += 2;
    return arguments[2];
}

device_t *device_open(const char *name, int n_threads) {
    if (strcmp(name, "cpu") == 0)
        return device_cpu(n_threads);
#ifdef ENGINE_CUDA
    if (strcmp(name, "cuda") == 0)
        return device_cuda();
    fail("the device is %s: it can be cpu or cuda", name);
#else
    fail("the device is %s: this program was compiled for cpu alone", name);
#endif
}
