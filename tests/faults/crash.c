/* Kill the process, or let a call fail, at the n-th call that changes files below a folder.
 *
 * Preloaded (LD_PRELOAD) by test_save_crash.py, which arms it by `faults_arm`. Unlike faults that
 * Python injects into its own functions, these meet what the process really asks of the system:
 * buffers have been joined or split by then, and libraries in C are seen as well.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { KILL_BEFORE, KILL_WITHIN, FAIL_ONCE, FAIL_FROM_THEN_ON };
enum { MOST_NAMES = 1 << 16 };

static char folder[PATH_MAX]; /* empty: nothing is counted */
static long calls, fault_at;
static int kind, error_code;
static const char *names[MOST_NAMES];

void faults_arm(const char *below, long at, int new_kind, int new_code)
{
    calls = 0;
    fault_at = at;
    kind = new_kind;
    error_code = new_code;
    snprintf(folder, sizeof folder, "%s", below);
}

long faults_count(void) { return calls; }

const char *faults_name(long number) { return names[number]; }

static int is_below(const char *path)
{
    size_t length = strlen(folder);
    return length && strncmp(path, folder, length) == 0 && (path[length] == '/' || !path[length]);
}

static int is_open_below(int handle)
{
    char link[64], path[PATH_MAX];
    if (!folder[0])
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return is_below(path);
}

enum { GO_ON, FAIL, DIE_WITHIN };

static int fault(const char *name)
{
    long number = calls++;
    if (number < MOST_NAMES)
        names[number] = name;
    if (number != fault_at && !(kind == FAIL_FROM_THEN_ON && fault_at >= 0 && number > fault_at))
        return GO_ON;
    if (kind == KILL_BEFORE)
        kill(getpid(), SIGKILL);
    if (kind == KILL_WITHIN)
        return DIE_WITHIN;
    errno = error_code;
    return FAIL;
}

/* Define `name` so that it calls the system's function, unless a fault is due.
 * `watched` says whether the call is counted; `half` is what is done before a death within it. */
#define AROUND(type, name, parameters, arguments, watched, half)        \
    type name parameters                                                \
    {                                                                   \
        static type(*real) parameters;                                  \
        if (!real)                                                      \
            *(void **)&real = dlsym(RTLD_NEXT, #name);                  \
        if (!(watched))                                                 \
            return real arguments;                                      \
        switch (fault(#name)) {                                         \
        case FAIL:                                                      \
            return -1;                                                  \
        case DIE_WITHIN:                                                \
            if (half) {                                                 \
            }                                                           \
            kill(getpid(), SIGKILL);                                    \
        }                                                               \
        return real arguments;                                          \
    }

AROUND(ssize_t, write, (int f, const void *data, size_t size), (f, data, size), is_open_below(f),
       real(f, data, size / 2) < 0)
AROUND(int, fsync, (int f), (f), is_open_below(f), real(f) < 0)
AROUND(int, rename, (const char *from, const char *to), (from, to), is_below(to),
       real(from, to) < 0)
AROUND(int, link, (const char *from, const char *to), (from, to), is_below(to), real(from, to) < 0)
AROUND(int, unlink, (const char *path), (path), is_below(path), real(path) < 0)
