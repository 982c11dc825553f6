/*
 * Multi-partition decomposition, line sweeps and main program of SP and BT; the
 * idea of each is in adi.h.
 */
#include "adi.h"

#include <string.h>

typedef struct {
    const adi_method *method;
    double dt;
    cfd_domain domain;
    int side;             /* q: parts of the cube along each axis */
    int *slab[3];         /* the block of this process in each slab across an axis */
    double *rows;         /* eliminated systems until substitution has used them */
    double *carry_out;    /* what crosses from a slab to the next */
    double *carry_in;
} solver;

/* ---- Decomposition -----------------------------------------------------------
 * Process (a, b) of the q x q grid owns the blocks (x, y, z) with a = x - z and
 * b = y - z modulo q.  Its block number s is the one with z = s. */

static int wrap(int i, int side)
{
    return (i % side + side) % side;
}

static int owner(int a, int b, int side)
{
    return wrap(b, side) * side + wrap(a, side);
}

static void decompose(solver *s, npb_world world, int n)
{
    int side = 1;
    while (side * side < world.size)
        side++;
    const int a = world.rank % side, b = world.rank / side;
    const int parts[3] = {side, side, side};
    const int neighbour[3][2] = {
        {owner(a - 1, b, side), owner(a + 1, b, side)},
        {owner(a, b - 1, side), owner(a, b + 1, side)},
        {owner(a + 1, b + 1, side), owner(a - 1, b - 1, side)},
    };
    int(*coordinate)[3] = npb_alloc((size_t)side, sizeof *coordinate);

    s->side = side;
    for (int axis = 0; axis < 3; axis++)
        s->slab[axis] = npb_alloc((size_t)side, sizeof(int));
    for (int i = 0; i < side; i++) {
        coordinate[i][0] = wrap(a + i, side);
        coordinate[i][1] = wrap(b + i, side);
        coordinate[i][2] = i;
        for (int axis = 0; axis < 3; axis++)
            s->slab[axis][coordinate[i][axis]] = i;
    }
    cfd_init(&s->domain, n, parts, side, (const int(*)[3])coordinate, neighbour);
    npb_free(coordinate);
}

/* ---- Batches of lines -------------------------------------------------------- */

static int unknowns(const cfd_block *b, int axis)
{
    return b->inner_end[axis] - b->inner_first[axis];
}

/* Lines lie side by side along the axis of smallest stride that is left. */
static int lane_axis(int axis)
{
    return axis == 0 ? 1 : 0;
}

static int row_axis(int axis)
{
    return axis == 2 ? 1 : 2;
}

static int batches_per_row(const cfd_block *b, int axis)
{
    return (unknowns(b, lane_axis(axis)) + ADI_LANES - 1) / ADI_LANES;
}

static int batch_count(const cfd_block *b, int axis)
{
    return batches_per_row(b, axis) * unknowns(b, row_axis(axis));
}

static adi_batch make_batch(const solver *s, const cfd_block *b, int axis, int number)
{
    const int across = lane_axis(axis), outer = row_axis(axis);
    const int per_row = batches_per_row(b, axis);
    const int first_line = number % per_row * ADI_LANES;
    const int lines = unknowns(b, across) - first_line;
    adi_batch batch = {
        .block = b,
        .axis = axis,
        .points = unknowns(b, axis),
        .global_first = b->first[axis] + b->inner_first[axis],
        .global_points = s->domain.n,
        .step = b->stride[axis],
        .lines = lines < ADI_LANES ? lines : ADI_LANES,
        .convect = s->dt * s->domain.convect,
        .diffuse = s->dt * s->domain.diffuse,
        .dt = s->dt,
    };
    ptrdiff_t corner = b->inner_first[axis] * b->stride[axis] +
                       (b->inner_first[across] + first_line) * b->stride[across] +
                       (b->inner_first[outer] + number / per_row) * b->stride[outer];
    for (int lane = 0; lane < ADI_LANES; lane++) {
        int line = lane < batch.lines ? lane : batch.lines - 1;
        batch.offset[lane] = corner + line * b->stride[across];
    }
    return batch;
}

/* ---- Memory ------------------------------------------------------------------ */

static size_t rows_per_batch(const solver *s, const cfd_block *b, int axis)
{
    return (size_t)(s->method->depth + unknowns(b, axis)) * (size_t)s->method->row_size;
}

/* Numbers that a line hands to the next slab: rows on the way up, unknowns down. */
static size_t carry_up(const solver *s)
{
    return (size_t)(s->method->depth * s->method->row_size);
}

static size_t carry_down(const solver *s)
{
    return (size_t)(s->method->depth * CFD_VARS);
}

/* With one process the rows of a batch are used at once, and one batch of memory
 * is enough; else all blocks are eliminated before substitution begins. */
static void allocate(solver *s)
{
    size_t rows = 0, carry = 0;

    for (int axis = 0; axis < 3; axis++) {
        size_t sum = 0;
        for (int i = 0; i < s->domain.blocks; i++) {
            const cfd_block *b = &s->domain.block[i];
            size_t batches = (size_t)batch_count(b, axis);
            sum += rows_per_batch(s, b, axis) * (s->side == 1 ? 1 : batches);
            if (batches * carry_up(s) > carry)
                carry = batches * carry_up(s);
        }
        if (sum > rows)
            rows = sum;
    }
    s->rows = npb_alloc(rows, sizeof(adi_lanes));
    s->carry_out = npb_alloc(s->side == 1 ? 0 : carry, sizeof(adi_lanes));
    s->carry_in = npb_alloc(s->side == 1 ? 0 : carry, sizeof(adi_lanes));
}

static void release(solver *s)
{
    npb_free(s->rows);
    npb_free(s->carry_out);
    npb_free(s->carry_in);
    for (int axis = 0; axis < 3; axis++)
        npb_free(s->slab[axis]);
    cfd_free(&s->domain);
}

/* ---- Sweeps ------------------------------------------------------------------ */

static const cfd_block *slab_block(const solver *s, int axis, int stage)
{
    return &s->domain.block[s->slab[axis][stage]];
}

/* One process: each batch goes up and down its whole lines while it is in cache. */
static void sweep_alone(const solver *s, int axis)
{
    const cfd_block *b = slab_block(s, axis, 0);
    const int batches = batch_count(b, axis);
    adi_lanes *rows = (adi_lanes *)s->rows;
    adi_lanes after[2 * CFD_VARS];

    for (int number = 0; number < batches; number++) {
        adi_batch batch = make_batch(s, b, axis, number);
        memset(rows, 0, carry_up(s) * sizeof *rows);
        s->method->eliminate(&batch, rows);
        memset(after, 0, sizeof after);
        s->method->substitute(&batch, rows, after);
    }
}

/* Hands carry_out to the owner of the slab after `stage` on the way (1 up, -1
 * down), and gets carry_in from the owner of the slab before the next one. */
static void pass_on(const solver *s, int axis, int stage, int way, size_t carry)
{
    size_t here = (size_t)batch_count(slab_block(s, axis, stage), axis) * carry * ADI_LANES;
    size_t next = (size_t)batch_count(slab_block(s, axis, stage + way), axis) * carry * ADI_LANES;
    int onward = s->domain.neighbour[axis][way > 0];
    int backward = s->domain.neighbour[axis][way < 0];

    MPI_Sendrecv(s->carry_out, (int)here, MPI_DOUBLE, onward, CFD_FREE_TAG, s->carry_in,
                 (int)next, MPI_DOUBLE, backward, CFD_FREE_TAG, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
}

static void sweep_together(const solver *s, int axis)
{
    const size_t up = carry_up(s), down = carry_down(s);
    adi_lanes *rows = (adi_lanes *)s->rows;
    adi_lanes *in = (adi_lanes *)s->carry_in, *out = (adi_lanes *)s->carry_out;

    for (int stage = 0; stage < s->side; stage++) {
        const cfd_block *b = slab_block(s, axis, stage);
        const int batches = batch_count(b, axis);
        const size_t size = rows_per_batch(s, b, axis);
        for (int number = 0; number < batches; number++) {
            adi_batch batch = make_batch(s, b, axis, number);
            if (stage == 0)
                memset(rows, 0, up * sizeof *rows);
            else
                memcpy(rows, in + (size_t)number * up, up * sizeof *rows);
            s->method->eliminate(&batch, rows);
            memcpy(out + (size_t)number * up, rows + size - up, up * sizeof *rows);
            rows += size;
        }
        if (stage < s->side - 1)
            pass_on(s, axis, stage, 1, up);
    }
    for (int stage = s->side - 1; stage >= 0; stage--) {
        const cfd_block *b = slab_block(s, axis, stage);
        const int batches = batch_count(b, axis);
        rows -= (size_t)batches * rows_per_batch(s, b, axis);
        for (int number = 0; number < batches; number++) {
            adi_batch batch = make_batch(s, b, axis, number);
            adi_lanes *after = out + (size_t)number * down;
            if (stage == s->side - 1)
                memset(after, 0, down * sizeof *after);
            else
                memcpy(after, in + (size_t)number * down, down * sizeof *after);
            s->method->substitute(&batch, rows + (size_t)number * rows_per_batch(s, b, axis),
                                  after);
        }
        if (stage > 0)
            pass_on(s, axis, stage, -1, down);
    }
}

static void time_step(solver *s)
{
    cfd_compute_rhs(&s->domain);
    for (int axis = 0; axis < 3; axis++) {
        if (s->side == 1)
            sweep_alone(s, axis);
        else
            sweep_together(s, axis);
    }
}

/* ---- Program ----------------------------------------------------------------- */

static bool verify(npb_world world, solver *s, const adi_problem *problem)
{
    double residual[CFD_VARS], error[CFD_VARS];

    cfd_error_norm(&s->domain, error);
    cfd_compute_rhs(&s->domain);
    cfd_residual_norm(&s->domain, residual);
    if (world.rank != 0)
        return false;
    bool residual_right = cfd_verify("residual", residual, problem->residual);
    bool error_right = cfd_verify("error", error, problem->error);
    return residual_right && error_right;
}

int adi_main(int argc, char **argv, const adi_method *method, const adi_problem *problem)
{
    const int largest_side = problem->n / CFD_HALO; /* a halo comes from one block */
    npb_world world = npb_start(&argc, &argv, method->name, NPB_RANKS_SQUARE,
                                largest_side * largest_side);
    solver s = {.method = method, .dt = problem->dt};
    npb_timer timer;

    decompose(&s, world, problem->n);
    allocate(&s);
    cfd_set_forcing(&s.domain);
    cfd_set_start(&s.domain);
    time_step(&s); /* untimed: touches all memory and opens all connections */
    cfd_set_start(&s.domain);

    npb_timer_clear(&timer);
    MPI_Barrier(MPI_COMM_WORLD);
    npb_timer_start(&timer);
    for (int step = 1; step <= problem->steps; step++) {
        cfd_report_step(world, step, problem->steps);
        time_step(&s);
    }
    npb_timer_stop(&timer);

    npb_result result = {
        .name = method->name,
        .size = {problem->n, problem->n, problem->n},
        .iterations = problem->steps,
        .seconds = npb_slowest(timer.seconds),
        .operations = problem->steps * cfd_operations(method->operations, problem->n),
        .operation = "floating point",
        .verified = verify(world, &s, problem),
    };
    release(&s);
    return npb_finish(world, &result);
}
