/* A libcuda.so.1 for tests: the part of the driver API that the tests use, on the GPUs of device.c.
 *
 * A kernel is described by its name: "gemm?ns=20000&per_sm=2&compute=0.8&dram=0.1". Where its first parameter is not
 * NULL it is the address of a device pointer to a 64-bit number; the launch appends its launch count to it
 * (n -> 31 n + blocks), so that order and completeness of launches show in the result. FAKE_NULL=1: launches return at
 * once. FAKE_SLOW_MS: cuEventRecord returns, and the process ends, so much later. FAKE_REENTER: a launch goes by way of whatever the program sees as libcuda. FAKE_LACKS=a,b: these symbols do not exist for cuGetProcAddress. FAKE_ELSEWHERE=1: what cuGetProcAddress gives for launches
 * are addresses that no exported symbol has, as of a driver that keeps several copies. FAKE_GPUS: number of GPUs. */
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VERSION 12040

struct CUstream_st {
    uint64_t name;
    int device;
    struct CUgraph_st *graph; /* being captured into */
};
struct CUevent_st {
    int place, device;
    unsigned life; /* of its context */
    bool timing, recorded;
};
struct CUgraph_st {
    double ns;
    unsigned launches;
    bool spoilt;
};
struct CUgraphExec_st {
    struct CUgraph_st graph;
};
#define LAUNCH_NS 4000u /* of the CPU, as docs/explanation/sharing.md assumes */
#define RECORD_NS 1000u

static struct CUctx_st contexts[FAKE_DEVICES] = {{.device = 0}, {.device = 1}, {.device = 2}, {.device = 3}};
_Thread_local struct CUctx_st *fake_current;
_Atomic bool fake_initialised;
#define current fake_current
static struct CUstream_st legacy[FAKE_DEVICES];
static _Thread_local struct CUstream_st own_stream;
static _Atomic int captures;
static struct CUgraph_st *_Atomic captured;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* For the shim and for tests: the clock of the GPUs, and whether it is a virtual one. */
__attribute__((visibility("default"))) int gpuloom_fake_virtual(void) { return fake_virtual(); }
/* Whether it is as under MPS: its GPUs run kernels of several programs at the same time. FAKE_NO_MPS: it says no. */
__attribute__((visibility("default"))) int gpuloom_fake_mps(void) { return getenv("FAKE_NO_MPS") == NULL; }
__attribute__((visibility("default"))) uint64_t gpuloom_fake_clock(void) { return fake_now(); }
__attribute__((visibility("default"))) void gpuloom_fake_sleep(uint64_t ns) { fake_pass(ns); }
__attribute__((visibility("default"))) void gpuloom_fake_wait(uint64_t ns) { fake_wait(ns); }
__attribute__((visibility("default"))) void gpuloom_fake_wake(void) { fake_wake(); }

static int device_count(void) {
    const char *text = getenv("FAKE_GPUS");
    int count = text ? atoi(text) : 1;
    return count < 0 ? 0 : count > FAKE_DEVICES ? FAKE_DEVICES : count;
}

API cuInit(unsigned flags) {
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (device_count() == 0) return CUDA_ERROR_NO_DEVICE;
    atomic_store(&fake_initialised, true);
    return CUDA_SUCCESS;
}
API cuDriverGetVersion(int *version) { return *version = VERSION, CUDA_SUCCESS; }
API cuDeviceGetCount(int *count) { return *count = device_count(), CUDA_SUCCESS; }
API cuDeviceGet(CUdevice *device, int ordinal) {
    if (ordinal < 0 || ordinal >= device_count()) return CUDA_ERROR_INVALID_DEVICE;
    return *device = ordinal, CUDA_SUCCESS;
}
API cuDeviceGetName(char *name, int room, CUdevice device) {
    return snprintf(name, (size_t)room, "Fake GPU %d", device), CUDA_SUCCESS;
}
API cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    const char *base = getenv("FAKE_UUID");
    memset(uuid->bytes, base ? base[0] : 0x5a, sizeof uuid->bytes);
    uuid->bytes[15] = (char)device;
    return CUDA_SUCCESS;
}
API cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) { return cuDeviceGetUuid(uuid, device); }
API cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    if (device < 0 || device >= device_count()) return CUDA_ERROR_INVALID_DEVICE;
    *value = attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT         ? fake_sms()
             : attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 7
                                                                         : 0;
    return CUDA_SUCCESS;
}
API cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    if (device < 0 || device >= device_count()) return CUDA_ERROR_INVALID_DEVICE;
    atomic_fetch_add(&contexts[device].kept, 1);
    return *context = &contexts[device], CUDA_SUCCESS;
}
/* A context's events are gone with it; the next one has its address. */
static void end_context(struct CUctx_st *context) {
    fake_done(context->device, 0, true);
    atomic_store(&context->kept, 0);
    atomic_fetch_add(&context->life, 1);
}
API cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    if (atomic_fetch_sub(&contexts[device].kept, 1) == 1) end_context(&contexts[device]);
    return CUDA_SUCCESS;
}
API cuDevicePrimaryCtxReset_v2(CUdevice device) { return end_context(&contexts[device]), CUDA_SUCCESS; }
API cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    return *flags = 0, *active = atomic_load(&contexts[device].kept) > 0, CUDA_SUCCESS;
}
API cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device) {
    (void)flags;
    CUresult result = cuDevicePrimaryCtxRetain(context, device);
    if (result == CUDA_SUCCESS) current = *context;
    return result;
}
API cuCtxDestroy_v2(CUcontext context) {
    end_context(context);
    if (current == context) current = NULL;
    return CUDA_SUCCESS;
}
API cuCtxSetCurrent(CUcontext context) { return current = context, CUDA_SUCCESS; }
API cuCtxGetCurrent(CUcontext *context) { return *context = current, CUDA_SUCCESS; }
API cuCtxGetDevice(CUdevice *device) {
    NEED_CONTEXT;
    return *device = current->device, CUDA_SUCCESS;
}

static struct CUstream_st *stream_of(CUstream stream, bool per_thread) {
    if (stream == CU_STREAM_PER_THREAD || (!stream && per_thread)) {
        if (!own_stream.name) own_stream = (struct CUstream_st){fake_stream(), current->device, NULL};
        return &own_stream;
    }
    if (stream && stream != CU_STREAM_LEGACY) return stream;
    pthread_mutex_lock(&lock);
    if (!legacy[current->device].name)
        legacy[current->device] = (struct CUstream_st){fake_stream(), current->device, NULL};
    pthread_mutex_unlock(&lock);
    return &legacy[current->device];
}

static bool alive(CUevent event) {
    return event && event->life == atomic_load(&contexts[event->device].life);
}

/* What must not be called while a stream is captured in global mode spoils the capture, as with the real driver. */
static bool spoils(void) {
    struct CUgraph_st *graph = atomic_load(&captured);
    if (atomic_load(&captures) == 0 || !graph) return false;
    graph->spoilt = true;
    return true;
}

static void execute(struct CUfunc_st *f, unsigned gx, void **params) {
    (void)f;
    if (!params || !params[0]) return;
    uint64_t *at = *(uint64_t **)params[0];
    if (at) *at = *at * 31 + gx;
}

static CUresult launch(CUfunction f, unsigned gx, unsigned gy, unsigned gz, CUstream stream, bool per_thread,
                       void **params) {
    static _Atomic int null = -1;
    if (null < 0) null = getenv("FAKE_NULL") != NULL;
    if (null) return CUDA_SUCCESS;
    NEED_CONTEXT;
    struct CUfunc_st *function = fake_function(f);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    if (!gx || !gy || !gz) return CUDA_ERROR_INVALID_VALUE;
    struct CUstream_st *s = stream_of(stream, per_thread);
    if (s->graph) {
        s->graph->ns += function->ns;
        s->graph->launches++;
        return CUDA_SUCCESS;
    }
    execute(function, gx, params);
    uint64_t blocks = (uint64_t)gx * gy * gz;
    struct fake_work work = {.event = -1,
                             .sm = (uint32_t)((blocks + function->per_sm - 1) / function->per_sm),
                             .compute = (float)function->compute,
                             .dram = (float)function->dram,
                             .ns = function->ns};
    fake_queue(current->device, s->name, &work, LAUNCH_NS);
    return CUDA_SUCCESS;
}

/* As a driver that calls its own exported functions, which the loader binds to the shim. 1: done. */
static int reenter(CUfunction f, unsigned gx, unsigned bx, CUstream stream, void **params, CUresult *result) {
    static _Thread_local int inside;
    static _Atomic int wanted = -1;
    if (wanted < 0) wanted = getenv("FAKE_REENTER") != NULL;
    if (!wanted || inside) return 0;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    CUresult(*query) P_STREAM = (CUresult(*) P_STREAM)dlsym(library, "cuStreamQuery");
    CUresult(*extended) P_LAUNCH_EX = (CUresult(*) P_LAUNCH_EX)dlsym(library, "cuLaunchKernelEx");
    CUlaunchConfig config = {gx, 1, 1, bx, 1, 1, 0, stream, NULL, 0};
    inside = 1;
    (void)query(stream);
    *result = extended(&config, f, params, NULL);
    inside = 0;
    return 1;
}

static void slow(void) {
    const char *text = getenv("FAKE_SLOW_MS");
    if (text) usleep((useconds_t)atoi(text) * 1000);
}
__attribute__((destructor)) static void end_slowly(void) { slow(); } /* after the shim's end: it was loaded by it */

#define LAUNCHES(suffix, per_thread)                                                                                \
    API cuLaunchKernel##suffix P_LAUNCH {                                                                           \
        CUresult result;                                                                                            \
        (void)by, (void)bz, (void)shared, (void)extra;                                                              \
        if (!per_thread && reenter(f, gx, bx, stream, params, &result)) return result;                              \
        return launch(f, gx, gy, gz, stream, per_thread, params);                                                   \
    }                                                                                                               \
    API cuLaunchKernelEx##suffix P_LAUNCH_EX {                                                                      \
        (void)extra;                                                                                                \
        if (!config) return CUDA_ERROR_INVALID_VALUE;                                                               \
        return launch(f, config->gridDimX, config->gridDimY, config->gridDimZ, config->hStream, per_thread, params); \
    }                                                                                                               \
    API cuLaunchCooperativeKernel##suffix P_COOPERATIVE {                                                           \
        (void)bx, (void)by, (void)bz, (void)shared;                                                                 \
        return launch(f, gx, gy, gz, stream, per_thread, params);                                                   \
    }                                                                                                               \
    API cuGraphLaunch##suffix P_GRAPH_LAUNCH {                                                                      \
        NEED_CONTEXT;                                                                                               \
        struct CUstream_st *s = stream_of(stream, per_thread);                                                      \
        struct fake_work work = {                                                                                   \
            .event = -1, .sm = (uint32_t)fake_sms(), .compute = 0.5f, .dram = 0.5f, .ns = graph->graph.ns};         \
        fake_queue(current->device, s->name, &work, LAUNCH_NS);                                                     \
        return CUDA_SUCCESS;                                                                                        \
    }                                                                                                               \
    API cuStreamSynchronize##suffix P_STREAM {                                                                      \
        NEED_CONTEXT;                                                                                               \
        if (spoils()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;                                                 \
        fake_done(current->device, stream_of(stream, per_thread)->name, true);                                      \
        return CUDA_SUCCESS;                                                                                        \
    }                                                                                                               \
    API cuStreamQuery##suffix P_STREAM {                                                                            \
        NEED_CONTEXT;                                                                                               \
        if (spoils()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;                                                 \
        bool done = fake_done(current->device, stream_of(stream, per_thread)->name, false);                         \
        return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;                                                          \
    }                                                                                                               \
    API cuStreamBeginCapture_v2##suffix P_BEGIN_CAPTURE {                                                           \
        NEED_CONTEXT;                                                                                               \
        (void)mode;                                                                                                 \
        struct CUstream_st *s = stream_of(stream, per_thread);                                                      \
        if (s->graph) return CUDA_ERROR_INVALID_VALUE;                                                              \
        s->graph = calloc(1, sizeof *s->graph);                                                                     \
        atomic_store(&captured, s->graph);                                                                          \
        atomic_fetch_add(&captures, 1);                                                                             \
        return CUDA_SUCCESS;                                                                                        \
    }                                                                                                               \
    API cuStreamEndCapture##suffix P_END_CAPTURE {                                                                  \
        NEED_CONTEXT;                                                                                               \
        struct CUstream_st *s = stream_of(stream, per_thread);                                                      \
        if (!s->graph) return CUDA_ERROR_INVALID_VALUE;                                                             \
        struct CUgraph_st *graph = s->graph;                                                                        \
        s->graph = NULL;                                                                                            \
        atomic_store(&captured, NULL);                                                                              \
        atomic_fetch_sub(&captures, 1);                                                                             \
        *out = graph->spoilt ? NULL : graph;                                                                        \
        bool spoilt = graph->spoilt;                                                                                \
        if (spoilt) free(graph);                                                                                    \
        return spoilt ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;                                       \
    }                                                                                                               \
    API cuStreamIsCapturing##suffix(CUstream stream, CUstreamCaptureStatus *status) {                               \
        NEED_CONTEXT;                                                                                               \
        *status = stream_of(stream, per_thread)->graph != NULL;                                                     \
        return CUDA_SUCCESS;                                                                                        \
    }                                                                                                               \
    API cuEventRecord##suffix P_EVENT_RECORD {                                                                      \
        NEED_CONTEXT;                                                                                               \
        if (!alive(event)) return CUDA_ERROR_INVALID_HANDLE;                                                        \
        struct CUstream_st *s = stream_of(stream, per_thread);                                                      \
        if (s->graph) return s->graph->launches++, CUDA_SUCCESS;                                                    \
        fake_event_reset(event->place);                                                                             \
        event->device = current->device;                                                                            \
        event->recorded = true;                                                                                     \
        struct fake_work work = {.event = event->place};                                                            \
        fake_queue(current->device, s->name, &work, RECORD_NS);                                                     \
        slow();                                                                                                     \
        return CUDA_SUCCESS;                                                                                        \
    }
#undef P_END_CAPTURE
#define P_END_CAPTURE (CUstream stream, CUgraph *out)
/* Of an event that was recorded once, or never. */
#define WAITS(suffix, per_thread)                                                                                   \
    API cuStreamWaitEvent##suffix P_STREAM_WAIT {                                                                   \
        NEED_CONTEXT;                                                                                               \
        (void)flags;                                                                                                \
        if (!alive(event)) return CUDA_ERROR_INVALID_HANDLE;                                                        \
        struct fake_work work = {.event = -1, .gate = event->place + 1};                                            \
        if (event->recorded) fake_queue(current->device, stream_of(stream, per_thread)->name, &work, RECORD_NS);    \
        return CUDA_SUCCESS;                                                                                        \
    }
WAITS(, false)
WAITS(_ptsz, true)
LAUNCHES(, false)
LAUNCHES(_ptsz, true)

API cuCtxSynchronize(void) {
    NEED_CONTEXT;
    if (spoils()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    fake_done(current->device, 0, true);
    return CUDA_SUCCESS;
}
API cuStreamCreate(CUstream *stream, unsigned flags) {
    (void)flags;
    NEED_CONTEXT;
    struct CUstream_st *s = calloc(1, sizeof *s);
    *s = (struct CUstream_st){fake_stream(), current->device, NULL};
    return *stream = s, CUDA_SUCCESS;
}
API cuStreamDestroy_v2(CUstream stream) {
    if (stream->graph) { /* its capture goes with it */
        free(stream->graph);
        atomic_store(&captured, NULL);
        atomic_fetch_sub(&captures, 1);
    }
    return free(stream), CUDA_SUCCESS;
}

API cuEventCreate(CUevent *event, unsigned flags) {
    NEED_CONTEXT;
    int place = fake_event_new();
    if (place < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    *event = calloc(1, sizeof **event);
    **event = (struct CUevent_st){place, current->device, current->life, !(flags & CU_EVENT_DISABLE_TIMING), false};
    return CUDA_SUCCESS;
}
API cuEventDestroy_v2(CUevent event) { return fake_event_free(event->place), free(event), CUDA_SUCCESS; }
API cuEventQuery P_EVENT {
    if (!alive(event)) return CUDA_ERROR_INVALID_HANDLE;
    if (spoils()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return fake_event_time(event->device, event->place) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
API cuEventSynchronize P_EVENT {
    if (spoils()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    while (!fake_event_time(event->device, event->place)) fake_pass(1000);
    return CUDA_SUCCESS;
}
API cuEventElapsedTime(float *ms, CUevent start, CUevent end) {
    if (!alive(start) || !alive(end)) return CUDA_ERROR_INVALID_HANDLE;
    if (!start->timing || !end->timing) return CUDA_ERROR_INVALID_HANDLE;
    uint64_t from = fake_event_time(start->device, start->place), to = fake_event_time(end->device, end->place);
    if (!from || !to) return CUDA_ERROR_NOT_READY;
    return *ms = (float)((double)(to - from) / 1e6), CUDA_SUCCESS;
}

API cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    (void)flags;
    if (!graph) return CUDA_ERROR_INVALID_VALUE;
    *exec = calloc(1, sizeof **exec);
    (*exec)->graph = *graph;
    return CUDA_SUCCESS;
}
API cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    (void)nodes;
    return *count = graph->launches, CUDA_SUCCESS;
}
API cuGraphDestroy(CUgraph graph) { return free(graph), CUDA_SUCCESS; }
API cuGraphExecDestroy(CUgraphExec exec) { return free(exec), CUDA_SUCCESS; }

API cuMemAlloc_v2(CUdeviceptr *at, size_t bytes) {
    NEED_CONTEXT;
    return *at = (CUdeviceptr)(uintptr_t)calloc(1, bytes), *at ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
API cuMemFree_v2(CUdeviceptr at) {
    if (at == 1) return CUDA_ERROR_INVALID_VALUE; /* of nobody's */
    return free((void *)(uintptr_t)at), CUDA_SUCCESS;
}
API cuMemAllocManaged P_MEM_MANAGED { return (void)flags, cuMemAlloc_v2(at, bytes); }
API cuMemAllocPitch_v2 P_MEM_PITCH {
    *pitch = (width + 255) / 256 * 256 + (element ? 0 : 1);
    return cuMemAlloc_v2(at, *pitch * height);
}
API cuMemAllocAsync P_MEM_ASYNC { return (void)stream, cuMemAlloc_v2(at, bytes); }
API cuMemAllocAsync_ptsz P_MEM_ASYNC { return (void)stream, cuMemAlloc_v2(at, bytes); }
API cuMemAllocFromPoolAsync P_MEM_POOL { return (void)pool, (void)stream, cuMemAlloc_v2(at, bytes); }
API cuMemAllocFromPoolAsync_ptsz P_MEM_POOL { return (void)pool, (void)stream, cuMemAlloc_v2(at, bytes); }
API cuMemFreeAsync P_MEM_FREE_ASYNC { return (void)stream, cuMemFree_v2(at); }
API cuMemFreeAsync_ptsz P_MEM_FREE_ASYNC { return (void)stream, cuMemFree_v2(at); }
API cuMemCreate P_MEM_CREATE { return (void)properties, (void)flags, cuMemAlloc_v2(handle, bytes); }
API cuMemRelease P_MEM_RELEASE { return cuMemFree_v2(handle); }
API cuMemGetInfo_v2 P_MEM_INFO { return *left = 60ull << 30, *total = 80ull << 30, CUDA_SUCCESS; }
API cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
    return memcpy((void *)(uintptr_t)to, from, bytes), CUDA_SUCCESS;
}
API cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
    NEED_CONTEXT;
    fake_done(current->device, stream_of(NULL, false)->name, true);
    return memcpy(to, (void *)(uintptr_t)from, bytes), CUDA_SUCCESS;
}
/* Between two places of the device: in the stream's order, and the call does not wait. */
API cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    NEED_CONTEXT;
    return memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes), CUDA_SUCCESS;
}
API cuMemsetD8_v2(CUdeviceptr at, unsigned char value, size_t bytes) {
    return memset((void *)(uintptr_t)at, value, bytes), CUDA_SUCCESS;
}

/* Only here to prove that the shim passes on arguments of all kinds. */
struct by_value {
    char bytes[64];
};
API cuIpcOpenMemHandle_v2(CUdeviceptr *at, struct by_value handle, unsigned flags) {
    uint64_t sum = flags;
    for (int i = 0; i < 64; i++) sum = sum * 131 + (unsigned char)handle.bytes[i];
    return *at = sum, CUDA_SUCCESS;
}
API cuTexRefSetMipmapLevelClamp(void *reference, float low, float high) {
    return reference == (void *)&contexts[0] ? -1 : (CUresult)(low * 10.0f + high);
}
API cuMemcpyPeerAsync(CUdeviceptr a, CUcontext b, CUdeviceptr c, CUcontext d, size_t e, CUstream f) {
    return (CUresult)(a + 2 * (uintptr_t)b + 3 * c + 5 * (uintptr_t)d + 7 * e + 11 * (uintptr_t)f);
}

/* name asked for, address, version it came with, per-thread form? Newer forms first. */
struct entry {
    const char *name;
    void *address;
    int version;
    bool per_thread;
};
static CUresult find(const char *symbol, void **pfn, int version, cuuint64_t flags, int *status);
API cuGetProcAddress P_PROC_1 { return find(symbol, pfn, version, flags, NULL); }
API cuGetProcAddress_v2 P_PROC_2 { return find(symbol, pfn, version, flags, status); }

#define BOTH(name, version) {#name, (void *)name##_ptsz, version, true}, {#name, (void *)name, version, false}
static const struct entry entries[] = {
    BOTH(cuLaunchKernel, 4000), BOTH(cuLaunchKernelEx, 11060), BOTH(cuLaunchCooperativeKernel, 9000),
    BOTH(cuGraphLaunch, 10000), BOTH(cuStreamSynchronize, 2000), BOTH(cuStreamQuery, 2000),
    BOTH(cuStreamEndCapture, 10000), BOTH(cuStreamIsCapturing, 10000), BOTH(cuEventRecord, 2000),
    {"cuStreamBeginCapture", (void *)cuStreamBeginCapture_v2_ptsz, 10010, true},
    {"cuStreamBeginCapture", (void *)cuStreamBeginCapture_v2, 10010, false},
    {"cuGetProcAddress", (void *)cuGetProcAddress_v2, 12000, false},
    {"cuGetProcAddress", (void *)cuGetProcAddress, 11030, false},
    {"cuInit", (void *)cuInit, 2000, false},
    {"cuDriverGetVersion", (void *)cuDriverGetVersion, 2020, false},
    {"cuCtxSynchronize", (void *)cuCtxSynchronize, 2000, false},
    {"cuDeviceGet", (void *)cuDeviceGet, 2000, false},
    {"cuCtxCreate", (void *)cuCtxCreate_v2, 3020, false},
    {"cuModuleLoadData", (void *)cuModuleLoadData, 2000, false},
    {"cuModuleGetFunction", (void *)cuModuleGetFunction, 2000, false},
    {"cuMemAlloc", (void *)cuMemAlloc_v2, 3020, false},
    {"cuMemFree", (void *)cuMemFree_v2, 3020, false},
    {"cuMemGetInfo", (void *)cuMemGetInfo_v2, 3020, false},
};

/* The same, at another address. */
static CUresult launch_elsewhere P_LAUNCH {
    return cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}
static CUresult launch_ex_elsewhere P_LAUNCH_EX { return cuLaunchKernelEx(config, f, params, extra); }
static CUresult launch_elsewhere_ptsz P_LAUNCH {
    return cuLaunchKernel_ptsz(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}
static CUresult begin_capture_elsewhere P_BEGIN_CAPTURE { return cuStreamBeginCapture_v2(stream, mode); }

static void *elsewhere(void *address) {
    if (!getenv("FAKE_ELSEWHERE")) return address;
    if (address == (void *)cuLaunchKernel) return (void *)launch_elsewhere;
    if (address == (void *)cuLaunchKernel_ptsz) return (void *)launch_elsewhere_ptsz;
    if (address == (void *)cuLaunchKernelEx) return (void *)launch_ex_elsewhere;
    if (address == (void *)cuStreamBeginCapture_v2) return (void *)begin_capture_elsewhere;
    return address;
}

static bool lacks(const char *symbol) {
    const char *list = getenv("FAKE_LACKS"), *at = list ? strstr(list, symbol) : NULL;
    size_t length = strlen(symbol);
    return at && (at == list || at[-1] == ',') && (at[length] == 0 || at[length] == ',');
}

static CUresult find(const char *symbol, void **pfn, int version, cuuint64_t flags, int *status) {
    bool old = false;
    *pfn = NULL;
    for (int pass = 0; pass < 2 && !lacks(symbol); pass++)
        for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
            const struct entry *e = &entries[i];
            bool wanted = pass == 0 ? (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0 : false;
            if (strcmp(e->name, symbol) != 0 || e->per_thread != wanted) continue;
            if (e->version > version) {
                old = true;
                continue;
            }
            if (status) *status = CU_GET_PROC_ADDRESS_SUCCESS;
            *pfn = elsewhere(e->address);
            return CUDA_SUCCESS;
        }
    if (status) *status = old ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND; /* as the real one: v2 tells by status */
}
