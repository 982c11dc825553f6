/*
 * LU, lower-upper symmetric Gauss-Seidel: compressible flow; each step does one
 * symmetric successive over-relaxation (SSOR) sweep over the whole grid, in which
 * every point needs the new values of its lower (then upper) neighbours along x, y
 * and z (RNR-94-007, chapter 3).
 *
 * The step.  With the Jacobians F' and Q' of the fluxes of common/cfd.h at the old
 * time, the implicit operator is
 *
 *     I + dt sum over the axes of (d/da F' - d2/da2 Q')  =  D + L + U.
 *
 * Its blocks for the neighbours below (L) and above (U) along an axis are
 * - dt F' / (2h) - dt Q' / h^2 and dt F' / (2h) - dt Q' / h^2, those of a point
 * itself (D) are I + 2 dt sum of Q' / h^2.  Two sweeps solve
 *
 *     (D + omega L) inverse(D) (D + omega U) delta U = dt (R(U) + H) / (omega (2 - omega)).
 *
 * The blocks are not stored: each is used once per sweep, and applying F' and Q' to
 * a vector costs less than forming them.  D turns out to be lower triangular.  The
 * fourth-order dissipation stays explicit.
 *
 * Parallel scheme: a power of two of processes cuts the x-y plane into columns
 * that reach through all z.  The sweeps run as a pipeline of planes: a process does
 * plane k once its lower neighbours along x and y have sent theirs of plane k.
 */
#include "cfd.h"

typedef struct {
    int n;
    int steps;
    double dt;
    double residual[CFD_VARS]; /* official norms after the last step */
    double error[CFD_VARS];
    double integral; /* official surface integral of the pressure */
} problem;

static const problem problems[] = {
    {12, 50, 0.5,
     {1.6196343210976702e-2, 2.1976745164821318e-3, 1.5179927653399185e-3,
      1.5029584435994323e-3, 3.4264073155896461e-2},
     {6.4223319957960924e-4, 8.4144342047347926e-5, 5.8588269616485186e-5,
      5.8474222595157350e-5, 1.3103347914111294e-3},
     7.8418928865937083},
    {33, 300, 1.5e-3,
     {0.1236511638192e+2, 0.1317228477799e+1, 0.2550120713095e+1, 0.2326187750252e+1,
      0.2826799444189e+2},
     {0.4867877144216, 0.5064652880982e-1, 0.9281818101960e-1, 0.8570126542733e-1,
      0.1084277417792e+1},
     0.1161399311023e+2},
    {64, 250, 2.0,
     {7.7902107606689367e+2, 6.3402765259692870e+1, 1.9499249727292479e+2,
      1.7845301160418537e+2, 1.8384760349464247e+3},
     {2.9964085685471943e+1, 2.8194576365003349, 7.3473412698774742, 6.7139225687777051,
      7.0715315688392578e+1},
     2.6030925604886277e+1},
    {102, 250, 2.0,
     {3.5532672969982736e+3, 2.6214750795310692e+2, 8.8333721850952190e+2,
      7.7812774739425265e+2, 7.3087969592545314e+3},
     {1.1401176380212709e+2, 8.1098963655421574, 2.8480597317698308e+1,
      2.5905394567832939e+1, 2.6054907504857413e+2},
     4.7887162703308227e+1},
    {162, 250, 2.0,
     {1.03766980323537846e+4, 8.92212458801008552e+2, 2.56238814582660871e+3,
      2.19194343857831427e+3, 1.78078057261061185e+4},
     {2.15986399716949279e+2, 1.55789559239863600e+1, 5.41318863077207766e+1,
      4.82262643154045421e+1, 4.55902910043250358e+2},
     6.66404553572181300e+1},
};

static const double operations[4] = {-144010.0, 27770.9, -10923.3, 1984.77};

#define OMEGA 1.2 /* over-relaxation */

enum { LOWER = 0, UPPER = 1 }; /* the two sweeps; also the side they come from */

/* Work space for one row of points along x, from the point before it to the one
 * after it: what belongs to point i is at 1 + i. */
typedef struct {
    double inverse[CFD_MAX_N + 2]; /* 1 / density */
    double v[3][CFD_MAX_N + 2];
    double energy[CFD_MAX_N + 2];         /* E / rho */
    double sum[CFD_VARS][CFD_MAX_N + 2];  /* right-hand side of the row's equations */
    double momentum_pivot[CFD_MAX_N + 2]; /* inverses of elements of D */
    double energy_pivot[CFD_MAX_N + 2];
} row_space;

typedef struct {
    double dt;
    cfd_domain domain; /* with one block */
    row_space *row;
    double *message; /* one plane's edge */
} solver;

/* ---- Decomposition --------------------------------------------------------------- */

static void decompose(solver *s, npb_world world, int n)
{
    int parts[3] = {1, 1, 1};
    while (4 * parts[0] * parts[0] <= world.size)
        parts[0] *= 2;
    parts[1] = world.size / parts[0];

    const int a = world.rank % parts[0], b = world.rank / parts[0];
    const int coordinate[1][3] = {{a, b, 0}};
    const int neighbour[3][2] = {
        {a > 0 ? world.rank - 1 : MPI_PROC_NULL,
         a < parts[0] - 1 ? world.rank + 1 : MPI_PROC_NULL},
        {b > 0 ? world.rank - parts[0] : MPI_PROC_NULL,
         b < parts[1] - 1 ? world.rank + parts[0] : MPI_PROC_NULL},
        {MPI_PROC_NULL, MPI_PROC_NULL},
    };
    cfd_init(&s->domain, n, parts, 1, coordinate, neighbour);

    const cfd_block *block = &s->domain.block[0];
    const int edge = block->n[0] > block->n[1] ? block->n[0] : block->n[1];
    s->row = npb_alloc(1, sizeof *s->row);
    s->message = npb_alloc((size_t)(CFD_VARS * edge), sizeof(double));
}

static void release(solver *s)
{
    npb_free(s->row);
    npb_free(s->message);
    cfd_free(&s->domain);
}

/* ---- Edges of a plane ------------------------------------------------------------ */

/*
 * One plane's edge of the sweep's result, kept in rhs: `here` is the first layer
 * beyond the block where it is received, or the last one inside where it is sent.
 */
static int copy_edge(const cfd_block *b, int axis, int here, int k, double *message, bool pack)
{
    const int along = 1 - axis;
    double *edge = b->rhs + here * b->stride[axis] + k * b->stride[2];
    int count = 0;

    for (int m = 0; m < CFD_VARS; m++)
        for (int i = b->inner_first[along]; i < b->inner_end[along]; i++) {
            double *value = edge + m * b->var + i * b->stride[along];
            if (pack)
                message[count++] = *value;
            else
                *value = message[count++];
        }
    return count;
}

static void receive_edges(const solver *s, int sweep, int k)
{
    const cfd_block *b = &s->domain.block[0];
    for (int axis = 0; axis < 2; axis++) {
        int source = s->domain.neighbour[axis][sweep];
        if (source == MPI_PROC_NULL)
            continue;
        int count = CFD_VARS * (b->inner_end[1 - axis] - b->inner_first[1 - axis]);
        MPI_Recv(s->message, count, MPI_DOUBLE, source, CFD_FREE_TAG + axis, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
        copy_edge(b, axis, sweep == LOWER ? -1 : b->n[axis], k, s->message, false);
    }
}

static void send_edges(const solver *s, int sweep, int k)
{
    const cfd_block *b = &s->domain.block[0];
    for (int axis = 0; axis < 2; axis++) {
        int target = s->domain.neighbour[axis][1 - sweep];
        if (target == MPI_PROC_NULL)
            continue;
        int count = copy_edge(b, axis, sweep == LOWER ? b->n[axis] - 1 : 0, k, s->message, true);
        MPI_Send(s->message, count, MPI_DOUBLE, target, CFD_FREE_TAG + axis, MPI_COMM_WORLD);
    }
}

/* ---- Sweeps ---------------------------------------------------------------------- */

/* The flow of the row that starts at u. */
static void load_flow(const cfd_block *b, const double *restrict u, row_space *restrict row)
{
    const double *u0 = u, *u1 = u + b->var, *u2 = u1 + b->var, *u3 = u2 + b->var;
    const double *u4 = u3 + b->var;

    for (int i = b->inner_first[0] - 1; i < b->inner_end[0] + 1; i++) {
        double inverse = 1.0 / u0[i];
        row->inverse[1 + i] = inverse;
        row->v[0][1 + i] = u1[i] * inverse;
        row->v[1][1 + i] = u2[i] * inverse;
        row->v[2][1 + i] = u3[i] * inverse;
        row->energy[1 + i] = u4[i] * inverse;
    }
}

/* Flow, and a vector of the system, at one point; by value, so that they live in
 * registers. */
typedef struct {
    double inverse, vx, vy, vz, energy;
} flow;

typedef struct {
    double density, x, y, z, energy;
} vector;

/* Coefficients of - omega times the blocks of the neighbours. */
typedef struct {
    double convect;    /* + omega dt / (2h) for the lower neighbours, - for the upper */
    double viscous;    /* omega dt k3 k4 / h^2 */
    double diffuse[3]; /* omega dt d_a / h^2 */
} coupling;

static coupling make_coupling(const solver *s, int sweep)
{
    const double sign = sweep == LOWER ? 1.0 : -1.0;
    coupling c = {
        .convect = sign * OMEGA * s->dt * s->domain.convect,
        .viscous = OMEGA * s->dt * s->domain.diffuse * CFD_K3K4,
    };
    for (int a = 0; a < 3; a++)
        c.diffuse[a] = OMEGA * s->dt * s->domain.diffuse * cfd_diffusion[a];
    return c;
}

/* - omega times the block of the neighbour along the axis, applied to its result w:
 * the changes that w makes of F_a and Q_a at the neighbour's flow.  Called with a
 * constant axis, for which the compiler makes its own version. */
static inline vector couple(const coupling *c, int axis, flow f, vector w)
{
    const double kinetic = 0.5 * (f.vx * f.vx + f.vy * f.vy + f.vz * f.vz);
    const double enthalpy = CFD_K1 * f.energy - CFD_K2 * kinetic;
    const double va = axis == 0 ? f.vx : axis == 1 ? f.vy : f.vz;
    const double wa = axis == 0 ? w.x : axis == 1 ? w.y : w.z;
    /* changes of density times velocity, and of pressure */
    const double dx = w.x - f.vx * w.density;
    const double dy = w.y - f.vy * w.density;
    const double dz = w.z - f.vz * w.density;
    const double da = axis == 0 ? dx : axis == 1 ? dy : dz;
    const double pressure =
        c->convect * CFD_K2 *
        (w.energy - f.vx * w.x - f.vy * w.y - f.vz * w.z + kinetic * w.density);

    const double carried = c->convect * va + c->diffuse[axis];
    const double pushed = c->convect * da;
    const double nu = c->viscous * f.inverse;
    vector sum = {
        .density = c->convect * wa + c->diffuse[axis] * w.density,
        .x = carried * w.x + pushed * f.vx + nu * dx,
        .y = carried * w.y + pushed * f.vy + nu * dy,
        .z = carried * w.z + pushed * f.vz + nu * dz,
        .energy = carried * w.energy + pushed * enthalpy + va * pressure +
                  nu * ((1.0 - CFD_K1K5) * (f.vx * dx + f.vy * dy + f.vz * dz) + va * da / 3.0 +
                        CFD_K1K5 * (w.energy - f.energy * w.density)),
    };
    const double along = pressure + nu * da / 3.0;
    if (axis == 0)
        sum.x += along;
    else if (axis == 1)
        sum.y += along;
    else
        sum.z += along;
    return sum;
}

/* Adds the coupling to the neighbouring row along y or z that has the flow u and
 * the result w. */
static inline void couple_row(const cfd_block *b, const coupling *c, int axis,
                              const double *restrict u, const double *restrict w,
                              row_space *restrict row)
{
    const ptrdiff_t var = b->var;

    for (int i = b->inner_first[0]; i < b->inner_end[0]; i++) {
        const double inverse = 1.0 / u[i];
        const flow f = {inverse, u[var + i] * inverse, u[2 * var + i] * inverse,
                        u[3 * var + i] * inverse, u[4 * var + i] * inverse};
        const vector result = {w[i], w[var + i], w[2 * var + i], w[3 * var + i], w[4 * var + i]};
        const vector sum = couple(c, axis, f, result);
        row->sum[0][1 + i] += sum.density;
        row->sum[1][1 + i] += sum.x;
        row->sum[2][1 + i] += sum.y;
        row->sum[3][1 + i] += sum.z;
        row->sum[4][1 + i] += sum.energy;
    }
}

/* Elements of D that are the same everywhere. */
typedef struct {
    double density;       /* 1 + 2 dt / h^2 times the sum of d_a */
    double density_pivot; /* its inverse */
    double momentum;      /* 2 dt k3 k4 / h^2 times 1 + 1 + 4/3 */
    double heat;          /* 2 dt k3 k4 / h^2 times 3 k1 k5 */
    double work;          /* 2 dt k3 k4 / h^2 times 3 (1 - k1 k5) + 1/3 */
} diagonal;

static diagonal make_diagonal(const solver *s)
{
    const double factor = 2.0 * s->dt * s->domain.diffuse;
    diagonal d = {
        .density = 1.0 + factor * (cfd_diffusion[0] + cfd_diffusion[1] + cfd_diffusion[2]),
        .momentum = factor * CFD_K3K4 * (10.0 / 3.0),
        .heat = factor * CFD_K3K4 * 3.0 * CFD_K1K5,
        .work = factor * CFD_K3K4 * (3.0 * (1.0 - CFD_K1K5) + 1.0 / 3.0),
    };
    d.density_pivot = 1.0 / d.density;
    return d;
}

static void load_pivots(const cfd_block *b, const diagonal *d, row_space *row)
{
    for (int i = 1 + b->inner_first[0]; i < 1 + b->inner_end[0]; i++) {
        row->momentum_pivot[i] = 1.0 / (d->density + d->momentum * row->inverse[i]);
        row->energy_pivot[i] = 1.0 / (d->density + d->heat * row->inverse[i]);
    }
}

/* inverse(D) times a vector by forward substitution: density, momenta, energy. */
static inline vector solve_diagonal(const diagonal *d, flow f, double momentum_pivot,
                                    double energy_pivot, vector right)
{
    vector w;

    w.density = right.density * d->density_pivot;
    const double drag = d->momentum * f.inverse * w.density;
    w.x = (right.x + drag * f.vx) * momentum_pivot;
    w.y = (right.y + drag * f.vy) * momentum_pivot;
    w.z = (right.z + drag * f.vz) * momentum_pivot;
    const double work = f.vx * (w.x - f.vx * w.density) + f.vy * (w.y - f.vy * w.density) +
                        f.vz * (w.z - f.vz * w.density);
    w.energy = (right.energy - f.inverse * (d->work * work - d->heat * f.energy * w.density)) *
               energy_pivot;
    return w;
}

static inline flow flow_at(const row_space *row, int i)
{
    flow f = {row->inverse[1 + i], row->v[0][1 + i], row->v[1][1 + i], row->v[2][1 + i],
              row->energy[1 + i]};
    return f;
}

/* Solves the row whose results start at w, point after point from the side that
 * the sweep comes from. */
static inline void solve_row(const cfd_block *b, const coupling *c, const diagonal *d, int sweep,
                             double *w, const row_space *row)
{
    const ptrdiff_t var = b->var;
    const int way = sweep == LOWER ? 1 : -1;
    const int first = sweep == LOWER ? b->inner_first[0] : b->inner_end[0] - 1;
    const int end = sweep == LOWER ? b->inner_end[0] : b->inner_first[0] - 1;
    const double *start = w + first - way;
    flow before = flow_at(row, first - way);
    vector result = {start[0], start[var], start[2 * var], start[3 * var], start[4 * var]};

    for (int i = first; i != end; i += way) {
        const flow here = flow_at(row, i);
        vector right = couple(c, 0, before, result);
        right.density += row->sum[0][1 + i];
        right.x += row->sum[1][1 + i];
        right.y += row->sum[2][1 + i];
        right.z += row->sum[3][1 + i];
        right.energy += row->sum[4][1 + i];
        result = solve_diagonal(d, here, row->momentum_pivot[1 + i], row->energy_pivot[1 + i],
                                right);
        if (sweep == UPPER) {
            result.density += w[i];
            result.x += w[var + i];
            result.y += w[2 * var + i];
            result.z += w[3 * var + i];
            result.energy += w[4 * var + i];
        }
        w[i] = result.density;
        w[var + i] = result.x;
        w[2 * var + i] = result.y;
        w[3 * var + i] = result.z;
        w[4 * var + i] = result.energy;
        before = here;
    }
}

/* In place in rhs: lower, x = inverse(D + omega L) dt rhs; then upper,
 * x = inverse(D + omega U) D x. */
static void do_sweep(const solver *s, int sweep)
{
    const cfd_block *b = &s->domain.block[0];
    const coupling c = make_coupling(s, sweep);
    const diagonal d = make_diagonal(s);
    const double factor = sweep == LOWER ? s->dt : 0.0;
    const int way = sweep == LOWER ? 1 : -1;
    int first[3], end[3];

    for (int a = 1; a < 3; a++) {
        first[a] = sweep == LOWER ? b->inner_first[a] : b->inner_end[a] - 1;
        end[a] = sweep == LOWER ? b->inner_end[a] : b->inner_first[a] - 1;
    }
    for (int k = first[2]; k != end[2]; k += way) {
        receive_edges(s, sweep, k);
        for (int j = first[1]; j != end[1]; j += way) {
            ptrdiff_t at = cfd_at(b, 0, j, k);
            for (int m = 0; m < CFD_VARS; m++)
                for (int i = b->inner_first[0]; i < b->inner_end[0]; i++)
                    s->row->sum[m][1 + i] = factor * b->rhs[m * b->var + at + i];
            ptrdiff_t y = at - way * b->stride[1], z = at - way * b->stride[2];
            couple_row(b, &c, 1, b->u + y, b->rhs + y, s->row);
            couple_row(b, &c, 2, b->u + z, b->rhs + z, s->row);
            load_flow(b, b->u + at, s->row);
            load_pivots(b, &d, s->row);
            solve_row(b, &c, &d, sweep, b->rhs + at, s->row);
        }
        send_edges(s, sweep, k);
    }
}

static void time_step(solver *s)
{
    const cfd_block *b = &s->domain.block[0];
    const double factor = 1.0 / (OMEGA * (2.0 - OMEGA));

    do_sweep(s, LOWER);
    do_sweep(s, UPPER);
    for (int m = 0; m < CFD_VARS; m++)
        for (int k = b->inner_first[2]; k < b->inner_end[2]; k++)
            for (int j = b->inner_first[1]; j < b->inner_end[1]; j++) {
                ptrdiff_t at = m * b->var + cfd_at(b, 0, j, k);
                for (int i = b->inner_first[0]; i < b->inner_end[0]; i++)
                    b->u[at + i] += factor * b->rhs[at + i];
            }
    cfd_compute_rhs(&s->domain);
}

/* ---- Surface integral ------------------------------------------------------------ */

/* Weight of a point in the trapezoidal rule on [low, high], 0 outside. */
static double trapezoid(int i, int low, int high)
{
    if (i < low || i > high)
        return 0.0;
    return i == low || i == high ? 0.5 : 1.0;
}

static double pressure_at(const cfd_block *b, ptrdiff_t at)
{
    const double *u = b->u + at;
    const double mx = u[b->var], my = u[2 * b->var], mz = u[3 * b->var];
    return CFD_K2 * (u[4 * b->var] - 0.5 * (mx * mx + my * my + mz * mz) / u[0]);
}

/* The pressure integrated over the surface of a box inside the cube (collective). */
static double surface_integral(const solver *s)
{
    const cfd_block *b = &s->domain.block[0];
    const int n = s->domain.n;
    const int low[3] = {1, 1, 2}, high[3] = {n - 2, n - 3, n - 2}; /* as the report has it */
    const double h = 1.0 / (n - 1);
    double mine = 0.0, all;

    for (int axis = 0; axis < 3; axis++) {
        const int p = (axis + 1) % 3, q = (axis + 2) % 3;
        for (int side = 0; side < 2; side++) {
            const int face = (side == 0 ? low[axis] : high[axis]) - b->first[axis];
            if (face < 0 || face >= b->n[axis])
                continue;
            for (int i = 0; i < b->n[p]; i++)
                for (int j = 0; j < b->n[q]; j++) {
                    double weight = trapezoid(b->first[p] + i, low[p], high[p]) *
                                    trapezoid(b->first[q] + j, low[q], high[q]);
                    ptrdiff_t at =
                        face * b->stride[axis] + i * b->stride[p] + j * b->stride[q];
                    mine += weight * h * h * pressure_at(b, at);
                }
        }
    }
    MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

/* ---- Program --------------------------------------------------------------------- */

static bool verify(npb_world world, const solver *s, const problem *p)
{
    double residual[CFD_VARS], error[CFD_VARS];
    cfd_residual_norm(&s->domain, residual);
    cfd_error_norm(&s->domain, error);
    double integral = surface_integral(s);

    if (world.rank != 0)
        return false;
    bool residual_right = cfd_verify("residual", residual, p->residual);
    bool error_right = cfd_verify("error", error, p->error);
    bool integral_right = npb_verify("surface", integral, p->integral, CFD_EPSILON);
    return residual_right && error_right && integral_right;
}

/* The largest power of two of processes that leaves each block as many points as
 * the halos of its neighbours are wide. */
static int most_ranks(int n)
{
    int side = 1;
    while (2 * side * CFD_HALO <= n)
        side *= 2;
    return side * side;
}

int main(int argc, char **argv)
{
    const problem *p = &problems[NPB_CLASS_INDEX];
    npb_world world =
        npb_start(&argc, &argv, "LU", NPB_RANKS_POWER_OF_TWO, most_ranks(p->n));
    solver s = {.dt = p->dt};
    npb_timer timer;

    decompose(&s, world, p->n);
    cfd_set_forcing(&s.domain);
    cfd_set_start(&s.domain);
    cfd_compute_rhs(&s.domain);
    time_step(&s); /* untimed: touches all memory and opens all connections */
    cfd_set_start(&s.domain);
    cfd_compute_rhs(&s.domain);

    npb_timer_clear(&timer);
    MPI_Barrier(MPI_COMM_WORLD);
    npb_timer_start(&timer);
    for (int step = 1; step <= p->steps; step++) {
        cfd_report_step(world, step, p->steps);
        time_step(&s);
    }
    npb_timer_stop(&timer);

    npb_result result = {
        .name = "LU",
        .size = {p->n, p->n, p->n},
        .iterations = p->steps,
        .seconds = npb_slowest(timer.seconds),
        .operations = p->steps * cfd_operations(operations, p->n),
        .operation = "floating point",
        .verified = verify(world, &s, p),
    };
    release(&s);
    return npb_finish(world, &result);
}
