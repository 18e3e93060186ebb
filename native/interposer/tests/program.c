/* A driver-API program for the tests: program LOADER COMMAND [numbers…]
 *
 * LOADER says how it comes to the driver: direct (linked), dlopen (+ dlsym), proc1 / proc2 (cuGetProcAddress and its
 * second version), ptsz (the same, per-thread default stream), or an absolute path (dlopen of that file).
 * Prints one line of key=value pairs. */
#define _GNU_SOURCE
#include "../abi.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
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

/* What is called: name, linked name, version to ask for, parameters. */
#define FUNCTIONS(X)                                                                                                \
    X(cuInit, cuInit, 2000, (unsigned))                                                                                     \
    X(cuDeviceGet, cuDeviceGet, 2000, (CUdevice *, int))                                                                         \
    X(cuCtxCreate, cuCtxCreate_v2, 3020, (CUcontext *, unsigned, CUdevice))                                                         \
    X(cuModuleLoadData, cuModuleLoadData, 2000, (CUmodule *, const void *))                                                           \
    X(cuModuleGetFunction, cuModuleGetFunction, 2000, (CUfunction *, CUmodule, const char *))                                            \
    X(cuMemAlloc, cuMemAlloc_v2, 3020, (CUdeviceptr *, size_t))                                                                    \
    X(cuCtxSynchronize, cuCtxSynchronize, 2000, (void))                                                                               \
    X(cuLaunchKernel, cuLaunchKernel, 4000, P_LAUNCH)                                                                               \
    X(cuLaunchKernelEx, cuLaunchKernelEx, 11060, P_LAUNCH_EX)                                                                         \
    X(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel, 9000, P_COOPERATIVE)                                                               \
    X(cuStreamSynchronize, cuStreamSynchronize, 2000, P_STREAM)                                                                          \
    X(cuGraphLaunch, cuGraphLaunch, 10000, P_GRAPH_LAUNCH)                                                                         \
    X(cuStreamBeginCapture, cuStreamBeginCapture_v2, 10010, P_BEGIN_CAPTURE)                                                                 \
    X(cuStreamEndCapture, cuStreamEndCapture, 10000, P_END_CAPTURE)                                                                     \
    X(cuEventRecord, cuEventRecord, 2000, P_EVENT_RECORD)
#define FIELD(name, linked, version, parameters) CUresult(*name) parameters;
static struct {
    FUNCTIONS(FIELD)
} api;

extern CUresult cuInit(unsigned), cuDeviceGet(CUdevice *, int), cuCtxCreate_v2(CUcontext *, unsigned, CUdevice),
    cuModuleLoadData(CUmodule *, const void *), cuModuleGetFunction(CUfunction *, CUmodule, const char *),
    cuMemAlloc_v2(CUdeviceptr *, size_t), cuCtxSynchronize(void), cuLaunchKernel P_LAUNCH,
    cuLaunchKernelEx P_LAUNCH_EX, cuLaunchCooperativeKernel P_COOPERATIVE, cuStreamSynchronize P_STREAM,
    cuGraphLaunch P_GRAPH_LAUNCH, cuStreamBeginCapture_v2 P_BEGIN_CAPTURE, cuStreamEndCapture P_END_CAPTURE,
    cuEventRecord P_EVENT_RECORD, cuGetProcAddress P_PROC_1, cuGetProcAddress_v2 P_PROC_2;
extern CUresult cuStreamCreate(CUstream *, unsigned), cuStreamDestroy_v2 P_STREAM, cuEventDestroy_v2 P_EVENT, cuStreamWaitEvent P_STREAM_WAIT, cuEventCreate(CUevent *, unsigned), cuEventSynchronize P_EVENT,
    cuEventQuery P_EVENT, cuStreamQuery P_STREAM, cuGraphInstantiateWithFlags(CUgraphExec *, CUgraph, uint64_t),
    cuGraphGetNodes(CUgraph, CUgraphNode *, size_t *), cuModuleUnload(CUmodule),
    cuLibraryLoadData(CUlibrary *, const void *, void *, void **, unsigned, void *, void **, unsigned),
    cuLibraryGetKernel P_GET_KERNEL, cuTexRefSetMipmapLevelClamp(void *, float, float),
    cuMemcpyPeerAsync(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream), cuArrayCreate_v2(void *, void *),
    cuCtxSetCurrent(CUcontext), cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
struct by_value {
    char bytes[64];
};
extern CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *, struct by_value, unsigned);

static void fill(const char *loader) {
    if (strcmp(loader, "direct") == 0) {
#define DIRECT(name, linked, version, parameters) api.name = linked;
        FUNCTIONS(DIRECT)
        return;
    }
    bool ptsz = strcmp(loader, "ptsz") == 0, one = strcmp(loader, "proc1") == 0;
    if (ptsz || one || strcmp(loader, "proc2") == 0) {
        void *self = NULL;
        int status = -1;
        CUresult(*proc1) P_PROC_1 = cuGetProcAddress;
        CUresult(*proc2) P_PROC_2 = cuGetProcAddress_v2;
        /* As the runtime does: the function to ask is itself asked for. */
        CHECK(cuGetProcAddress_v2("cuGetProcAddress", &self, one ? 11030 : 12000, 0, &status));
        if (one) memcpy(&proc1, &self, sizeof self);
        else memcpy(&proc2, &self, sizeof self);
#define PROC(name, linked, version, parameters)                                                                             \
    self = NULL;                                                                                                    \
    if (one) CHECK(proc1(#name, &self, version, 0));                                                                \
    else CHECK(proc2(#name, &self, version, ptsz ? 2 : 0, &status));                                                \
    memcpy(&api.name, &self, sizeof self);
        FUNCTIONS(PROC)
        return;
    }
    void *library = dlopen(strcmp(loader, "dlopen") == 0 ? "libcuda.so.1" : loader, RTLD_NOW);
    if (!library) {
        printf("error=%s\n", dlerror());
        exit(3);
    }
#define SYMBOL(name, linked, version, parameters)                                                                           \
    do {                                                                                                            \
        void *found = dlsym(library, #linked);                                                                      \
        memcpy(&api.name, &found, sizeof found);                                                                    \
    } while (0);
    FUNCTIONS(SYMBOL)
}

static void (*pass_virtual)(uint64_t);
static uint64_t (*clock_virtual)(void);

static void find_clock(void) {
    const char *path = getenv("GPULOOM_SHARE_DRIVER");
    void *driver = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!driver) return;
    int (*is_virtual)(void) = (int (*)(void))dlsym(driver, "gpuloom_fake_virtual");
    if (!is_virtual || !is_virtual()) return;
    pass_virtual = (void (*)(uint64_t))dlsym(driver, "gpuloom_fake_sleep");
    clock_virtual = (uint64_t(*)(void))dlsym(driver, "gpuloom_fake_clock");
}

static uint64_t now(void) {
    if (clock_virtual) return clock_virtual();
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Nanoseconds for which this thread was ready but had no CPU (Linux, proc_pid_schedstat); 0: unknown, or time is virtual. */
static uint64_t without_cpu(void) {
    static __thread int file = -1;
    if (clock_virtual) return 0;
    if (file < 0) file = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    char text[96];
    ssize_t read = file < 0 ? -1 : pread(file, text, sizeof text - 1, 0);
    if (read <= 0) return 0;
    text[read] = 0;
    unsigned long long ran, waited;
    return sscanf(text, "%llu %llu", &ran, &waited) == 2 ? waited : 0;
}

static void rest(uint64_t ns) {
    if (pass_virtual) {
        pass_virtual(ns);
        return;
    }
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    nanosleep(&t, NULL);
}

static CUcontext context;
static CUmodule module;
static CUdeviceptr cell;

static void start(void) {
    CUdevice device;
    CHECK(api.cuInit(0));
    CHECK(api.cuDeviceGet(&device, getenv("PROGRAM_GPU") ? atoi(getenv("PROGRAM_GPU")) : 0));
    CHECK(api.cuCtxCreate(&context, 0, device));
    CHECK(api.cuModuleLoadData(&module, "image"));
    CHECK(api.cuMemAlloc(&cell, 8));
    *(uint64_t *)(uintptr_t)cell = 1;
}

static CUfunction kernel(const char *name, double ns, unsigned per_sm) {
    char text[256];
    CUfunction f;
    snprintf(text, sizeof text, "%s?ns=%.0f&per_sm=%u&compute=%s&dram=%s", name, ns, per_sm,
             getenv("PROGRAM_COMPUTE") ? getenv("PROGRAM_COMPUTE") : "0.6",
             getenv("PROGRAM_DRAM") ? getenv("PROGRAM_DRAM") : "0.6");
    CHECK(api.cuModuleGetFunction(&f, module, text));
    return f;
}

static void go(CUfunction f, unsigned grid, CUstream stream) {
    void *params[] = {&cell, NULL};
    CHECK(api.cuLaunchKernel(f, grid, 1, 1, 128, 1, 1, 0, stream, params, NULL));
}

static int by_value_of(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double number(int argc, char **argv, int at, double otherwise) {
    return at < argc ? atof(argv[at]) : otherwise;
}

/* n launches in all three ways on several kernels: the result shows their number and order. */
static void hash(int n) {
    CUfunction f[4];
    for (int i = 0; i < 4; i++) f[i] = kernel("hash", 100.0 * (i + 1), 1 + (unsigned)i);
    void *params[] = {&cell, NULL};
    for (int i = 0; i < n; i++) {
        unsigned grid = 1 + (unsigned)i % 7;
        CUlaunchConfig config = {grid, 1, 1, 64, 1, 1, 0, NULL, NULL, 0};
        if (i % 3 == 0) CHECK(api.cuLaunchKernel(f[i % 4], grid, 1, 1, 64, 1, 1, 0, NULL, params, NULL));
        else if (i % 3 == 1) CHECK(api.cuLaunchKernelEx(&config, f[i % 4], params, NULL));
        else CHECK(api.cuLaunchCooperativeKernel(f[i % 4], grid, 1, 1, 64, 1, 1, 0, NULL, params));
    }
    CHECK(api.cuCtxSynchronize());
    printf("result=%llu\n", *(unsigned long long *)(uintptr_t)cell);
}

/* A service: requests of `kernels` kernels of `ns`, `gap` ns apart. */
static void serve(int requests, int kernels, double ns, double gap) {
    CUfunction f = kernel("serve", ns, 1);
    double *latency = calloc((size_t)requests + 1, sizeof *latency);
    uint64_t began = now(), busy = 0;
    for (int i = 0; i < requests; i++) {
        uint64_t from = now();
        for (int k = 0; k < kernels; k++) go(f, 60, NULL);
        CHECK(api.cuStreamSynchronize(NULL));
        latency[i] = (double)(now() - from);
        busy += (uint64_t)latency[i];
        rest((uint64_t)(gap * (0.5 + (i * 7919 % 1000) / 1000.0)));
    }
    uint64_t took = now() - began;
    int skip = requests / 10; /* durations are being learnt */
    qsort(latency + skip, (size_t)(requests - skip), sizeof *latency, by_value_of);
    printf("p50=%.0f p99=%.0f took=%llu load=%.3f\n", latency[skip + (requests - skip) / 2],
           latency[skip + (requests - skip) * 99 / 100], (unsigned long long)took, (double)busy / (double)took);
}

/* A training: iterations of `kernels` kernels of `ns`, for so long. longest: of a launch; held: but for what it waited
 * for a CPU, which says more of the machine than of the shim. */
static void train(double for_ns, int kernels, double ns) {
    CUfunction f = kernel("train", ns, 1);
    uint64_t began = now(), iterations = 0, longest = 0, held = 0;
    while ((double)(now() - began) < for_ns) {
        for (int k = 0; k < kernels; k++) {
            uint64_t waited = without_cpu(), from = now();
            go(f, 40, NULL);
            uint64_t took = now() - from;
            if (took > longest) longest = took;
            if (took > held) {
                uint64_t ready = without_cpu() - waited, own = took > ready ? took - ready : 0;
                if (own > held) held = own;
            }
        }
        CHECK(api.cuCtxSynchronize());
        iterations++;
    }
    printf("iterations=%llu took=%llu longest=%llu held=%llu\n", (unsigned long long)iterations,
           (unsigned long long)(now() - began), (unsigned long long)longest, (unsigned long long)held);
}

static void *thread_main(void *argument) {
    int n = *(int *)argument;
    CHECK(cuCtxSetCurrent(context));
    CUfunction f = kernel("thread", 500, 1);
    CUstream stream;
    CHECK(cuStreamCreate(&stream, 0));
    for (int i = 0; i < n; i++) {
        CHECK(api.cuLaunchKernel(f, 1 + (unsigned)i % 5, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
        if (i % 50 == 49) CHECK(api.cuStreamSynchronize(stream));
    }
    CHECK(api.cuStreamSynchronize(stream));
    return NULL;
}

static void capture(void) {
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    size_t nodes = 0;
    CUfunction f = kernel("captured", 20000, 1);
    CHECK(cuStreamCreate(&stream, 0));
    for (int i = 0; i < 20; i++) go(f, 80, stream); /* measured ones are on the way when the capture begins */
    CHECK(api.cuStreamBeginCapture(stream, 0));
    uint64_t from = now();
    for (int i = 0; i < 50; i++) go(f, 80, stream);
    uint64_t took = now() - from;
    CHECK(api.cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphGetNodes(graph, NULL, &nodes));
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    from = now();
    for (int i = 0; i < 3; i++) CHECK(api.cuGraphLaunch(exec, stream));
    CHECK(api.cuStreamSynchronize(stream));
    printf("nodes=%zu capture_ns=%llu launch_ns=%llu\n", nodes, (unsigned long long)took,
           (unsigned long long)(now() - from));
}

/* Requests on two streams, of which the second joins the first by an event; only the second is waited for. */
static void joined(int requests, double ns, double gap) {
    CUstream first, second;
    CUevent event;
    CUfunction f = kernel("joined", ns, 1);
    CHECK(cuStreamCreate(&first, 0));
    CHECK(cuStreamCreate(&second, 0));
    for (int i = 0; i < requests; i++) {
        CHECK(cuEventCreate(&event, 0));
        for (int k = 0; k < 4; k++) go(f, 60, first);
        CHECK(api.cuEventRecord(event, first));
        CHECK(cuStreamWaitEvent(second, event, 0));
        go(f, 60, second);
        CHECK(api.cuStreamSynchronize(second));
        CHECK(cuEventDestroy_v2(event));
        rest((uint64_t)gap);
    }
    printf("joined=%d\n", requests);
}

/* A stream is destroyed while it is captured; then kernels are launched as ever. */
static void abandoned(int n) {
    CUstream stream;
    CUfunction f = kernel("after", 20000, 1);
    CHECK(cuStreamCreate(&stream, 0));
    CHECK(api.cuStreamBeginCapture(stream, 0));
    for (int i = 0; i < 5; i++) go(f, 80, stream);
    CHECK(cuStreamDestroy_v2(stream));
    for (int i = 0; i < n; i++) go(f, 80, NULL);
    CHECK(api.cuStreamSynchronize(NULL));
    printf("abandoned=1\n");
}

/* Nothing but graph launches, each waited for. */
static void graphs(int n) {
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    CUfunction f = kernel("captured", 20000, 1);
    CHECK(cuStreamCreate(&stream, 0));
    CHECK(api.cuStreamBeginCapture(stream, 0));
    for (int i = 0; i < 5; i++) go(f, 80, stream);
    CHECK(api.cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < n; i++) {
        CHECK(api.cuGraphLaunch(exec, stream));
        CHECK(api.cuStreamSynchronize(stream));
    }
    printf("graphs=%d\n", n);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    const char *command = argv[2];
    fill(argv[1]);
    find_clock();
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (strcmp(command, "fork") == 0) { /* before the driver is used: the child may use it too */
        pid_t child = fork();
        start();
        hash(200);
        if (child == 0) return 0;
        int status;
        waitpid(child, &status, 0);
        printf("child=%d\n", status);
        return 0;
    }
    start();
    if (strcmp(command, "hash") == 0) {
        hash((int)number(argc, argv, 3, 300));
    } else if (strcmp(command, "forked") == 0) { /* after: the child must leave the parent's slot alone */
        hash(50);
        pid_t child = fork();
        if (child == 0) {
            hash(50);
            return 0;
        }
        int status;
        waitpid(child, &status, 0);
        hash(50);
        printf("child=%d\n", status);
    } else if (strcmp(command, "kept") == 0) { /* a child that ends in order must not give the parent's slot back */
        hash(50);
        if (fork() == 0) return 0;
        wait(NULL);
        printf("kept=%d\n", (int)getpid());
        rest(3000000000u);
    } else if (strcmp(command, "exec") == 0) {
        hash(50);
        execl("/proc/self/exe", argv[0], argv[1], "hash", "50", (char *)NULL);
        return 4;
    } else if (strcmp(command, "serve") == 0) {
        serve((int)number(argc, argv, 3, 100), (int)number(argc, argv, 4, 20), number(argc, argv, 5, 50000),
              number(argc, argv, 6, 1e6));
    } else if (strcmp(command, "train") == 0) {
        train(number(argc, argv, 3, 1e9), (int)number(argc, argv, 4, 50), number(argc, argv, 5, 50000));
    } else if (strcmp(command, "threads") == 0) {
        pthread_t thread[4];
        int n = (int)number(argc, argv, 3, 500);
        for (int i = 0; i < 4; i++) pthread_create(&thread[i], NULL, thread_main, &n);
        for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
        printf("threads=4\n");
    } else if (strcmp(command, "capture") == 0) {
        capture();
    } else if (strcmp(command, "joined") == 0) {
        joined((int)number(argc, argv, 3, 50), number(argc, argv, 4, 50000), number(argc, argv, 5, 1e6));
    } else if (strcmp(command, "abandoned") == 0) {
        abandoned((int)number(argc, argv, 3, 40));
    } else if (strcmp(command, "graphs") == 0) {
        graphs((int)number(argc, argv, 3, 3));
    } else if (strcmp(command, "busy") == 0) { /* launches and never waits */
        CUfunction f = kernel("busy", number(argc, argv, 3, 1e9), 1);
        for (int i = 0; i < 5; i++) go(f, 80, NULL);
        printf("busy=1\n");
        rest((uint64_t)number(argc, argv, 4, 30e9));
    } else if (strcmp(command, "events") == 0) {
        CUevent event;
        CHECK(cuEventCreate(&event, 0));
        go(kernel("e", 1000, 1), 8, NULL);
        CHECK(api.cuEventRecord(event, NULL));
        if (number(argc, argv, 3, 0) == 0) CHECK(cuEventSynchronize(event));
        else while (cuEventQuery(event) != CUDA_SUCCESS) rest(1000);
        printf("event=1\n");
        fflush(stdout);
        rest((uint64_t)number(argc, argv, 4, 0));
    } else if (strcmp(command, "unload") == 0) {
        hash(20);
        CHECK(cuModuleUnload(module));
        CHECK(api.cuModuleLoadData(&module, "image"));
        hash(20);
    } else if (strcmp(command, "library") == 0) { /* kernels by CUkernel handles, cast as cudart does */
        CUlibrary library;
        CUkernel k;
        CHECK(cuLibraryLoadData(&library, "image", NULL, NULL, 0, NULL, NULL, 0));
        CHECK(cuLibraryGetKernel(&k, library, "lib?ns=1000"));
        for (int i = 0; i < 20; i++) go((CUfunction)(void *)k, 4, NULL);
        CHECK(api.cuCtxSynchronize());
        printf("result=%llu\n", *(unsigned long long *)(uintptr_t)cell);
    } else if (strcmp(command, "nccl") == 0) {
        go(kernel("ncclDevKernel_AllReduce", 1000, 1), 4, NULL);
        go(kernel("after", 1000, 1), 4, NULL);
        CHECK(api.cuCtxSynchronize());
        printf("nccl=1\n");
    } else if (strcmp(command, "gpus") == 0) {
        CUcontext other;
        hash(10);
        CHECK(cuDevicePrimaryCtxRetain(&other, 1));
        CHECK(cuCtxSetCurrent(other));
        hash(10);
    } else if (strcmp(command, "errors") == 0) {
        void *params[] = {&cell, NULL};
        CUfunction f;
        printf("null=%d zero=%d", api.cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL),
               api.cuLaunchKernel(kernel("z", 1, 1), 0, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
        printf(" missing=%d lacking=%d end=%d\n", api.cuModuleGetFunction(&f, module, "missing"),
               cuArrayCreate_v2(NULL, NULL), api.cuStreamEndCapture(NULL, &(CUgraph){NULL}));
    } else if (strcmp(command, "arguments") == 0) {
        struct by_value v;
        CUdeviceptr at = 0;
        for (int i = 0; i < 64; i++) v.bytes[i] = (char)i;
        CHECK(cuIpcOpenMemHandle_v2(&at, v, 77));
        printf("struct=%llu floats=%d integers=%d\n", at, cuTexRefSetMipmapLevelClamp(NULL, 4.5f, 2.0f),
               cuMemcpyPeerAsync(1, (CUcontext)2, 3, (CUcontext)4, 5, (CUstream)6));
    } else {
        return 2;
    }
    return 0;
}
