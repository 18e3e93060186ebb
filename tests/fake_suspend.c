/* A driver with the checkpoint calls, and as much of NVML as executors/suspending.py asks for. Behaves as was seen of
 * driver 580 on an H200 (docs/explanation/suspending.md).
 *
 * FAKE_GPU names a folder: a file for each process with a context, which all map, and what the test wants to go wrong:
 * files `nvml` (fails once memory has moved), `no-lock` (time-out), `801`, `no-checkpoint`, `no-restore`, `stays` (memory does not come free),
 * `hold-checkpoint` (the call does not return), `total` (bytes).
 *
 * A program's own calls: fake_begin(bytes) makes its context, fake_step() is a launch: it blocks while the process is
 * locked or away. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct context {
    _Atomic int state; /* 0 running, 1 locked, 2 checkpointed */
    _Atomic int lost, inside;
    _Atomic uint64_t bytes;
};

static struct context *own;

static const char *place(const char *name) {
    static _Thread_local char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("FAKE_GPU"), name);
    return path;
}

static int wanted(const char *name) { return access(place(name), F_OK) == 0; }

static struct context *map(int pid, int create) {
    char name[32];
    snprintf(name, sizeof name, "%d", pid);
    int fd = open(place(name), O_RDWR | O_CLOEXEC | (create ? O_CREAT : 0), 0600);
    if (fd < 0) return NULL;
    if (create && ftruncate(fd, sizeof(struct context)) != 0) abort();
    struct stat about;
    if (fstat(fd, &about) != 0 || about.st_size < (off_t)sizeof(struct context)) { /* it is just being made */
        close(fd);
        return NULL;
    }
    void *found = mmap(NULL, sizeof(struct context), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return found == MAP_FAILED ? NULL : found;
}

static char kind(int pid) { /* of the process, as /proc has it; 0: there is none */
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    size_t size = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[size] = 0;
    char *end = strrchr(text, ')');
    return end ? end[2] : 0;
}

static void answers(int pid) { /* a process that stands still answers nothing, whatever the time-out */
    while (kind(pid) == 'T') usleep(10000);
}

static uint64_t used(void) {
    uint64_t all = 0;
    DIR *folder = opendir(getenv("FAKE_GPU"));
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        int pid = atoi(entry->d_name);
        char alive = pid > 0 ? kind(pid) : 0;
        struct context *c = alive && alive != 'Z' ? map(pid, 0) : NULL;
        if (c && c->state != 2) all += c->bytes;
        if (c) munmap(c, sizeof *c);
    }
    if (folder) closedir(folder);
    return all;
}

static uint64_t total(void) {
    unsigned long long found = 0;
    FILE *file = fopen(place("total"), "r");
    if (!file || fscanf(file, "%llu", &found) != 1) found = 8ull << 30;
    if (file) fclose(file);
    return found;
}

int fake_begin(unsigned long long bytes) {
    own = map(getpid(), 1);
    if (!own) return 1;
    if (used() + bytes > total()) return 2;
    own->bytes = bytes;
    return 0;
}

void fake_step(void) {
    for (;;) {
        own->inside = 1;
        if (own->state == 0) break;
        own->inside = 0;
        usleep(1000);
    }
    usleep(500);
    own->inside = 0;
}

int cuInit(unsigned flags) { return (int)flags * 0; }

int cuCheckpointProcessGetState(int pid, int *state) {
    answers(pid);
    if (!kind(pid)) return 304;
    struct context *c = map(pid, 0);
    if (!c) return 3;
    *state = c->state;
    return c->lost ? 304 : 0;
}

int cuCheckpointProcessLock(int pid, const unsigned *timeout_ms) {
    answers(pid);
    (void)timeout_ms;
    struct context *c = map(pid, 0);
    if (!c) return kind(pid) ? 3 : 304;
    if (wanted("801")) return 801;
    if (wanted("no-lock")) return 600;
    int running = 0;
    if (!atomic_compare_exchange_strong(&c->state, &running, 1)) return 401;
    while (c->inside && kind(pid)) usleep(500);
    return 0;
}

int cuCheckpointProcessCheckpoint(int pid, void *arguments) {
    (void)arguments;
    struct context *c = map(pid, 0);
    if (!c) return 304;
    if (c->state != 1) return 401;
    if (wanted("no-checkpoint")) return 999;
    usleep(50000);
    if (wanted("hold-checkpoint")) pause();
    c->state = 2;
    return 0;
}

int cuCheckpointProcessRestore(int pid, void *arguments) {
    (void)arguments;
    answers(pid);
    struct context *c = map(pid, 0);
    if (!c) return 304;
    if (c->lost) return 304;
    if (c->state != 2) return 401;
    if (wanted("no-restore") || used() + c->bytes > total()) {
        c->lost = 1; /* no other try is to be had */
        return 2;
    }
    usleep(50000);
    c->state = 1;
    return 0;
}

int cuCheckpointProcessUnlock(int pid, void *arguments) {
    (void)arguments;
    struct context *c = map(pid, 0);
    if (!c) return 304;
    int locked = 1;
    return atomic_compare_exchange_strong(&c->state, &locked, 0) ? 0 : 401;
}

/* NVML */

struct memory {
    unsigned long long total, free, used;
};
struct process {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
};

int nvmlInitWithFlags(unsigned flags) { return (int)flags * 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code ? "an error" : "no error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    snprintf(text, size, "580.0.fake");
    return 0;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    *device = (void *)(uintptr_t)1;
    return strncmp(uuid, "GPU-", 4) == 0 ? 0 : 6;
}
int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = 1;
    return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)(uintptr_t)1;
    return index == 0 ? 0 : 2;
}
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) {
    (void)device;
    snprintf(text, size, "GPU-fake");
    return 0;
}
int nvmlDeviceGetName(void *device, char *text, unsigned size) {
    (void)device;
    snprintf(text, size, "a fake GPU");
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, struct memory *found) {
    (void)device;
    *found = (struct memory){total(), total() - used(), used()};
    return 0;
}
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *later) {
    (void)device;
    *now = *later = 0;
    return 3; /* not supported */
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *found) {
    (void)device;
    static unsigned asked;
    if (asked++ >= 2 && wanted("nvml")) return 999; /* it tells how many there are, and which, and then fails */
    unsigned room = *count, here = 0;
    DIR *folder = opendir(getenv("FAKE_GPU"));
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        int pid = atoi(entry->d_name);
        char alive = pid > 0 ? kind(pid) : 0;
        struct context *c = alive && alive != 'Z' ? map(pid, 0) : NULL;
        if (c && c->bytes && (c->state != 2 || wanted("stays"))) {
            if (here < room) found[here] = (struct process){(unsigned)pid, c->bytes, 0, 0};
            here++;
        }
        if (c) munmap(c, sizeof *c);
    }
    if (folder) closedir(folder);
    *count = here;
    return here > room ? 7 : 0; /* insufficient size */
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, struct process *found) {
    (void)device, (void)found;
    *count = 0;
    return 0;
}
int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *device, unsigned *count, struct process *found) {
    (void)device, (void)found;
    *count = 0;
    return 0;
}
