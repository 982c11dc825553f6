/*
 * Shared parts of the NAS Parallel Benchmarks in this directory: start and
 * end of a run, random numbers, clock, verification and the result block.
 *
 * Definitions: D. Bailey et al., "The NAS Parallel Benchmarks", NASA report
 * RNR-94-007 (1994), and the problem sizes published since for classes W, B, C.
 */
#ifndef NPB_H
#define NPB_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- Problem class --------------------------------------------------------
 * One executable solves one class, chosen by -DNPB_CLASS="'A'".  Each program
 * keeps a table with one line per class, in the order S W A B C, and picks its
 * line with NPB_CLASS_INDEX, a constant the compiler can fold. */
#ifndef NPB_CLASS
#error "choose the problem class, for example -DNPB_CLASS=\"'S'\" (S, W, A, B or C)"
#endif
#if NPB_CLASS == 'S'
#define NPB_CLASS_INDEX 0
#elif NPB_CLASS == 'W'
#define NPB_CLASS_INDEX 1
#elif NPB_CLASS == 'A'
#define NPB_CLASS_INDEX 2
#elif NPB_CLASS == 'B'
#define NPB_CLASS_INDEX 3
#elif NPB_CLASS == 'C'
#define NPB_CLASS_INDEX 4
#else
#error "unknown problem class: NPB_CLASS is one of 'S', 'W', 'A', 'B', 'C'"
#endif

#define NPB_PI 3.141592653589793238462643383279502884 /* not in ISO C99 */

/* ---- Start and end of a run ---------------------------------------------- */

/* Which rank counts a program accepts. */
typedef enum {
    NPB_RANKS_ANY,          /* 1, 2, 3, 4, ...     */
    NPB_RANKS_POWER_OF_TWO, /* 1, 2, 4, 8, ...     */
    NPB_RANKS_SQUARE        /* 1, 4, 9, 16, ...    */
} npb_rank_rule;

typedef struct {
    int rank; /* of this process in MPI_COMM_WORLD */
    int size; /* ranks in MPI_COMM_WORLD */
} npb_world;

/*
 * Starts MPI and checks the rank count against `rule` and `max_ranks` (the
 * largest count the class can be divided among; 0: no bound).  On a count that
 * is not allowed rank 0 says which are, and every rank exits with status 1.
 */
npb_world npb_start(int *argc, char ***argv, const char *name, npb_rank_rule rule,
                    int max_ranks);

/* What the result block reports. */
typedef struct {
    const char *name;      /* "EP" */
    int64_t size[3];       /* grid; size[1] == 0: one number only */
    int iterations;
    double seconds;        /* of the timed part, slowest rank */
    double operations;     /* counted by the benchmark's own rule, all ranks */
    const char *operation; /* "floating point", "keys ranked", ... */
    bool verified;         /* only rank 0's value counts */
} npb_result;

/*
 * Prints the result block on rank 0, ends MPI and returns the exit status of
 * the program, the same on every rank: 0 verified, 1 not.
 */
int npb_finish(npb_world world, const npb_result *result);

/* Memory for n elements of the given size, aligned to a cache line and filled
 * with zeros; when there is none, says how much was wanted and ends all ranks.
 * Never returns NULL, also not for n = 0.  Release with npb_free. */
void *npb_alloc(size_t n, size_t element_size);
void npb_free(void *memory);

/* Ends all ranks with a message, for states that the input cannot cause. */
void npb_fail(const char *message);

/* ---- Clock ----------------------------------------------------------------
 * A stop watch on MPI_Wtime: start and stop may be repeated, time adds up. */
typedef struct {
    double started; /* MPI_Wtime of the last start */
    double seconds; /* sum of all finished intervals */
} npb_timer;

void npb_timer_clear(npb_timer *timer);
void npb_timer_start(npb_timer *timer);
void npb_timer_stop(npb_timer *timer);

/* The largest of all ranks' seconds, on every rank (collective). */
double npb_slowest(double seconds);

/* ---- Verification ---------------------------------------------------------
 * Compares a computed value with the official one by relative error (absolute
 * where the reference is 0) and prints one line; not-a-number never passes.
 * Call it on rank 0 only. */
bool npb_verify(const char *label, double computed, double reference, double epsilon);

/* The same for whole numbers, which have to be equal; prints only a difference. */
bool npb_verify_integer(const char *label, int64_t computed, int64_t reference);

/* ---- Random numbers --------------------------------------------------------
 * The benchmark's linear congruential generator x' = a x mod 2^46 with values
 * x 2^-46 in (0,1); section 2.3 of the report.  Whole numbers of 64 bits carry
 * it exactly, because 2^46 divides 2^64. */
#define NPB_RANDOM_A UINT64_C(1220703125) /* 5^13 */
#define NPB_RANDOM_SEED UINT64_C(314159265)
#define NPB_RANDOM_MASK ((UINT64_C(1) << 46) - 1)
#define NPB_RANDOM_SCALE (1.0 / 70368744177664.0) /* 2^-46 */

/* Advances *x once and returns the new value as a number in (0,1). */
static inline double npb_randlc(uint64_t *x, uint64_t a)
{
    *x = (*x * a) & NPB_RANDOM_MASK;
    return NPB_RANDOM_SCALE * (double)(int64_t)*x;
}

/* The next n values into y; *x is left at the last of them. */
void npb_vranlc(size_t n, uint64_t *x, uint64_t a, double *y);

/* a^n mod 2^46: multiplying a seed by it jumps n values ahead. */
uint64_t npb_random_power(uint64_t a, uint64_t n);

/* The seed n values after x. */
uint64_t npb_random_jump(uint64_t x, uint64_t a, uint64_t n);

#endif
