/* See driver.h; and the resolver behind stubs.S. */
#define _GNU_SOURCE
#include "driver.h"

#include "log.h"
#include "shm.h"

#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Atomic(void *) gls_real[HOOK_COUNT];
struct gls_own gls_own;

static const char *const hook_names[HOOK_COUNT] = {
#define HOOK(name, parameters, arguments, family) #name,
#include "hooks.def"
#undef HOOK
};

/* Where distributions, containers and NVIDIA's own installer put the driver's library. */
static const char *const places[] = {
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/lib/x86_64-linux-gnu",
    "/usr/local/nvidia/lib64",   "/usr/local/nvidia/lib",      "/usr/lib/wsl/lib", "/run/opengl-driver/lib",
    "/usr/lib/x86_64-linux-gnu/nvidia/current", "/usr/lib64/nvidia", "/usr/lib/nvidia", "/usr/local/cuda/compat",
};

static pthread_mutex_t loading = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static _Atomic int state; /* 0: not tried, 1: being loaded, 2: there, 3: there is none */
static void *library;

/* Exported so that one shim knows another. */
__attribute__((visibility("default"))) const unsigned gpuloom_shim_version = GLS_VERSION;

static bool is_self(const char *path) {
    Dl_info own;
    struct stat here, there;
    if (!dladdr(&gpuloom_shim_version, &own) || !own.dli_fname) return false;
    if (stat(own.dli_fname, &here) != 0 || stat(path, &there) != 0) return false;
    return here.st_dev == there.st_dev && here.st_ino == there.st_ino;
}

static void *open_driver(const char *path) {
    if (is_self(path)) return NULL;
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        gls_log("%s", dlerror());
        return NULL;
    }
    if (!dlsym(handle, "cuInit") || dlsym(handle, "gpuloom_shim_version")) {
        gls_log("%s: %s", path, dlsym(handle, "cuInit") ? "another shim" : "no driver (no cuInit)");
        dlclose(handle);
        return NULL;
    }
    gls_log("driver: %s", path);
    return handle;
}

/* libcuda.so.1 of a folder, or, where that name is the shim itself, libcuda.so.<version>. */
static void *open_in(const char *folder) {
    char path[PATH_MAX];
    if (folder[0] != '/') return NULL;
    if (snprintf(path, sizeof path, "%s/libcuda.so.1", folder) >= (int)sizeof path) return NULL;
    void *handle = access(path, R_OK) == 0 ? open_driver(path) : NULL;
    if (handle) return handle;
    DIR *entries = opendir(folder);
    if (!entries) return NULL;
    for (struct dirent *entry; !handle && (entry = readdir(entries));) {
        if (strncmp(entry->d_name, "libcuda.so.", 11) != 0 || strcmp(entry->d_name, "libcuda.so.1") == 0) continue;
        if (snprintf(path, sizeof path, "%s/%s", folder, entry->d_name) < (int)sizeof path) handle = open_driver(path);
    }
    closedir(entries);
    return handle;
}

static void *find_driver(void) {
    const char *named = secure_getenv("GPULOOM_SHARE_DRIVER");
    if (named && *named) {
        void *handle = open_driver(named);
        if (!handle) gls_log("GPULOOM_SHARE_DRIVER=%s is no driver that can be loaded", named);
        return handle; /* named and wrong: guessing another would hide it */
    }
    const char *path = secure_getenv("LD_LIBRARY_PATH");
    void *handle = NULL;
    if (path && *path) {
        char *copy = strdup(path), *rest = copy;
        for (char *folder; copy && !handle && (folder = strsep(&rest, ":;"));) handle = open_in(folder);
        free(copy);
    }
    for (size_t i = 0; !handle && i < sizeof places / sizeof *places; i++) handle = open_in(places[i]);
    return handle;
}

static void *first_of(const char *newest, const char *older) {
    void *found = dlsym(library, newest);
    return found || !older ? found : dlsym(library, older);
}

/* Function pointers of any type from dlsym's object pointer. */
#define TAKE(target, newest, older)                                                                                 \
    do {                                                                                                            \
        void *found_ = first_of(newest, older);                                                                     \
        memcpy(&(target), &found_, sizeof found_);                                                                  \
    } while (0)

bool gls_driver(void) {
    int seen = atomic_load_explicit(&state, memory_order_acquire);
    if (seen >= 2) return seen == 2;
    pthread_mutex_lock(&loading);
    if (atomic_load(&state) == 0) { /* 1: called by the driver's own constructors */
        atomic_store(&state, 1);
        library = find_driver();
        if (library) {
            for (int i = 0; i < HOOK_COUNT; i++) atomic_store(&gls_real[i], dlsym(library, hook_names[i]));
            TAKE(gls_own.context, "cuCtxGetCurrent", NULL);
            TAKE(gls_own.device, "cuCtxGetDevice", NULL);
            TAKE(gls_own.uuid, "cuDeviceGetUuid_v2", "cuDeviceGetUuid");
            TAKE(gls_own.attribute, "cuDeviceGetAttribute", NULL);
            TAKE(gls_own.function_name, "cuFuncGetName", NULL);
            TAKE(gls_own.kernel_name, "cuKernelGetName", NULL);
            TAKE(gls_own.occupancy, "cuOccupancyMaxActiveBlocksPerMultiprocessor", NULL);
            TAKE(gls_own.capturing, "cuStreamIsCapturing", NULL);
            TAKE(gls_own.event_create, "cuEventCreate", NULL);
            TAKE(gls_own.event_elapsed, "cuEventElapsedTime", NULL);
            TAKE(gls_own.primary_state, "cuDevicePrimaryCtxGetState", NULL);
            int (*is_virtual)(void); /* only the tests' fake driver has a clock of its own */
            TAKE(is_virtual, "gpuloom_fake_virtual", NULL);
            if (is_virtual && is_virtual()) {
                TAKE(gls_clock, "gpuloom_fake_clock", NULL);
                TAKE(gls_sleep, "gpuloom_fake_sleep", NULL);
                TAKE(gls_waiter, "gpuloom_fake_wait", NULL);
                TAKE(gls_waker, "gpuloom_fake_wake", NULL);
            }
        } else {
            gls_log("no CUDA driver was found; name it in GPULOOM_SHARE_DRIVER");
        }
        atomic_store_explicit(&state, library ? 2 : 3, memory_order_release);
    }
    pthread_mutex_unlock(&loading);
    return atomic_load(&state) == 2;
}

bool gls_overlaps(void) {
    int (*fake)(void) = NULL; /* the tests' fake driver has no pipes */
    char path[PATH_MAX];
    const char *pipes = getenv("CUDA_MPS_PIPE_DIRECTORY");
    if (gls_driver()) TAKE(fake, "gpuloom_fake_mps", NULL);
    if (fake) return fake() != 0;
    int length = snprintf(path, sizeof path, "%s/control", pipes && *pipes ? pipes : "/tmp/nvidia-mps");
    return length > 0 && length < (int)sizeof path && access(path, F_OK) == 0;
}

int gls_hook_of(const void *address) {
    for (int i = 0; address && i < HOOK_COUNT; i++)
        if (atomic_load_explicit(&gls_real[i], memory_order_relaxed) == address) return i;
    return -1;
}

/* Names whose forms take other arguments: by the name alone it is not known which form an address is. */
static const char *const ambiguous[] = {"cuStreamBeginCapture", "cuCtxSynchronize", "cuGetProcAddress"};

static int named(const char *symbol, const char *version, const char *thread) {
    char name[128];
    if (snprintf(name, sizeof name, "%s%s%s", symbol, version, thread) >= (int)sizeof name) return -1;
    for (int i = 0; i < HOOK_COUNT; i++)
        if (strcmp(hook_names[i], name) == 0) return i;
    return -1;
}

int gls_hook_named(const char *symbol, bool per_thread, void *address) {
    static const char *const versions[] = {"_v2", ""};
    static const char *const threads[] = {"_ptsz", "_ptds", ""};
    for (size_t i = 0; i < sizeof ambiguous / sizeof *ambiguous; i++)
        if (strcmp(symbol, ambiguous[i]) == 0) return -1;
    for (int thread = per_thread ? 0 : 2; thread < 3; thread++)
        for (int version = 0; version < 2; version++) {
            int hook = named(symbol, versions[version], threads[thread]);
            if (hook < 0) continue;
            void *none = NULL;
            atomic_compare_exchange_strong(&gls_real[hook], &none, address);
            return hook;
        }
    return -1;
}

/* What a symbol that the driver lacks does. */
static CUresult not_found(void) { return CUDA_ERROR_NOT_FOUND; }
static CUresult no_driver(void) { return CUDA_ERROR_STUB_LIBRARY; }

static const char *const symbol_names[] = {
#define SYMBOL(name) #name,
#include "symbols.def"
#ifdef GLS_EXTRA_SYMBOLS
#include GLS_EXTRA_SYMBOLS
#endif
#undef SYMBOL
};
extern _Atomic(void *) gls_slots[];

/* Called by stubs.S at the first call of symbol `index`: the address to jump to. */
__attribute__((visibility("hidden"), used)) void *gls_resolve(unsigned index);
void *gls_resolve(unsigned index) {
    if (!gls_driver()) return (void *)no_driver; /* not kept: nothing is lost by asking again */
    void *target = dlsym(library, symbol_names[index]);
    if (!target) {
        gls_log("the driver has no %s: CUDA_ERROR_NOT_FOUND", symbol_names[index]);
        target = (void *)not_found;
    }
    atomic_store_explicit(&gls_slots[index], target, memory_order_release);
    return target;
}
