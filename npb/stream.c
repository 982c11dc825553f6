/*
 * STREAM, memory bandwidth: copy, scale, add and triad on three long arrays in every rank, with threads.
 * After McCalpin's description of his benchmark (STREAM: Sustainable Memory Bandwidth in High Performance
 * Computers, 1995); the sizes are ours. What the arrays hold at the end is known exactly.
 */
#include "npb.h"

#include <math.h>
#include <stdio.h>

#define SCALAR 3.0
#define EPSILON 1e-12

typedef struct {
    int log2_length; /* of the arrays of all ranks together */
    int iterations;
} problem;

static const problem problems[] = {{20, 40}, {22, 40}, {23, 100}, {25, 100}, {27, 100}};

int main(int argc, char **argv)
{
    const problem *p = &problems[NPB_CLASS_INDEX];
    npb_world world = npb_start(&argc, &argv, "STREAM", NPB_RANKS_ANY, 1 << 10);
    const int64_t length = INT64_C(1) << p->log2_length;
    const int64_t n = length * (world.rank + 1) / world.size - length * world.rank / world.size;
    double *a = npb_alloc((size_t)n, sizeof *a);
    double *b = npb_alloc((size_t)n, sizeof *b);
    double *c = npb_alloc((size_t)n, sizeof *c);
    double right_a = 1.0, right_b = 2.0, right_c = 0.0, wrong = 0.0, all;
    npb_timer timer;

    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++) {
        a[i] = 1.0;
        b[i] = 2.0;
        c[i] = 0.0;
    }
    npb_timer_clear(&timer);
    MPI_Barrier(MPI_COMM_WORLD);
    npb_timer_start(&timer);
    for (int iteration = 0; iteration < p->iterations; iteration++) {
        #pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < n; i++)
            c[i] = a[i];
        #pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < n; i++)
            b[i] = SCALAR * c[i];
        #pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < n; i++)
            c[i] = a[i] + b[i];
        #pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < n; i++)
            a[i] = 0.1 * (b[i] + SCALAR * c[i]);
    }
    npb_timer_stop(&timer);

    for (int iteration = 0; iteration < p->iterations; iteration++) {
        right_c = right_a;
        right_b = SCALAR * right_c;
        right_c = right_a + right_b;
        right_a = 0.1 * (right_b + SCALAR * right_c);
    }
    #pragma omp parallel for schedule(static) reduction(max : wrong)
    for (int64_t i = 0; i < n; i++) {
        double here = fmax(fabs(a[i] / right_a - 1.0),
                           fmax(fabs(b[i] / right_b - 1.0), fabs(c[i] / right_c - 1.0)));
        wrong = here > wrong ? here : wrong;
    }
    MPI_Allreduce(&wrong, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    npb_free(a);
    npb_free(b);
    npb_free(c);

    npb_result result = {
        .name = "STREAM",
        .size = {length, 0, 0},
        .iterations = p->iterations,
        .seconds = npb_slowest(timer.seconds),
        .operations = 10.0 * sizeof(double) * (double)length * p->iterations,
        .operation = "bytes moved",
    };
    if (world.rank == 0)
        result.verified = npb_verify("largest deviation", all, 0.0, EPSILON);
    return npb_finish(world, &result);
}
