/*
 * CG, conjugate gradient: estimates the smallest eigenvalue of a large, sparse,
 * symmetric random matrix by inverse iteration; each step solves a linear system
 * with 25 conjugate gradient iterations.  Irregular memory access and long-range
 * communication (RNR-94-007, section 2.3, kernel CG).
 *
 * The processes form a grid of rows x columns.  Each owns one block of the
 * matrix; vectors are cut by column block and repeated in every process row.
 */
#include "npb.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define CG_STEPS 25
#define CONDITION 0.1 /* reciprocal condition number wanted of the matrix */
#define MAX_NONZER 15
#define EPSILON 1e-10

typedef struct {
    int order;      /* of the matrix */
    int nonzer;     /* nonzeros in each generating vector */
    int iterations; /* of the outer, inverse iteration */
    double shift;
    double zeta; /* official eigenvalue estimate */
} problem;

static const problem problems[] = {
    {1400, 7, 15, 10.0, 8.5971775078648},
    {7000, 8, 15, 12.0, 10.362595087124},
    {14000, 11, 15, 20.0, 17.130235054029},
    {75000, 13, 75, 60.0, 22.712745482631},
    {150000, 15, 75, 110.0, 28.973605592845},
};

/* ---- Distribution ---------------------------------------------------------
 * With an odd power of two there are twice as many process columns as rows; a
 * row block then is two column blocks long. */
typedef struct {
    int rows, columns;      /* of the process grid */
    int row, column;        /* of this process in it */
    int row_first, row_end; /* matrix rows owned */
    int col_first, col_end; /* matrix columns owned */

    MPI_Comm row_comm;   /* the processes of this row: together a whole vector */
    MPI_Comm reduce_comm; /* those of this row that keep the same slice of A p */
    int pair;            /* row_comm rank that keeps the other half, or -1 */
    int slice_first;     /* first matrix row of the slice kept here */
    int slice_length;
    int transposed;      /* world rank that has the slice wanted here */
    int world_rank;      /* of this process */
} layout;

static int block_first(int n, int blocks, int i)
{
    return (int)((int64_t)n * i / blocks);
}

static void layout_init(layout *l, npb_world world, int n)
{
    l->rows = 1;
    while (4 * l->rows * l->rows <= world.size)
        l->rows *= 2;
    l->columns = world.size / l->rows;
    l->world_rank = world.rank;
    l->row = world.rank / l->columns;
    l->column = world.rank % l->columns;
    l->row_first = block_first(n, l->rows, l->row);
    l->row_end = block_first(n, l->rows, l->row + 1);
    l->col_first = block_first(n, l->columns, l->column);
    l->col_end = block_first(n, l->columns, l->column + 1);

    MPI_Comm_split(MPI_COMM_WORLD, l->row, l->column, &l->row_comm);
    if (l->rows == l->columns) {
        l->pair = -1;
        l->slice_first = l->row_first;
        l->slice_length = l->row_end - l->row_first;
        l->transposed = l->column * l->columns + l->row;
        MPI_Comm_dup(l->row_comm, &l->reduce_comm);
    } else {
        int half = l->column % 2; /* of the row block, kept here */
        int slice = 2 * l->row + half;
        l->pair = l->column ^ 1;
        l->slice_first = block_first(n, l->columns, slice);
        l->slice_length = block_first(n, l->columns, slice + 1) - l->slice_first;
        l->transposed = (l->column / 2) * l->columns + slice;
        MPI_Comm_split(l->row_comm, half, l->column, &l->reduce_comm);
    }
}

static void layout_free(layout *l)
{
    MPI_Comm_free(&l->row_comm);
    MPI_Comm_free(&l->reduce_comm);
}

/* ---- Matrix ----------------------------------------------------------------
 * A = sum over i of w_i v_i v_i^T + (0.1 - shift) I, with random sparse v_i and
 * weights w_i falling geometrically from 1 to 0.1.  Every process walks through all
 * vectors and keeps what falls into its block, in compressed row form. */

typedef struct {
    int rows;
    int64_t *row_start; /* [rows + 1] */
    int *column;        /* [row_start[rows]], relative to the block */
    double *value;      /* likewise */
} matrix;

typedef struct {
    int length;
    int index[MAX_NONZER + 1];
    double value[MAX_NONZER + 1];
} sparse_vector;

/* Position of an index in the vector, or its length if it is not there. */
static int find_index(const sparse_vector *v, int index)
{
    int i = 0;
    while (i < v->length && v->index[i] != index)
        i++;
    return i;
}

/* The next random vector: `nonzer` elements at different places, then element
 * `unit` set to 1/2.  Each try draws a value and a place; places come from the
 * next power of two and are dropped when outside or already taken. */
static void next_vector(sparse_vector *v, const problem *p, int unit, uint64_t *x)
{
    int places = 1;
    while (places < p->order)
        places *= 2;

    v->length = 0;
    while (v->length < p->nonzer) {
        double value = npb_randlc(x, NPB_RANDOM_A);
        int index = (int)(places * npb_randlc(x, NPB_RANDOM_A));
        if (index >= p->order || find_index(v, index) < v->length)
            continue;
        v->index[v->length] = index;
        v->value[v->length++] = value;
    }
    int at = find_index(v, unit);
    v->index[at] = unit;
    v->value[at] = 0.5;
    if (at == v->length)
        v->length++;
}

/* The generator's state where the matrix begins: its first number is not used. */
static uint64_t matrix_seed(void)
{
    return npb_random_jump(NPB_RANDOM_SEED, NPB_RANDOM_A, 1);
}

static bool within(int index, int first, int end)
{
    return index >= first && index < end;
}

/* Upper bound of each row's length in the block, duplicates counted twice;
 * left as running sums in row_start. */
static void measure_rows(matrix *a, const problem *p, const layout *l)
{
    uint64_t x = matrix_seed();
    sparse_vector v;

    for (int i = 0; i < p->order; i++) {
        int columns_here = 0;
        next_vector(&v, p, i, &x);
        for (int k = 0; k < v.length; k++)
            columns_here += within(v.index[k], l->col_first, l->col_end);
        for (int k = 0; k < v.length; k++)
            if (within(v.index[k], l->row_first, l->row_end))
                a->row_start[v.index[k] - l->row_first + 1] += columns_here;
    }
    for (int r = 0; r < a->rows; r++)
        a->row_start[r + 1] += a->row_start[r];
}

/* Writes every contribution into its row, in order of appearance. */
static void scatter_contributions(matrix *a, const problem *p, const layout *l, int64_t *place)
{
    double ratio = pow(CONDITION, 1.0 / p->order);
    double weight = 1.0;
    uint64_t x = matrix_seed();
    sparse_vector v;

    memcpy(place, a->row_start, (size_t)a->rows * sizeof *place);
    for (int i = 0; i < p->order; i++) {
        next_vector(&v, p, i, &x);
        for (int k = 0; k < v.length; k++) {
            if (!within(v.index[k], l->row_first, l->row_end))
                continue;
            int row = v.index[k] - l->row_first;
            double scaled = weight * v.value[k];
            for (int m = 0; m < v.length; m++) {
                if (!within(v.index[m], l->col_first, l->col_end))
                    continue;
                double value = v.value[m] * scaled;
                if (v.index[k] == i && v.index[m] == i)
                    value += CONDITION - p->shift;
                a->column[place[row]] = v.index[m] - l->col_first;
                a->value[place[row]++] = value;
            }
        }
        weight *= ratio;
    }
}

/* Shell sort of one row by column: rows are short, and columns and values lie
 * in separate arrays. */
static void sort_row(int *column, double *value, int64_t n)
{
    static const int gaps[] = {701, 301, 132, 57, 23, 10, 4, 1};

    for (size_t g = 0; g < sizeof gaps / sizeof *gaps; g++) {
        int gap = gaps[g];
        for (int64_t i = gap; i < n; i++) {
            int c = column[i];
            double v = value[i];
            int64_t j = i;
            for (; j >= gap && column[j - gap] > c; j -= gap) {
                column[j] = column[j - gap];
                value[j] = value[j - gap];
            }
            column[j] = c;
            value[j] = v;
        }
    }
}

/* Sorts the rows, adds up elements of the same place and closes the gaps. */
static void assemble_rows(matrix *a)
{
    int64_t end = 0;

    for (int r = 0; r < a->rows; r++) {
        int64_t from = a->row_start[r], to = a->row_start[r + 1];
        sort_row(a->column + from, a->value + from, to - from);
        a->row_start[r] = end;
        for (int64_t k = from; k < to; k++) {
            if (end > a->row_start[r] && a->column[end - 1] == a->column[k]) {
                a->value[end - 1] += a->value[k];
            } else {
                a->column[end] = a->column[k];
                a->value[end++] = a->value[k];
            }
        }
    }
    a->row_start[a->rows] = end;
}

static void matrix_init(matrix *a, const problem *p, const layout *l)
{
    a->rows = l->row_end - l->row_first;
    a->row_start = npb_alloc((size_t)a->rows + 1, sizeof *a->row_start);
    measure_rows(a, p, l);
    a->column = npb_alloc((size_t)a->row_start[a->rows], sizeof *a->column);
    a->value = npb_alloc((size_t)a->row_start[a->rows], sizeof *a->value);

    int64_t *place = npb_alloc((size_t)a->rows, sizeof *place);
    scatter_contributions(a, p, l, place);
    npb_free(place);
    assemble_rows(a);
}

static void matrix_free(matrix *a)
{
    npb_free(a->row_start);
    npb_free(a->column);
    npb_free(a->value);
}

/* ---- Linear algebra ------------------------------------------------------ */

typedef struct {
    layout l;
    matrix a;
    int n;            /* length of the vectors here: columns owned */
    double *x;        /* eigenvector estimate */
    double *z;        /* solution of A z = x */
    double *p, *q, *r; /* search direction, A times it, residual */
    double *product;  /* [rows owned]: block times vector, before the reduction */
    double *half;     /* [slice_length]: the pair's contribution */
} solver;

static void solver_init(solver *s, const problem *p, npb_world world)
{
    layout_init(&s->l, world, p->order);
    matrix_init(&s->a, p, &s->l);
    s->n = s->l.col_end - s->l.col_first;
    s->x = npb_alloc((size_t)s->n, sizeof *s->x);
    s->z = npb_alloc((size_t)s->n, sizeof *s->z);
    s->p = npb_alloc((size_t)s->n, sizeof *s->p);
    s->q = npb_alloc((size_t)s->n, sizeof *s->q);
    s->r = npb_alloc((size_t)s->n, sizeof *s->r);
    s->product = npb_alloc((size_t)s->a.rows, sizeof *s->product);
    s->half = npb_alloc((size_t)s->l.slice_length, sizeof *s->half);
}

static void solver_free(solver *s)
{
    matrix_free(&s->a);
    layout_free(&s->l);
    npb_free(s->x);
    npb_free(s->z);
    npb_free(s->p);
    npb_free(s->q);
    npb_free(s->r);
    npb_free(s->product);
    npb_free(s->half);
}

/* y = block * x, no communication.  Four partial sums per row: with one, each
 * addition would wait for the one before. */
static void multiply_block(const matrix *a, const double *restrict x, double *restrict y)
{
    const int *restrict column = a->column;
    const double *restrict value = a->value;

    #pragma omp parallel for schedule(static)
    for (int r = 0; r < a->rows; r++) {
        const int64_t end = a->row_start[r + 1];
        int64_t k = a->row_start[r];
        double sum0 = 0.0, sum1 = 0.0, sum2 = 0.0, sum3 = 0.0;
        for (; k + 4 <= end; k += 4) {
            sum0 += value[k] * x[column[k]];
            sum1 += value[k + 1] * x[column[k + 1]];
            sum2 += value[k + 2] * x[column[k + 2]];
            sum3 += value[k + 3] * x[column[k + 3]];
        }
        for (; k < end; k++)
            sum0 += value[k] * x[column[k]];
        y[r] = (sum0 + sum1) + (sum2 + sum3);
    }
}

/*
 * y = A x, both cut by column block.  The partial products are summed along the
 * process row; in a grid with twice as many columns as rows the two processes
 * of a pair first swap halves, so that each sums only the half it will pass on.
 * Last, the process at the transposed place turns row blocks into column blocks.
 */
static void multiply(solver *s, const double *x, double *y)
{
    const layout *l = &s->l;
    double *slice = s->product + (l->slice_first - l->row_first);

    multiply_block(&s->a, x, s->product);
    if (l->pair >= 0) {
        double *other = slice == s->product ? s->product + l->slice_length : s->product;
        int other_length = s->a.rows - l->slice_length;
        MPI_Sendrecv(other, other_length, MPI_DOUBLE, l->pair, 0, s->half, l->slice_length,
                     MPI_DOUBLE, l->pair, 0, l->row_comm, MPI_STATUS_IGNORE);
        for (int i = 0; i < l->slice_length; i++)
            slice[i] += s->half[i];
    }
    MPI_Allreduce(MPI_IN_PLACE, slice, l->slice_length, MPI_DOUBLE, MPI_SUM, l->reduce_comm);
    if (l->transposed == l->world_rank)
        memcpy(y, slice, (size_t)s->n * sizeof *y);
    else
        MPI_Sendrecv(slice, l->slice_length, MPI_DOUBLE, l->transposed, 0, y, s->n, MPI_DOUBLE,
                     l->transposed, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static double dot(const solver *s, const double *x, const double *y)
{
    double here = 0.0, all;
    #pragma omp parallel for schedule(static) reduction(+ : here)
    for (int i = 0; i < s->n; i++)
        here += x[i] * y[i];
    MPI_Allreduce(&here, &all, 1, MPI_DOUBLE, MPI_SUM, s->l.row_comm);
    return all;
}

/* Solves A z = x approximately by 25 conjugate gradient steps from z = 0;
 * returns the norm of the true residual x - A z. */
static double solve(solver *s)
{
    double *restrict z = s->z, *restrict p = s->p, *restrict q = s->q, *restrict r = s->r;
    const double *x = s->x;
    double rho, rho_before, alpha, beta;

    #pragma omp parallel for schedule(static)
    for (int i = 0; i < s->n; i++) {
        z[i] = 0.0;
        p[i] = r[i] = x[i];
    }
    rho = dot(s, r, r);
    for (int step = 0; step < CG_STEPS; step++) {
        multiply(s, p, q);
        alpha = rho / dot(s, p, q);
        #pragma omp parallel for schedule(static)
        for (int i = 0; i < s->n; i++) {
            z[i] += alpha * p[i];
            r[i] -= alpha * q[i];
        }
        rho_before = rho;
        rho = dot(s, r, r);
        beta = rho / rho_before;
        #pragma omp parallel for schedule(static)
        for (int i = 0; i < s->n; i++)
            p[i] = r[i] + beta * p[i];
    }
    multiply(s, z, q);
    for (int i = 0; i < s->n; i++)
        r[i] = x[i] - q[i];
    return sqrt(dot(s, r, r));
}

/* One step of inverse iteration: x := z / |z| with A z = x.  Returns the
 * eigenvalue estimate and sets the residual of the linear system. */
static double inverse_iteration(solver *s, double shift, double *residual)
{
    *residual = solve(s);
    double zeta = shift + 1.0 / dot(s, s->x, s->z);
    double scale = 1.0 / sqrt(dot(s, s->z, s->z));
    for (int i = 0; i < s->n; i++)
        s->x[i] = scale * s->z[i];
    return zeta;
}

static void start_with_ones(solver *s)
{
    for (int i = 0; i < s->n; i++)
        s->x[i] = 1.0;
}

/* Floating point operations by the benchmark's own count, which takes
 * nonzer (nonzer + 1) elements for a matrix row. */
static double operation_count(const problem *p)
{
    double row = p->nonzer * (p->nonzer + 1.0);
    return 2.0 * p->iterations * p->order * (3.0 + row + CG_STEPS * (5.0 + row) + 3.0);
}

int main(int argc, char **argv)
{
    const problem *p = &problems[NPB_CLASS_INDEX];
    npb_world world = npb_start(&argc, &argv, "CG", NPB_RANKS_POWER_OF_TWO, 0);
    double zeta = 0.0, residual;
    solver s;
    npb_timer timer;

    solver_init(&s, p, world);
    start_with_ones(&s);
    inverse_iteration(&s, p->shift, &residual); /* untimed: touches everything once */
    start_with_ones(&s);

    npb_timer_clear(&timer);
    MPI_Barrier(MPI_COMM_WORLD);
    npb_timer_start(&timer);
    for (int i = 1; i <= p->iterations; i++) {
        zeta = inverse_iteration(&s, p->shift, &residual);
        if (world.rank == 0)
            printf(" iteration %3d   |r| %12.5e   zeta %20.14e\n", i, residual, zeta);
    }
    npb_timer_stop(&timer);
    solver_free(&s);

    npb_result result = {
        .name = "CG",
        .size = {p->order, 0, 0},
        .iterations = p->iterations,
        .seconds = npb_slowest(timer.seconds),
        .operations = operation_count(p),
        .operation = "floating point",
    };
    if (world.rank == 0)
        result.verified = npb_verify("zeta", zeta, p->zeta, EPSILON);
    return npb_finish(world, &result);
}
