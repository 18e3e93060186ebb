/* See kernels.h. */
#define _GNU_SOURCE
#include "kernels.h"

#include "driver.h"
#include "log.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TABLE 8192u   /* kernels; a full table means unknown kernels, not wrong ones */
#define HANDLES 16384u
#define PROFILE 65536u

atomic_flag gls_lock_word = ATOMIC_FLAG_INIT;
unsigned gls_kernels_generation;

static struct gls_known table[TABLE];
static unsigned filled;

struct handle {
    const void *handle;
    char *name;
    enum gls_handle kind;
};
static struct handle handles[HANDLES];
static unsigned handle_count;

struct row {
    uint64_t id;
    struct gl_kernel kernel;
};
static struct row *profile;
static size_t profile_rows;

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

/* Identity by name, grid, block, shared memory: FNV-1a of the name, then the numbers. Never 0. */
static uint64_t identity(const char *name, const unsigned grid[3], const unsigned block[3], unsigned shared) {
    uint64_t h = 0xcbf29ce484222325ull;
    for (const char *at = name; *at; at++) h = (h ^ (unsigned char)*at) * 0x100000001b3ull;
    for (int i = 0; i < 3; i++) h = mix(h ^ ((uint64_t)grid[i] << 32 | block[i]));
    h = mix(h ^ shared);
    return h ? h : 1;
}

struct gls_known *gls_find(const struct gls_key *key) {
    for (uint64_t at = hash_key(key);; at++) {
        struct gls_known *entry = &table[at % TABLE];
        if (!entry->id) return NULL;
        if (same_key(&entry->key, key)) return entry;
    }
}

struct gls_known *gls_add(const struct gls_known *known) {
    struct gls_known *there = gls_find(&known->key);
    if (there) return there;
    if (filled >= TABLE / 4 * 3) return NULL;
    for (uint64_t at = hash_key(&known->key);; at++) {
        struct gls_known *entry = &table[at % TABLE];
        if (entry->id) continue;
        *entry = *known;
        filled++;
        return entry;
    }
}

void gls_kernels_clear(void) {
    if (filled) memset(table, 0, sizeof table);
    filled = 0;
    gls_kernels_generation++;
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
    } else if (slot->name && name && strcmp(slot->name, name) == 0 && slot->kind == kind) {
        return;
    } else {
        gls_kernels_clear(); /* the handle means another kernel now */
    }
    free(slot->name);
    *slot = (struct handle){handle, name ? strdup(name) : NULL, kind};
}

static double percent(const char *text) {
    char *end;
    double value = strtod(text, &end);
    return end == text ? -1.0 : value;
}

static int by_id(const void *a, const void *b) {
    uint64_t x = ((const struct row *)a)->id, y = ((const struct row *)b)->id;
    return (x > y) - (x < y);
}

/* One line: name, grid x y z, block x y z, shared bytes, SMs, compute, dram, duration_ns, class; separated by tabs. */
static bool read_row(char *line, struct row *row) {
    char *field[13];
    int count = 0;
    line[strcspn(line, "\r\n")] = 0;
    for (char *rest = line, *at; count < 13 && (at = strsep(&rest, "\t"));) field[count++] = at;
    if (count != 13 || !*field[0] || line[0] == '#') return false;
    unsigned grid[3], block[3];
    for (int i = 0; i < 3; i++) {
        grid[i] = (unsigned)strtoul(field[1 + i], NULL, 10);
        block[i] = (unsigned)strtoul(field[4 + i], NULL, 10);
    }
    row->id = identity(field[0], grid, block, (unsigned)strtoul(field[7], NULL, 10));
    row->kernel = (struct gl_kernel){
        .sm = (uint32_t)strtoul(field[8], NULL, 10),
        .compute = percent(field[9]),
        .dram = percent(field[10]),
        .duration_ns = strtoull(field[11], NULL, 10),
        .klass = strcmp(field[12], "compute") == 0  ? GL_CLASS_COMPUTE
                 : strcmp(field[12], "memory") == 0 ? GL_CLASS_MEMORY
                                                    : GL_CLASS_UNKNOWN,
    };
    return true;
}

void gls_profile_load(void) {
    const char *path = secure_getenv("GPULOOM_SHARE_PROFILE");
    if (!path || !*path) return;
    FILE *file = fopen(path, "re");
    if (!file) {
        gls_log("%s: no such profile; kernels are learnt instead", path);
        return;
    }
    char *line = NULL;
    size_t room = 0, limit = 0;
    while (getline(&line, &room, file) >= 0 && profile_rows < PROFILE) {
        struct row row;
        if (!read_row(line, &row)) continue;
        if (profile_rows == limit) {
            size_t wanted = limit ? 2 * limit : 256;
            struct row *more = realloc(profile, wanted * sizeof *more);
            if (!more) break;
            profile = more;
            limit = wanted;
        }
        profile[profile_rows++] = row;
    }
    free(line);
    fclose(file);
    if (profile) qsort(profile, profile_rows, sizeof *profile, by_id);
    gls_log("%s: %zu kernels", path, profile_rows);
}

/* The name, only if the handle is known to be of the kind that the function takes: handles are never guessed. */
static void name_of(CUfunction f, char *name, size_t room) {
    gls_lock();
    struct handle seen = *handle_slot(f);
    snprintf(name, room, "%s", seen.handle && seen.name ? seen.name : "");
    gls_unlock();
    const char *given = NULL;
    if (*name || !seen.handle) return;
    if (seen.kind == GLS_HANDLE_FUNCTION && gls_own.function_name && gls_own.function_name(&given, f) != CUDA_SUCCESS)
        given = NULL;
    if (seen.kind == GLS_HANDLE_KERNEL && gls_own.kernel_name &&
        gls_own.kernel_name(&given, (CUkernel)(void *)f) != CUDA_SUCCESS)
        given = NULL;
    if (given) snprintf(name, room, "%s", given);
}

struct gls_known gls_describe(const struct gls_key *key, unsigned sm_count) {
    char name[1024];
    name_of(key->f, name, sizeof name);
    struct gls_known known = {.key = *key, .kernel = {.compute = -1.0, .dram = -1.0}};
    known.collective = strncmp(name, "ncclDevKernel", 13) == 0 || strncmp(name, "ncclKernel", 10) == 0;
    if (!*name) snprintf(name, sizeof name, "%p", (void *)key->f);
    known.id = identity(name, key->grid, key->block, key->shared);
    struct row wanted = {.id = known.id};
    struct row *row = profile ? bsearch(&wanted, profile, profile_rows, sizeof *profile, by_id) : NULL;
    if (row) {
        known.kernel = row->kernel;
        known.profiled = row->kernel.duration_ns != 0;
        return known;
    }
    /* Unknown: its SM need from occupancy; without that, the whole device. */
    uint64_t blocks = (uint64_t)key->grid[0] * key->grid[1] * key->grid[2];
    uint64_t threads = (uint64_t)key->block[0] * key->block[1] * key->block[2];
    int per_sm = 0;
    if (!gls_own.occupancy || threads > 1024 ||
        gls_own.occupancy(&per_sm, key->f, (int)threads, key->shared) != CUDA_SUCCESS)
        per_sm = 0;
    uint64_t sm = per_sm > 0 ? (blocks + (uint64_t)per_sm - 1) / (uint64_t)per_sm : sm_count;
    known.kernel.sm = sm > UINT32_MAX ? UINT32_MAX : (uint32_t)sm;
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
