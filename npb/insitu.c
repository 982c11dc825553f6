/*
 * INSITU, a toy of in-situ analytics: a simulation of heat on a periodic square, and an analysis of its field.
 *
 *     insitu-omp.A.x                    simulates, and analyses nothing
 *     insitu-omp.A.x write FILE         the same, and writes the field into FILE after a quarter of it
 *     insitu-omp.A.x analyse FILE       reads the field and sums up its waves (a slow Fourier transform)
 *
 * The field begins as one wave, which decays by a known factor in each step and stays the only wave: both
 * roles know the exact answer.
 */
#include "npb.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EPSILON 1e-9
#define WEIGHT 0.2 /* of each neighbour's difference, in a step */
#define WAVE_X 3
#define WAVE_Y 2
#define WRITTEN 4 /* the field is written after this part of the steps */

typedef struct {
    int side, steps, waves; /* waves: along each axis, in the analysis */
} problem;

static const problem problems[] = {
    {256, 400, 4}, {512, 1000, 4}, {1024, 1500, 6}, {2048, 9000, 4}, {4096, 4000, 8}};

static double start_at(const problem *p, int64_t x, int64_t y)
{
    double turn = 2.0 * NPB_PI / p->side;
    return cos(turn * WAVE_X * (double)x) * cos(turn * WAVE_Y * (double)y);
}

/* What is left of the wave after so many steps. */
static double decay(const problem *p, int steps)
{
    double turn = 2.0 * NPB_PI / p->side;
    return pow(1.0 - 2.0 * WEIGHT * (2.0 - cos(turn * WAVE_X) - cos(turn * WAVE_Y)), steps);
}

/* Rows of a rank, with a row of each neighbour before and after them. */
typedef struct {
    int64_t first, rows;
    double *now, *next;
} field;

static void exchange(const npb_world *world, const problem *p, field *f)
{
    int below = (world->rank + world->size - 1) % world->size, above = (world->rank + 1) % world->size;
    MPI_Sendrecv(f->now + f->rows * p->side, p->side, MPI_DOUBLE, above, 0, f->now, p->side, MPI_DOUBLE,
                 below, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(f->now + p->side, p->side, MPI_DOUBLE, below, 1, f->now + (f->rows + 1) * p->side,
                 p->side, MPI_DOUBLE, above, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void step(const npb_world *world, const problem *p, field *f)
{
    const int side = p->side;

    exchange(world, p, f);
    #pragma omp parallel for schedule(static)
    for (int64_t y = 1; y <= f->rows; y++) {
        const double *here = f->now + y * side, *below = here - side, *above = here + side;
        double *after = f->next + y * side;
        for (int x = 0; x < side; x++) {
            double left = here[x ? x - 1 : side - 1], right = here[x + 1 < side ? x + 1 : 0];
            after[x] = here[x] + WEIGHT * (left + right + below[x] + above[x] - 4.0 * here[x]);
        }
    }
    double *swap = f->now;
    f->now = f->next;
    f->next = swap;
}

/* Each rank writes or reads its rows of a file that has all of them. */
static void transfer(const char *path, const problem *p, field *f, bool write)
{
    MPI_File file;
    MPI_Offset place = (MPI_Offset)(f->first * p->side) * (MPI_Offset)sizeof(double);
    int mode = write ? MPI_MODE_WRONLY | MPI_MODE_CREATE : MPI_MODE_RDONLY;

    if (MPI_File_open(MPI_COMM_WORLD, path, mode, MPI_INFO_NULL, &file) != MPI_SUCCESS)
        npb_fail(write ? "the file cannot be written" : "the file cannot be read");
    if (write)
        MPI_File_write_at_all(file, place, f->now + p->side, (int)f->rows * p->side, MPI_DOUBLE,
                              MPI_STATUS_IGNORE);
    else
        MPI_File_read_at_all(file, place, f->now + p->side, (int)f->rows * p->side, MPI_DOUBLE,
                             MPI_STATUS_IGNORE);
    MPI_File_close(&file);
}

static double simulate(const npb_world *world, const problem *p, field *f, const char *path)
{
    double wrong = 0.0, all;

    #pragma omp parallel for schedule(static)
    for (int64_t y = 1; y <= f->rows; y++)
        for (int x = 0; x < p->side; x++)
            f->now[y * p->side + x] = start_at(p, x, f->first + y - 1);
    for (int i = 0; i < p->steps; i++) {
        if (path && i == p->steps / WRITTEN)
            transfer(path, p, f, true);
        step(world, p, f);
    }
    double left = decay(p, p->steps);
    #pragma omp parallel for schedule(static) reduction(max : wrong)
    for (int64_t y = 1; y <= f->rows; y++)
        for (int x = 0; x < p->side; x++) {
            double here = fabs(f->now[y * p->side + x] - left * start_at(p, x, f->first + y - 1));
            wrong = here > wrong ? here : wrong;
        }
    MPI_Allreduce(&wrong, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return all;
}

/* How far the waves of the field are from the one that it should hold. */
static double analyse(const problem *p, field *f, const char *path)
{
    const double turn = 2.0 * NPB_PI / p->side;
    double wrong = 0.0;

    transfer(path, p, f, false);
    for (int ky = 0; ky < p->waves; ky++)
        for (int kx = 0; kx < p->waves; kx++) {
            double here = 0.0, all;
            #pragma omp parallel for schedule(static) reduction(+ : here)
            for (int64_t y = 1; y <= f->rows; y++) {
                double row = 0.0;
                for (int x = 0; x < p->side; x++)
                    row += f->now[y * p->side + x] * cos(turn * kx * x);
                here += row * cos(turn * ky * (double)(f->first + y - 1));
            }
            MPI_Allreduce(&here, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
            double amplitude = 4.0 * all / ((double)p->side * p->side);
            double right = kx == WAVE_X && ky == WAVE_Y ? decay(p, p->steps / WRITTEN) : 0.0;
            wrong = fmax(wrong, fabs(amplitude - right));
        }
    return wrong;
}

int main(int argc, char **argv)
{
    const problem *p = &problems[NPB_CLASS_INDEX];
    npb_world world = npb_start(&argc, &argv, "INSITU", NPB_RANKS_ANY, p->side);
    const char *role = argc > 1 ? argv[1] : "", *path = argc > 2 ? argv[2] : NULL;
    const bool analysis = !strcmp(role, "analyse");
    const int64_t end = (int64_t)p->side * (world.rank + 1) / world.size;
    field f = {.first = (int64_t)p->side * world.rank / world.size};
    npb_timer timer;

    if (argc > 1 && (!path || (!analysis && strcmp(role, "write"))))
        npb_fail("arguments: nothing, or `write FILE`, or `analyse FILE`");
    f.rows = end - f.first;
    f.now = npb_alloc((size_t)((f.rows + 2) * p->side), sizeof *f.now);
    f.next = npb_alloc((size_t)((f.rows + 2) * p->side), sizeof *f.next);
    npb_timer_clear(&timer);
    MPI_Barrier(MPI_COMM_WORLD);
    npb_timer_start(&timer);
    double wrong = analysis ? analyse(p, &f, path) : simulate(&world, p, &f, path);
    npb_timer_stop(&timer);
    npb_free(f.now);
    npb_free(f.next);

    const double points = (double)p->side * p->side;
    npb_result result = {
        .name = "INSITU",
        .size = {p->side, p->side, 1},
        .iterations = analysis ? p->waves * p->waves : p->steps,
        .seconds = npb_slowest(timer.seconds),
        .operations = points * (analysis ? 2.0 * p->waves * p->waves : 7.0 * p->steps),
        .operation = "floating point",
    };
    if (world.rank == 0)
        result.verified = npb_verify("largest deviation", wrong, 0.0, EPSILON);
    return npb_finish(world, &result);
}
