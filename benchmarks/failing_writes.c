/* Preloaded: from fault_set(errno) on, whatever would change a file below $FAULT_DIRECTORY fails with this errno. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static volatile int fault;

void fault_set(int number) { fault = number; }

static int below(const char *path) {
  const char *directory = getenv("FAULT_DIRECTORY");
  return directory && path && strncmp(path, directory, strlen(directory)) == 0;
}

static int fails(int fd) {
  char link[64], path[4096];
  ssize_t length;
  if (!fault) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  if (!below(path)) return 0;
  errno = fault;
  return 1;
}

#define REAL(name) __typeof__(name) *real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define ON_FD(type, name, parameters, arguments) \
  type name parameters { REAL(name); return fails(fd) ? -1 : real arguments; }
ON_FD(ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size))
ON_FD(ssize_t, writev, (int fd, const struct iovec *parts, int count), (fd, parts, count))
ON_FD(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t offset), (fd, data, size, offset))
ON_FD(ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t offset), (fd, data, size, offset))
ON_FD(int, fsync, (int fd), (fd))
ON_FD(int, fdatasync, (int fd), (fd))

#define ON_OPEN(name)                                                    \
  int name(const char *path, int flags, ...) {                           \
    REAL(name);                                                          \
    va_list more;                                                        \
    va_start(more, flags);                                               \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
    va_end(more);                                                        \
    if (fault && (flags & O_CREAT) && below(path)) { errno = fault; return -1; } \
    return real(path, flags, mode);                                      \
  }
ON_OPEN(open)
ON_OPEN(open64)

int rename(const char *from, const char *to) {
  REAL(rename);
  if (fault && below(to)) { errno = fault; return -1; }
  return real(from, to);
}

int mkdir(const char *path, mode_t mode) {
  int (*real)(const char *, mode_t) = (int (*)(const char *, mode_t))dlsym(RTLD_NEXT, "mkdir");
  if (fault && below(path)) { errno = fault; return -1; }
  return real(path, mode);
}
