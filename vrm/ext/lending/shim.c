/*
 * Makes the number of OpenMP threads of unmodified programs follow the cores that their job has now
 * (vrm_lending.h). For libgomp it is preloaded and intercepts the library's entry points; for LLVM's and
 * Intel's runtime it is an OMPT tool. Built by build.py, used by job_variables.py, tested by check.py.
 *
 * The rule: a program may rely on the last number of threads that it has read until it has used it. For
 * example, it reads the maximum, makes an array, opens a parallel region and reads the array. Therefore an
 * order is taken only at two points, both outside of parallel regions: when the program reads the maximum,
 * or when it opens a region, and there only if it has neither read nor set the number since its last region
 * ended. (A program that reads it after a region, to learn how many threads that region had, looks the same
 * and can go wrong; `vrm malleable check` finds this.) The number never exceeds that of the start, or the
 * one that the program has set. A num_threads clause is kept: its surplus threads share cores.
 *
 * A job may start on fewer cores than it requested, and get more later. VRM_LENDING_CORES has the number of
 * cores that a process then has, and the number that it requested; its number of threads fits the latter. So
 * its arrays are large enough: it runs its first region with all of these threads, and takes orders from then on.
 *
 * The agent sets the kernel's masks (masks.py). Threads that the runtime itself places on cores
 * (OMP_PROC_BIND and the like) are moved to the wanted cores here, when they enter a region.
 */
#define _GNU_SOURCE
#include "vrm_lending.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdbool.h>
#include <strings.h>

#define EXPORTED __attribute__((visibility("default")))
#define LIKELY_NOT(x) __builtin_expect(!!(x), 0)

/* ---- The runtime's own functions ------------------------------------------------------------------ */

static int find_runtime(struct dl_phdr_info *info, size_t size, void *found)
{
    const char *name = strrchr(info->dlpi_name, '/');
    (void)size;
    name = name ? name + 1 : info->dlpi_name;
    if (strncmp(name, "libgomp", 7) && strncmp(name, "libomp", 6) && strncmp(name, "libiomp", 7))
        return 0;
    *(void **)found = dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
    return *(void **)found != NULL;
}

/* Return a function of the loaded runtime, even if a plugin has loaded it only for itself. */
static void *of_runtime(const char *name)
{
    void *function = dlsym(RTLD_NEXT, name), *library = NULL;

    if (!function && dl_iterate_phdr(find_runtime, &library))
        function = dlsym(library, name);
    return function;
}

/* Return a function for regions. Only compiled code calls these, so the runtime must be there. */
static void *needed(const char *name)
{
    void *function = of_runtime(name);

    if (!function) {
        static const char words[] = "vrm: an OpenMP function was called that no runtime here has\n";
        if (write(2, words, sizeof words - 1) < 0)
            abort();
        abort();
    }
    return function;
}

#define REAL(type, name)                                                                               \
    static __typeof__(type) *real;                                                                     \
    if (LIKELY_NOT(!real))                                                                             \
        __atomic_store_n(&real, (__typeof__(type) *)needed(name), __ATOMIC_RELAXED)

/* Programs may test for OpenMP by a weak reference or dlsym, which find the functions here. Without a runtime
 * these functions behave as with one thread. */
#define REAL_OR(type, name, otherwise)                                                                 \
    static __typeof__(type) *real;                                                                     \
    if (LIKELY_NOT(!real)) {                                                                           \
        __atomic_store_n(&real, (__typeof__(type) *)of_runtime(name), __ATOMIC_RELAXED);               \
        if (!real)                                                                                     \
            return otherwise;                                                                          \
    }

typedef int (*get_number)(void);
typedef void (*set_number)(int);

static get_number real_maximum, real_level, real_team;
static set_number real_set;

/* ---- State ---------------------------------------------------------------------------------------- */

static struct vrm_lending *lending;
static bool placed;    /* the runtime places its threads on cores */
static bool by_tool;   /* used as an OMPT tool: the functions of libgomp below only pass calls on */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool ready;
static unsigned has, wants; /* cores at the start, and requested cores; 0: these are equal */

/* For each thread that may open outermost regions: the order it follows, and what the program knows. */
static __thread struct {
    uint8_t taken;  /* index of the order */
    bool changed;   /* the program has set the number: take the order again */
    bool asked;     /* the program has read the number, and may rely on it */
    bool ran;       /* a region has ended */
    uint8_t pinned; /* index of the order to whose cores this thread was pinned */
    int team;       /* threads of the team in which it was */
    int own;        /* threads that the program itself would use */
} mine __attribute__((tls_model("initial-exec")));

static bool says(const char *name)
{
    const char *value = getenv(name);
    return value && *value && strcasecmp(value, "false") && strcasecmp(value, "none") &&
           strcasecmp(value, "disabled");
}

static void forget(void) /* in a child of fork: the file belongs to the parent */
{
    lending = NULL;
}

static void begin(void)
{
    real_maximum = (get_number)of_runtime("omp_get_max_threads");
    real_level = (get_number)of_runtime("omp_get_level");
    real_team = (get_number)of_runtime("omp_get_num_threads");
    real_set = (set_number)of_runtime("omp_set_num_threads");
    const char *cores = getenv("VRM_LENDING_CORES");

    if (cores && (sscanf(cores, "%5u/%5u", &has, &wants) != 2 || has < 1 || has >= wants))
        wants = 0;
    placed = says("OMP_PROC_BIND") || says("OMP_PLACES") || says("GOMP_CPU_AFFINITY") ||
             says("KMP_AFFINITY");
    if (real_maximum && real_level && real_team && real_set)
        lending = vrm_lending_open(by_tool ? VRM_LENDING_OMPT : VRM_LENDING_LIBGOMP);
    if (lending)
        pthread_atfork(NULL, NULL, forget);
    __atomic_store_n(&ready, true, __ATOMIC_RELEASE);
}

static inline void prepare(void)
{
    if (LIKELY_NOT(!__atomic_load_n(&ready, __ATOMIC_ACQUIRE)))
        pthread_once(&once, begin);
}

__attribute__((destructor)) static void end(void)
{
    struct vrm_lending *mine_alone = lending;
    lending = NULL;
    if (mine_alone && mine_alone->file->pid == (uint32_t)getpid())
        unlink(mine_alone->path); /* stays mapped: other threads may still run */
}

/* Put this thread on the wanted cores; repeat if another order has come meanwhile. */
static void pin(struct vrm_lending *l)
{
    struct vrm_lending_wanted wanted;
    uint8_t index;

    for (int tries = 0; tries < 3 && vrm_lending_read(l, &wanted, &index); tries++) {
        if (wanted.epoch)
            vrm_lending_pin(&wanted, 0);
        mine.pinned = index;
        if (vrm_lending_index(l) == index)
            break;
    }
}

/* Follow the last order. */
static __attribute__((noinline)) void follow(struct vrm_lending *l)
{
    struct vrm_lending_wanted wanted;
    uint8_t index;
    uint64_t epoch;
    int threads;

    if (real_level() > 0 || !vrm_lending_read(l, &wanted, &index))
        return;
    if (!mine.own)
        mine.own = real_maximum();
    epoch = wanted.epoch;
    if (wants) {
        if (!epoch)
            wanted.epoch = 1, wanted.cores = has;
        if (wanted.of < wants)
            wanted.of = wants;
    }
    threads = vrm_lending_threads(&wanted, mine.own);
    real_set(threads);
    mine.taken = index;
    mine.changed = false;
    if (!epoch)
        return;
    if (placed)
        pin(l);
    vrm_lending_acknowledge(l, &wanted, threads);
}

/* Called at points where an order may be taken. */
static inline void may_change(void)
{
    struct vrm_lending *l;

    prepare();
    l = lending;
    if (l && !mine.asked && (LIKELY_NOT(vrm_lending_index(l) != mine.taken) || mine.changed) && (!wants || mine.ran))
        follow(l);
}

/* A region has ended. */
static inline void ended(void)
{
    mine.asked = false;
    if (LIKELY_NOT(wants) && !mine.ran)
        mine.ran = mine.changed = true;
}

/* A thread enters a region. */
static inline void enter(int team)
{
    struct vrm_lending *l = lending;

    if (l && (vrm_lending_index(l) != mine.pinned || team != mine.team)) {
        mine.team = team;
        pin(l);
    }
}

/* ---- Functions that programs call ----------------------------------------------------------------- */

static int maximum(void)
{
    REAL_OR(int(void), "omp_get_max_threads", 1)

    may_change();
    if (lending)
        mine.asked = true;
    return real();
}

EXPORTED int omp_get_max_threads(void)
{
    return maximum();
}

EXPORTED int omp_get_max_threads_(void) /* Fortran */
{
    return maximum();
}

static void set(int threads)
{
    REAL_OR(void(int), "omp_set_num_threads", )

    prepare();
    if (lending && real_level() == 0) {
        mine.own = threads > 0 ? threads : 1;
        mine.asked = mine.changed = true;
    }
    real(threads);
}

EXPORTED void omp_set_num_threads(int threads)
{
    set(threads);
}

EXPORTED void omp_set_num_threads_(const int32_t *threads)
{
    set(*threads);
}

EXPORTED void omp_set_num_threads_8_(const int64_t *threads)
{
    set(*threads > INT32_MAX ? INT32_MAX : (int)*threads);
}

/* ---- libgomp ---------------------------------------------------------------------------------------- */

typedef void (*body)(void *);
struct entry {
    body function;
    void *data;
};

static void in_region(void *argument)
{
    struct entry *entry = argument;

    enter(real_team());
    entry->function(entry->data);
}

/* Before and after a region. If the runtime places threads, they enter the region through in_region. */
#define BEFORE                                                                                         \
    struct entry entry = {function, data};                                                             \
    if (!by_tool)                                                                                      \
        may_change();                                                                                  \
    if (LIKELY_NOT(placed) && !by_tool && lending && vrm_lending_index(lending)) {                     \
        function = in_region;                                                                          \
        data = &entry;                                                                                 \
    }
#define AFTER                                                                                          \
    if (!by_tool)                                                                                      \
        ended()

EXPORTED void GOMP_parallel(body function, void *data, unsigned threads, unsigned flags)
{
    REAL(void(body, void *, unsigned, unsigned), "GOMP_parallel");
    BEFORE
    real(function, data, threads, flags);
    AFTER;
}

EXPORTED unsigned GOMP_parallel_reductions(body function, void *data, unsigned threads, unsigned flags)
{
    unsigned team;
    REAL(unsigned(body, void *, unsigned, unsigned), "GOMP_parallel_reductions");
    BEFORE
    team = real(function, data, threads, flags);
    AFTER;
    return team;
}

EXPORTED void GOMP_parallel_sections(body function, void *data, unsigned threads, unsigned count,
                                     unsigned flags)
{
    REAL(void(body, void *, unsigned, unsigned, unsigned), "GOMP_parallel_sections");
    BEFORE
    real(function, data, threads, count, flags);
    AFTER;
}

EXPORTED void GOMP_teams_reg(body function, void *data, unsigned teams, unsigned limit, unsigned flags)
{
    REAL(void(body, void *, unsigned, unsigned, unsigned), "GOMP_teams_reg");
    BEFORE
    real(function, data, teams, limit, flags);
    AFTER;
}

#define LOOP(name)                                                                                     \
    EXPORTED void name(body function, void *data, unsigned threads, long first, long end_,             \
                       long step, long chunk, unsigned flags)                                          \
    {                                                                                                  \
        REAL(void(body, void *, unsigned, long, long, long, long, unsigned), #name);               \
        BEFORE                                                                                         \
        real(function, data, threads, first, end_, step, chunk, flags);                                \
        AFTER;                                                                                         \
    }
LOOP(GOMP_parallel_loop_static)
LOOP(GOMP_parallel_loop_dynamic)
LOOP(GOMP_parallel_loop_guided)
LOOP(GOMP_parallel_loop_nonmonotonic_dynamic)
LOOP(GOMP_parallel_loop_nonmonotonic_guided)

#define LOOP_RUNTIME(name)                                                                             \
    EXPORTED void name(body function, void *data, unsigned threads, long first, long end_,             \
                       long step, unsigned flags)                                                      \
    {                                                                                                  \
        REAL(void(body, void *, unsigned, long, long, long, unsigned), #name);                     \
        BEFORE                                                                                         \
        real(function, data, threads, first, end_, step, flags);                                       \
        AFTER;                                                                                         \
    }
LOOP_RUNTIME(GOMP_parallel_loop_runtime)
LOOP_RUNTIME(GOMP_parallel_loop_nonmonotonic_runtime)
LOOP_RUNTIME(GOMP_parallel_loop_maybe_nonmonotonic_runtime)

/* Old binaries (gcc before 4.9) begin a region, run its body themselves and end it. Their threads are
 * not pinned here: in_region's argument would have to outlive this call. */
#define START(name, parameters, arguments)                                                             \
    EXPORTED void name parameters                                                                      \
    {                                                                                                  \
        REAL(void parameters, #name);                                                              \
        if (!by_tool)                                                                                  \
            may_change();                                                                              \
        real arguments;                                                                                \
    }
START(GOMP_parallel_start, (body function, void *data, unsigned threads), (function, data, threads))
START(GOMP_parallel_sections_start, (body function, void *data, unsigned threads, unsigned count),
      (function, data, threads, count))
#define LOOP_PARAMETERS                                                                                \
    (body function, void *data, unsigned threads, long first, long end_, long step, long chunk)
#define LOOP_ARGUMENTS (function, data, threads, first, end_, step, chunk)
START(GOMP_parallel_loop_static_start, LOOP_PARAMETERS, LOOP_ARGUMENTS)
START(GOMP_parallel_loop_dynamic_start, LOOP_PARAMETERS, LOOP_ARGUMENTS)
START(GOMP_parallel_loop_guided_start, LOOP_PARAMETERS, LOOP_ARGUMENTS)
START(GOMP_parallel_loop_runtime_start,
      (body function, void *data, unsigned threads, long first, long end_, long step),
      (function, data, threads, first, end_, step))

EXPORTED void GOMP_parallel_end(void)
{
    REAL(void(void), "GOMP_parallel_end");
    real();
    AFTER;
}

/* ---- OMPT: the parts of its interface (OpenMP 5.0, section 4) that are used here ------------------------ */

typedef void (*ompt_callback)(void);
typedef ompt_callback (*ompt_lookup)(const char *);
typedef int (*ompt_set_callback)(int, ompt_callback);
typedef union {
    uint64_t value;
    void *pointer;
} ompt_data;
typedef struct {
    int (*initialize)(ompt_lookup, int, ompt_data *);
    void (*finalize)(ompt_data *);
    ompt_data tool_data;
} ompt_result;
enum { OMPT_PARALLEL_BEGIN = 3, OMPT_PARALLEL_END = 4, OMPT_IMPLICIT_TASK = 7 };
enum { OMPT_SCOPE_BEGIN = 1, OMPT_TASK_IMPLICIT = 2 };

static void region_begins(ompt_data *task, const void *frame, ompt_data *region, unsigned wanted,
                          int flags, const void *address)
{
    (void)task, (void)frame, (void)region, (void)wanted, (void)flags, (void)address;
    may_change();
}

static void region_ends(ompt_data *region, ompt_data *task, int flags, const void *address)
{
    (void)region, (void)task, (void)flags, (void)address;
    ended();
}

static void task_begins(int scope, ompt_data *region, ompt_data *task, unsigned team, unsigned index,
                        int flags)
{
    (void)region, (void)task, (void)index;
    if (scope == OMPT_SCOPE_BEGIN && flags & OMPT_TASK_IMPLICIT && lending &&
        vrm_lending_index(lending))
        enter((int)team);
}

static int tool_begins(ompt_lookup lookup, int device, ompt_data *data)
{
    ompt_set_callback set_callback = (ompt_set_callback)lookup("ompt_set_callback");

    (void)device, (void)data;
    if (!set_callback)
        return 0;
    set_callback(OMPT_PARALLEL_BEGIN, (ompt_callback)region_begins);
    set_callback(OMPT_PARALLEL_END, (ompt_callback)region_ends);
    if (says("OMP_PROC_BIND") || says("OMP_PLACES") || says("KMP_AFFINITY"))
        set_callback(OMPT_IMPLICIT_TASK, (ompt_callback)task_begins);
    by_tool = true;
    return 1;
}

static void tool_ends(ompt_data *data)
{
    (void)data;
}

EXPORTED ompt_result *ompt_start_tool(unsigned version, const char *runtime)
{
    static ompt_result result = {tool_begins, tool_ends, {0}};

    (void)version, (void)runtime;
    return getenv("VRM_LENDING") ? &result : NULL;
}
