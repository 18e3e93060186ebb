/* See profile.h. */
#define _GNU_SOURCE
#include "profile.h"

#include "log.h"

#include <locale.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ROWS 65536u
#define FIELDS 13
#define LONGEST 1024u /* bytes of a signature, with its end */

struct row {
    uint64_t id;
    size_t line; /* of several with one key the first counts */
    struct gl_kernel kernel;
};
static struct row *rows;
static size_t row_count;

static const unsigned any[3]; /* grid and block of a row that tells only the class */

static uint64_t mix(uint64_t h) { /* the finaliser of splitmix64 */
    h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ull;
    h = (h ^ (h >> 27)) * 0x94d049bb133111ebull;
    return h ^ (h >> 31);
}

uint64_t gls_identity(const char *name, const unsigned grid[3], const unsigned block[3], unsigned shared) {
    uint64_t h = 0xcbf29ce484222325ull; /* FNV-1a */
    for (const char *at = name; *at; at++) h = (h ^ (unsigned char)*at) * 0x100000001b3ull;
    for (int i = 0; i < 3; i++) h = mix(h ^ ((uint64_t)grid[i] << 32 | block[i]));
    h = mix(h ^ shared);
    return h ? h : 1;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

struct text {
    char *at;
    size_t used, room;
};

static bool append(struct text *text, const char *part, size_t length) {
    if (length >= text->room - text->used) return false;
    memcpy(text->at + text->used, part, length);
    text->used += length;
    text->at[text->used] = 0;
    return true;
}

/* One identifier. Compilers call an anonymous namespace _GLOBAL__N_1 and the like; demanglers write it so. */
static bool append_identifier(struct text *text, const char *part, size_t length) {
    static const char anonymous[] = "(anonymous namespace)";
    if (text->used && !append(text, "::", 2)) return false;
    bool hidden = length >= 10 && memcmp(part, "_GLOBAL_", 8) == 0 && strchr("._$", part[8]) && part[9] == 'N';
    return hidden ? append(text, anonymous, sizeof anonymous - 1) : append(text, part, length);
}

/* The name behind _Z, up to the first template argument or the parameters. */
static bool parse_mangled(const char *at, struct text *text) {
    while (*at == 'Z') at++; /* local to a function: the function's name */
    bool nested = *at == 'N';
    if (nested)
        for (at++; *at && strchr("rVKRO", *at);) at++;
    if (at[0] == 'S' && at[1] == 't') {
        if (!append_identifier(text, "std", 3)) return false;
        at += 2;
    }
    int identifiers = 0;
    for (;;) {
        if (at[0] == 'L' && is_digit(at[1])) at++; /* internal linkage */
        if (!is_digit(*at)) break;
        if (*at == '0') return false;
        size_t length = 0;
        while (is_digit(*at) && length < LONGEST) length = 10 * length + (size_t)(*at++ - '0');
        if (length >= LONGEST || strnlen(at, length) < length) return false;
        if (!append_identifier(text, at, length)) return false;
        at += length;
        identifiers++;
        if (!nested) break;
    }
    if (identifiers == 0) return false;
    return !nested || *at == 'I' || *at == 'E' || *at == 'B';
}

size_t gls_signature(const char *name, char *signature, size_t room) {
    if (room == 0) return 0;
    struct text text = {signature, 0, room};
    *signature = 0;
    bool found = name[0] == '_' && name[1] == 'Z' ? parse_mangled(name + 2, &text) : append(&text, name, strlen(name));
    if (!found) *signature = 0;
    return found ? text.used : 0;
}

static bool whole(const char *text, uint64_t most, uint64_t *value) {
    uint64_t sum = 0;
    if (!*text) return false;
    for (; *text; text++) {
        if (!is_digit(*text)) return false;
        uint64_t digit = (uint64_t)(*text - '0');
        if (sum > (most - digit) / 10) return false;
        sum = 10 * sum + digit;
    }
    *value = sum;
    return true;
}

/* A utilisation from 0 to 1; "-1" or "-": unknown. */
static bool share(const char *text, locale_t numbers, double *value) {
    if (strcmp(text, "-") == 0 || strcmp(text, "-1") == 0) {
        *value = -1.0;
        return true;
    }
    char *end;
    *value = strtod_l(text, &end, numbers);
    return end != text && !*end && *value >= 0.0 && *value <= 1.0; /* false for NaN */
}

/* One line: name, grid x y z, block x y z, shared bytes, SMs, compute, dram, duration_ns, class; separated by tabs. */
static bool read_row(char *line, locale_t numbers, struct row *row) {
    char *field[FIELDS + 1];
    int count = 0;
    for (char *rest = line, *at; count <= FIELDS && (at = strsep(&rest, "\t"));) field[count++] = at;
    if (count != FIELDS || !*field[0]) return false;
    unsigned grid[3], block[3];
    uint64_t value = GLS_SHARED_UNKNOWN, sm, duration;
    struct gl_kernel kernel = {0};
    for (int i = 0; i < 3; i++) {
        uint64_t g, b;
        if (!whole(field[1 + i], UINT32_MAX, &g) || !whole(field[4 + i], UINT32_MAX, &b)) return false;
        grid[i] = (unsigned)g;
        block[i] = (unsigned)b;
    }
    if (strcmp(field[7], "-") != 0 && !whole(field[7], UINT32_MAX, &value)) return false;
    if (!whole(field[8], UINT32_MAX, &sm) || !whole(field[11], INT64_MAX, &duration)) return false;
    if (!share(field[9], numbers, &kernel.compute) || !share(field[10], numbers, &kernel.dram)) return false;
    if (strcmp(field[12], "compute") == 0) kernel.klass = GL_CLASS_COMPUTE;
    else if (strcmp(field[12], "memory") == 0) kernel.klass = GL_CLASS_MEMORY;
    else if (strcmp(field[12], "unknown") == 0) kernel.klass = GL_CLASS_UNKNOWN;
    else return false;
    kernel.sm = (uint32_t)sm;
    kernel.duration_ns = duration;
    row->id = gls_identity(field[0], grid, block, (unsigned)value);
    row->kernel = kernel;
    return true;
}

static int by_id(const void *a, const void *b) {
    const struct row *x = a, *y = b;
    if (x->id != y->id) return x->id > y->id ? 1 : -1;
    return (x->line > y->line) - (x->line < y->line);
}

void gls_profile_load(void) {
    const char *path = secure_getenv("GPULOOM_SHARE_PROFILE");
    if (!path || !*path || rows) return;
    FILE *file = fopen(path, "re");
    locale_t numbers = file ? newlocale(LC_NUMERIC_MASK, "C", (locale_t)0) : (locale_t)0;
    if (!numbers) {
        gls_log("%s: no such profile; kernels are learnt instead", path);
        if (file) fclose(file);
        return;
    }
    char *line = NULL;
    struct row *all = NULL; /* made known when complete: a fork may come meanwhile */
    size_t room = 0, limit = 0, number = 0, wrong = 0, count = 0;
    while (getline(&line, &room, file) >= 0 && count < MAX_ROWS) {
        number++;
        line[strcspn(line, "\r\n")] = 0;
        if (!*line || *line == '#') continue;
        struct row row = {.line = number};
        if (!read_row(line, numbers, &row)) {
            if (wrong++ == 0) gls_log("%s:%zu: not 13 fields, or a value that can't be", path, number);
            continue;
        }
        if (count == limit) {
            size_t wanted = limit ? 2 * limit : 256;
            struct row *more = realloc(all, wanted * sizeof *more);
            if (!more) break;
            all = more;
            limit = wanted;
        }
        all[count++] = row;
    }
    free(line);
    freelocale(numbers);
    fclose(file);
    if (all) qsort(all, count, sizeof *all, by_id);
    rows = all;
    row_count = count;
    gls_log("%s: %zu kernels, %zu lines passed over", path, row_count, wrong);
}

size_t gls_profile_size(void) { return row_count; }

static const struct row *row_of(const char *name, const unsigned grid[3], const unsigned block[3], unsigned shared) {
    uint64_t id = gls_identity(name, grid, block, shared);
    size_t low = 0, high = row_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (rows[middle].id < id) low = middle + 1;
        else high = middle;
    }
    return low < row_count && rows[low].id == id ? &rows[low] : NULL;
}

enum gls_match gls_profile_find(const char *name, const unsigned grid[3], const unsigned block[3], unsigned shared,
                                struct gl_kernel *kernel) {
    if (!row_count) return GLS_MATCH_NONE;
    char signature[LONGEST];
    const char *names[] = {name, gls_signature(name, signature, sizeof signature) ? signature : name};
    int count = strcmp(names[0], names[1]) == 0 ? 1 : 2;
    const struct row *row = NULL;
    for (int i = 0; i < count; i++) {
        row = row_of(names[i], grid, block, shared);
        if (!row) row = row_of(names[i], grid, block, GLS_SHARED_UNKNOWN);
        if (!row) continue;
        *kernel = row->kernel;
        return i == 0 ? GLS_MATCH_NAME : GLS_MATCH_SIGNATURE;
    }
    for (int i = 0; i < count && !row; i++) row = row_of(names[i], any, any, GLS_SHARED_UNKNOWN);
    if (!row || row->kernel.klass == GL_CLASS_UNKNOWN) return GLS_MATCH_NONE;
    kernel->klass = row->kernel.klass;
    return GLS_MATCH_CLASS;
}
