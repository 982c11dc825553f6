/*
 * Shared parts of the benchmarks: start and end of a run, clock, verification,
 * result block and random numbers.  What each does is said in npb.h.
 */
#define _DEFAULT_SOURCE /* madvise */
#include "npb.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- Start and end of a run ---------------------------------------------- */

static bool count_allowed(int n, npb_rank_rule rule, int max_ranks)
{
    if (max_ranks > 0 && n > max_ranks)
        return false;
    switch (rule) {
    case NPB_RANKS_POWER_OF_TWO:
        return (n & (n - 1)) == 0;
    case NPB_RANKS_SQUARE: {
        int side = 1;
        while (side * side < n)
            side++;
        return side * side == n;
    }
    case NPB_RANKS_ANY:
        break;
    }
    return true;
}

static void explain_allowed_counts(int n, const char *name, npb_rank_rule rule, int max_ranks)
{
    static const char *const wording[] = {
        [NPB_RANKS_ANY] = "any number",
        [NPB_RANKS_POWER_OF_TWO] = "powers of two (1, 2, 4, 8, ...)",
        [NPB_RANKS_SQUARE] = "square numbers (1, 4, 9, 16, ...)",
    };
    fprintf(stderr, " %s class %c cannot run on %d ranks: allowed are %s", name, NPB_CLASS, n,
            wording[rule]);
    if (max_ranks > 0)
        fprintf(stderr, " up to %d", max_ranks);
    fprintf(stderr, ". Start it with mpirun -np and one of these.\n");
    fflush(stderr);
}

npb_world npb_start(int *argc, char ***argv, const char *name, npb_rank_rule rule,
                    int max_ranks)
{
    npb_world world;
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &world.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world.size);
    if (!count_allowed(world.size, rule, max_ranks)) {
        if (world.rank == 0)
            explain_allowed_counts(world.size, name, rule, max_ranks);
        /* Not MPI_Abort: its noise would bury the message. The barrier keeps
         * the launcher from ending rank 0 before it has spoken. */
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Finalize();
        exit(EXIT_FAILURE);
    }
    if (world.rank == 0) {
        printf("\n NAS Parallel Benchmarks in C and MPI: %s, class %c, %d process%s\n\n", name,
               NPB_CLASS, world.size, world.size == 1 ? "" : "es");
        fflush(stdout);
    }
    return world;
}

static void print_result(npb_world world, const npb_result *result)
{
    double mops = result->seconds > 0.0 ? result->operations / result->seconds * 1e-6 : 0.0;
    char size[64];

    if (result->size[1] == 0)
        snprintf(size, sizeof size, "%lld", (long long)result->size[0]);
    else
        snprintf(size, sizeof size, "%4lldx%4lldx%4lld", (long long)result->size[0],
                 (long long)result->size[1], (long long)result->size[2]);

    printf("\n\n %s Benchmark Completed.\n", result->name);
    printf(" Class           = %24c\n", NPB_CLASS);
    printf(" Size            = %24s\n", size);
    printf(" Iterations      = %24d\n", result->iterations);
    printf(" Time in seconds = %24.2f\n", result->seconds);
    printf(" Total processes = %24d\n", world.size);
    printf(" Mop/s total     = %24.2f\n", mops);
    printf(" Mop/s/process   = %24.2f\n", mops / world.size);
    printf(" Operation type  = %24s\n", result->operation);
    printf(" Verification    = %24s\n", result->verified ? "SUCCESSFUL" : "UNSUCCESSFUL");
    printf("\n");
    fflush(stdout);
}

int npb_finish(npb_world world, const npb_result *result)
{
    int verified = result->verified;
    if (world.rank == 0)
        print_result(world, result);
    MPI_Bcast(&verified, 1, MPI_INT, 0, MPI_COMM_WORLD);
    MPI_Finalize();
    return verified ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* The address that malloc gave is kept in front of the aligned block, so that
 * ISO C99 alone is enough (aligned_alloc is C11). */
#define CACHE_LINE 64

/* Pages of 2 MiB for what lies wholly in them. Prefetching ends at the end of a page: with
 * pages of 4 KiB, which Linux gives where it is not asked, CG takes a seventh longer. */
#define HUGE_PAGE ((uintptr_t)1 << 21)

static void ask_for_huge_pages(uintptr_t from, size_t length)
{
#ifdef MADV_HUGEPAGE
    uintptr_t first = (from + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
    uintptr_t end = (from + length) & ~(HUGE_PAGE - 1);
    if (first < end)
        (void)madvise((void *)first, end - first, MADV_HUGEPAGE); /* a wish: it may be refused */
#else
    (void)from;
    (void)length;
#endif
}

void *npb_alloc(size_t n, size_t element_size)
{
    size_t spare = CACHE_LINE + sizeof(void *);
    char *raw = NULL;

    if (element_size == 0 || n <= (SIZE_MAX - spare) / element_size)
        raw = malloc(n * element_size + spare);
    if (raw == NULL) {
        fprintf(stderr, " Not enough memory: this rank asked for %.1f MiB. Use more ranks on more "
                        "nodes or a smaller class.\n",
                (double)n * (double)element_size / 1048576.0);
        MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
        exit(EXIT_FAILURE);
    }
    uintptr_t aligned = ((uintptr_t)raw + spare) & ~(uintptr_t)(CACHE_LINE - 1);
    void **block = (void **)aligned;
    ask_for_huge_pages(aligned, n * element_size);
    block[-1] = raw;
    memset(block, 0, n * element_size);
    return block;
}

void npb_free(void *memory)
{
    if (memory != NULL)
        free(((void **)memory)[-1]);
}

void npb_fail(const char *message)
{
    fprintf(stderr, " %s\n", message);
    fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    exit(EXIT_FAILURE);
}

/* ---- Clock --------------------------------------------------------------- */

void npb_timer_clear(npb_timer *timer)
{
    timer->started = 0.0;
    timer->seconds = 0.0;
}

void npb_timer_start(npb_timer *timer)
{
    timer->started = MPI_Wtime();
}

void npb_timer_stop(npb_timer *timer)
{
    timer->seconds += MPI_Wtime() - timer->started;
}

double npb_slowest(double seconds)
{
    double slowest;
    MPI_Allreduce(&seconds, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

/* ---- Verification -------------------------------------------------------- */

/* The tests prove that verification can fail: they compile with
 * -DNPB_SPOIL_REFERENCE, which falsifies every reference value. */
#ifdef NPB_SPOIL_REFERENCE
static const bool spoil_reference = true;
#else
static const bool spoil_reference = false;
#endif

bool npb_verify(const char *label, double computed, double reference, double epsilon)
{
    if (spoil_reference)
        reference = reference * 1.001 + 1e-3;
    double error = fabs(computed - reference);
    if (reference != 0.0)
        error /= fabs(reference);
    bool passed = error <= epsilon; /* false for not-a-number */
    printf(" %-14s %22.14e, official %22.14e, error %8.1e, %s\n", label, computed, reference,
           error, passed ? "ok" : "WRONG");
    return passed;
}

bool npb_verify_integer(const char *label, int64_t computed, int64_t reference)
{
    if (spoil_reference)
        reference += 1;
    if (computed == reference)
        return true;
    printf(" %s is %lld, official %lld, WRONG\n", label, (long long)computed,
           (long long)reference);
    return false;
}

/* ---- Random numbers ------------------------------------------------------ */

/* One stream is a chain of dependent multiplications.  Four interleaved chains,
 * each advancing by a^4, give the same values and keep the multiplier busy. */
void npb_vranlc(size_t n, uint64_t *x, uint64_t a, double *y)
{
    enum { CHAINS = 4 };
    uint64_t stride = npb_random_power(a, CHAINS);
    uint64_t chain[CHAINS];
    uint64_t last = *x;
    size_t i = 0;

    for (int k = 0; k < CHAINS; k++) {
        last = (last * a) & NPB_RANDOM_MASK;
        chain[k] = last;
    }
    last = *x;
    for (; i + CHAINS <= n; i += CHAINS) {
        last = chain[CHAINS - 1];
        for (int k = 0; k < CHAINS; k++) {
            y[i + k] = NPB_RANDOM_SCALE * (double)(int64_t)chain[k];
            chain[k] = (chain[k] * stride) & NPB_RANDOM_MASK;
        }
    }
    for (; i < n; i++)
        y[i] = npb_randlc(&last, a);
    *x = last;
}

uint64_t npb_random_power(uint64_t a, uint64_t n)
{
    uint64_t power = 1;
    for (uint64_t square = a; n > 0; n >>= 1) {
        if (n & 1)
            power = (power * square) & NPB_RANDOM_MASK;
        square = (square * square) & NPB_RANDOM_MASK;
    }
    return power;
}

uint64_t npb_random_jump(uint64_t x, uint64_t a, uint64_t n)
{
    return (x * npb_random_power(a, n)) & NPB_RANDOM_MASK;
}
