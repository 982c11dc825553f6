/*
 * SP, scalar pentadiagonal: compressible flow by the diagonalised form of the
 * Beam-Warming scheme (Pulliam and Chaussee, 1981); each step solves, per axis,
 * five scalar pentadiagonal systems on every line of the grid (RNR-94-007,
 * chapter 3).
 *
 * Parallel scheme: multi-partition on a square number of processes; see
 * common/adi.h, which also has the time stepping.
 *
 * The flux Jacobian along axis a is T_a diag(v_a, v_a, v_a, v_a + c, v_a - c) / T_a
 * with the speed of sound c.  Neglecting the change of T_a in space decouples the
 * factor of that axis into five scalar ones,
 *
 *     I - dt A_a  =  T_a (I + dt (lambda d/da - nu d2/da2 + eps h^4 d4/da4)) / T_a,
 *
 * nu being the largest viscosity in any of the five equations.  Between two axes
 * stands inverse(T_a) T_b, which has constant coefficients.
 */
#include "adi.h"

#include <math.h>

static const adi_problem problems[] = {
    {12, 100, 0.015,
     {2.7470315451339479e-2, 1.0360746705285417e-2, 1.6235745065095532e-2,
      1.5840557224455615e-2, 3.4849040609362460e-2},
     {2.7289258557377227e-5, 1.0364446640837285e-5, 1.6154798287166471e-5,
      1.5750704994480102e-5, 3.4177666183390531e-5}},
    {36, 400, 0.0015,
     {0.1893253733584e-2, 0.1717075447775e-3, 0.2778153350936e-3, 0.2887475409984e-3,
      0.3143611161242e-2},
     {0.7542088599534e-4, 0.6512852253086e-5, 0.1049092285688e-4, 0.1128838671535e-4,
      0.1212845639773e-3}},
    {64, 400, 0.0015,
     {2.4799822399300195, 1.1276337964368832, 1.5028977888770491, 1.4217816211695179,
      2.1292113035138280},
     {1.0900140297820550e-4, 3.7343951769282091e-5, 5.0092785406541633e-5,
      4.7671093939528255e-5, 1.3621613399213001e-4}},
    {102, 400, 0.001,
     {0.6903293579998e+2, 0.3095134488084e+2, 0.4103336647017e+2, 0.3864769009604e+2,
      0.5643482272596e+2},
     {0.9810006190188e-2, 0.1022827905670e-2, 0.1720597911692e-2, 0.1694479428231e-2,
      0.1847456263981e-1}},
    {162, 400, 0.00067,
     {0.5881691581829e+3, 0.2454417603569e+3, 0.3293829191851e+3, 0.3081924971891e+3,
      0.4597223799176e+3},
     {0.2598120500183, 0.2590888922315e-1, 0.5132886416320e-1, 0.4806073419454e-1,
      0.5483377491301}},
};

#define ROOT_HALF 0.70710678118654752440

/* An eliminated row has the two coefficients above the diagonal of the three
 * different systems, and the right-hand sides of all five. */
enum { UPPER, UPPER2 = 3, RIGHT = 6, ROW_SIZE = 11 };
enum { DEPTH = 2 };

/* The system that an equation belongs to: 0 for the eigenvalue v_a, which three
 * share, 1 for v_a + c, 2 for v_a - c. */
static const int system_of[CFD_VARS] = {0, 0, 0, 1, 2};

/* Flow at one point of each line. */
typedef struct {
    adi_lanes inverse; /* 1 / density */
    adi_lanes v[3];
    adi_lanes kinetic; /* |v|^2 / 2 */
    adi_lanes sound;   /* speed of sound c */
} flow;

static inline void load_flow(const adi_batch *batch, int point, flow *f)
{
    const double *u = batch->block->u + point * batch->step;
    const ptrdiff_t var = batch->block->var;

    ADI_EACH_LANE(l) {
        const double *p = u + batch->offset[l];
        double inverse = 1.0 / p[0];
        double vx = p[var] * inverse, vy = p[2 * var] * inverse, vz = p[3 * var] * inverse;
        double kinetic = 0.5 * (vx * vx + vy * vy + vz * vz);
        f->inverse[l] = inverse;
        f->v[0][l] = vx;
        f->v[1][l] = vy;
        f->v[2][l] = vz;
        f->kinetic[l] = kinetic;
        f->sound[l] = sqrt(CFD_K1 * CFD_K2 * (p[4 * var] * inverse - kinetic));
    }
}

/* ---- Changes of variables ---------------------------------------------------- */

/* r = inverse(T_x) r, from conservative to characteristic variables along x. */
static inline void to_characteristic(const flow *f, adi_lanes r[CFD_VARS])
{
    ADI_EACH_LANE(l) {
        double r0 = r[0][l];
        double dx = f->inverse[l] * (f->v[0][l] * r0 - r[1][l]); /* minus velocity change */
        double dy = f->inverse[l] * (f->v[1][l] * r0 - r[2][l]);
        double dz = f->inverse[l] * (f->v[2][l] * r0 - r[3][l]);
        double pressure = CFD_K2 * (f->kinetic[l] * r0 - f->v[0][l] * r[1][l] -
                                    f->v[1][l] * r[2][l] - f->v[2][l] * r[3][l] + r[4][l]);
        double c = f->sound[l];
        double wave = pressure / (c * c);
        double acoustic = ROOT_HALF * f->inverse[l] * c * wave;
        r[0][l] = r0 - wave;
        r[1][l] = -dz;
        r[2][l] = dy;
        r[3][l] = acoustic - ROOT_HALF * dx;
        r[4][l] = acoustic + ROOT_HALF * dx;
    }
}

/* r = inverse(T_y) T_x r. */
static inline void turn_x_to_y(adi_lanes r[CFD_VARS])
{
    ADI_EACH_LANE(l) {
        double r0 = r[0][l], r2 = r[2][l];
        double difference = ROOT_HALF * (r[3][l] - r[4][l]);
        double half_sum = 0.5 * (r[3][l] + r[4][l]);
        r[0][l] = -r[1][l];
        r[1][l] = r0;
        r[2][l] = difference;
        r[3][l] = half_sum - ROOT_HALF * r2;
        r[4][l] = half_sum + ROOT_HALF * r2;
    }
}

/* r = inverse(T_z) T_y r. */
static inline void turn_y_to_z(adi_lanes r[CFD_VARS])
{
    ADI_EACH_LANE(l) {
        double r0 = r[0][l], r1 = r[1][l];
        double half_sum = 0.5 * (r[3][l] + r[4][l]);
        r[0][l] = ROOT_HALF * (r[3][l] - r[4][l]);
        r[1][l] = -r[2][l];
        r[2][l] = r1;
        r[3][l] = half_sum - ROOT_HALF * r0;
        r[4][l] = half_sum + ROOT_HALF * r0;
    }
}

/* r = T_z r, back to conservative variables. */
static inline void to_conservative(const flow *f, adi_lanes r[CFD_VARS])
{
    ADI_EACH_LANE(l) {
        double density = 1.0 / f->inverse[l], c = f->sound[l];
        double vx = f->v[0][l], vy = f->v[1][l], vz = f->v[2][l];
        double r0 = r[0][l], r1 = r[1][l];
        double wave = ROOT_HALF * density / c * (r[3][l] + r[4][l]);
        double mass = r[2][l] + wave;
        double push = ROOT_HALF * density * (r[3][l] - r[4][l]);
        r[0][l] = mass;
        r[1][l] = vx * mass - density * r1;
        r[2][l] = vy * mass + density * r0;
        r[3][l] = vz * mass + push;
        r[4][l] = f->kinetic[l] * mass + density * (vy * r0 - vx * r1) +
                  c * c / CFD_K2 * wave + vz * push;
    }
}

/* ---- Line solver ------------------------------------------------------------- */

/* What the coefficients of a row need of one point of each line. */
typedef struct {
    adi_lanes speed; /* dt / (2h) v_a */
    adi_lanes sound; /* dt / (2h) c */
    adi_lanes nu;    /* dt / h^2 nu */
} eigen;

static inline void load_eigen(const adi_batch *batch, const flow *f, eigen *e)
{
    const double diffusion = cfd_diffusion[batch->axis];

    ADI_EACH_LANE(l) {
        e->speed[l] = batch->convect * f->v[batch->axis][l];
        e->sound[l] = batch->convect * f->sound[l];
        /* Of the viscosities 1, 4/3 and k1 k5 the last, of heat, is largest. */
        e->nu[l] = batch->diffuse * (diffusion + CFD_K3K4 * CFD_K1K5 * f->inverse[l]);
    }
}

/* Weights of the fourth difference at points i-2 ... i+2 of a line of n points;
 * next to the boundary the one-sided forms of common/cfd.c. */
static void dissipation_weights(int i, int n, double w[5])
{
    static const double inside[5] = {1.0, -4.0, 6.0, -4.0, 1.0};

    for (int s = 0; s < 5; s++)
        w[s] = inside[s];
    if (i == 1 || i == n - 2)
        w[2] = 5.0;
    if (i <= 2)
        w[0] = 0.0;
    if (i <= 1)
        w[1] = 0.0;
    if (i >= n - 2)
        w[3] = 0.0;
    if (i >= n - 3)
        w[4] = 0.0;
}

/* The right-hand side of row `point`, for the x axis made from dt rhs. */
static inline void load_right(const adi_batch *batch, int point, const flow *f,
                              adi_lanes r[CFD_VARS])
{
    const double *rhs = batch->block->rhs + point * batch->step;
    const double factor = batch->axis == 0 ? batch->dt : 1.0;

    for (int m = 0; m < CFD_VARS; m++) {
        const double *p = rhs + m * batch->block->var;
        ADI_EACH_LANE(l)
            r[m][l] = factor * p[batch->offset[l]];
    }
    if (batch->axis == 0)
        to_characteristic(f, r);
}

/* Eliminates the two unknowns before a point from its row and divides by the
 * pivot.  `row` has the right-hand sides in place. */
static inline void eliminate_row(const double weight[5], const eigen *below, const eigen *here,
                                 const eigen *above, adi_lanes *row2, adi_lanes *row1,
                                 adi_lanes *row)
{
    static const double wave[3] = {0.0, 1.0, -1.0}; /* eigenvalue: v_a + wave c */
    adi_lanes lower[3], pivot[3];

    for (int s = 0; s < 3; s++)
        ADI_EACH_LANE(l) {
            double a1 = weight[1] - below->nu[l] - (below->speed[l] + wave[s] * below->sound[l]);
            double a2 = 1.0 + weight[2] + 2.0 * here->nu[l];
            double a3 = weight[3] - above->nu[l] + (above->speed[l] + wave[s] * above->sound[l]);
            a1 -= weight[0] * row2[UPPER + s][l];
            a2 -= weight[0] * row2[UPPER2 + s][l] + a1 * row1[UPPER + s][l];
            a3 -= a1 * row1[UPPER2 + s][l];
            double inverse = 1.0 / a2;
            lower[s][l] = a1;
            pivot[s][l] = inverse;
            row[UPPER + s][l] = a3 * inverse;
            row[UPPER2 + s][l] = weight[4] * inverse;
        }
    for (int m = 0; m < CFD_VARS; m++) {
        const int s = system_of[m];
        ADI_EACH_LANE(l)
            row[RIGHT + m][l] = (row[RIGHT + m][l] - weight[0] * row2[RIGHT + m][l] -
                                 lower[s][l] * row1[RIGHT + m][l]) *
                                pivot[s][l];
    }
}

static void eliminate(const adi_batch *batch, adi_lanes *rows)
{
    flow f;
    eigen ring[3]; /* of points i-1, i, i+1; point i in place i mod 3 */

    load_flow(batch, -1, &f);
    load_eigen(batch, &f, &ring[2]);
    load_flow(batch, 0, &f);
    load_eigen(batch, &f, &ring[0]);
    for (int i = 0; i < batch->points; i++) {
        adi_lanes *row = rows + (DEPTH + i) * ROW_SIZE;
        double weight[5];

        dissipation_weights(batch->global_first + i, batch->global_points, weight);
        for (int s = 0; s < 5; s++)
            weight[s] *= batch->dt * CFD_DISSIPATION;
        load_right(batch, i, &f, row + RIGHT);
        load_flow(batch, i + 1, &f);
        load_eigen(batch, &f, &ring[(i + 1) % 3]);
        eliminate_row(weight, &ring[(i + 2) % 3], &ring[i % 3], &ring[(i + 1) % 3],
                      row - 2 * ROW_SIZE, row - ROW_SIZE, row);
    }
}

static void substitute(const adi_batch *batch, adi_lanes *rows, adi_lanes *after)
{
    const cfd_block *b = batch->block;
    adi_lanes *next = after, *next2 = after + CFD_VARS;

    for (int i = batch->points - 1; i >= 0; i--) {
        adi_lanes *row = rows + (DEPTH + i) * ROW_SIZE;
        adi_lanes x[CFD_VARS];

        for (int m = 0; m < CFD_VARS; m++) {
            const int s = system_of[m];
            ADI_EACH_LANE(l) {
                x[m][l] = row[RIGHT + m][l] - row[UPPER + s][l] * next[m][l] -
                          row[UPPER2 + s][l] * next2[m][l];
                next2[m][l] = next[m][l];
                next[m][l] = x[m][l];
            }
        }

        double *target = (batch->axis == 2 ? b->u : b->rhs) + i * batch->step;
        if (batch->axis == 0) {
            turn_x_to_y(x);
        } else if (batch->axis == 1) {
            turn_y_to_z(x);
        } else {
            flow f;
            load_flow(batch, i, &f);
            to_conservative(&f, x);
        }
        for (int m = 0; m < CFD_VARS; m++) {
            double *p = target + m * b->var;
            for (int l = 0; l < batch->lines; l++)
                p[batch->offset[l]] = x[m][l] + (batch->axis == 2 ? p[batch->offset[l]] : 0.0);
        }
    }
}

int main(int argc, char **argv)
{
    static const adi_method method = {
        .name = "SP",
        .depth = DEPTH,
        .row_size = ROW_SIZE,
        .operations = {-19272.4, 11484.5, -4683.91, 881.174},
        .eliminate = eliminate,
        .substitute = substitute,
    };
    return adi_main(argc, argv, &method, &problems[NPB_CLASS_INDEX]);
}
