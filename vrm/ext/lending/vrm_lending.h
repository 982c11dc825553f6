/*
 * How a process learns which cores it may use now: one small file of this node's memory for each process,
 * which the process makes and vrm writes. The protocol is described in docs/reference/lending-protocol.md.
 *
 *     struct vrm_lending *cores = vrm_lending_open(VRM_LENDING_PROGRAM);
 *     for (;;) {                                  // at a point where the number of threads may change
 *         struct vrm_lending_wanted wanted;
 *         if (vrm_lending_take(cores, &wanted)) {
 *             int threads = vrm_lending_threads(&wanted, at_the_start);
 *             use_so_many(threads);
 *             vrm_lending_acknowledge(cores, &wanted, threads);
 *         }
 *     }
 *
 * Every function takes NULL, which `vrm_lending_open` returns outside of a malleable job. Nothing here
 * waits, locks or prints. C99 with the atomics of gcc and clang.
 */
#ifndef VRM_LENDING_H
#define VRM_LENDING_H

#ifndef _GNU_SOURCE
#error "define _GNU_SOURCE before the first #include, for sched_getaffinity"
#endif
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define VRM_LENDING_MAGIC "VRMLEND1"
#define VRM_LENDING_SIZE 4096
#define VRM_LENDING_CPUS 4096 /* bits of a mask */

/* Who follows the file. */
enum { VRM_LENDING_PROGRAM = 1, VRM_LENDING_LIBGOMP = 2, VRM_LENDING_OMPT = 3 };

/* What vrm wants of the process: the cores that it may use, one bit for each CPU of the system, how many
 * cores these are, and how many it had at its start (of two hardware threads one is counted). */
struct vrm_lending_wanted {
    uint64_t epoch; /* 0: nothing was ever wanted */
    uint32_t cores, of;
    unsigned char mask[VRM_LENDING_CPUS / 8];
};

struct vrm_lending_file {
    char magic[8];
    uint32_t size;     /* of the file */
    uint32_t kind;     /* who follows it */
    uint32_t pid;
    uint32_t threads;  /* of the last acknowledged order */
    uint64_t started;  /* clock ticks since the boot, as in /proc/PID/stat: pid and it name one process */
    uint64_t acknowledged; /* the epoch that the process follows */
    uint8_t index;     /* how many orders were written, modulo 256; its lowest bit is the buffer to read */
    uint8_t unused[79];
    struct vrm_lending_wanted wanted[2];
    unsigned char start[VRM_LENDING_CPUS / 8]; /* what the process might use when it made the file */
};
typedef char vrm_lending_layout[sizeof(struct vrm_lending_file) <= VRM_LENDING_SIZE ? 1 : -1];

struct vrm_lending {
    struct vrm_lending_file *file;
    uint8_t taken; /* the index of the last order that was taken */
    char path[512];
};

static inline uint64_t vrm_lending_started(void)
{
    char text[1024], *at;
    uint64_t ticks = 0;
    FILE *stat = fopen("/proc/self/stat", "re");
    size_t length;

    if (!stat)
        return 0;
    length = fread(text, 1, sizeof text - 1, stat);
    fclose(stat);
    text[length] = 0;
    at = strrchr(text, ')'); /* the program's name may hold anything */
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    if (at)
        ticks = strtoull(at, NULL, 10);
    return ticks;
}

static inline int vrm_lending_private(const char *folder)
{
    struct stat about;

    if (mkdir(folder, 0700) && errno != EEXIST)
        return 0;
    return !lstat(folder, &about) && S_ISDIR(about.st_mode) && about.st_uid == geteuid() &&
           !(about.st_mode & 077);
}

/* Makes the file of this process; NULL where it is part of no malleable job, or the file cannot be made. */
static inline struct vrm_lending *vrm_lending_open(int kind)
{
    const char *folder = getenv("VRM_LENDING");
    struct vrm_lending *lending;
    struct vrm_lending_file *file;
    char aside[520];
    int handle;

    if (!folder || folder[0] != '/' || strlen(folder) > 480 || !vrm_lending_private(folder))
        return NULL;
    lending = (struct vrm_lending *)calloc(1, sizeof *lending);
    if (!lending)
        return NULL;
    snprintf(lending->path, sizeof lending->path, "%s/%ld", folder, (long)getpid());
    snprintf(aside, sizeof aside, "%s.new", lending->path);
    unlink(aside);
    handle = open(aside, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (handle < 0) {
        free(lending);
        return NULL;
    }
    file = (struct vrm_lending_file *)MAP_FAILED;
    if (!posix_fallocate(handle, 0, VRM_LENDING_SIZE)) /* a full file system says so here, not later */
        file = (struct vrm_lending_file *)mmap(NULL, VRM_LENDING_SIZE, PROT_READ | PROT_WRITE,
                                               MAP_SHARED, handle, 0);
    close(handle);
    if (file == (struct vrm_lending_file *)MAP_FAILED) {
        unlink(aside);
        free(lending);
        return NULL;
    }
    file->size = VRM_LENDING_SIZE;
    file->kind = (uint32_t)kind;
    file->pid = (uint32_t)getpid();
    file->started = vrm_lending_started();
    sched_getaffinity(0, sizeof file->start, (cpu_set_t *)file->start);
    memcpy(file->magic, VRM_LENDING_MAGIC, sizeof file->magic);
    if (rename(aside, lending->path)) {
        unlink(aside);
        munmap(file, VRM_LENDING_SIZE);
        free(lending);
        return NULL;
    }
    lending->file = file;
    return lending;
}

/* How many orders were written (modulo 256): it changes with each. */
static inline uint8_t vrm_lending_index(const struct vrm_lending *lending)
{
    return lending ? __atomic_load_n(&lending->file->index, __ATOMIC_ACQUIRE) : 0;
}

/* The last order, and its index; 0 when it was overwritten three times while it was read: then the next
 * call has it. A buffer is complete when the index points to it, whatever became of its writer. */
static inline int vrm_lending_read(const struct vrm_lending *lending,
                                   struct vrm_lending_wanted *wanted, uint8_t *index)
{
    for (int tries = 0; tries < 3; tries++) {
        *index = vrm_lending_index(lending);
        memcpy(wanted, &lending->file->wanted[*index & 1], sizeof *wanted);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (vrm_lending_index(lending) == *index)
            return 1;
    }
    return 0;
}

/* Whether there is an order that was not taken yet, and the order. */
static inline int vrm_lending_take(struct vrm_lending *lending, struct vrm_lending_wanted *wanted)
{
    uint8_t index;

    if (vrm_lending_index(lending) == (lending ? lending->taken : 0) ||
        !vrm_lending_read(lending, wanted, &index))
        return 0;
    lending->taken = index;
    return 1;
}

/* How many threads to use where the program began with so many: never more, at least one; one for each
 * core where it began so, else in proportion. */
static inline int vrm_lending_threads(const struct vrm_lending_wanted *wanted, int at_start)
{
    long threads = at_start;

    if (wanted->epoch && wanted->of) {
        threads = wanted->cores;
        if ((uint32_t)at_start > wanted->of)
            threads = ((long)at_start * wanted->cores + wanted->of - 1) / wanted->of;
    }
    return (int)(threads < 1 ? 1 : threads > at_start ? at_start : threads);
}

/* Lets a thread (0: this one) use these cores only. */
static inline int vrm_lending_pin(const struct vrm_lending_wanted *wanted, pid_t thread)
{
    return sched_setaffinity(thread, sizeof wanted->mask, (const cpu_set_t *)wanted->mask);
}

/* Says that the order is followed, with so many threads. */
static inline void vrm_lending_acknowledge(struct vrm_lending *lending,
                                           const struct vrm_lending_wanted *wanted, int threads)
{
    if (!lending)
        return;
    lending->file->threads = (uint32_t)threads;
    __atomic_store_n(&lending->file->acknowledged, wanted->epoch, __ATOMIC_RELEASE);
}

/* Removes the file of this process. vrm removes those of processes that were killed. */
static inline void vrm_lending_close(struct vrm_lending *lending)
{
    if (!lending)
        return;
    if (lending->file->pid == (uint32_t)getpid())
        unlink(lending->path);
    munmap(lending->file, VRM_LENDING_SIZE);
    free(lending);
}

#endif
