/* The real driver behind the shim: found, loaded once, its functions by index of hooks.def. */
#ifndef GPULOOM_DRIVER_H
#define GPULOOM_DRIVER_H

#include "abi.h"

#include <stdatomic.h>
#include <stdbool.h>

#define HOOK(name, parameters, arguments, family) HOOK_##name,
enum gls_hook {
#include "hooks.def"
    HOOK_COUNT
};
#undef HOOK

/* Functions that the shim calls for itself; any may be NULL. */
struct gls_own {
    CUresult (*context)(CUcontext *context);
    CUresult (*device)(CUdevice *device);
    CUresult (*uuid)(CUuuid *uuid, CUdevice device);
    CUresult (*attribute)(int *value, CUdevice_attribute attribute, CUdevice device);
    CUresult (*function_name)(const char **name, CUfunction f);
    CUresult (*kernel_name)(const char **name, CUkernel kernel);
    CUresult (*occupancy)(int *blocks, CUfunction f, int threads, size_t shared);
    CUresult (*capturing)(CUstream stream, CUstreamCaptureStatus *status);
    CUresult (*event_create)(CUevent *event, unsigned flags);
    CUresult (*event_elapsed)(float *ms, CUevent start, CUevent end);
    CUresult (*primary_state)(CUdevice device, unsigned *flags, int *active);
};

extern _Atomic(void *) gls_real[HOOK_COUNT];
extern struct gls_own gls_own;

/* Load the real driver on the first call. False: there is none. */
bool gls_driver(void);
/* Whether kernels of several programs run on the GPU at the same time: the program is a client of MPS, by its pipes. */
bool gls_overlaps(void);
/* Which hook has this address in the real driver, or -1. */
int gls_hook_of(const void *address);
/* Which hook a name of cuGetProcAddress means, or -1: none, or one of several forms that take other arguments. The
 * address is what its wrapper goes on to, where the driver exports no such symbol. per_thread: default streams are. */
int gls_hook_named(const char *symbol, bool per_thread, void *address);

#endif
