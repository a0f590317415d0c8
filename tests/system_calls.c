/* Counts the calls that change or sync a disk, below one folder, and kills the process at the nth of them.
 *
 * Preloaded, it stands between a process and the C library, and does nothing until system_calls_watch is called. From then
 * on each call that succeeded for a path below the folder has a number. It may be written to a log, and the process may
 * be killed right after one, or right before. Also the calls of LMDB are seen, so a process can die between the write
 * of a meta page and the update of the transaction number that all processes share.
 *
 * What is not seen: writes through stdio (the C library calls itself) and stores to a mapped file. Windrow has none of
 * the former; of the latter only LMDB's lock file, which is worth nothing after its last user is gone.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define LONGEST (2 * PATH_MAX)

static atomic_long done;
static atomic_int watching;
static long deadly;
static int before_it;
static int log_to = -1;
static char root[PATH_MAX];
static char kept[PATH_MAX];
static size_t root_length;
static __thread char first[LONGEST], second[LONGEST];

/* Below `folder`: log to descriptor `log` (or -1) and die after call `nth` (or before it; 0: never). */
void system_calls_watch(const char *folder, int log, long nth, int before)
{
    root_length = (size_t)snprintf(root, sizeof root, "%s", folder);
    log_to = log;
    deadly = nth;
    before_it = before;
    atomic_store(&done, 0);
    atomic_store(&watching, 1);
}

/* Keep, in another folder under the number of the call, each file as it was when it was synced, and a link to each new one. */
void system_calls_keep(const char *folder)
{
    snprintf(kept, sizeof kept, "%s", folder);
}

long system_calls_end(void)
{
    atomic_store(&watching, 0);
    return atomic_load(&done);
}

static const char *below(const char *path)
{
    return strncmp(path, root, root_length) == 0 && path[root_length] == '/' ? path + root_length + 1 : NULL;
}

static const char *of_descriptor(int descriptor, char *into)
{
    char link[64];
    ssize_t length;
    if (!atomic_load(&watching))
        return NULL;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    length = readlink(link, into, PATH_MAX - 1);
    if (length <= 0)
        return NULL;
    into[length] = 0;
    return below(into);
}

static const char *of_path(int folder, const char *path, char *into)
{
    ssize_t length = 0;
    if (!atomic_load(&watching) || path == NULL)
        return NULL;
    if (path[0] == '/')
        return below(path);
    if (folder == AT_FDCWD) {
        if (getcwd(into, PATH_MAX) == NULL)
            return NULL;
        length = (ssize_t)strlen(into);
    } else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        length = readlink(link, into, PATH_MAX - 1);
        if (length <= 0)
            return NULL;
    }
    snprintf(into + length, PATH_MAX, "/%s", path);
    return below(into);
}

static void die(void)
{
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

static ssize_t real_write(int descriptor, const void *data, size_t size)
{
    static ssize_t (*real)(int, const void *, size_t);
    if (!real)
        real = dlsym(RTLD_NEXT, "write");
    return real(descriptor, data, size);
}

static void begin(const char *path)
{
    if (path && before_it && deadly && atomic_load(&done) + 1 == deadly)
        die();
}

static void keep(const char *call, const char *path, long number, long long size, long long offset)
{
    char from[LONGEST], to[LONGEST];
    int is_meta = strcmp(path, "catalog/data.mdb") == 0 && offset >= 0 && offset < 8192 && size < 4096;
    snprintf(from, sizeof from, "%s/%s", root, path);
    snprintf(to, sizeof to, "%s/%ld", kept, number);
    if (strcmp(call, "create") == 0 && link(from, to) != 0)
        abort();
    if (is_meta || strcmp(call, "fsync") == 0 || strcmp(call, "fdatasync") == 0) { /* LMDB syncs meta pages as it writes them */
        struct stat status;
        int source = open(from, O_RDONLY), target;
        if (source >= 0 && fstat(source, &status) == 0 && S_ISREG(status.st_mode)) {
            target = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0600);
            while (sendfile(target, source, NULL, 1 << 30) > 0)
                ;
            close(target);
        }
        if (source >= 0)
            close(source);
    }
}

static void end(const char *call, const char *path, const char *target, long long size, long long offset)
{
    int error = errno;
    char line[2 * LONGEST];
    long number = atomic_fetch_add(&done, 1) + 1;
    if (log_to >= 0) {
        int length = snprintf(line, sizeof line, "%s\t%s\t%s\t%lld\t%lld\n", call, path, target, size, offset);
        if (real_write(log_to, line, (size_t)length) != length)
            abort();
    }
    if (kept[0])
        keep(call, path, number, size, offset);
    if (!before_it && number == deadly)
        die();
    errno = error;
}

static long long total(const struct iovec *parts, int count)
{
    long long size = 0;
    for (int at = 0; at < count; at++)
        size += (long long)parts[at].iov_len;
    return size;
}

#define REAL(result, name, ...)                                                                                        \
    static result (*real)(__VA_ARGS__);                                                                                \
    if (!real)                                                                                                         \
    real = dlsym(RTLD_NEXT, name)

#define ON_DESCRIPTOR(result, name, parameters, arguments, size, offset, ...)                                          \
    result name parameters                                                                                             \
    {                                                                                                                  \
        REAL(result, #name, __VA_ARGS__);                                                                              \
        const char *path = of_descriptor(descriptor, first);                                                           \
        begin(path);                                                                                                   \
        result given = real arguments;                                                                                 \
        if (path && given >= 0)                                                                                        \
            end(#name, path, "", (long long)(size), (long long)(offset));                                              \
        return given;                                                                                                  \
    }

#define ON_PATH(name, parameters, arguments, folder, ...)                                                              \
    int name parameters                                                                                                \
    {                                                                                                                  \
        REAL(int, #name, __VA_ARGS__);                                                                                 \
        const char *inside = of_path(folder, path, first);                                                             \
        begin(inside);                                                                                                 \
        int given = real arguments;                                                                                    \
        if (inside && given >= 0)                                                                                      \
            end(#name, inside, "", 0, -1);                                                                             \
        return given;                                                                                                  \
    }

#define ON_TWO_PATHS(name, parameters, arguments, from_folder, to_folder, ...)                                         \
    int name parameters                                                                                                \
    {                                                                                                                  \
        REAL(int, #name, __VA_ARGS__);                                                                                 \
        const char *source = of_path(from_folder, from, first);                                                        \
        const char *target = of_path(to_folder, to, second);                                                           \
        begin(target ? target : source);                                                                               \
        int given = real arguments;                                                                                    \
        if ((source || target) && given >= 0)                                                                          \
            end(#name, source ? source : "elsewhere", target ? target : "elsewhere", 0, -1);                           \
        return given;                                                                                                  \
    }

ON_DESCRIPTOR(ssize_t, write, (int descriptor, const void *data, size_t size), (descriptor, data, size), given, -1, int,
              const void *, size_t)
ON_DESCRIPTOR(ssize_t, pwrite, (int descriptor, const void *data, size_t size, off_t at), (descriptor, data, size, at),
              given, at, int, const void *, size_t, off_t)
ON_DESCRIPTOR(ssize_t, pwrite64, (int descriptor, const void *data, size_t size, off64_t at),
              (descriptor, data, size, at), given, at, int, const void *, size_t, off64_t)
ON_DESCRIPTOR(ssize_t, writev, (int descriptor, const struct iovec *parts, int count), (descriptor, parts, count),
              total(parts, count), -1, int, const struct iovec *, int)
ON_DESCRIPTOR(ssize_t, pwritev, (int descriptor, const struct iovec *parts, int count, off_t at),
              (descriptor, parts, count, at), total(parts, count), at, int, const struct iovec *, int, off_t)
ON_DESCRIPTOR(ssize_t, pwritev64, (int descriptor, const struct iovec *parts, int count, off64_t at),
              (descriptor, parts, count, at), total(parts, count), at, int, const struct iovec *, int, off64_t)
ON_DESCRIPTOR(int, fsync, (int descriptor), (descriptor), 0, -1, int)
ON_DESCRIPTOR(int, fdatasync, (int descriptor), (descriptor), 0, -1, int)
ON_DESCRIPTOR(int, ftruncate, (int descriptor, off_t size), (descriptor, size), size, -1, int, off_t)
ON_DESCRIPTOR(int, ftruncate64, (int descriptor, off64_t size), (descriptor, size), size, -1, int, off64_t)
ON_DESCRIPTOR(int, fallocate, (int descriptor, int mode, off_t at, off_t size), (descriptor, mode, at, size), size, at,
              int, int, off_t, off_t)

ON_PATH(unlink, (const char *path), (path), AT_FDCWD, const char *)
ON_PATH(unlinkat, (int folder, const char *path, int flags), (folder, path, flags), folder, int, const char *, int)
ON_PATH(remove, (const char *path), (path), AT_FDCWD, const char *)
ON_PATH(rmdir, (const char *path), (path), AT_FDCWD, const char *)
ON_PATH(mkdir, (const char *path, mode_t mode), (path, mode), AT_FDCWD, const char *, mode_t)
ON_PATH(mkdirat, (int folder, const char *path, mode_t mode), (folder, path, mode), folder, int, const char *, mode_t)
ON_PATH(truncate, (const char *path, off_t size), (path, size), AT_FDCWD, const char *, off_t)
ON_PATH(truncate64, (const char *path, off64_t size), (path, size), AT_FDCWD, const char *, off64_t)

ON_TWO_PATHS(rename, (const char *from, const char *to), (from, to), AT_FDCWD, AT_FDCWD, const char *, const char *)
ON_TWO_PATHS(renameat, (int source_folder, const char *from, int target_folder, const char *to),
             (source_folder, from, target_folder, to), source_folder, target_folder, int, const char *, int,
             const char *)
ON_TWO_PATHS(renameat2, (int source_folder, const char *from, int target_folder, const char *to, unsigned int flags),
             (source_folder, from, target_folder, to, flags), source_folder, target_folder, int, const char *, int,
             const char *, unsigned int)
ON_TWO_PATHS(link, (const char *from, const char *to), (from, to), AT_FDCWD, AT_FDCWD, const char *, const char *)
ON_TWO_PATHS(linkat, (int source_folder, const char *from, int target_folder, const char *to, int flags),
             (source_folder, from, target_folder, to, flags), source_folder, target_folder, int, const char *, int,
             const char *, int)

int msync(void *address, size_t size, int flags)
{
    /* Which file is mapped there is not asked: a process that is watched maps no other one for writing. */
    REAL(int, "msync", void *, size_t, int);
    const char *path = atomic_load(&watching) ? "mapped" : NULL;
    begin(path);
    int given = real(address, size, flags);
    if (path && given >= 0)
        end("msync", path, "", (long long)size, -1);
    return given;
}

/* Opening a file changes the disk only if that creates it or empties it. */
#define CREATES(name, real_arguments, folder, ...)                                                                     \
    {                                                                                                                  \
        REAL(int, #name, __VA_ARGS__, ...);                                                                            \
        mode_t mode = 0;                                                                                               \
        const char *inside = NULL;                                                                                     \
        if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE) {                                                                      \
            va_list rest;                                                                                              \
            va_start(rest, flags);                                                                                     \
            mode = va_arg(rest, mode_t);                                                                               \
            va_end(rest);                                                                                              \
        }                                                                                                              \
        if ((flags & O_CREAT) && (inside = of_path(folder, path, first)) != NULL && !(flags & O_TRUNC) &&              \
            faccessat(folder, path, F_OK, 0) == 0)                                                                     \
            inside = NULL;                                                                                             \
        begin(inside);                                                                                                 \
        int given = real real_arguments;                                                                               \
        if (inside && given >= 0)                                                                                      \
            end("create", inside, "", 0, -1);                                                                          \
        return given;                                                                                                  \
    }

int open(const char *path, int flags, ...)
CREATES(open, (path, flags, mode), AT_FDCWD, const char *, int)
int open64(const char *path, int flags, ...)
CREATES(open64, (path, flags, mode), AT_FDCWD, const char *, int)
int openat(int folder, const char *path, int flags, ...)
CREATES(openat, (folder, path, flags, mode), folder, int, const char *, int)
int openat64(int folder, const char *path, int flags, ...)
CREATES(openat64, (folder, path, flags, mode), folder, int, const char *, int)
