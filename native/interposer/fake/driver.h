/* What the parts of the fake driver share. */
#ifndef FAKE_DRIVER_H
#define FAKE_DRIVER_H

#include "../abi.h"
#include "device.h"

#include <stdatomic.h>

#define API __attribute__((visibility("default"))) CUresult
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

struct CUctx_st {
    int device;
    _Atomic int kept;      /* as the primary context: by how many */
    _Atomic unsigned life; /* counts its ends */
};
struct CUfunc_st {
    uint32_t magic;
    char name[512];
    double ns, compute, dram;
    unsigned per_sm;
};

extern _Thread_local struct CUctx_st *fake_current;
extern _Atomic bool fake_initialised;
#define NEED_CONTEXT                                                                                                \
    if (!atomic_load(&fake_initialised)) return CUDA_ERROR_NOT_INITIALIZED;                                         \
    if (!fake_current) return CUDA_ERROR_INVALID_CONTEXT

API cuModuleLoadData(CUmodule *module, const void *image);
API cuModuleGetFunction P_GET_FUNCTION;
/* The function behind a handle of a function or a kernel; NULL: neither. */
struct CUfunc_st *fake_function(CUfunction f);

#endif
