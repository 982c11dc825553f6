/*
 * EP, embarrassingly parallel: 2^m pairs of random numbers are turned into
 * Gaussian deviates by the polar method and counted in square annuli.
 * Almost no communication; it measures the processors alone (RNR-94-007, 2.3).
 */
#include "npb.h"

#include <math.h>
#include <stdio.h>

#define SEED UINT64_C(271828183)
#define ANNULI 10

/* Threads share the blocks of a slice, then those of the next: their number may change in between. */
#define SLICE_BLOCKS 256

/* Pairs are made in blocks whose random numbers stay in the first-level cache (40 KiB). */
#define LOG2_BLOCK 10
#define BLOCK_PAIRS (1 << LOG2_BLOCK)

#define EPSILON 1e-8

typedef struct {
    int log2_pairs;
    double sum_x, sum_y; /* official sums of the deviates */
} problem;

static const problem problems[] = {
    {24, -3.247834652034740e+3, -6.958407078382297e+3},
    {25, -2.863319731645753e+3, -6.320053679109499e+3},
    {28, -4.295875165629892e+3, -1.580732573678431e+4},
    {30, 4.033815542441498e+4, -2.660669192809235e+4},
    {32, 4.764367927995374e+4, -8.084072988043731e+4},
};

/* What a set of pairs adds up to; one array of doubles so that one reduction
 * carries it.  Counts stay below 2^53 and are therefore exact. */
typedef struct {
    double sum_x, sum_y;
    double count[ANNULI];
} tally;
#define TALLY_DOUBLES (2 + ANNULI)

/* The pairs of one block that fall into the unit circle. */
typedef struct {
    int n;
    double x[BLOCK_PAIRS], y[BLOCK_PAIRS], radius2[BLOCK_PAIRS];
} pairs_inside;

/* Keeps, of uniform numbers taken in pairs from (0,1)^2 and stretched to
 * (-1,1)^2, those inside the circle.  Every pair is written and the end moved on
 * only past the good ones: no branch that the processor would guess wrong for
 * one pair in five. */
static void select_inside(const double *uniform, pairs_inside *inside)
{
    int n = 0;

    for (int i = 0; i < BLOCK_PAIRS; i++) {
        double x = 2.0 * uniform[2 * i] - 1.0;
        double y = 2.0 * uniform[2 * i + 1] - 1.0;
        double radius2 = x * x + y * y;
        inside->x[n] = x;
        inside->y[n] = y;
        inside->radius2[n] = radius2;
        n += radius2 <= 1.0;
    }
    inside->n = n;
}

/* Adds the Gaussian deviates made of the selected pairs to the tally. */
static void tally_deviates(const pairs_inside *inside, tally *t)
{
    double sum_x = 0.0, sum_y = 0.0;
    int count[ANNULI] = {0};

    for (int i = 0; i < inside->n; i++) {
        double radius2 = inside->radius2[i];
        double scale = sqrt(-2.0 * log(radius2) / radius2);
        double x = inside->x[i] * scale;
        double y = inside->y[i] * scale;
        int annulus_x = (int)fabs(x), annulus_y = (int)fabs(y);
        count[annulus_x > annulus_y ? annulus_x : annulus_y]++;
        sum_x += x;
        sum_y += y;
    }
    t->sum_x += sum_x;
    t->sum_y += sum_y;
    for (int i = 0; i < ANNULI; i++)
        t->count[i] += count[i];
}

static void tally_add(tally *t, const tally *more)
{
    t->sum_x += more->sum_x;
    t->sum_y += more->sum_y;
    for (int i = 0; i < ANNULI; i++)
        t->count[i] += more->count[i];
}

/* Tallies the blocks of a slice. Whoever does not go on with the block after its last one jumps to its
 * place in the random sequence. */
static void tally_slice(int64_t first, int64_t end, tally *t)
{
    #pragma omp parallel
    {
        double uniform[2 * BLOCK_PAIRS];
        pairs_inside inside;
        tally here = {0.0, 0.0, {0.0}};
        int64_t next = -1;
        uint64_t x = 0;

        #pragma omp for schedule(static) nowait
        for (int64_t block = first; block < end; block++) {
            if (block != next)
                x = npb_random_jump(SEED, NPB_RANDOM_A, (uint64_t)block * 2 * BLOCK_PAIRS);
            npb_vranlc(2 * BLOCK_PAIRS, &x, NPB_RANDOM_A, uniform);
            select_inside(uniform, &inside);
            tally_deviates(&inside, &here);
            next = block + 1;
        }
        #pragma omp critical
        tally_add(t, &here);
    }
}

int main(int argc, char **argv)
{
    const problem *p = &problems[NPB_CLASS_INDEX];
    const int64_t blocks = INT64_C(1) << (p->log2_pairs - LOG2_BLOCK);
    npb_world world = npb_start(&argc, &argv, "EP", NPB_RANKS_ANY, (int)blocks);
    tally mine = {0.0, 0.0, {0.0}};
    tally all;
    npb_timer timer;

    npb_timer_clear(&timer);
    MPI_Barrier(MPI_COMM_WORLD);
    npb_timer_start(&timer);

    /* Each rank takes a contiguous share of the blocks, shares differing by at most one. */
    int64_t first = blocks * world.rank / world.size;
    int64_t end = blocks * (world.rank + 1) / world.size;
    for (int64_t block = first; block < end; block += SLICE_BLOCKS)
        tally_slice(block, block + SLICE_BLOCKS < end ? block + SLICE_BLOCKS : end, &mine);
    MPI_Allreduce(&mine, &all, TALLY_DOUBLES, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);

    npb_timer_stop(&timer);

    npb_result result = {
        .name = "EP",
        .size = {INT64_C(2) << p->log2_pairs, 0, 0},
        .iterations = 0,
        .seconds = npb_slowest(timer.seconds),
        .operations = ldexp(2.0, p->log2_pairs),
        .operation = "Random numbers generated",
    };
    if (world.rank == 0) {
        double pairs = 0.0;
        for (int i = 0; i < ANNULI; i++) {
            printf(" annulus %d       %15.0f\n", i, all.count[i]);
            pairs += all.count[i];
        }
        printf(" Gaussian pairs  %15.0f\n", pairs);
        bool x_right = npb_verify("sum of x", all.sum_x, p->sum_x, EPSILON);
        bool y_right = npb_verify("sum of y", all.sum_y, p->sum_y, EPSILON);
        result.verified = x_right && y_right;
    }
    return npb_finish(world, &result);
}
