/* What a program may allocate under a bound (GPULOOM_SHARE_MEMORY_MIB): memory STEP…
 *
 *   alloc|managed|async|pool|create|host NAME MIB     pitch NAME WIDTH-KIB ROWS     free NAME     release NAME
 *   wrong            free what is nobody's            info     what the driver says, MiB
 *   context          end the context and make another one       many COUNT     as many allocations of 4 KiB, and free them
 *   threads COUNT    as many threads that allocate and free 1 MiB again and again
 *
 * Prints a line for each step: its result, or two numbers. */
#define _GNU_SOURCE
#include "../abi.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern CUresult cuInit(unsigned), cuDeviceGet(CUdevice *, int), cuCtxCreate_v2(CUcontext *, unsigned, CUdevice),
    cuCtxDestroy_v2 P_CONTEXT, cuCtxSetCurrent(CUcontext), cuMemAlloc_v2 P_MEM_ALLOC, cuMemAllocManaged P_MEM_MANAGED,
    cuMemAllocPitch_v2 P_MEM_PITCH, cuMemAllocAsync P_MEM_ASYNC, cuMemAllocFromPoolAsync P_MEM_POOL,
    cuMemCreate P_MEM_CREATE, cuMemFree_v2 P_MEM_FREE, cuMemFreeAsync P_MEM_FREE_ASYNC, cuMemRelease P_MEM_RELEASE,
    cuMemGetInfo_v2 P_MEM_INFO, cuGetProcAddress_v2 P_PROC_2, cuLaunchKernel P_LAUNCH;

#define MIB ((size_t)1 << 20)
static CUcontext context;
static CUdeviceptr places[256];

static void begin(void) {
    CUdevice device;
    if (cuInit(0) || cuDeviceGet(&device, 0) || cuCtxCreate_v2(&context, 0, device)) exit(3);
}

static void *allocates(void *unused) {
    (void)unused;
    CUdeviceptr at;
    cuCtxSetCurrent(context);
    for (int i = 0; i < 500; i++)
        if (cuMemAlloc_v2(&at, MIB) == CUDA_SUCCESS && cuMemFree_v2(at) != CUDA_SUCCESS) exit(4);
    return NULL;
}

int main(int argc, char **argv) {
    begin();
    for (int i = 1; i < argc; i++) {
        const char *what = argv[i];
        int result = -1;
#define NAME (&places[(unsigned char)argv[++i][0]])
#define SIZE ((size_t)(atof(argv[++i]) * (double)MIB))
        if (!strcmp(what, "info")) {
            size_t left, total;
            result = cuMemGetInfo_v2(&left, &total);
            printf("%zu %zu\n", left / MIB, total / MIB);
            if (result == CUDA_SUCCESS) continue;
        } else if (!strcmp(what, "context")) {
            result = cuCtxDestroy_v2(context);
            begin();
        } else if (!strcmp(what, "many")) {
            int count = atoi(argv[++i]);
            CUdeviceptr *all = calloc((size_t)count, sizeof *all);
            for (int round = result = 0; round < 2; round++) {
                for (int n = 0; n < count; n++) result |= cuMemAlloc_v2(&all[n], 4096);
                for (int n = 0; n < count; n++) result |= cuMemFree_v2(all[(n * 7 + 3) % count]);
            }
            free(all);
        } else if (!strcmp(what, "threads")) {
            pthread_t all[64];
            int count = atoi(argv[++i]);
            for (int n = 0; n < count; n++) pthread_create(&all[n], NULL, allocates, NULL);
            for (int n = 0; n < count; n++) pthread_join(all[n], NULL);
            result = 0;
        } else if (!strcmp(what, "by-name")) { /* as NVIDIA's runtime finds it */
            CUresult(*found) P_MEM_ALLOC;
            void *address;
            if (cuGetProcAddress_v2("cuMemAlloc", &address, 12000, 0, NULL) != CUDA_SUCCESS) exit(5);
            memcpy(&found, &address, sizeof found);
            CUdeviceptr *at = NAME;
            result = found(at, SIZE);
        } else if (!strcmp(what, "wrong")) {
            result = cuMemFree_v2(1);
        } else if (!strcmp(what, "free")) {
            result = cuMemFree_v2(*NAME);
        } else if (!strcmp(what, "free-async")) {
            result = cuMemFreeAsync(*NAME, NULL);
        } else if (!strcmp(what, "release")) {
            result = cuMemRelease(*NAME);
        } else if (!strcmp(what, "pitch")) {
            CUdeviceptr *at = NAME;
            size_t pitch, width = (size_t)(atof(argv[++i]) * 1024), rows = (size_t)atoi(argv[++i]);
            result = cuMemAllocPitch_v2(at, &pitch, width, rows, 4);
        } else {
            CUdeviceptr *at = NAME;
            size_t bytes = SIZE;
            CUmemAllocationProp properties = {1, 0, {!strcmp(what, "host") ? 3 : CU_MEM_LOCATION_TYPE_DEVICE, 0}};
            if (!strcmp(what, "alloc")) result = cuMemAlloc_v2(at, bytes);
            else if (!strcmp(what, "managed")) result = cuMemAllocManaged(at, bytes, 1);
            else if (!strcmp(what, "async")) result = cuMemAllocAsync(at, bytes, NULL);
            else if (!strcmp(what, "pool")) result = cuMemAllocFromPoolAsync(at, bytes, NULL, NULL);
            else result = cuMemCreate(at, bytes, &properties, 0);
        }
        printf("%d\n", result);
    }
    return 0;
}
