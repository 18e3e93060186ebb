/* See memory.h. A table of what was allocated, by name: open addressing, at most half full, under a lock of its own. */
#define _GNU_SOURCE
#include "memory.h"

#include "log.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB (1ull << 20)
#define FIRST 1024u

struct entry {
    uint64_t key; /* 0: free; 1: was taken */
    uint64_t bytes;
    const void *context;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t bound; /* bytes; 0: none */
static uint64_t used;          /* also what is kept for allocations under way */
static struct entry *table;
static size_t size, filled; /* a power of two; entries that are not free */
static bool told;

static uint64_t most(void) { return atomic_load_explicit(&bound, memory_order_relaxed); }

void gls_memory_bound(double mib) { atomic_store(&bound, mib > 0 ? (uint64_t)(mib * (double)MIB) : 0); }

bool gls_memory_has_bound(void) { return most() > 0; }

static uint64_t key_of(enum gls_memory kind, uint64_t name) {
    uint64_t key = name * 2 + (kind == GLS_ALLOCATION);
    return key < 2 ? key + 2 : key;
}

static struct entry *place_of(struct entry *in, size_t count, uint64_t key) {
    size_t at = (size_t)((key >> 4) * 0x9e3779b97f4a7c15ull >> 20) & (count - 1);
    while (in[at].key > 1 && in[at].key != key) at = (at + 1) & (count - 1);
    if (in[at].key == key) return &in[at];
    struct entry *here = &in[at]; /* the first that may be taken; it may stand behind what was */
    while (in[at].key != 0 && in[at].key != key) at = (at + 1) & (count - 1);
    return in[at].key == key ? &in[at] : here;
}

/* Room for one more. False: there is no memory for the table. */
static bool grow(void) {
    if (size && (filled + 1) * 2 <= size) return true;
    size_t live = 0;
    for (size_t i = 0; i < size; i++) live += table[i].key > 1;
    size_t count = size ? size : FIRST;
    while ((live + 1) * 4 > count) count *= 2;
    struct entry *made = calloc(count, sizeof *made);
    if (!made) return false;
    for (size_t i = 0; i < size; i++)
        if (table[i].key > 1) *place_of(made, count, table[i].key) = table[i];
    free(table);
    table = made, size = count, filled = live;
    return true;
}

static void tell(uint64_t asked, uint64_t has) {
    char line[256];
    int length = snprintf(line, sizeof line,
                          "gpuloom: out of GPU memory: beside others this program may have %llu MiB (gpu_memory), has "
                          "%llu and asked for %llu more\n",
                          (unsigned long long)(most() / MIB), (unsigned long long)(has / MIB),
                          (unsigned long long)((asked + MIB - 1) / MIB));
    gls_log("%.*s", length - 1, line);
    if (told) return;
    told = true;
    ssize_t ignored = write(STDERR_FILENO, line, (size_t)length);
    (void)ignored;
}

bool gls_memory_takes(size_t bytes) {
    pthread_mutex_lock(&lock);
    bool fits = bytes <= most() && used <= most() - bytes;
    if (fits) used += bytes;
    else tell(bytes, used);
    pthread_mutex_unlock(&lock);
    return fits;
}

void gls_memory_taken(enum gls_memory kind, uint64_t name, size_t asked, size_t bytes, const void *context) {
    pthread_mutex_lock(&lock);
    used -= asked < used ? asked : used;
    if (name && grow()) { /* what can't be written down is not counted */
        struct entry *here = place_of(table, size, key_of(kind, name));
        if (here->key > 1) used -= here->bytes; /* freed without our knowing */
        else filled += here->key == 0;
        *here = (struct entry){key_of(kind, name), bytes, context};
        used += bytes;
    }
    pthread_mutex_unlock(&lock);
}

size_t gls_memory_freed(enum gls_memory kind, uint64_t name, const void **context) {
    size_t bytes = 0;
    pthread_mutex_lock(&lock);
    if (size && name) {
        struct entry *here = place_of(table, size, key_of(kind, name));
        if (here->key > 1) {
            bytes = (size_t)here->bytes;
            *context = here->context;
            used -= bytes;
            *here = (struct entry){1, 0, NULL};
        }
    }
    pthread_mutex_unlock(&lock);
    return bytes;
}

void gls_memory_forked(void) {
    static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    memcpy(&lock, &fresh, sizeof fresh);
    if (size) memset(table, 0, size * sizeof *table);
    filled = 0, used = 0;
    told = false;
}

void gls_memory_context_gone(const void *context) {
    pthread_mutex_lock(&lock);
    for (size_t i = 0; context && i < size; i++) {
        if (table[i].key < 2 || table[i].context != context) continue;
        used -= table[i].bytes;
        table[i] = (struct entry){1, 0, NULL};
    }
    pthread_mutex_unlock(&lock);
}

void gls_memory_seen(size_t *left, size_t *total) {
    pthread_mutex_lock(&lock);
    if (most()) {
        uint64_t mine = used < most() ? most() - used : 0;
        if (left && *left > mine) *left = (size_t)mine;
        if (total && *total > most()) *total = (size_t)most();
    }
    pthread_mutex_unlock(&lock);
}
