/*
 * Lets a process learn which cores it may use now: from one small file for each process in this node's memory
 * file system. The process makes it and vrm writes it. The protocol is in docs/reference/lending-protocol.md.
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
 * Every function accepts NULL, which `vrm_lending_open` returns outside of a malleable job. No function
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

/* What follows the file. */
enum { VRM_LENDING_PROGRAM = 1, VRM_LENDING_LIBGOMP = 2, VRM_LENDING_OMPT = 3 };

/* An order: the cores that the process may use (one bit for each CPU of the system), the number of these
 * cores, and the number of cores at its start. Two hardware threads of a core count once. */
struct vrm_lending_wanted {
    uint64_t epoch; /* 0: there was no order yet */
    uint32_t cores, of;
    unsigned char mask[VRM_LENDING_CPUS / 8];
};

struct vrm_lending_file {
    char magic[8];
    uint32_t size;     /* of the file */
    uint32_t kind;     /* what follows it */
    uint32_t pid;
    uint32_t threads;  /* of the last acknowledged order */
    uint64_t started;  /* clock ticks since boot, as in /proc/PID/stat; identifies the process together with pid */
    uint64_t acknowledged; /* the epoch that the process follows */
    uint8_t index;     /* number of written orders, modulo 256; its lowest bit is the buffer to read */
    uint8_t unused[79];
    struct vrm_lending_wanted wanted[2];
    unsigned char start[VRM_LENDING_CPUS / 8]; /* the mask of the process when it made the file */
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
    at = strrchr(text, ')'); /* the program's name may contain anything */
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

/* Make the file of this process; NULL if it is not part of a malleable job, or the file cannot be made. */
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
    if (!posix_fallocate(handle, 0, VRM_LENDING_SIZE)) /* a full file system fails here, not later */
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

/* Return the number of written orders (modulo 256), which changes with each order. */
static inline uint8_t vrm_lending_index(const struct vrm_lending *lending)
{
    return lending ? __atomic_load_n(&lending->file->index, __ATOMIC_ACQUIRE) : 0;
}

/* Read the last order and its index. Return 0 if it was overwritten three times while it was read; the next
 * call will get it. A buffer is complete when the index points to it, even if its writer was killed. */
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

/* Return whether there is an order that was not taken yet, and the order. */
static inline int vrm_lending_take(struct vrm_lending *lending, struct vrm_lending_wanted *wanted)
{
    uint8_t index;

    if (vrm_lending_index(lending) == (lending ? lending->taken : 0) ||
        !vrm_lending_read(lending, wanted, &index))
        return 0;
    lending->taken = index;
    return 1;
}

/* Return the number of threads to use if the program started with `at_start`: between 1 and `at_start`; one
 * for each core if it started with at most one per core, otherwise in proportion. */
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

/* Let a thread (0: this one) use only these cores. */
static inline int vrm_lending_pin(const struct vrm_lending_wanted *wanted, pid_t thread)
{
    return sched_setaffinity(thread, sizeof wanted->mask, (const cpu_set_t *)wanted->mask);
}

/* Confirm that the order is followed, with this number of threads. */
static inline void vrm_lending_acknowledge(struct vrm_lending *lending,
                                           const struct vrm_lending_wanted *wanted, int threads)
{
    if (!lending)
        return;
    lending->file->threads = (uint32_t)threads;
    __atomic_store_n(&lending->file->acknowledged, wanted->epoch, __ATOMIC_RELEASE);
}

/* Remove the file of this process. vrm removes the files of processes that were killed. */
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
