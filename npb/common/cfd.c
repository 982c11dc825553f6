/*
 * The cube of compressible flow that LU, SP and BT share: blocks with halos, the
 * spatial operator, start values and norms.  The equations are in cfd.h.
 */
#include "cfd.h"

#include <math.h>
#include <stdio.h>

/* ---- Blocks and their halos ----------------------------------------------- */

/* Cache sets are chosen by the address modulo 4 KiB.  Components that start an
 * odd number of cache lines apart, modulo this, do not push each other out. */
static ptrdiff_t spread_components(ptrdiff_t doubles)
{
    const ptrdiff_t line = 8, page = 512, shift = 13 * line;
    return (doubles - shift + page - 1) / page * page + shift;
}

static ptrdiff_t block_origin(const cfd_block *b)
{
    return CFD_HALO * (b->stride[0] + b->stride[1] + b->stride[2]);
}

static void block_init(cfd_block *b, int n, const int parts[3], const int coordinate[3])
{
    for (int a = 0; a < 3; a++) {
        b->first[a] = cfd_cut(n, parts[a], coordinate[a]);
        b->n[a] = cfd_cut(n, parts[a], coordinate[a] + 1) - b->first[a];
        b->inner_first[a] = coordinate[a] == 0 ? 1 : 0;
        b->inner_end[a] = coordinate[a] == parts[a] - 1 ? b->n[a] - 1 : b->n[a];
    }
    b->stride[0] = 1;
    b->stride[1] = b->n[0] + 2 * CFD_HALO;
    b->stride[2] = b->stride[1] * (b->n[1] + 2 * CFD_HALO);
    b->var = spread_components(b->stride[2] * (b->n[2] + 2 * CFD_HALO));

    size_t doubles = (size_t)(CFD_VARS * b->var);
    b->u = (double *)npb_alloc(doubles, sizeof(double)) + block_origin(b);
    b->rhs = (double *)npb_alloc(doubles, sizeof(double)) + block_origin(b);
    b->forcing = (double *)npb_alloc(doubles, sizeof(double)) + block_origin(b);
}

/* Whether the block has a neighbour below (side 0) or above (side 1). */
static bool has_neighbour(const cfd_domain *d, const cfd_block *b, int axis, int side)
{
    return side == 0 ? b->first[axis] > 0 : b->first[axis] + b->n[axis] < d->n;
}

/* Doubles that pass through one side of all blocks of this process. */
static int face_doubles(const cfd_domain *d, int axis, int side)
{
    int doubles = 0;
    for (int i = 0; i < d->blocks; i++) {
        const cfd_block *b = &d->block[i];
        if (has_neighbour(d, b, axis, side))
            doubles += CFD_VARS * CFD_HALO * b->n[0] * b->n[1] * b->n[2] / b->n[axis];
    }
    return doubles;
}

/* Fluxes of a row of points along x, already multiplied by 1/(2h) and 1/h^2, from
 * one point before the row to one after it.  The fixed length tells the compiler
 * that the arrays do not overlap. */
struct cfd_flux_row {
    double f[CFD_VARS][CFD_MAX_N + 2]; /* F_a / (2h) of point i is at 1 + i */
    double q[CFD_VARS][CFD_MAX_N + 2]; /* Q_a / h^2 likewise */
};

/* cfd_compute_rhs needs the fluxes of three neighbouring rows along y or z and of
 * one row along x. */
enum { ROW_ALONG_X = 3, SCRATCH_ROWS };

void cfd_init(cfd_domain *d, int n, const int parts[3], int blocks, const int (*coordinate)[3],
              const int neighbour[3][2])
{
    d->n = n;
    d->convect = 0.5 * (n - 1);
    d->diffuse = (double)(n - 1) * (n - 1);
    d->blocks = blocks;
    d->block = npb_alloc((size_t)blocks, sizeof *d->block);
    for (int i = 0; i < blocks; i++)
        block_init(&d->block[i], n, parts, coordinate[i]);
    for (int axis = 0; axis < 3; axis++)
        for (int side = 0; side < 2; side++) {
            size_t doubles = (size_t)face_doubles(d, axis, side);
            d->neighbour[axis][side] = neighbour[axis][side];
            d->outgoing[axis][side] = npb_alloc(doubles, sizeof(double));
            d->incoming[axis][side] = npb_alloc(doubles, sizeof(double));
        }
    d->scratch = npb_alloc(SCRATCH_ROWS, sizeof *d->scratch);
}

void cfd_free(cfd_domain *d)
{
    for (int i = 0; i < d->blocks; i++) {
        cfd_block *b = &d->block[i];
        npb_free(b->u - block_origin(b));
        npb_free(b->rhs - block_origin(b));
        npb_free(b->forcing - block_origin(b));
    }
    npb_free(d->block);
    for (int axis = 0; axis < 3; axis++)
        for (int side = 0; side < 2; side++) {
            npb_free(d->outgoing[axis][side]);
            npb_free(d->incoming[axis][side]);
        }
    npb_free(d->scratch);
}

/* Copies CFD_HALO layers of U, beginning with local layer `layer`, between the
 * block and a message.  Returns the end of what was copied in the message. */
static double *copy_layers(const cfd_block *b, int axis, int layer, double *message, bool pack)
{
    int inner = axis == 0 ? 1 : 0; /* the axes that span the face */
    int outer = axis == 2 ? 1 : 2;
    ptrdiff_t step = b->stride[inner];

    for (int m = 0; m < CFD_VARS; m++)
        for (int depth = layer; depth < layer + CFD_HALO; depth++)
            for (int line = 0; line < b->n[outer]; line++) {
                double *u = b->u + m * b->var + depth * b->stride[axis] + line * b->stride[outer];
                if (pack)
                    for (int i = 0; i < b->n[inner]; i++)
                        message[i] = u[i * step];
                else
                    for (int i = 0; i < b->n[inner]; i++)
                        u[i * step] = message[i];
                message += b->n[inner];
            }
    return message;
}

static void exchange_halos(cfd_domain *d)
{
    MPI_Request request[12];
    int requests = 0;

    for (int axis = 0; axis < 3; axis++)
        for (int side = 0; side < 2; side++) {
            int doubles = face_doubles(d, axis, side);
            if (doubles > 0) /* the tag tells the way the message goes */
                MPI_Irecv(d->incoming[axis][side], doubles, MPI_DOUBLE, d->neighbour[axis][side],
                          2 * axis + 1 - side, MPI_COMM_WORLD, &request[requests++]);
        }
    for (int axis = 0; axis < 3; axis++)
        for (int side = 0; side < 2; side++) {
            double *end = d->outgoing[axis][side];
            for (int i = 0; i < d->blocks; i++) {
                const cfd_block *b = &d->block[i];
                if (has_neighbour(d, b, axis, side))
                    end = copy_layers(b, axis, side == 0 ? 0 : b->n[axis] - CFD_HALO, end, true);
            }
            int doubles = (int)(end - d->outgoing[axis][side]);
            if (doubles > 0)
                MPI_Isend(d->outgoing[axis][side], doubles, MPI_DOUBLE, d->neighbour[axis][side],
                          2 * axis + side, MPI_COMM_WORLD, &request[requests++]);
        }
    MPI_Waitall(requests, request, MPI_STATUSES_IGNORE);
    for (int axis = 0; axis < 3; axis++)
        for (int side = 0; side < 2; side++) {
            double *end = d->incoming[axis][side];
            for (int i = 0; i < d->blocks; i++) {
                const cfd_block *b = &d->block[i];
                if (has_neighbour(d, b, axis, side))
                    end = copy_layers(b, axis, side == 0 ? -CFD_HALO : b->n[axis], end, false);
            }
        }
}

/* ---- The spatial operator --------------------------------------------------- */

/* The fluxes along the axis at points first to end-1 of the row that starts at u.
 * Called with a constant axis, for which the compiler makes its own version. */
static inline void compute_fluxes(const cfd_domain *d, const double *restrict u, ptrdiff_t var,
                                  int first, int end, int axis, cfd_flux_row *restrict row)
{
    const double *u0 = u, *u1 = u + var, *u2 = u + 2 * var, *u3 = u + 3 * var, *u4 = u + 4 * var;
    double *f0 = row->f[0] + 1, *f1 = row->f[1] + 1, *f2 = row->f[2] + 1;
    double *f3 = row->f[3] + 1, *f4 = row->f[4] + 1;
    double *q0 = row->q[0] + 1, *q1 = row->q[1] + 1, *q2 = row->q[2] + 1;
    double *q3 = row->q[3] + 1, *q4 = row->q[4] + 1;
    const double convect = d->convect;
    const double diffuse = d->diffuse * cfd_diffusion[axis];
    const double viscous = d->diffuse * CFD_K3K4;

    for (int i = first; i < end; i++) {
        double inverse = 1.0 / u0[i];
        double vx = u1[i] * inverse, vy = u2[i] * inverse, vz = u3[i] * inverse;
        double va = axis == 0 ? vx : axis == 1 ? vy : vz;
        double ma = axis == 0 ? u1[i] : axis == 1 ? u2[i] : u3[i];
        double kinetic = 0.5 * (u1[i] * vx + u2[i] * vy + u3[i] * vz);
        double pressure = CFD_K2 * (u4[i] - kinetic);
        double flow = convect * va;

        f0[i] = convect * ma;
        f1[i] = flow * u1[i] + (axis == 0 ? convect * pressure : 0.0);
        f2[i] = flow * u2[i] + (axis == 1 ? convect * pressure : 0.0);
        f3[i] = flow * u3[i] + (axis == 2 ? convect * pressure : 0.0);
        f4[i] = flow * (u4[i] + pressure);

        q0[i] = diffuse * u0[i];
        q1[i] = diffuse * u1[i] + viscous * (axis == 0 ? 4.0 / 3.0 * vx : vx);
        q2[i] = diffuse * u2[i] + viscous * (axis == 1 ? 4.0 / 3.0 * vy : vy);
        q3[i] = diffuse * u3[i] + viscous * (axis == 2 ? 4.0 / 3.0 * vz : vz);
        q4[i] = diffuse * u4[i] + viscous * ((1.0 - CFD_K1K5) * kinetic * inverse +
                                             va * va / 6.0 + CFD_K1K5 * u4[i] * inverse);
    }
}

/* Adds one axis' part of R(U) to a row: central differences of the fluxes of the
 * rows below, here and above along the axis (along x: the same row shifted), and
 * the fourth difference of U, `step` apart, in its form away from the boundary. */
static inline void add_differences(double *restrict sum, const double *restrict below_f,
                                   const double *restrict above_f,
                                   const double *restrict below_q, const double *restrict here_q,
                                   const double *restrict above_q, const double *restrict u,
                                   ptrdiff_t step, int first, int end)
{
    for (int i = first; i < end; i++)
        sum[i] += (below_q[i] - 2.0 * here_q[i] + above_q[i]) - (above_f[i] - below_f[i]) -
                  CFD_DISSIPATION * (u[i - 2 * step] + u[i + 2 * step] -
                                     4.0 * (u[i - step] + u[i + step]) + 6.0 * u[i]);
}

static void add_along_x(const cfd_domain *d, const cfd_block *b, ptrdiff_t at)
{
    const int first = b->inner_first[0], end = b->inner_end[0];
    cfd_flux_row *row = &d->scratch[ROW_ALONG_X];

    compute_fluxes(d, b->u + at, b->var, first - 1, end + 1, 0, row);
    for (int m = 0; m < CFD_VARS; m++) {
        const double *f = row->f[m] + 1, *q = row->q[m] + 1;
        const ptrdiff_t here = m * b->var + at;
        add_differences(b->rhs + here, f - 1, f + 1, q - 1, q, q + 1, b->u + here, 1, first, end);
    }
}

/* The row at `at`, number r along y or z, when the fluxes of rows r-1, r and r+1
 * are in place r-1, r, r+1 modulo 3. */
static void add_across(const cfd_domain *d, const cfd_block *b, ptrdiff_t at, int axis, int r)
{
    const cfd_flux_row *below = &d->scratch[(r + 2) % 3];
    const cfd_flux_row *row = &d->scratch[r % 3];
    const cfd_flux_row *above = &d->scratch[(r + 1) % 3];

    for (int m = 0; m < CFD_VARS; m++) {
        const ptrdiff_t here = m * b->var + at;
        add_differences(b->rhs + here, below->f[m] + 1, above->f[m] + 1, below->q[m] + 1,
                        row->q[m] + 1, above->q[m] + 1, b->u + here, b->stride[axis],
                        b->inner_first[0], b->inner_end[0]);
    }
}

static void start_with_forcing(const cfd_block *b, ptrdiff_t at)
{
    for (int m = 0; m < CFD_VARS; m++) {
        double *restrict rhs = b->rhs + m * b->var + at;
        const double *restrict forcing = b->forcing + m * b->var + at;
        for (int i = b->inner_first[0]; i < b->inner_end[0]; i++)
            rhs[i] = forcing[i];
    }
}

/*
 * Next to the boundary the fourth difference becomes one-sided: at the first
 * unknown, u1, it is 5 u1 - 4 u2 + u3, at the second -4 u1 + 6 u2 - 4 u3 + u4.
 * This removes what add_differences has used beyond that.  (The point outside the
 * cube, which it took for u1, is always zero.)
 */
static void correct_dissipation(const cfd_domain *d, const cfd_block *b, int axis)
{
    int inner = axis == 0 ? 1 : 0; /* the axes that span a face */
    int outer = axis == 2 ? 1 : 2;

    for (int side = 0; side < 2; side++) {
        ptrdiff_t outward = side == 0 ? -b->stride[axis] : b->stride[axis];
        for (int distance = 1; distance <= 2; distance++) {
            int global = side == 0 ? distance : d->n - 1 - distance;
            int local = global - b->first[axis];
            if (local < b->inner_first[axis] || local >= b->inner_end[axis])
                continue;
            for (int m = 0; m < CFD_VARS; m++)
                for (int line = b->inner_first[outer]; line < b->inner_end[outer]; line++) {
                    ptrdiff_t at = m * b->var + local * b->stride[axis] + line * b->stride[outer];
                    for (int i = b->inner_first[inner]; i < b->inner_end[inner]; i++) {
                        ptrdiff_t point = at + i * b->stride[inner];
                        double excess = distance == 1
                                            ? b->u[point] - 4.0 * b->u[point + outward]
                                            : b->u[point + 2 * outward];
                        b->rhs[point] += CFD_DISSIPATION * excess;
                    }
                }
        }
    }
}

/* rhs = R(U) + H of one block whose halo is up to date. */
static void compute_block_rhs(const cfd_domain *d, const cfd_block *b)
{
    const int first = b->inner_first[0], end = b->inner_end[0];

    /* Along x and y plane by plane; the flux rows of y run ahead by one. */
    for (int k = b->inner_first[2]; k < b->inner_end[2]; k++)
        for (int j = b->inner_first[1] - 1; j <= b->inner_end[1]; j++) {
            ptrdiff_t at = cfd_at(b, 0, j, k);
            compute_fluxes(d, b->u + at, b->var, first, end, 1, &d->scratch[(j + 3) % 3]);
            if (j > b->inner_first[1]) {
                ptrdiff_t row = at - b->stride[1];
                start_with_forcing(b, row);
                add_along_x(d, b, row);
                add_across(d, b, row, 1, j - 1);
            }
        }
    for (int j = b->inner_first[1]; j < b->inner_end[1]; j++)
        for (int k = b->inner_first[2] - 1; k <= b->inner_end[2]; k++) {
            ptrdiff_t at = cfd_at(b, 0, j, k);
            compute_fluxes(d, b->u + at, b->var, first, end, 2, &d->scratch[(k + 3) % 3]);
            if (k > b->inner_first[2])
                add_across(d, b, at - b->stride[2], 2, k - 1);
        }
    for (int axis = 0; axis < 3; axis++)
        correct_dissipation(d, b, axis);
}

void cfd_compute_rhs(cfd_domain *d)
{
    exchange_halos(d);
    for (int i = 0; i < d->blocks; i++)
        compute_block_rhs(d, &d->block[i]);
}

/* ---- Exact solution, forcing and start values ------------------------------- */

/* The polynomial: coefficients of 1; x, y, z; x^2, y^2, z^2; ... z^4. */
static const double exact_coefficient[CFD_VARS][13] = {
    {2.0, 0.0, 0.0, 4.0, 5.0, 3.0, 0.5, 0.02, 0.01, 0.03, 0.5, 0.4, 0.3},
    {1.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 0.01, 0.03, 0.02, 0.4, 0.3, 0.5},
    {2.0, 2.0, 0.0, 0.0, 0.0, 2.0, 3.0, 0.04, 0.03, 0.05, 0.3, 0.5, 0.4},
    {2.0, 2.0, 0.0, 0.0, 0.0, 2.0, 3.0, 0.03, 0.05, 0.04, 0.2, 0.1, 0.3},
    {5.0, 4.0, 3.0, 2.0, 0.1, 0.4, 0.3, 0.05, 0.04, 0.03, 0.1, 0.3, 0.2},
};

static void exact_solution(const double x[3], double u[CFD_VARS])
{
    for (int m = 0; m < CFD_VARS; m++) {
        const double *c = exact_coefficient[m];
        u[m] = c[0];
        for (int a = 0; a < 3; a++)
            u[m] += x[a] * (c[1 + a] + x[a] * (c[4 + a] + x[a] * (c[7 + a] + x[a] * c[10 + a])));
    }
}

/* Coordinates of a local point. */
static void position(const cfd_domain *d, const cfd_block *b, const int local[3], double x[3])
{
    for (int a = 0; a < 3; a++)
        x[a] = (double)(b->first[a] + local[a]) / (d->n - 1);
}

/* The start values inside the cube, after transfinite interpolation: a sum of the
 * linear interpolations between opposite faces.  The definition multiplies their
 * values, not their operators, so that it does not return the faces' own values. */
static void interpolated_solution(const double x[3], double u[CFD_VARS])
{
    double between[3][CFD_VARS];

    for (int a = 0; a < 3; a++) {
        double low[CFD_VARS], high[CFD_VARS];
        double foot[3] = {x[0], x[1], x[2]};
        foot[a] = 0.0;
        exact_solution(foot, low);
        foot[a] = 1.0;
        exact_solution(foot, high);
        for (int m = 0; m < CFD_VARS; m++)
            between[a][m] = x[a] * high[m] + (1.0 - x[a]) * low[m];
    }
    for (int m = 0; m < CFD_VARS; m++) {
        double px = between[0][m], py = between[1][m], pz = between[2][m];
        u[m] = px + py + pz - px * py - py * pz - pz * px + px * py * pz;
    }
}

/* Sets U at `margin` layers around the block's points and at these, as far as
 * they are in the cube. */
static void fill(cfd_domain *d, int margin, void solution(const double x[3], double u[CFD_VARS]))
{
    for (int n = 0; n < d->blocks; n++) {
        const cfd_block *b = &d->block[n];
        int low[3], high[3], p[3];
        for (int a = 0; a < 3; a++) {
            low[a] = b->first[a] < margin ? -b->first[a] : -margin;
            high[a] = b->n[a] + margin;
            if (high[a] > d->n - b->first[a])
                high[a] = d->n - b->first[a];
        }
        for (p[2] = low[2]; p[2] < high[2]; p[2]++)
            for (p[1] = low[1]; p[1] < high[1]; p[1]++)
                for (p[0] = low[0]; p[0] < high[0]; p[0]++) {
                    double x[3], u[CFD_VARS];
                    position(d, b, p, x);
                    solution(x, u);
                    for (int m = 0; m < CFD_VARS; m++)
                        b->u[m * b->var + cfd_at(b, p[0], p[1], p[2])] = u[m];
                }
    }
}

void cfd_set_forcing(cfd_domain *d)
{
    fill(d, CFD_HALO, exact_solution); /* halos too: no exchange needed */
    for (int n = 0; n < d->blocks; n++) {
        const cfd_block *b = &d->block[n];
        ptrdiff_t low = -block_origin(b), high = low + CFD_VARS * b->var;
        for (ptrdiff_t i = low; i < high; i++)
            b->forcing[i] = 0.0;
        compute_block_rhs(d, b);
        for (ptrdiff_t i = low; i < high; i++)
            b->forcing[i] = -b->rhs[i];
    }
}

static void start_solution(const double x[3], double u[CFD_VARS])
{
    bool boundary = false;
    for (int a = 0; a < 3; a++)
        boundary = boundary || x[a] == 0.0 || x[a] == 1.0;
    if (boundary)
        exact_solution(x, u);
    else
        interpolated_solution(x, u);
}

void cfd_set_start(cfd_domain *d)
{
    fill(d, 0, start_solution);
}

/* ---- Norms and verification -------------------------------------------------- */

static void root_mean_square(const cfd_domain *d, const double sum[CFD_VARS],
                             double norm[CFD_VARS])
{
    double unknowns = pow(d->n - 2, 3);
    MPI_Allreduce(sum, norm, CFD_VARS, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (int m = 0; m < CFD_VARS; m++)
        norm[m] = sqrt(norm[m] / unknowns);
}

void cfd_residual_norm(const cfd_domain *d, double norm[CFD_VARS])
{
    double sum[CFD_VARS] = {0.0};

    for (int n = 0; n < d->blocks; n++) {
        const cfd_block *b = &d->block[n];
        for (int m = 0; m < CFD_VARS; m++)
            for (int k = b->inner_first[2]; k < b->inner_end[2]; k++)
                for (int j = b->inner_first[1]; j < b->inner_end[1]; j++) {
                    const double *rhs = b->rhs + m * b->var + cfd_at(b, 0, j, k);
                    for (int i = b->inner_first[0]; i < b->inner_end[0]; i++)
                        sum[m] += rhs[i] * rhs[i];
                }
    }
    root_mean_square(d, sum, norm);
}

void cfd_error_norm(const cfd_domain *d, double norm[CFD_VARS])
{
    double sum[CFD_VARS] = {0.0};

    for (int n = 0; n < d->blocks; n++) {
        const cfd_block *b = &d->block[n];
        int p[3];
        for (p[2] = b->inner_first[2]; p[2] < b->inner_end[2]; p[2]++)
            for (p[1] = b->inner_first[1]; p[1] < b->inner_end[1]; p[1]++)
                for (p[0] = b->inner_first[0]; p[0] < b->inner_end[0]; p[0]++) {
                    double x[3], exact[CFD_VARS];
                    position(d, b, p, x);
                    exact_solution(x, exact);
                    for (int m = 0; m < CFD_VARS; m++) {
                        double error =
                            b->u[m * b->var + cfd_at(b, p[0], p[1], p[2])] - exact[m];
                        sum[m] += error * error;
                    }
                }
    }
    root_mean_square(d, sum, norm);
}

bool cfd_verify(const char *what, const double computed[CFD_VARS],
                const double reference[CFD_VARS])
{
    bool passed = true;
    for (int m = 0; m < CFD_VARS; m++) {
        char label[32];
        snprintf(label, sizeof label, "%s %d", what, m + 1);
        passed = npb_verify(label, computed[m], reference[m], CFD_EPSILON) && passed;
    }
    return passed;
}

void cfd_report_step(npb_world world, int step, int steps)
{
    if (world.rank == 0 && (step == 1 || step % 20 == 0 || step == steps)) {
        printf(" Time step %4d\n", step);
        fflush(stdout);
    }
}

double cfd_operations(const double coefficient[4], int n)
{
    return coefficient[0] + n * (coefficient[1] + n * (coefficient[2] + n * coefficient[3]));
}
