/* The wrappers: libcuda.so.1's functions that the shim has a part in. Each asks for the mode, and where nothing is to
 * be done jumps on to the real function. Everything else is in stubs.S. */
#define _GNU_SOURCE
#include "driver.h"
#include "log.h"
#include "memory.h"
#include "process.h"

#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define likely(x) __builtin_expect(!!(x), 1)

static CUresult lacking(void) { return gls_driver() ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_STUB_LIBRARY; }

__attribute__((noinline)) static void *load(int hook) {
    return gls_driver() ? atomic_load(&gls_real[hook]) : NULL;
}

static inline void *real_of(int hook) {
    void *real = atomic_load_explicit(&gls_real[hook], memory_order_relaxed);
    return likely(real) ? real : load(hook);
}

static inline bool passing(void) {
    int mode = atomic_load_explicit(&gls_mode, memory_order_relaxed);
    if (likely(mode == GLS_MODE_PASS)) return true;
    return mode == GLS_MODE_NEW ? gls_decide() == GLS_MODE_PASS : false;
}

static CUstream explicit_stream(CUstream stream, bool per_thread) {
    return per_thread && !stream ? CU_STREAM_PER_THREAD : stream;
}

/* A family is a managed form of a function: it gets the real function, whether it is a form with a default stream per
 * thread, and the caller's arguments. */
#define FAMILY(name, parameters, ...)                                                                               \
    typedef CUresult(*real_##name) parameters;                                                                      \
    __attribute__((noinline)) static CUresult managed_##name(real_##name real, bool per_thread, __VA_ARGS__)
#define UNUSED (void)per_thread

FAMILY(launch, P_LAUNCH, CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
       unsigned shared, CUstream stream, void **params, void **extra) {
    struct gls_ticket ticket = {0};
    struct gls_key key = {f, {gx, gy, gz}, {bx, by, bz}, shared};
    CUstream handle = explicit_stream(stream, per_thread);
    if (gx) gls_before(&ticket, &key, handle, gls_stream(stream, per_thread));
    gls_self.inside++; /* a driver may launch by way of another of its functions */
    CUresult result = real(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
    gls_self.inside--;
    gls_after(&ticket, handle, result);
    return result;
}

FAMILY(launch_ex, P_LAUNCH_EX, const CUlaunchConfig *config, CUfunction f, void **params, void **extra) {
    struct gls_ticket ticket = {0};
    CUstream handle = NULL;
    if (config && config->gridDimX) {
        struct gls_key key = {f,
                              {config->gridDimX, config->gridDimY, config->gridDimZ},
                              {config->blockDimX, config->blockDimY, config->blockDimZ},
                              config->sharedMemBytes};
        handle = explicit_stream(config->hStream, per_thread);
        gls_before(&ticket, &key, handle, gls_stream(config->hStream, per_thread));
    }
    gls_self.inside++;
    CUresult result = real(config, f, params, extra);
    gls_self.inside--;
    gls_after(&ticket, handle, result);
    return result;
}

FAMILY(cooperative, P_COOPERATIVE, CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
       unsigned bz, unsigned shared, CUstream stream, void **params) {
    struct gls_ticket ticket = {0};
    struct gls_key key = {f, {gx, gy, gz}, {bx, by, bz}, shared};
    CUstream handle = explicit_stream(stream, per_thread);
    if (gx) gls_before(&ticket, &key, handle, gls_stream(stream, per_thread));
    gls_self.inside++;
    CUresult result = real(f, gx, gy, gz, bx, by, bz, shared, stream, params);
    gls_self.inside--;
    gls_after(&ticket, handle, result);
    return result;
}

FAMILY(graph_launch, P_GRAPH_LAUNCH, CUgraphExec graph, CUstream stream) {
    struct gls_ticket ticket = {0};
    struct gls_key key = {.f = (CUfunction)(void *)graph}; /* a grid of 0 means a graph */
    CUstream handle = explicit_stream(stream, per_thread);
    gls_before(&ticket, &key, handle, gls_stream(stream, per_thread));
    gls_self.inside++;
    CUresult result = real(graph, stream);
    gls_self.inside--;
    gls_after(&ticket, handle, result);
    return result;
}

#define CAPTURE_BEGINS(call)                                                                                        \
    CUstream handle = explicit_stream(stream, per_thread);                                                          \
    gls_capture_begins(handle);                                                                                     \
    CUresult result = call;                                                                                         \
    if (result != CUDA_SUCCESS) gls_capture_ended(handle);                                                          \
    return result

FAMILY(begin_capture_1, P_STREAM, CUstream stream) { CAPTURE_BEGINS(real(stream)); }
FAMILY(begin_capture, P_BEGIN_CAPTURE, CUstream stream, CUstreamCaptureMode mode) {
    CAPTURE_BEGINS(real(stream, mode));
}
FAMILY(begin_capture_to, P_BEGIN_CAPTURE_TO, CUstream stream, CUgraph graph, const CUgraphNode *nodes,
       const void *edges, size_t number, CUstreamCaptureMode mode) {
    CAPTURE_BEGINS(real(stream, graph, nodes, edges, number, mode));
}

/* 1: the stream is being captured (or its capture has been spoilt), 0: no, -1: the driver does not tell. */
static int capturing(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!gls_own.capturing || gls_own.capturing(stream, &status) != CUDA_SUCCESS) return -1;
    return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

FAMILY(end_capture, P_END_CAPTURE, CUstream stream, CUgraph *graph) {
    CUstream handle = explicit_stream(stream, per_thread);
    int before = capturing(handle);
    CUresult result = real(stream, graph);
    if (before < 0 ? result == CUDA_SUCCESS : before == 1 && capturing(handle) != 1) gls_capture_ended(handle);
    return result;
}

FAMILY(stream_wait, P_STREAM, CUstream stream) {
    uint64_t before = gls_wait_begins();
    CUresult result = real(stream);
    if (result == CUDA_SUCCESS && !gls_self.inside) gls_waited(gls_stream(stream, per_thread), before);
    return result;
}

FAMILY(context_wait, P_VOID, int unused) {
    UNUSED;
    (void)unused;
    uint64_t before = gls_wait_begins();
    CUresult result = real();
    if (result == CUDA_SUCCESS && !gls_self.inside) gls_waited(0, before);
    return result;
}

FAMILY(context_wait_2, P_CONTEXT, CUcontext context) {
    UNUSED;
    uint64_t before = gls_wait_begins();
    CUresult result = real(context);
    if (result == CUDA_SUCCESS && !gls_self.inside && (!context || context == gls_self.context)) gls_waited(0, before);
    return result;
}

/* Whether a stream has no work left, as the driver says now. Not asked while anything is captured: that would spoil it. */
static bool is_done(CUstream handle) {
    CUresult(*query) P_STREAM;
    void *found = real_of(HOOK_cuStreamQuery);
    memcpy(&query, &found, sizeof found);
    if (!query || gls_self.inside || atomic_load(&gls_captures) > 0) return false;
    gls_self.inside++;
    bool done = query(handle) == CUDA_SUCCESS;
    gls_self.inside--;
    return done;
}

/* Blocking copies are on the default stream. To the host they return when it is done; others may not. */
FAMILY(copy_to_host, P_COPY_TO_HOST, void *to, CUdeviceptr from, size_t bytes) {
    uint64_t before = gls_wait_begins();
    CUresult result = real(to, from, bytes);
    if (result == CUDA_SUCCESS && bytes && !gls_self.inside) gls_waited(gls_stream(NULL, per_thread), before);
    return result;
}

FAMILY(copy, P_COPY, CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    uint64_t before = gls_wait_begins();
    CUresult result = real(to, from, bytes);
    if (result == CUDA_SUCCESS && is_done(explicit_stream(NULL, per_thread)))
        gls_waited(gls_stream(NULL, per_thread), before);
    return result;
}

/* Nobody can wait for a stream that is gone; with work left on it, it stays open until the program waits for all. */
FAMILY(stream_gone, P_STREAM, CUstream stream) {
    uint64_t before = gls_wait_begins();
    bool done = is_done(stream);
    CUresult result = real(stream);
    if (result == CUDA_SUCCESS && done) gls_waited(gls_stream(stream, per_thread), before);
    if (result == CUDA_SUCCESS) gls_capture_stream_gone(stream); /* nobody can end its capture any more */
    return result;
}

FAMILY(event_record, P_EVENT_RECORD, CUevent event, CUstream stream) {
    uint64_t before = gls_wait_begins();
    CUresult result = real(event, stream);
    if (result == CUDA_SUCCESS && !gls_self.inside) gls_event_recorded(event, gls_stream(stream, per_thread), before);
    return result;
}

FAMILY(event_record_flags, P_EVENT_RECORD_FLAGS, CUevent event, CUstream stream, unsigned flags) {
    uint64_t before = gls_wait_begins();
    CUresult result = real(event, stream, flags);
    if (result == CUDA_SUCCESS && !gls_self.inside) gls_event_recorded(event, gls_stream(stream, per_thread), before);
    return result;
}

FAMILY(stream_joins, P_STREAM_WAIT, CUstream stream, CUevent event, unsigned flags) {
    CUresult result = real(stream, event, flags);
    if (result == CUDA_SUCCESS && !gls_self.inside && atomic_load(&gls_captures) == 0)
        gls_stream_joins(gls_stream(stream, per_thread), event);
    return result;
}

FAMILY(event_wait, P_EVENT, CUevent event) {
    UNUSED;
    CUresult result = real(event);
    if (result == CUDA_SUCCESS && !gls_self.inside) gls_event_waited(event);
    return result;
}

static void swap(const char *symbol, void **pfn, cuuint64_t flags);

FAMILY(proc_address_1, P_PROC_1, const char *symbol, void **pfn, int version, cuuint64_t flags) {
    UNUSED;
    CUresult result = real(symbol, pfn, version, flags);
    if (result == CUDA_SUCCESS && pfn) swap(symbol, pfn, flags);
    return result;
}

FAMILY(proc_address_2, P_PROC_2, const char *symbol, void **pfn, int version, cuuint64_t flags,
       CUdriverProcAddressQueryResult *status) {
    UNUSED;
    CUresult result = real(symbol, pfn, version, flags, status);
    if (result == CUDA_SUCCESS && pfn) swap(symbol, pfn, flags);
    return result;
}

static void seen(CUresult result, const void *handle, enum gls_handle kind, const char *name) {
    if (result != CUDA_SUCCESS || gls_self.inside) return;
    gls_lock();
    gls_handle_seen(handle, kind, name);
    gls_unlock();
}

FAMILY(get_function, P_GET_FUNCTION, CUfunction *function, CUmodule module, const char *name) {
    UNUSED;
    CUresult result = real(function, module, name);
    seen(result, function ? *function : NULL, GLS_HANDLE_FUNCTION, name);
    return result;
}

FAMILY(get_kernel, P_GET_KERNEL, CUkernel *kernel, CUlibrary library, const char *name) {
    UNUSED;
    CUresult result = real(kernel, library, name);
    seen(result, kernel ? *kernel : NULL, GLS_HANDLE_KERNEL, name);
    return result;
}

FAMILY(kernel_function, P_KERNEL_FUNCTION, CUfunction *function, CUkernel kernel) {
    UNUSED;
    CUresult result = real(function, kernel);
    seen(result, function ? *function : NULL, GLS_HANDLE_FUNCTION, NULL);
    return result;
}

static void forget_kernels(void) {
    gls_lock();
    gls_kernels_unloaded();
    gls_unlock();
}

/* The context is destroyed, and with it its work, kernels and events; another may get its address. */
static void context_gone(CUcontext context, uint64_t before) {
    bool own = context == gls_self.context;
    atomic_fetch_add(&gls_process.generation, 1);
    forget_kernels();
    gls_measure_forget(context);
    gls_memory_context_gone(context);
    if (own) gls_waited(0, before);
}

static CUcontext current(void) {
    CUcontext context = NULL;
    return gls_own.context && gls_own.context(&context) == CUDA_SUCCESS ? context : NULL;
}

/* Allocations: within the bound, where there is one. A driver may allocate by way of another of its functions. */
#define WITHIN(asked, got, kind, name, call)                                                                        \
    if (gls_self.inside || !gls_memory_has_bound()) return call;                                                    \
    size_t kept = (asked);                                                                                          \
    if (!gls_memory_takes(kept)) return CUDA_ERROR_OUT_OF_MEMORY;                                                   \
    gls_self.inside++;                                                                                              \
    CUresult result = call;                                                                                         \
    gls_self.inside--;                                                                                              \
    bool made = result == CUDA_SUCCESS;                                                                             \
    const void *where = made && (kind) == GLS_POINTER ? current() : NULL;                                           \
    gls_memory_taken(kind, made ? (uint64_t)(name) : 0, kept, made ? (got) : 0, where);                             \
    return result

FAMILY(mem_alloc, P_MEM_ALLOC, CUdeviceptr *at, size_t bytes) {
    UNUSED;
    WITHIN(bytes, bytes, GLS_POINTER, *at, real(at, bytes));
}
FAMILY(mem_managed, P_MEM_MANAGED, CUdeviceptr *at, size_t bytes, unsigned flags) {
    UNUSED;
    WITHIN(bytes, bytes, GLS_POINTER, *at, real(at, bytes, flags));
}
FAMILY(mem_async, P_MEM_ASYNC, CUdeviceptr *at, size_t bytes, CUstream stream) {
    UNUSED;
    WITHIN(bytes, bytes, GLS_POINTER, *at, real(at, bytes, stream));
}
FAMILY(mem_pool, P_MEM_POOL, CUdeviceptr *at, size_t bytes, CUmemoryPool pool, CUstream stream) {
    UNUSED;
    WITHIN(bytes, bytes, GLS_POINTER, *at, real(at, bytes, pool, stream));
}

/* How long a row becomes the driver says afterwards; until then it counts as if rows began at multiples of 512. */
FAMILY(mem_pitch, P_MEM_PITCH, CUdeviceptr *at, size_t *pitch, size_t width, size_t height, unsigned element) {
    UNUSED;
    size_t row = (width + 511) / 512 * 512, most;
    if (__builtin_mul_overflow(row, height, &most)) most = SIZE_MAX;
    WITHIN(most, *pitch * height, GLS_POINTER, *at, real(at, pitch, width, height, element));
}

FAMILY(mem_create, P_MEM_CREATE, CUmemGenericAllocationHandle *handle, size_t bytes,
       const CUmemAllocationProp *properties, unsigned long long flags) {
    UNUSED;
    if (!properties || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return real(handle, bytes, properties, flags); /* main memory */
    WITHIN(bytes, bytes, GLS_ALLOCATION, *handle, real(handle, bytes, properties, flags));
}

/* Taken out of the books first: once it is free another thread may be given the same address. */
#define FREES(kind, name, call)                                                                                     \
    if (gls_self.inside || !gls_memory_has_bound()) return call;                                                    \
    const void *where = NULL;                                                                                       \
    size_t bytes = gls_memory_freed(kind, name, &where);                                                            \
    CUresult result = call;                                                                                         \
    if (result != CUDA_SUCCESS && bytes) gls_memory_taken(kind, name, 0, bytes, where);                                 \
    return result

FAMILY(mem_free, P_MEM_FREE, CUdeviceptr at) {
    UNUSED;
    FREES(GLS_POINTER, at, real(at));
}
FAMILY(mem_free_async, P_MEM_FREE_ASYNC, CUdeviceptr at, CUstream stream) {
    UNUSED;
    FREES(GLS_POINTER, at, real(at, stream));
}
FAMILY(mem_release, P_MEM_RELEASE, CUmemGenericAllocationHandle handle) {
    UNUSED;
    FREES(GLS_ALLOCATION, handle, real(handle));
}
FAMILY(mem_info, P_MEM_INFO, size_t *left, size_t *total) {
    UNUSED;
    CUresult result = real(left, total);
    if (result == CUDA_SUCCESS) gls_memory_seen(left, total);
    return result;
}

FAMILY(context_destroy, P_CONTEXT, CUcontext context) {
    UNUSED;
    uint64_t before = gls_wait_begins();
    CUresult result = real(context);
    if (result == CUDA_SUCCESS && context) context_gone(context, before);
    return result;
}

/* The primary context of each device, as it was given out. */
#define DEVICES 64
static _Atomic(CUcontext) primary[DEVICES];

FAMILY(primary_retain, P_PRIMARY, CUcontext *context, CUdevice device) {
    UNUSED;
    CUresult result = real(context, device);
    if (result == CUDA_SUCCESS && context && device >= 0 && device < DEVICES) atomic_store(&primary[device], *context);
    return result;
}

/* It is gone when reset, or when released by the last that kept it. */
FAMILY(primary_ends, P_DEVICE, CUdevice device) {
    UNUSED;
    uint64_t before = gls_wait_begins();
    CUresult result = real(device);
    if (result != CUDA_SUCCESS || device < 0 || device >= DEVICES) return result;
    unsigned flags;
    int active = 1;
    CUcontext context = atomic_load(&primary[device]);
    bool told = gls_own.primary_state && gls_own.primary_state(device, &flags, &active) == CUDA_SUCCESS;
    if (context && told && !active) context_gone(context, before);
    return result;
}

FAMILY(module_unload, P_MODULE, CUmodule module) {
    UNUSED;
    CUresult result = real(module);
    forget_kernels();
    return result;
}

FAMILY(library_unload, P_LIBRARY, CUlibrary library) {
    UNUSED;
    CUresult result = real(library);
    forget_kernels();
    return result;
}

#define PER_THREAD(name) (__builtin_strstr(name, "_ptsz") != NULL || __builtin_strstr(name, "_ptds") != NULL)

/* The exported functions. The real function's arguments are passed on as they came. */
#define WRAP(name, parameters, arguments, family, ...)                                                              \
    EXPORT CUresult name parameters;                                                                                \
    EXPORT CUresult name parameters {                                                                               \
        void *found = real_of(HOOK_##name);                                                                         \
        real_##family real;                                                                                         \
        memcpy(&real, &found, sizeof found);                                                                        \
        if (__builtin_expect(!found, 0)) return lacking();                                                          \
        if (passing()) return real arguments;                                                                       \
        return managed_##family(real, PER_THREAD(#name), __VA_ARGS__);                                              \
    }
#define HOOK(name, parameters, arguments, family) WRAP(name, parameters, arguments, family, HOOK_ARGUMENTS arguments)
#define HOOK_ARGUMENTS(...) __VA_OPT__(__VA_ARGS__) NONE_IF_EMPTY(__VA_ARGS__)
#define NONE_IF_EMPTY(...) NONE_##__VA_OPT__(NO)
#define NONE_ 0
#define NONE_NO
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#include "hooks.def"
#pragma GCC diagnostic pop
#undef HOOK

static void *const wrappers[HOOK_COUNT] = {
#define HOOK(name, parameters, arguments, family) (void *)name,
#include "hooks.def"
#undef HOOK
};

/* The real driver has answered: where the address is one of a function that is wrapped, or its name is, give the
 * wrapper. A driver may give addresses that none of its exported symbols has. */
static void swap(const char *symbol, void **pfn, cuuint64_t flags) {
    int hook = gls_hook_of(*pfn);
    if (hook < 0 && symbol && *pfn)
        hook = gls_hook_named(symbol, (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0, *pfn);
    if (hook >= 0) {
        *pfn = wrappers[hook];
    } else if (symbol && *pfn && (strstr(symbol, "cuLaunch") == symbol || strcmp(symbol, "cuGraphLaunch") == 0)) {
        gls_log("cuGetProcAddress(%s): an address that no exported symbol has; not gated", symbol);
    }
}
