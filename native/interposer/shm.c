/* See shm.h. */
#define _GNU_SOURCE
#include "shm.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define INIT_TIMEOUT_MS 200

uint64_t (*gls_clock)(void);
void (*gls_sleep)(uint64_t ns);
void (*gls_waiter)(uint64_t ns);
void (*gls_waker)(void);

uint64_t gls_now(void) {
    if (__builtin_expect(gls_clock != NULL, 0)) return gls_clock();
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#ifdef GLS_FAULTS
void gls_fault(const char *point) {
    const char *wanted = getenv("GPULOOM_SHARE_FAULT");
    if (wanted && strcmp(wanted, point) == 0) raise(SIGKILL);
}
#endif

const char *gls_error_text(enum gls_error error) {
    switch (error) {
    case GLS_OK: return "ok";
    case GLS_NO_FILE: return "the shared file cannot be opened, created or mapped";
    case GLS_MISMATCH: return "the shared file has another layout and is in use";
    case GLS_FULL: return "all slots of the shared file are taken";
    case GLS_NOT_OURS: return "the shared file is not a regular file of this user";
    case GLS_BUSY: return "somebody keeps the shared file's creation lock";
    }
    return "unknown";
}

static int lock_byte(int fd, int command, short type, off_t start, off_t length) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
    return fcntl(fd, command, &lock);
}

/* Whether another open file holds a lock on the bytes. On doubt: yes. */
static bool held_elsewhere(int fd, off_t start, off_t length) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
    if (fcntl(fd, F_OFD_GETLK, &lock) != 0) return true;
    return lock.l_type != F_UNLCK;
}

static void nap(long ns) {
    struct timespec t = {0, ns};
    nanosleep(&t, NULL);
}

static bool fits(const struct gls_header *h, const struct stat *st, const unsigned char uuid[16]) {
    return (uint64_t)st->st_size == GLS_TOTAL && atomic_load(&((struct gls_header *)h)->magic) == GLS_MAGIC &&
           h->version == GLS_VERSION && h->header_bytes == sizeof(struct gls_header) &&
           h->client_bytes == sizeof(struct gls_client) && h->clients == GLS_CLIENTS && h->total_bytes == GLS_TOTAL &&
           memcmp(h->uuid, uuid, 16) == 0;
}

static enum gls_error map_file(struct gls_map *map) {
    void *at = mmap(NULL, GLS_TOTAL, PROT_READ | PROT_WRITE, MAP_SHARED, map->fd, 0);
    if (at == MAP_FAILED) return GLS_NO_FILE;
    map->header = at;
    map->clients = (struct gls_client *)((char *)at + sizeof(struct gls_header));
    return GLS_OK;
}

/* With the creation lock held: make the file fit, or say why not. 1: the file was taken off, open it again. */
static int settle(struct gls_map *map, const char *path, const unsigned char uuid[16], uint32_t sm_count,
                  enum gls_error *error) {
    struct stat st, named;
    if (fstat(map->fd, &st) != 0) {
        *error = GLS_NO_FILE;
        return 0;
    }
    if (stat(path, &named) != 0 || named.st_ino != st.st_ino || named.st_dev != st.st_dev) return 1;
    if ((uint64_t)st.st_size == GLS_TOTAL) {
        if ((*error = map_file(map)) != GLS_OK) return 0;
        if (fits(map->header, &st, uuid)) return 0;
    }
    if (held_elsewhere(map->fd, GLS_LOCK_BASE, GLS_CLIENTS)) {
        *error = GLS_MISMATCH;
        return 0;
    }
    if (st.st_size != 0) { /* stale: a reader may still have it mapped, so it is not cut but replaced */
        if (unlink(path) != 0) {
            *error = GLS_NO_FILE;
            return 0;
        }
        return 1;
    }
    gls_fault("file-created");
    /* All of it is allocated now: a full tmpfs shall fail here and not by SIGBUS later. */
    int failed = posix_fallocate(map->fd, 0, (off_t)GLS_TOTAL);
    if (failed != 0) {
        (void)!ftruncate(map->fd, 0);
        errno = failed;
        *error = GLS_NO_FILE;
        return 0;
    }
    gls_fault("file-sized");
    if ((*error = map_file(map)) != GLS_OK) return 0;
    struct gls_header *h = map->header;
    h->version = GLS_VERSION;
    h->header_bytes = sizeof(struct gls_header);
    h->client_bytes = sizeof(struct gls_client);
    h->clients = GLS_CLIENTS;
    h->total_bytes = GLS_TOTAL;
    h->sm_count = sm_count;
    memcpy(h->uuid, uuid, 16);
    gls_fault("header-before-magic");
    atomic_store(&h->magic, GLS_MAGIC);
    gls_fault("header-written");
    return 0;
}

static void forget(struct gls_map *map) {
    if (map->header) munmap(map->header, GLS_TOTAL);
    if (map->fd >= 0) close(map->fd);
    *map = (struct gls_map){.fd = -1, .slot = -1};
}

enum gls_error gls_open(struct gls_map *map, const char *path, const unsigned char uuid[16], uint32_t sm_count) {
    *map = (struct gls_map){.fd = -1, .slot = -1};
    for (int attempt = 0; attempt < 8; attempt++) {
        map->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (map->fd < 0) return errno == ELOOP ? GLS_NOT_OURS : GLS_NO_FILE;
        struct stat st;
        if (fstat(map->fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid()) {
            forget(map);
            return GLS_NOT_OURS;
        }
        int waited = 0;
        while (lock_byte(map->fd, F_OFD_SETLK, F_WRLCK, GLS_LOCK_INIT, 1) != 0) {
            if (errno != EAGAIN && errno != EACCES && errno != EINTR) {
                forget(map);
                return GLS_NO_FILE;
            }
            if (waited++ >= INIT_TIMEOUT_MS) {
                forget(map);
                return GLS_BUSY;
            }
            nap(1000000);
        }
        enum gls_error error = GLS_OK;
        int again = settle(map, path, uuid, sm_count, &error);
        if (error != GLS_OK || again) {
            int kept = errno;
            forget(map); /* closing gives the creation lock back */
            errno = kept;
            if (again) continue;
            return error;
        }
        lock_byte(map->fd, F_OFD_SETLK, F_UNLCK, GLS_LOCK_INIT, 1);
        return GLS_OK;
    }
    return GLS_NO_FILE;
}

static void clear_masks(struct gls_map *map, unsigned slot) {
    uint64_t keep = ~(1ull << slot);
    atomic_fetch_and(&map->header->high_mask, keep);
    atomic_fetch_and(&map->header->best_mask, keep);
    atomic_fetch_and(&map->header->waiting_mask, keep);
}

static uint64_t start_ticks(void) { /* field 22 of /proc/self/stat: tells a process from a later one of the same id */
    char text[1024];
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0) return 0;
    text[got] = 0;
    char *at = strrchr(text, ')');
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

enum gls_error gls_attach(struct gls_map *map, enum gls_class klass, const char *name, uint64_t now_ns) {
    for (unsigned slot = 0; slot < GLS_CLIENTS; slot++) {
        if (lock_byte(map->fd, F_OFD_SETLK, F_WRLCK, GLS_LOCK_BASE + (off_t)slot, 1) != 0) continue;
        gls_fault("slot-locked");
        struct gls_client *c = &map->clients[slot];
        clear_masks(map, slot); /* of a dead owner */
        uint32_t generation = atomic_load(&c->generation) + 1;
        atomic_store(&c->state, GLS_CLAIMED);
        gls_fault("slot-claimed");
        /* Word by word: another program may be reading the dead owner's data. */
        _Atomic uint64_t *word = (_Atomic uint64_t *)(void *)c;
        for (size_t i = 1; i < sizeof *c / sizeof *word; i++) atomic_store_explicit(&word[i], 0, memory_order_relaxed);
        atomic_store(&c->generation, generation);
        atomic_store(&c->pid, (uint32_t)getpid());
        atomic_store(&c->start_ticks, start_ticks());
        atomic_store(&c->attached_ns, now_ns);
        strncpy(c->name, name ? name : "", GLS_NAME - 1);
        atomic_store(&c->klass, klass);
        atomic_store(&c->state, GLS_LIVE);
        gls_fault("slot-live");
        if (klass == GLS_CLASS_HIGH) atomic_fetch_or(&map->header->high_mask, 1ull << slot);
        if (klass == GLS_CLASS_BEST_EFFORT) atomic_fetch_or(&map->header->best_mask, 1ull << slot);
        map->slot = (int)slot;
        gls_fault("slot-published");
        return GLS_OK;
    }
    return GLS_FULL;
}

void gls_detach(struct gls_map *map) {
    if (map->slot < 0 || !map->header) return;
    unsigned slot = (unsigned)map->slot;
    map->slot = -1;
    struct gls_client *c = &map->clients[slot];
    atomic_store(&c->busy, 0);
    gls_fault("detach-idle");
    clear_masks(map, slot);
    atomic_store(&c->state, GLS_FREE);
    gls_wake(map);
    gls_fault("detach-before-unlock");
    lock_byte(map->fd, F_OFD_SETLK, F_UNLCK, GLS_LOCK_BASE + (off_t)slot, 1);
}

void gls_close(struct gls_map *map) {
    gls_detach(map);
    forget(map);
}

int gls_reap(struct gls_map *map, uint64_t only) {
    int freed = 0;
    uint64_t marked = atomic_load(&map->header->high_mask) | atomic_load(&map->header->best_mask);
    for (uint64_t left = marked & only; left; left &= left - 1) {
        unsigned slot = (unsigned)__builtin_ctzll(left);
        off_t byte = GLS_LOCK_BASE + (off_t)slot;
        if ((int)slot == map->slot || held_elsewhere(map->fd, byte, 1)) continue;
        if (lock_byte(map->fd, F_OFD_SETLK, F_WRLCK, byte, 1) != 0) continue; /* somebody else reaps or claims it */
        gls_fault("reap-locked");
        clear_masks(map, slot);
        atomic_store(&map->clients[slot].busy, 0);
        atomic_store(&map->clients[slot].held, 0);
        atomic_store(&map->clients[slot].state, GLS_FREE);
        gls_fault("reap-cleared");
        lock_byte(map->fd, F_OFD_SETLK, F_UNLCK, byte, 1);
        freed++;
    }
    if (freed) gls_wake(map);
    return freed;
}

void gls_announce(struct gls_map *map, bool waits) {
    uint64_t bit = 1ull << (unsigned)map->slot;
    if (waits) atomic_fetch_or(&map->header->waiting_mask, bit);
    else atomic_fetch_and(&map->header->waiting_mask, ~bit);
}

void gls_wait(struct gls_map *map, uint32_t seen, uint64_t timeout_ns) {
    struct timespec t = {(time_t)(timeout_ns / 1000000000u), (long)(timeout_ns % 1000000000u)};
    gls_fault("waiting-announced");
    if (gls_waiter) {
        if (atomic_load(&map->header->idle) == seen) gls_waiter(timeout_ns);
    } else
        syscall(SYS_futex, (uint32_t *)(void *)&map->header->idle, FUTEX_WAIT, seen, &t, NULL, 0);
}

void gls_wake(struct gls_map *map) {
    atomic_fetch_add(&map->header->idle, 1);
    if (atomic_load(&map->header->waiting_mask) == 0) return;
    gls_fault("idle-before-wake");
    if (gls_waker)
        gls_waker();
    else
        syscall(SYS_futex, (uint32_t *)(void *)&map->header->idle, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

#define ACCOUNT_TIME ((1ull << 48) - 1)

void gls_account(struct gls_map *map, uint64_t now_ns, uint64_t duration_ns, uint32_t sm) {
    uint64_t now = (now_ns >> 6) & ACCOUNT_TIME, seen = atomic_load(&map->header->account), next;
    bool fresh;
    do {
        uint64_t end = seen & ACCOUNT_TIME, in_flight = seen >> 48;
        fresh = end <= now;
        if (fresh) end = now, in_flight = 0;
        in_flight += sm;
        if (in_flight > 0xffff) in_flight = 0xffff;
        next = (in_flight << 48) | ((end + ((duration_ns + 63) >> 6)) & ACCOUNT_TIME);
    } while (!atomic_compare_exchange_weak(&map->header->account, &seen, next));
    if (fresh)
        atomic_store(&map->header->pending, 1);
    else
        atomic_fetch_add(&map->header->pending, 1);
}

void gls_outstanding(struct gls_map *map, uint64_t now_ns, uint64_t *ns, uint32_t *sm, uint32_t *kernels) {
    uint64_t now = (now_ns >> 6) & ACCOUNT_TIME, seen = atomic_load(&map->header->account);
    uint64_t end = seen & ACCOUNT_TIME;
    bool any = end > now;
    *ns = any ? (end - now) << 6 : 0;
    *sm = any ? (uint32_t)(seen >> 48) : 0;
    *kernels = any ? (uint32_t)atomic_load(&map->header->pending) : 0;
}
