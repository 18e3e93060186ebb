/* What a program can do at the corners of the driver API: corners COMMAND [arguments…]
 *
 * Prints one line of key=value pairs. */
#define _GNU_SOURCE
#include "../abi.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(call)                                                                                                 \
    do {                                                                                                            \
        CUresult result_ = (call);                                                                                  \
        if (result_ != CUDA_SUCCESS) {                                                                              \
            printf("error=%d at=%s:%d\n", result_, #call, __LINE__);                                                \
            exit(3);                                                                                                \
        }                                                                                                           \
    } while (0)

extern CUresult cuInit(unsigned), cuDeviceGet(CUdevice *, int), cuCtxCreate_v2(CUcontext *, unsigned, CUdevice),
    cuModuleLoadData(CUmodule *, const void *), cuModuleGetFunction P_GET_FUNCTION, cuMemAlloc_v2(CUdeviceptr *, size_t),
    cuCtxSynchronize(void), cuLaunchKernel P_LAUNCH, cuStreamSynchronize P_STREAM, cuStreamCreate(CUstream *, unsigned),
    cuEventCreate(CUevent *, unsigned), cuEventRecord P_EVENT_RECORD, cuEventSynchronize P_EVENT,
    cuLibraryLoadData(CUlibrary *, const void *, void *, void **, unsigned, void *, void **, unsigned),
    cuLibraryGetKernel P_GET_KERNEL, cuCtxSetCurrent(CUcontext), cuDevicePrimaryCtxRetain P_PRIMARY,
    cuDevicePrimaryCtxRelease_v2 P_DEVICE, cuDevicePrimaryCtxReset_v2 P_DEVICE, cuCtxDestroy_v2 P_CONTEXT,
    cuKernelGetFunction P_KERNEL_FUNCTION, cuMemcpyDtoH_v2 P_COPY_TO_HOST, cuMemcpy P_COPY, cuStreamDestroy_v2 P_STREAM;

static CUcontext context;
static CUmodule module;
static CUdeviceptr cell;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void rest(uint64_t ns) {
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    nanosleep(&t, NULL);
}

static CUfunction kernel(const char *name, double ns) {
    char text[256];
    CUfunction f;
    snprintf(text, sizeof text, "%s?ns=%.0f&per_sm=1&compute=0.9&dram=0.9", name, ns);
    CHECK(cuModuleGetFunction(&f, module, text));
    return f;
}

static void go(CUfunction f, unsigned grid, CUstream stream) {
    CHECK(cuLaunchKernel(f, grid, 1, 1, 128, 1, 1, 0, stream, NULL, NULL));
}

static double number(int argc, char **argv, int at, double otherwise) {
    return at < argc ? atof(argv[at]) : otherwise;
}

/* Many shapes of a kernel, then the last of them again and again. */
static void shapes(int n, int again) {
    CUfunction f = kernel("shape", 100);
    for (int i = 0; i < n + again; i++) {
        go(f, 1 + (unsigned)(i < n ? i : n - 1), NULL);
        if (i % 64 == 63) CHECK(cuCtxSynchronize());
    }
    CHECK(cuCtxSynchronize());
    printf("shapes=%d\n", n);
}

/* One stream is blocked for long while short requests go over another. */
static void two_streams(double blocked_ns, double for_ns) {
    CUstream blocked, other;
    CUfunction f = kernel("long", blocked_ns), g = kernel("short", 20000);
    int n = 0;
    CHECK(cuStreamCreate(&blocked, 1));
    CHECK(cuStreamCreate(&other, 1));
    for (int i = 0; i < 3; i++) go(g, 1, other);
    CHECK(cuStreamSynchronize(other));
    for (int i = 0; i < 2; i++) go(f, 1, blocked);
    for (uint64_t began = now(); (double)(now() - began) < for_ns; n++) {
        go(g, 1, other);
        CHECK(cuStreamSynchronize(other));
    }
    printf("launches=%d\n", n);
    fflush(stdout);
    _exit(0);
}

/* Contexts one after the other, each with launches that are waited for; the driver gives the next the same address. */
static void contexts(const char *kind, int n) {
    CUcontext primary;
    for (int i = 0; i < n; i++) {
        if (strcmp(kind, "own") == 0) {
            CHECK(cuCtxDestroy_v2(context));
            CHECK(cuCtxCreate_v2(&context, 0, 0));
        } else {
            CHECK(cuDevicePrimaryCtxRetain(&primary, 0));
            CHECK(cuCtxSetCurrent(primary));
        }
        CUfunction f = kernel("context", 2000);
        for (int k = 0; k < 100; k++) {
            go(f, 40, NULL);
            if (k % 10 == 9) CHECK(cuStreamSynchronize(NULL));
        }
        if (strcmp(kind, "reset") == 0) CHECK(cuDevicePrimaryCtxReset_v2(0));
        if (strcmp(kind, "release") == 0) CHECK(cuDevicePrimaryCtxRelease_v2(0));
        if (strcmp(kind, "release") == 0 && i == 0) CHECK(cuDevicePrimaryCtxRelease_v2(0)); /* main has kept it too */
    }
    printf("contexts=%d\n", n);
}

/* Requests whose end shows in a blocking copy, in the end of a stream, or not at all. */
static void waits(const char *kind, int n) {
    CUfunction f = kernel("wait", 100000);
    uint64_t copy[2];
    for (int i = 0; i < n; i++) {
        CUstream stream = NULL;
        if (strcmp(kind, "stream") == 0) CHECK(cuStreamCreate(&stream, 0));
        go(f, 80, stream);
        if (strcmp(kind, "copy") == 0) CHECK(cuMemcpyDtoH_v2(copy, cell, 8));
        if (strcmp(kind, "between") == 0) CHECK(cuMemcpy((CUdeviceptr)(uintptr_t)copy, cell, 8));
        rest(1000000);
        if (strcmp(kind, "later") == 0) CHECK(cuMemcpy((CUdeviceptr)(uintptr_t)copy, cell, 8));
        if (stream) CHECK(cuStreamDestroy_v2(stream));
        else if (strcmp(kind, "between") == 0) rest(1000000);
    }
    printf("waits=%d\n", n);
    fflush(stdout);
    _exit(0);
}

static void *launch_once(void *name) {
    CHECK(cuCtxSetCurrent(context));
    go(kernel(name, 3e8), 80, NULL);
    printf("passed=1\n");
    return NULL;
}

static void *launch_on(void *unused) {
    CHECK(cuCtxSetCurrent(context));
    for (CUfunction f = kernel("on", 1000);;) go(f, 80, NULL);
    return unused;
}

static void *launch_late(void *stream) {
    CHECK(cuCtxSetCurrent(context));
    rest(100000000);
    go(kernel("late", 1e9), 80, stream);
    return NULL;
}

int main(int argc, char **argv) {
    CUdevice device;
    if (argc < 3) return 2;
    const char *command = argv[1];
    setvbuf(stdout, NULL, _IOLBF, 0);
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    if (strcmp(command, "contexts") == 0 && strcmp(argv[2], "own") != 0) {
        CHECK(cuDevicePrimaryCtxRetain(&context, 0));
        CHECK(cuCtxSetCurrent(context));
    } else {
        CHECK(cuCtxCreate_v2(&context, 0, device));
    }
    CHECK(cuModuleLoadData(&module, "image"));
    CHECK(cuMemAlloc_v2(&cell, 8));
    if (strcmp(command, "child") == 0) { /* launches, and then its child does */
        CUfunction f = kernel("child", 1000);
        go(f, 80, NULL);
        if (fork() == 0) {
            go(f, 80, NULL);
            _exit(0);
        }
        wait(NULL);
        _exit(0);
    } else if (strcmp(command, "named") == 0) { /* asks for the function of a kernel before each launch */
        CUlibrary library;
        CUkernel k;
        CUfunction f;
        CHECK(cuLibraryLoadData(&library, "image", NULL, NULL, 0, NULL, NULL, 0));
        CHECK(cuLibraryGetKernel(&k, library, "lib?ns=1000"));
        for (int i = 0; i < (int)number(argc, argv, 2, 100); i++) {
            CHECK(cuKernelGetFunction(&f, k));
            go(f, 4, NULL);
        }
        CHECK(cuCtxSynchronize());
    } else if (strcmp(command, "shapes") == 0) {
        shapes((int)number(argc, argv, 2, 7000), (int)number(argc, argv, 3, 2000));
    } else if (strcmp(command, "streams") == 0) {
        two_streams(number(argc, argv, 2, 5e9), number(argc, argv, 3, 1e9));
    } else if (strcmp(command, "contexts") == 0) {
        contexts(argv[2], (int)number(argc, argv, 3, 3));
    } else if (strcmp(command, "waits") == 0) {
        waits(argv[2], (int)number(argc, argv, 3, 10));
    } else if (strcmp(command, "two") == 0) { /* two threads are held, the second begins later */
        pthread_t thread[2];
        for (int i = 0; i < 2; i++) {
            pthread_create(&thread[i], NULL, launch_once, i ? "second" : "first");
            rest(200000000);
        }
        for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    } else if (strcmp(command, "leave") == 0) { /* ends while a thread launches */
        pthread_t thread;
        pthread_create(&thread, NULL, launch_on, NULL);
        rest((uint64_t)number(argc, argv, 2, 50e6));
    } else if (strcmp(command, "recorded") == 0) { /* another thread launches while a record returns */
        pthread_t thread;
        CUevent event;
        CHECK(cuEventCreate(&event, 0));
        go(kernel("e", 1000), 8, NULL);
        pthread_create(&thread, NULL, launch_late, NULL);
        CHECK(cuEventRecord(event, NULL));
        CHECK(cuEventSynchronize(event));
        printf("event=1\n");
        pthread_join(thread, NULL);
        _exit(0);
    } else {
        return 2;
    }
    return 0;
}
