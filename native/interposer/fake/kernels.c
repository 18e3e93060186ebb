/* Modules, libraries and kernels of the fake driver: a kernel is described by its name (fake.c). */
#define _GNU_SOURCE
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CUkern_st {
    uint32_t magic;
    struct CUfunc_st *function;
};
struct CUmod_st {
    int unused;
};
#define FUNCTION 0x434e5546u
#define KERNEL 0x4e52454bu

static double value_of(const char *name, const char *key, double otherwise) {
    char wanted[32];
    snprintf(wanted, sizeof wanted, "%s=", key);
    const char *at = strchr(name, '?');
    at = at ? strstr(at, wanted) : NULL;
    return at ? atof(at + strlen(wanted)) : otherwise;
}

static struct CUfunc_st *make_function(const char *name) {
    struct CUfunc_st *f = calloc(1, sizeof *f);
    f->magic = FUNCTION;
    snprintf(f->name, sizeof f->name, "%s", name);
    f->ns = value_of(name, "ns", 10000);
    f->per_sm = (unsigned)value_of(name, "per_sm", 1);
    f->compute = value_of(name, "compute", 0.3);
    f->dram = value_of(name, "dram", 0.3);
    return f;
}

API cuModuleLoadData(CUmodule *module, const void *image) {
    (void)image;
    NEED_CONTEXT;
    return *module = calloc(1, sizeof **module), CUDA_SUCCESS;
}
API cuModuleUnload(CUmodule module) { return free(module), CUDA_SUCCESS; }
API cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    if (!module || !name) return CUDA_ERROR_INVALID_HANDLE;
    if (strncmp(name, "missing", 7) == 0) return CUDA_ERROR_NOT_FOUND;
    return *function = make_function(name), CUDA_SUCCESS;
}
API cuLibraryLoadData(CUlibrary *library, const void *code, void *a, void **b, unsigned c, void *d, void **e,
                      unsigned g) {
    (void)code, (void)a, (void)b, (void)c, (void)d, (void)e, (void)g;
    return *library = calloc(1, 8), CUDA_SUCCESS;
}
API cuLibraryUnload(CUlibrary library) { return free(library), CUDA_SUCCESS; }
API cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    (void)library;
    *kernel = calloc(1, sizeof **kernel);
    (*kernel)->magic = KERNEL;
    (*kernel)->function = make_function(name);
    return CUDA_SUCCESS;
}
API cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    return *function = kernel->function, CUDA_SUCCESS;
}
API cuFuncGetName(const char **name, CUfunction f) {
    if (f->magic != FUNCTION) abort(); /* the real driver need not notice either */
    return *name = f->name, CUDA_SUCCESS;
}
API cuKernelGetName(const char **name, CUkernel kernel) {
    if (kernel->magic != KERNEL) abort();
    return *name = kernel->function->name, CUDA_SUCCESS;
}

struct CUfunc_st *fake_function(CUfunction f) {
    if (f && f->magic == FUNCTION) return f;
    return f && f->magic == KERNEL ? ((struct CUkern_st *)(void *)f)->function : NULL;
}

API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction f, int threads, size_t shared) {
    (void)threads, (void)shared;
    struct CUfunc_st *function = fake_function(f);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    return *blocks = (int)function->per_sm, CUDA_SUCCESS;
}
