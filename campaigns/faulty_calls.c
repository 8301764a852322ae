/* Preloaded into a worker of campaigns/disks.py: calls that change files below one folder fail.

   fault_arm(folder, n, error): the n-th such call and all later ones fail with `error`. With error 0
   the folder disappears before the n-th call instead: it is renamed. fault_disarm() returns how many
   calls were seen. Files can always be read and removed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[4096];
static long seen, first;
static int error_number;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

void fault_arm(const char *path, long n, int error) {
    seen = 0;
    first = n;
    error_number = error;
    strncpy(folder, path, sizeof folder - 1);
}

long fault_disarm(void) {
    folder[0] = 0;
    return seen;
}

static int fails(const char *path) {
    if (!folder[0] || !path || strncmp(path, folder, strlen(folder)) != 0) return 0;
    long number = __atomic_add_fetch(&seen, 1, __ATOMIC_SEQ_CST);
    if (number < first) return 0;
    if (error_number) {
        errno = error_number;
        return 1;
    }
    if (number == first) {
        char away[4200];
        snprintf(away, sizeof away, "%s.gone", folder);
        REAL(rename)(folder, away);
    }
    return 0;
}

static int fails_fd(int fd) {
    char link[64], path[4096];
    int kept = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = folder[0] ? readlink(link, path, sizeof path - 1) : -1;
    errno = kept;
    if (length < 0) return 0;
    path[length] = 0;
    return fails(path);
}

static int writes(int flags) { return flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC); }

#define OPEN(name)                                            \
    int name(const char *path, int flags, ...) {              \
        va_list rest;                                         \
        va_start(rest, flags);                                \
        mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0; \
        va_end(rest);                                         \
        if (writes(flags) && fails(path)) return -1;          \
        return REAL(name)(path, flags, mode);                 \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                          \
    int name(int at, const char *path, int flags, ...) {      \
        va_list rest;                                         \
        va_start(rest, flags);                                \
        mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0; \
        va_end(rest);                                         \
        if (writes(flags) && fails(path)) return -1;          \
        return REAL(name)(at, path, flags, mode);             \
    }
OPENAT(openat)
OPENAT(openat64)

#define FOPEN(name)                                           \
    FILE *name(const char *path, const char *mode) {          \
        if (mode[0] != 'r' && fails(path)) return NULL;       \
        return REAL(name)(path, mode);                        \
    }
FOPEN(fopen)
FOPEN(fopen64)

#define ON_FD(type, name, parameters, arguments)              \
    type name parameters {                                    \
        if (fails_fd(fd)) return -1;                          \
        return REAL(name) arguments;                          \
    }
ON_FD(ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size))
ON_FD(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
ON_FD(ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
ON_FD(ssize_t, writev, (int fd, const struct iovec *parts, int count), (fd, parts, count))
ON_FD(int, fsync, (int fd), (fd))
ON_FD(int, fdatasync, (int fd), (fd))
ON_FD(int, ftruncate, (int fd, off_t size), (fd, size))
ON_FD(int, ftruncate64, (int fd, off64_t size), (fd, size))

#define ON_PATH(name, parameters, arguments)                  \
    int name parameters {                                     \
        if (fails(path)) return -1;                           \
        return REAL(name) arguments;                          \
    }
ON_PATH(truncate, (const char *path, off_t size), (path, size))
ON_PATH(truncate64, (const char *path, off64_t size), (path, size))
ON_PATH(mkdir, (const char *path, mode_t mode), (path, mode))
ON_PATH(rename, (const char *path, const char *target), (path, target))
ON_PATH(link, (const char *path, const char *target), (path, target))
