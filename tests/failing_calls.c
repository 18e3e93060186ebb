/* Makes one system call fail on purpose, of those that touch files below a folder. Preloaded by test_store_syscalls.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OPEN, WRITE, SYNC, TRUNCATE, READ, UNLINK, MODE, CALLS };

static char folder[4096];
static long counts[CALLS];
static int call = -1, number, lasting;
static long at;

/* From now on: count, and let the at-th call of a kind fail with an errno; lasting: all later ones too. */
void gl_arm(const char *below, int kind, long nth, int with, int more) {
    memset(counts, 0, sizeof counts);
    snprintf(folder, sizeof folder, "%s", below);
    call = kind, at = nth, number = with, lasting = more;
}

void gl_disarm(void) { folder[0] = 0, call = -1; }

long gl_count(int kind) { return counts[kind]; }

static int below(const char *path) { return folder[0] && !strncmp(path, folder, strlen(folder)); }

static int of(int fd) {
    char link[64], path[4096];
    if (!folder[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return below(path);
}

static int fails(int kind, int ours) {
    if (!ours) return 0;
    long now = ++counts[kind];
    if (kind != call || !(now == at || (lasting && now > at))) return 0;
    errno = number;
    return 1;
}

#define REAL(name, type) \
    static __typeof__(type) *real; \
    if (!real) real = (__typeof__(type) *)dlsym(RTLD_NEXT, name)

#define OPENING(name) \
    int name(const char *path, int flags, ...) { \
        REAL(#name, int(const char *, int, mode_t)); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        return fails(OPEN, below(path)) ? -1 : real(path, flags, mode); \
    }
OPENING(open)
OPENING(open64)

#define WRITING(name, offset) \
    ssize_t name(int fd, const void *data, size_t size, offset where) { \
        REAL(#name, ssize_t(int, const void *, size_t, offset)); \
        return fails(WRITE, of(fd)) ? -1 : real(fd, data, size, where); \
    }
WRITING(pwrite, off_t)
WRITING(pwrite64, off64_t)

#define READING(name, offset) \
    ssize_t name(int fd, void *data, size_t size, offset where) { \
        REAL(#name, ssize_t(int, void *, size_t, offset)); \
        return fails(READ, of(fd)) ? -1 : real(fd, data, size, where); \
    }
READING(pread, off_t)
READING(pread64, off64_t)

#define SYNCING(name) \
    int name(int fd) { \
        REAL(#name, int(int)); \
        return fails(SYNC, of(fd)) ? -1 : real(fd); \
    }
SYNCING(fsync)
SYNCING(fdatasync)

#define TRUNCATING(name, offset) \
    int name(int fd, offset size) { \
        REAL(#name, int(int, offset)); \
        return fails(TRUNCATE, of(fd)) ? -1 : real(fd, size); \
    }
TRUNCATING(ftruncate, off_t)
TRUNCATING(ftruncate64, off64_t)

int unlink(const char *path) {
    REAL("unlink", int(const char *));
    return fails(UNLINK, below(path)) ? -1 : real(path);
}

int fchmod(int fd, mode_t mode) {
    REAL("fchmod", int(int, mode_t));
    return fails(MODE, of(fd)) ? -1 : real(fd, mode);
}
