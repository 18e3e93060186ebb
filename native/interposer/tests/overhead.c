/* What a launch costs through the shim and without it, in one run: overhead BATCHES PER_BATCH
 *
 * Prints key=value: median ns per launch, unhooked (the fake driver's function itself) and hooked, batches of both taken
 * in turns. The fake driver's launches must be empty: FAKE_NULL=1. */
#define _GNU_SOURCE
#include "../abi.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

extern CUresult cuInit(unsigned), cuDeviceGet(CUdevice *, int), cuCtxCreate_v2(CUcontext *, unsigned, CUdevice),
    cuModuleLoadData(CUmodule *, const void *), cuModuleGetFunction(CUfunction *, CUmodule, const char *),
    cuLaunchKernel P_LAUNCH, cuCtxSynchronize(void);

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double batch(CUresult(*launch) P_LAUNCH, CUfunction *f, int n) {
    void *params[] = {NULL};
    double from = now();
    for (int i = 0; i < n; i++) launch(f[i & 15], 64, 1, 1, 128, 1, 1, 0, NULL, params, NULL);
    return (now() - from) / n;
}

int main(int argc, char **argv) {
    int batches = argc > 1 ? atoi(argv[1]) : 200, n = argc > 2 ? atoi(argv[2]) : 1000;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((unsigned)sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
    void *driver = dlopen(getenv("GPULOOM_SHARE_DRIVER"), RTLD_NOW | RTLD_LOCAL);
    if (!driver || !getenv("FAKE_NULL")) return 2;
    void *found = dlsym(driver, "cuLaunchKernel");
    CUresult(*unhooked) P_LAUNCH;
    memcpy(&unhooked, &found, sizeof found);
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction f[16];
    if (cuInit(0) || cuDeviceGet(&device, 0) || cuCtxCreate_v2(&context, 0, device) || cuModuleLoadData(&module, ""))
        return 3;
    for (int i = 0; i < 16; i++) {
        char name[32];
        snprintf(name, sizeof name, "k%d?ns=1000", i);
        if (cuModuleGetFunction(&f[i], module, name)) return 3;
    }
    double *plain = calloc((size_t)batches, sizeof *plain), *hooked = calloc((size_t)batches, sizeof *hooked);
    for (int i = -20; i < batches; i++) {
        double a = batch(unhooked, f, n), b = batch(cuLaunchKernel, f, n);
        if (i < 0) continue;
        plain[i] = a;
        hooked[i] = b;
    }
    qsort(plain, (size_t)batches, sizeof *plain, order);
    qsort(hooked, (size_t)batches, sizeof *hooked, order);
    printf("unhooked_ns=%.2f hooked_ns=%.2f extra_ns=%.2f same=%d\n", plain[batches / 2], hooked[batches / 2],
           hooked[batches / 2] - plain[batches / 2], (void *)unhooked == (void *)cuLaunchKernel);
    return 0;
}
