/*
 * MG, multigrid: V-cycles for the Poisson equation with periodic boundaries and
 * twenty point charges on a cubic grid.  Structured communication over short and
 * long distances, memory bandwidth (RNR-94-007, section 2.3, kernel MG).
 *
 * The cube is cut in three dimensions.  Levels too coarse to be cut usefully are
 * gathered and computed by every process on its own, which costs one collective
 * instead of many tiny messages and leaves nobody idle.
 *
 * Arrays hold a block of n[0] x n[1] x n[2] points, x running fastest, within a
 * shell of ghost points: interior indices are 1..n, ghosts 0 and n+1.  Point J of
 * a level lies on point 2J of the next finer one.
 */
#include "npb.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_LEVELS 9 /* class C: 2^9 points a side */
#define LONGEST_LINE ((1 << MAX_LEVELS) + 2)
#define CHARGES 10   /* of each sign */
#define EPSILON 1e-8

/* A level is gathered once its blocks would have sides this short. */
#define GATHER_SIDE 4

typedef struct {
    int levels; /* finest grid: 2^levels points a side */
    int iterations;
    double smoother[3]; /* weights: centre, face, edge; corner 0 */
    double norm;        /* official L2 norm of the last residual */
} problem;

#define SMOOTHER_SMALL {-3.0 / 8.0, 1.0 / 32.0, -1.0 / 64.0}
#define SMOOTHER_LARGE {-3.0 / 17.0, 1.0 / 33.0, -1.0 / 61.0}

static const problem problems[] = {
    {5, 4, SMOOTHER_SMALL, 0.5307707005734e-04},
    {7, 4, SMOOTHER_SMALL, 0.6467329375339e-05},
    {8, 4, SMOOTHER_SMALL, 0.2433365309069e-05},
    {8, 20, SMOOTHER_LARGE, 0.1800564401355e-05},
    {9, 20, SMOOTHER_LARGE, 0.5706732285740e-06},
};

/* The discrete Laplacian: centre, edge and corner; the weight of faces is 0. */
#define LAPLACE_CENTRE (-8.0 / 3.0)
#define LAPLACE_EDGE (1.0 / 6.0)
#define LAPLACE_CORNER (1.0 / 12.0)

typedef struct {
    int n[3];          /* interior points here, along x, y, z */
    size_t row, plane; /* distance between neighbours along y and z */
    size_t points;     /* in the array, ghosts included */
    bool cut;          /* shared out among processes, not computed by each */
    double *u, *r;     /* solution (or correction) and residual */
} level;

typedef struct {
    const problem *p;
    npb_world world;
    int parts[3];    /* process grid */
    int position[3]; /* of this process in it */
    int lower[3], upper[3]; /* neighbouring ranks, periodic */
    level levels[MAX_LEVELS + 1]; /* [k] has 2^k points a side; [0] is not used */
    int gathered;    /* finest level that is not cut */
    double *v;       /* right-hand side, on the finest level */
    double *out, *in; /* one face each, for the exchange of ghosts */
    double *block, *blocks; /* restricted residual: of this process, of all */
    int block_side[3];      /* of the gathered level, for each process */
} multigrid;

static size_t at(const level *g, int i, int j, int k)
{
    return (size_t)k * g->plane + (size_t)j * g->row + (size_t)i;
}

/* ---- Process grid and memory --------------------------------------------- */

static int rank_at(const multigrid *m, int x, int y, int z)
{
    const int *parts = m->parts;
    x = (x + parts[0]) % parts[0];
    y = (y + parts[1]) % parts[1];
    z = (z + parts[2]) % parts[2];
    return (z * parts[1] + y) * parts[0] + x;
}

/* Halves z, y and x in turn: cuts across z first, whose faces are contiguous. */
static void cut_among_processes(multigrid *m)
{
    int axis = 2;

    m->parts[0] = m->parts[1] = m->parts[2] = 1;
    for (int left = m->world.size; left > 1; left /= 2) {
        m->parts[axis] *= 2;
        axis = (axis + 2) % 3;
    }
    m->position[0] = m->world.rank % m->parts[0];
    m->position[1] = m->world.rank / m->parts[0] % m->parts[1];
    m->position[2] = m->world.rank / m->parts[0] / m->parts[1];
    for (int d = 0; d < 3; d++) {
        int step[3] = {0, 0, 0};
        const int *c = m->position;
        step[d] = 1;
        m->lower[d] = rank_at(m, c[0] - step[0], c[1] - step[1], c[2] - step[2]);
        m->upper[d] = rank_at(m, c[0] + step[0], c[1] + step[1], c[2] + step[2]);
    }
}

/* The finest level computed by every process on its own.  No axis is cut more
 * often than z, so its blocks have the shortest sides. */
static int finest_gathered(const multigrid *m)
{
    int k = 1;
    if (m->world.size == 1)
        return m->p->levels;
    while ((1 << k) / m->parts[2] < GATHER_SIDE)
        k++;
    return k;
}

/* Points of the largest face of a block, ghosts included. */
static size_t largest_face(const level *g)
{
    size_t largest = 0;
    for (int d = 0; d < 3; d++) {
        size_t points = ((size_t)g->n[(d + 1) % 3] + 2) * ((size_t)g->n[(d + 2) % 3] + 2);
        if (points > largest)
            largest = points;
    }
    return largest;
}

static void multigrid_init(multigrid *m, const problem *p, npb_world world)
{
    memset(m, 0, sizeof *m);
    m->p = p;
    m->world = world;
    cut_among_processes(m);
    m->gathered = finest_gathered(m);

    for (int k = 1; k <= p->levels; k++) {
        level *g = &m->levels[k];
        g->cut = k > m->gathered;
        for (int d = 0; d < 3; d++)
            g->n[d] = (1 << k) / (g->cut ? m->parts[d] : 1);
        g->row = (size_t)g->n[0] + 2;
        g->plane = g->row * ((size_t)g->n[1] + 2);
        g->points = g->plane * ((size_t)g->n[2] + 2);
        g->u = npb_alloc(g->points, sizeof *g->u);
        g->r = npb_alloc(g->points, sizeof *g->r);
    }

    const level *finest = &m->levels[p->levels];
    const level *last_whole = &m->levels[m->gathered];
    const size_t finest_face = largest_face(finest), whole_face = largest_face(last_whole);
    const size_t face_points = finest_face > whole_face ? finest_face : whole_face;
    m->v = npb_alloc(finest->points, sizeof *m->v);
    m->out = npb_alloc(face_points, sizeof *m->out);
    m->in = npb_alloc(face_points, sizeof *m->in);

    if (world.size > 1) {
        size_t points = 1;
        for (int d = 0; d < 3; d++) {
            m->block_side[d] = (1 << m->gathered) / m->parts[d];
            points *= (size_t)m->block_side[d];
        }
        m->block = npb_alloc(points, sizeof *m->block);
        m->blocks = npb_alloc(points * (size_t)world.size, sizeof *m->blocks);
    }
}

static void multigrid_free(multigrid *m)
{
    for (int k = 1; k <= m->p->levels; k++) {
        npb_free(m->levels[k].u);
        npb_free(m->levels[k].r);
    }
    npb_free(m->v);
    npb_free(m->out);
    npb_free(m->in);
    npb_free(m->block);
    npb_free(m->blocks);
}

/* ---- Ghost points -------------------------------------------------------- */

/* A face: one index along `axis`.  Axes already exchanged take their ghosts
 * along, so that edges and corners arrive without messages of their own. */
typedef struct {
    int low[3], high[3];
} face;

static face face_of(const level *g, int axis, int index)
{
    face f;
    for (int d = 0; d < 3; d++) {
        f.low[d] = d < axis ? 0 : 1;
        f.high[d] = d < axis ? g->n[d] + 1 : g->n[d];
    }
    f.low[axis] = f.high[axis] = index;
    return f;
}

static int copy_out(const level *g, const double *a, face f, double *buffer)
{
    int n = 0;
    for (int k = f.low[2]; k <= f.high[2]; k++)
        for (int j = f.low[1]; j <= f.high[1]; j++)
            for (int i = f.low[0]; i <= f.high[0]; i++)
                buffer[n++] = a[at(g, i, j, k)];
    return n;
}

static void copy_in(const level *g, double *a, face f, const double *buffer)
{
    int n = 0;
    for (int k = f.low[2]; k <= f.high[2]; k++)
        for (int j = f.low[1]; j <= f.high[1]; j++)
            for (int i = f.low[0]; i <= f.high[0]; i++)
                a[at(g, i, j, k)] = buffer[n++];
}

/* Fills the ghosts of `a` with the periodic neighbours' outermost points. */
static void exchange_ghosts(multigrid *m, const level *g, double *a)
{
    for (int axis = 0; axis < 3; axis++) {
        bool alone = !g->cut || m->parts[axis] == 1;
        for (int upwards = 0; upwards < 2; upwards++) {
            face from = face_of(g, axis, upwards ? g->n[axis] : 1);
            face to = face_of(g, axis, upwards ? 0 : g->n[axis] + 1);
            int n = copy_out(g, a, from, m->out);
            if (alone) {
                copy_in(g, a, to, m->out);
                continue;
            }
            int target = upwards ? m->upper[axis] : m->lower[axis];
            int source = upwards ? m->lower[axis] : m->upper[axis];
            MPI_Sendrecv(m->out, n, MPI_DOUBLE, target, axis, m->in, n, MPI_DOUBLE, source, axis,
                         MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            copy_in(g, a, to, m->in);
        }
    }
}

/* ---- Stencils ---------------------------------------------------------------
 * All work line by line.  The 26 neighbours of a point fall into the line itself,
 * the four lines beside it (their sum: `beside`) and the four diagonal to it
 * (`diagonal`); sums once made serve three neighbouring points. */

static void sum_lines(const level *g, const double *restrict a, int j, int k,
                      double *restrict beside, double *restrict diagonal)
{
    const double *restrict south = a + at(g, 0, j - 1, k);
    const double *restrict north = a + at(g, 0, j + 1, k);
    const double *restrict below = a + at(g, 0, j, k - 1);
    const double *restrict above = a + at(g, 0, j, k + 1);
    const double *restrict south_below = a + at(g, 0, j - 1, k - 1);
    const double *restrict north_below = a + at(g, 0, j + 1, k - 1);
    const double *restrict south_above = a + at(g, 0, j - 1, k + 1);
    const double *restrict north_above = a + at(g, 0, j + 1, k + 1);

    for (int i = 0; i < g->n[0] + 2; i++) {
        beside[i] = south[i] + north[i] + below[i] + above[i];
        diagonal[i] = south_below[i] + north_below[i] + south_above[i] + north_above[i];
    }
}

/* r = v - A u; r may be v. */
static void residual(multigrid *m, const level *g, const double *u, const double *v, double *r)
{
    double beside[LONGEST_LINE], diagonal[LONGEST_LINE];

    #pragma omp parallel for schedule(static) private(beside, diagonal)
    for (int k = 1; k <= g->n[2]; k++) {
        for (int j = 1; j <= g->n[1]; j++) {
            const double *centre = u + at(g, 0, j, k);
            const double *right = v + at(g, 0, j, k);
            double *result = r + at(g, 0, j, k);
            sum_lines(g, u, j, k, beside, diagonal);
            for (int i = 1; i <= g->n[0]; i++)
                result[i] = right[i] - LAPLACE_CENTRE * centre[i] -
                            LAPLACE_EDGE * (diagonal[i] + beside[i - 1] + beside[i + 1]) -
                            LAPLACE_CORNER * (diagonal[i - 1] + diagonal[i + 1]);
        }
    }
    exchange_ghosts(m, g, r);
}

/* u = u + S r, the approximate inverse of A. */
static void smooth(multigrid *m, const level *g, const double *r, double *u)
{
    const double c0 = m->p->smoother[0], c1 = m->p->smoother[1], c2 = m->p->smoother[2];
    double beside[LONGEST_LINE], diagonal[LONGEST_LINE];

    #pragma omp parallel for schedule(static) private(beside, diagonal)
    for (int k = 1; k <= g->n[2]; k++) {
        for (int j = 1; j <= g->n[1]; j++) {
            const double *centre = r + at(g, 0, j, k);
            double *restrict result = u + at(g, 0, j, k);
            sum_lines(g, r, j, k, beside, diagonal);
            for (int i = 1; i <= g->n[0]; i++)
                result[i] += c0 * centre[i] + c1 * (centre[i - 1] + centre[i + 1] + beside[i]) +
                             c2 * (diagonal[i] + beside[i - 1] + beside[i + 1]);
        }
    }
    exchange_ghosts(m, g, u);
}

/* Full weighting: a coarse point is the mean of the 27 fine ones around it, each
 * step away from the centre halving the weight.  `coarse` is the first interior
 * point of an array whose rows and planes lie at the given distances. */
static void restrict_block(const level *fine, const double *r, double *coarse, size_t row,
                           size_t plane)
{
    double beside[LONGEST_LINE], diagonal[LONGEST_LINE];

    #pragma omp parallel for schedule(static) private(beside, diagonal)
    for (int k = 1; k <= fine->n[2] / 2; k++) {
        for (int j = 1; j <= fine->n[1] / 2; j++) {
            const double *centre = r + at(fine, 0, 2 * j, 2 * k);
            double *result = coarse + (size_t)(k - 1) * plane + (size_t)(j - 1) * row;
            sum_lines(fine, r, 2 * j, 2 * k, beside, diagonal);
            for (int i = 2; i <= fine->n[0]; i += 2)
                result[i / 2 - 1] =
                    0.5 * centre[i] + 0.25 * (centre[i - 1] + centre[i + 1] + beside[i]) +
                    0.125 * (beside[i - 1] + beside[i + 1] + diagonal[i]) +
                    0.0625 * (diagonal[i - 1] + diagonal[i + 1]);
        }
    }
}

/* Adds the trilinear interpolation of the coarse values to u, ghosts included, so
 * that no exchange is needed after it.  `coarse` is the ghost corner of the part of
 * the coarse grid under this block.  A fine line lies on a coarse one or midway
 * between two; taking both neighbours, which may be the same, serves all cases. */
static void interpolate(const level *fine, double *u, const double *coarse, size_t row,
                        size_t plane)
{
    const int half = fine->n[0] / 2;
    double mean[LONGEST_LINE / 2 + 1];

    #pragma omp parallel for schedule(static) private(mean)
    for (int k = 0; k <= fine->n[2] + 1; k++) {
        for (int j = 0; j <= fine->n[1] + 1; j++) {
            const size_t j0 = (size_t)(j / 2) * row, j1 = (size_t)((j + 1) / 2) * row;
            const size_t k0 = (size_t)(k / 2) * plane, k1 = (size_t)((k + 1) / 2) * plane;
            const double *restrict c00 = coarse + k0 + j0, *restrict c01 = coarse + k0 + j1;
            const double *restrict c10 = coarse + k1 + j0, *restrict c11 = coarse + k1 + j1;
            double *restrict line = u + at(fine, 0, j, k);

            for (int i = 0; i <= half + 1; i++)
                mean[i] = 0.25 * ((c00[i] + c01[i]) + (c10[i] + c11[i]));
            line[0] += mean[0];
            for (int i = 1; i <= half; i++) {
                line[2 * i - 1] += 0.5 * (mean[i - 1] + mean[i]);
                line[2 * i] += mean[i];
            }
            line[2 * half + 1] += 0.5 * (mean[half] + mean[half + 1]);
        }
    }
}

/* ---- V-cycle ------------------------------------------------------------- */

/* Puts the blocks of all processes together into the gathered level's residual. */
static void gather_residual(multigrid *m)
{
    const level *g = &m->levels[m->gathered];
    const int *side = m->block_side;
    const int points = side[0] * side[1] * side[2];
    const double *next = m->blocks;

    MPI_Allgather(m->block, points, MPI_DOUBLE, m->blocks, points, MPI_DOUBLE, MPI_COMM_WORLD);
    /* Ranks count along x, then y, then z: the order of rank_at. */
    for (int z = 0; z < m->parts[2]; z++)
        for (int y = 0; y < m->parts[1]; y++)
            for (int x = 0; x < m->parts[0]; x++)
                for (int k = 1; k <= side[2]; k++)
                    for (int j = 1; j <= side[1]; j++) {
                        size_t place = at(g, x * side[0] + 1, y * side[1] + j, z * side[2] + k);
                        memcpy(g->r + place, next, (size_t)side[0] * sizeof *next);
                        next += side[0];
                    }
}

/* From level k to k - 1, the residual. */
static void descend(multigrid *m, int k)
{
    const level *fine = &m->levels[k];
    const level *coarse = &m->levels[k - 1];

    if (fine->cut && !coarse->cut) {
        size_t row = (size_t)m->block_side[0];
        restrict_block(fine, fine->r, m->block, row, row * (size_t)m->block_side[1]);
        gather_residual(m);
    } else {
        restrict_block(fine, fine->r, coarse->r + at(coarse, 1, 1, 1), coarse->row,
                       coarse->plane);
    }
    exchange_ghosts(m, coarse, coarse->r);
}

/* From level k - 1 to k, the correction. */
static void ascend(multigrid *m, int k)
{
    const level *fine = &m->levels[k];
    const level *coarse = &m->levels[k - 1];
    const double *under = coarse->u;

    if (fine->cut && !coarse->cut)
        under += at(coarse, m->position[0] * m->block_side[0], m->position[1] * m->block_side[1],
                    m->position[2] * m->block_side[2]);
    interpolate(fine, fine->u, under, coarse->row, coarse->plane);
}

static void clear_solution(const level *g)
{
    memset(g->u, 0, g->points * sizeof *g->u);
}

/* One V-cycle for the residual of the finest level, which is left up to date. */
static void iterate(multigrid *m)
{
    const int finest = m->p->levels;

    for (int k = finest; k > 1; k--)
        descend(m, k);
    clear_solution(&m->levels[1]);
    smooth(m, &m->levels[1], m->levels[1].r, m->levels[1].u);
    for (int k = 2; k <= finest; k++) {
        level *g = &m->levels[k];
        if (k < finest)
            clear_solution(g);
        ascend(m, k);
        residual(m, g, g->u, k < finest ? g->r : m->v, g->r);
        smooth(m, g, g->r, g->u);
    }
    residual(m, &m->levels[finest], m->levels[finest].u, m->v, m->levels[finest].r);
}

/* Root mean square over the points of the finest level. */
static double norm(const multigrid *m, const double *a)
{
    const level *g = &m->levels[m->p->levels];
    double here = 0.0, all;

    #pragma omp parallel for schedule(static) reduction(+ : here)
    for (int k = 1; k <= g->n[2]; k++)
        for (int j = 1; j <= g->n[1]; j++)
            for (int i = 1; i <= g->n[0]; i++)
                here += a[at(g, i, j, k)] * a[at(g, i, j, k)];
    MPI_Allreduce(&here, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return sqrt(all / ldexp(1.0, 3 * m->p->levels));
}

/* ---- Charges ----------------------------------------------------------------
 * Every grid point gets a random number, x running fastest; the ten largest
 * become charges of +1, the ten smallest of -1. */

typedef struct {
    double number;   /* random number; negated to look for the smallest */
    double position; /* in the whole grid; exact, below 2^53 */
} candidate;

/* Keeps the ten best in falling order. */
static void consider(candidate best[CHARGES], candidate c)
{
    int i = CHARGES - 1;
    if (c.number <= best[i].number)
        return;
    for (; i > 0 && best[i - 1].number < c.number; i--)
        best[i] = best[i - 1];
    best[i] = c;
}

/* The best of all processes' candidates, on every process. */
static void consider_all(multigrid *m, candidate best[CHARGES])
{
    candidate *all = npb_alloc((size_t)m->world.size * CHARGES, sizeof *all);
    candidate mine[CHARGES];

    memcpy(mine, best, sizeof mine);
    MPI_Allgather(mine, 2 * CHARGES, MPI_DOUBLE, all, 2 * CHARGES, MPI_DOUBLE, MPI_COMM_WORLD);
    for (int i = 0; i < m->world.size * CHARGES; i++)
        if (i / CHARGES != m->world.rank)
            consider(best, all[i]);
    npb_free(all);
}

static void place_charges(multigrid *m, const candidate best[CHARGES], double charge)
{
    const level *g = &m->levels[m->p->levels];
    const int64_t side = INT64_C(1) << m->p->levels;

    for (int c = 0; c < CHARGES; c++) {
        int64_t position = (int64_t)best[c].position;
        int64_t index[3] = {position % side, position / side % side, position / side / side};
        bool here = true;
        for (int d = 0; d < 3; d++) {
            index[d] -= (int64_t)(g->cut ? m->position[d] : 0) * g->n[d];
            here = here && index[d] >= 0 && index[d] < g->n[d];
        }
        if (here)
            m->v[at(g, (int)index[0] + 1, (int)index[1] + 1, (int)index[2] + 1)] = charge;
    }
}

static void set_charges(multigrid *m)
{
    const level *g = &m->levels[m->p->levels];
    const int64_t side = INT64_C(1) << m->p->levels;
    double line[LONGEST_LINE];
    candidate largest[CHARGES], smallest[CHARGES];

    for (int c = 0; c < CHARGES; c++)
        largest[c] = smallest[c] = (candidate){-2.0, 0.0}; /* below any of them */
    for (int k = 0; k < g->n[2]; k++) {
        for (int j = 0; j < g->n[1]; j++) {
            int64_t z = m->position[2] * g->n[2] + k;
            int64_t y = m->position[1] * g->n[1] + j;
            int64_t first = (z * side + y) * side + m->position[0] * g->n[0];
            uint64_t x = npb_random_jump(NPB_RANDOM_SEED, NPB_RANDOM_A, (uint64_t)first);
            npb_vranlc((size_t)g->n[0], &x, NPB_RANDOM_A, line);
            for (int i = 0; i < g->n[0]; i++) {
                consider(largest, (candidate){line[i], (double)(first + i)});
                consider(smallest, (candidate){-line[i], (double)(first + i)});
            }
        }
    }
    consider_all(m, largest);
    consider_all(m, smallest);
    place_charges(m, largest, 1.0);
    place_charges(m, smallest, -1.0);
    exchange_ghosts(m, g, m->v);
}

int main(int argc, char **argv)
{
    const problem *p = &problems[NPB_CLASS_INDEX];
    const int side = 1 << p->levels;
    const int most = side / (2 * GATHER_SIDE); /* processes along one axis */
    npb_world world =
        npb_start(&argc, &argv, "MG", NPB_RANKS_POWER_OF_TWO, most * most * most);
    static multigrid m; /* large; starts as zeros */
    npb_timer timer;

    multigrid_init(&m, p, world);
    level *finest = &m.levels[p->levels];
    set_charges(&m);
    residual(&m, finest, finest->u, m.v, finest->r);
    iterate(&m); /* untimed: touches all memory once */
    clear_solution(finest);

    npb_timer_clear(&timer);
    MPI_Barrier(MPI_COMM_WORLD);
    npb_timer_start(&timer);
    residual(&m, finest, finest->u, m.v, finest->r);
    double first_norm = norm(&m, finest->r);
    for (int i = 0; i < p->iterations; i++)
        iterate(&m);
    double last_norm = norm(&m, finest->r);
    npb_timer_stop(&timer);
    multigrid_free(&m);

    npb_result result = {
        .name = "MG",
        .size = {side, side, side},
        .iterations = p->iterations,
        .seconds = npb_slowest(timer.seconds),
        .operations = 58.0 * p->iterations * side * side * side,
        .operation = "floating point",
    };
    if (world.rank == 0) {
        printf(" residual norm at the start %20.13e\n", first_norm);
        result.verified = npb_verify("residual norm", last_norm, p->norm, EPSILON);
    }
    return npb_finish(world, &result);
}
