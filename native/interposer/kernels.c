/* See kernels.h. */
#define _GNU_SOURCE
#include "kernels.h"

#include "driver.h"
#include "log.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TABLE 8192u   /* kernels */
#define WINDOW 32u    /* places that a kernel can have; where others have them all, the one longest unused goes */
#define WARM 2u       /* launches that an entry in the place of another counts as done: who was forgotten is not new */
#define HANDLES 16384u

atomic_flag gls_lock_word = ATOMIC_FLAG_INIT;
unsigned gls_kernels_generation;

static struct gls_known table[TABLE];
static unsigned filled;
static uint64_t uses;

struct handle {
    const void *handle;
    char *name;
    enum gls_handle kind;
    unsigned unloads; /* as they were when it was last given out */
};
static struct handle handles[HANDLES];
static unsigned handle_count, unloads;

static uint64_t mix(uint64_t h) { /* the finaliser of splitmix64 */
    h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ull;
    h = (h ^ (h >> 27)) * 0x94d049bb133111ebull;
    return h ^ (h >> 31);
}

static uint64_t hash_key(const struct gls_key *k) {
    uint64_t h = (uint64_t)(uintptr_t)k->f;
    h = mix(h ^ ((uint64_t)k->grid[0] << 32 | k->block[0]));
    h ^= (uint64_t)k->grid[1] << 40 ^ (uint64_t)k->grid[2] << 20 ^ (uint64_t)k->block[1] << 10 ^ k->block[2];
    return mix(h ^ ((uint64_t)k->shared << 32));
}

static bool same_key(const struct gls_key *a, const struct gls_key *b) {
    return a->f == b->f && a->shared == b->shared && memcmp(a->grid, b->grid, sizeof a->grid) == 0 &&
           memcmp(a->block, b->block, sizeof a->block) == 0;
}

struct gls_known *gls_find(const struct gls_key *key) {
    uint64_t at = hash_key(key);
    for (unsigned i = 0; i < WINDOW; i++, at++) {
        struct gls_known *entry = &table[at % TABLE];
        if (!entry->id) return NULL;
        if (!same_key(&entry->key, key)) continue;
        entry->used = ++uses;
        return entry;
    }
    return NULL;
}

struct gls_known *gls_add(const struct gls_known *known) {
    struct gls_known *there = gls_find(&known->key);
    if (there) return there;
    uint64_t at = hash_key(&known->key);
    struct gls_known *place = NULL;
    for (unsigned i = 0; i < WINDOW; i++, at++) {
        struct gls_known *entry = &table[at % TABLE];
        if (!place || !entry->id || entry->used < place->used) place = entry;
        if (!entry->id) break;
    }
    bool replaces = place->id != 0;
    if (!replaces) filled++;
    *place = *known;
    if (replaces) place->launches = WARM;
    place->used = ++uses;
    return place;
}

void gls_kernels_clear(void) {
    if (filled) memset(table, 0, sizeof table);
    filled = 0;
    gls_kernels_generation++;
}

void gls_kernels_unloaded(void) {
    unloads++;
    gls_kernels_clear();
}

static struct handle *handle_slot(const void *handle) {
    for (uint64_t at = mix((uint64_t)(uintptr_t)handle);; at++) {
        struct handle *slot = &handles[at % HANDLES];
        if (!slot->handle || slot->handle == handle) return slot;
    }
}

void gls_handle_seen(const void *handle, enum gls_handle kind, const char *name) {
    struct handle *slot = handle_slot(handle);
    if (!slot->handle) {
        if (handle_count >= HANDLES / 4 * 3) return;
        handle_count++;
    } else {
        /* Given out without a name it is the kernel it was, unless something has been unloaded since. */
        bool same = name ? slot->name && strcmp(slot->name, name) == 0 : !slot->name || slot->unloads == unloads;
        slot->unloads = unloads;
        if (same && slot->kind == kind) return;
        gls_kernels_clear(); /* the handle means another kernel now */
    }
    free(slot->name);
    *slot = (struct handle){handle, name ? strdup(name) : NULL, kind, unloads};
}

/* The name (to be freed), only if the handle is known to be of the kind that the function takes: handles are never
 * guessed. NULL: not known. */
static char *name_of(CUfunction f) {
    gls_lock();
    struct handle seen = *handle_slot(f);
    char *name = seen.handle && seen.name ? strdup(seen.name) : NULL;
    gls_unlock();
    const char *given = NULL;
    if (name || !seen.handle) return name;
    if (seen.kind == GLS_HANDLE_FUNCTION && gls_own.function_name && gls_own.function_name(&given, f) != CUDA_SUCCESS)
        given = NULL;
    if (seen.kind == GLS_HANDLE_KERNEL && gls_own.kernel_name &&
        gls_own.kernel_name(&given, (CUkernel)(void *)f) != CUDA_SUCCESS)
        given = NULL;
    return given ? strdup(given) : NULL;
}

/* SMs that a kernel fills by its occupancy; without that, the whole device. */
static uint32_t sm_of(const struct gls_key *key, unsigned sm_count) {
    uint64_t blocks = (uint64_t)key->grid[0] * key->grid[1] * key->grid[2];
    uint64_t threads = (uint64_t)key->block[0] * key->block[1] * key->block[2];
    int per_sm = 0;
    if (!gls_own.occupancy || threads > 1024 ||
        gls_own.occupancy(&per_sm, key->f, (int)threads, key->shared) != CUDA_SUCCESS)
        per_sm = 0;
    uint64_t sm = per_sm > 0 ? (blocks + (uint64_t)per_sm - 1) / (uint64_t)per_sm : sm_count;
    return sm > UINT32_MAX ? UINT32_MAX : (uint32_t)sm;
}

/* Whether a kernel is still to be logged: as many as the table holds, then it is said once that there are more. */
static bool worth_logging(void) {
    static _Atomic uint64_t logged;
    uint64_t number = gls_profile_size() ? atomic_fetch_add(&logged, 1) : TABLE + 1;
    if (number == TABLE) gls_log("more kernels than the table holds; they are no longer logged");
    return number < TABLE;
}

struct gls_known gls_describe(const struct gls_key *key, unsigned sm_count) {
    static const char *const matches[] = {"not in the profile", "by name", "by signature", "class only"};
    char *found = name_of(key->f), address[32];
    snprintf(address, sizeof address, "%p", (void *)key->f);
    const char *name = found && *found ? found : address;
    struct gls_known known = {.key = *key, .kernel = {.compute = -1.0, .dram = -1.0}};
    known.collective = strncmp(name, "ncclDevKernel", 13) == 0 || strncmp(name, "ncclKernel", 10) == 0;
    known.id = gls_identity(name, key->grid, key->block, key->shared);
    enum gls_match match = gls_profile_find(name, key->grid, key->block, key->shared, &known.kernel);
    known.profiled = known.kernel.duration_ns != 0;
    if (known.kernel.sm == 0) known.kernel.sm = sm_of(key, sm_count);
    if (worth_logging())
        gls_log("%s: grid %u %u %u, block %u %u %u, shared %u, %.300s", matches[match], key->grid[0], key->grid[1],
                key->grid[2], key->block[0], key->block[1], key->block[2], key->shared, name);
    free(found);
    return known;
}

/* Leans to short times: what delays a kernel (neighbours, a cold start) is no part of it. */
void gls_learn(struct gls_known *known, uint64_t duration_ns) {
    if (known->profiled || duration_ns == 0) return;
    uint64_t now = known->kernel.duration_ns;
    if (known->samples == 0 || now == 0)
        now = duration_ns;
    else if (duration_ns < now)
        now -= (now - duration_ns) / 2;
    else
        now += (duration_ns - now) / 16;
    known->kernel.duration_ns = now ? now : 1;
    if (known->samples < UINT32_MAX) known->samples++;
}
