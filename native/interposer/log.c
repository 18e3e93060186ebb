#define _GNU_SOURCE
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

void gls_log(const char *format, ...) {
    int kept = errno;
    const char *path = secure_getenv("GPULOOM_SHARE_LOG");
    if (path && *path) {
        int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600);
        if (fd >= 0) {
            char line[512];
            struct timespec now;
            clock_gettime(CLOCK_REALTIME, &now);
            int used = snprintf(line, sizeof line, "%lld.%06ld gpuloom-shim[%ld] ", (long long)now.tv_sec,
                                now.tv_nsec / 1000, (long)getpid());
            va_list arguments;
            va_start(arguments, format);
            int more = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, arguments);
            va_end(arguments);
            size_t length = (size_t)used + (more < 0 ? 0 : (size_t)more);
            if (length > sizeof line - 2) length = sizeof line - 2;
            line[length++] = '\n';
            ssize_t ignored = write(fd, line, length); /* one write: lines of several programs do not mix */
            (void)ignored;
            close(fd);
        }
    }
    errno = kept;
}
