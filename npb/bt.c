/*
 * BT, block tridiagonal: compressible flow by the Beam-Warming scheme; each step
 * solves, per axis, one block tridiagonal system with 5 x 5 blocks on every line
 * of the grid (RNR-94-007, chapter 3).
 *
 * Parallel scheme: multi-partition on a square number of processes; see
 * common/adi.h, which also has the time stepping.
 *
 * The factor of axis a is I + dt (d/da F' - d2/da2 Q'), with the Jacobians of the
 * fluxes of common/cfd.h at the old time.  The fourth-order dissipation stays
 * explicit.
 */
#include "adi.h"

#include <string.h>

static const adi_problem problems[] = {
    {12, 60, 0.010,
     {1.7034283709541311e-1, 1.2975252070034097e-2, 3.2527926989486055e-2,
      2.6436421275166801e-2, 1.9211784131744430e-1},
     {4.9976913345811579e-4, 4.5195666782961927e-5, 7.3973765172921357e-5,
      7.3821238632439731e-5, 8.9269630987491446e-4}},
    {24, 200, 0.0008,
     {0.1125590409344e+3, 0.1180007595731e+2, 0.2710329767846e+2, 0.2469174937669e+2,
      0.2638427874317e+3},
     {0.4419655736008e+1, 0.4638531260002, 0.1011551749967e+1, 0.9235878729944,
      0.1018045837718e+2}},
    {64, 200, 0.0008,
     {1.0806346714637264e+2, 1.1319730901220813e+1, 2.5974354511582465e+1,
      2.3665622544678910e+1, 2.5278963211748344e+2},
     {4.2348416040525025, 4.4390282496995698e-1, 9.6692480136345650e-1,
      8.8302063039765474e-1, 9.7379901770829278}},
    {102, 200, 0.0003,
     {1.4233597229287254e+3, 9.9330522590150238e+1, 3.5646025644535285e+2,
      3.2485447959084092e+2, 3.2707541254659363e+3},
     {5.2969847140936856e+1, 4.4632896115670668, 1.3122573342210174e+1,
      1.2006925323559144e+1, 1.2459576151035986e+2}},
    {162, 200, 0.0001,
     {0.62398116551764615e+4, 0.50793239190423964e+3, 0.15423530093013596e+4,
      0.13302387929291190e+4, 0.11604087428436455e+5},
     {0.16462008369091265e+3, 0.11497107903824313e+2, 0.41207446207461508e+2,
      0.37087651059694167e+2, 0.36211053051841265e+3}},
};

typedef adi_lanes block5[CFD_VARS][CFD_VARS];

/* An eliminated row: the block above the diagonal and the right-hand side. */
enum { UPPER, RIGHT = CFD_VARS * CFD_VARS, ROW_SIZE = RIGHT + CFD_VARS };
enum { DEPTH = 1 };

/* What one point contributes to the matrix: to the row after its own, to its own
 * row, and to the row before. */
typedef struct {
    block5 lower, diagonal, upper;
} point_blocks;

/* Puts an element of dt / (2h) F' and of dt / h^2 Q' where they belong. */
static inline void put(point_blocks *p, int row, int column, int lane, double f, double q)
{
    p->lower[row][column][lane] = -f - q;
    p->upper[row][column][lane] = f - q;
    p->diagonal[row][column][lane] = (row == column ? 1.0 : 0.0) + 2.0 * q;
}

/* Sets the elements that do not depend on the flow; most of them are zero. */
static void prepare_blocks(const adi_batch *batch, point_blocks *p)
{
    const int normal = 1 + batch->axis;

    memset(p, 0, sizeof *p);
    ADI_EACH_LANE(l) {
        put(p, 0, 0, l, 0.0, batch->diffuse * cfd_diffusion[batch->axis]);
        put(p, 0, normal, l, batch->convect, 0.0);
        put(p, normal, 4, l, batch->convect * CFD_K2, 0.0);
    }
}

/* The Jacobians of F_a and Q_a at one point of each line. */
static void load_blocks(const adi_batch *batch, int point, point_blocks *p)
{
    const double *u = batch->block->u + point * batch->step;
    const ptrdiff_t var = batch->block->var;
    const double convect = batch->convect;
    const double diffusion = batch->diffuse * cfd_diffusion[batch->axis];
    const double viscous = batch->diffuse * CFD_K3K4;
    const int normal = 1 + batch->axis;
    adi_lanes v[3], energy, kinetic; /* velocity, E / rho, |v|^2 / 2 */
    adi_lanes nu;                    /* viscous / rho */
    adi_lanes energy_q;              /* element of Q' of energy by density */

    ADI_EACH_LANE(l) {
        const double *here = u + batch->offset[l];
        double inverse = 1.0 / here[0];
        v[0][l] = here[var] * inverse;
        v[1][l] = here[2 * var] * inverse;
        v[2][l] = here[3 * var] * inverse;
        energy[l] = here[4 * var] * inverse;
        kinetic[l] = 0.5 * (v[0][l] * v[0][l] + v[1][l] * v[1][l] + v[2][l] * v[2][l]);
        nu[l] = viscous * inverse;
        energy_q[l] = -nu[l] * CFD_K1K5 * energy[l];
    }
    const double *va = v[batch->axis];

    for (int c = 0; c < 3; c++) {
        const bool along = c == batch->axis;
        const double stress = along ? 4.0 / 3.0 : 1.0; /* normal or shear */
        const int m = 1 + c;
        ADI_EACH_LANE(l) {
            double pressure = along ? CFD_K2 * kinetic[l] : 0.0;
            double enthalpy = along ? CFD_K1 * energy[l] - CFD_K2 * kinetic[l] : 0.0;
            double work = nu[l] * (stress - CFD_K1K5) * v[c][l];
            energy_q[l] -= work * v[c][l];
            put(p, m, 0, l, convect * (pressure - v[c][l] * va[l]), -nu[l] * stress * v[c][l]);
            put(p, m, m, l, convect * (along ? 2.0 - CFD_K2 : 1.0) * va[l],
                nu[l] * stress + diffusion);
            put(p, 4, m, l, convect * (enthalpy - CFD_K2 * v[c][l] * va[l]), work);
        }
        if (!along)
            ADI_EACH_LANE(l) {
                put(p, m, normal, l, convect * v[c][l], 0.0);
                put(p, normal, m, l, -convect * CFD_K2 * v[c][l], 0.0);
            }
    }
    ADI_EACH_LANE(l) {
        put(p, 4, 0, l, convect * (2.0 * CFD_K2 * kinetic[l] - CFD_K1 * energy[l]) * va[l],
            energy_q[l]);
        put(p, 4, 4, l, convect * CFD_K1 * va[l], nu[l] * CFD_K1K5 + diffusion);
    }
}

/* Takes the row before into account: subtracts its product with the lower block
 * from the diagonal block and from the right-hand side. */
static inline void eliminate_lower(block5 lower, adi_lanes *before, block5 diagonal,
                                   adi_lanes *right)
{
    for (int r = 0; r < CFD_VARS; r++) {
        for (int c = 0; c < CFD_VARS; c++)
            ADI_EACH_LANE(l) {
                double sum = diagonal[r][c][l];
                for (int s = 0; s < CFD_VARS; s++)
                    sum -= lower[r][s][l] * before[UPPER + s * CFD_VARS + c][l];
                diagonal[r][c][l] = sum;
            }
        ADI_EACH_LANE(l) {
            double sum = right[r][l];
            for (int s = 0; s < CFD_VARS; s++)
                sum -= lower[r][s][l] * before[RIGHT + s][l];
            right[r][l] = sum;
        }
    }
}

/* Solves the diagonal block against the upper block and the right-hand side by
 * Gaussian elimination; without pivoting, as the blocks are diagonally dominant. */
static inline void solve_block(block5 a, adi_lanes *upper, adi_lanes *right)
{
    for (int p = 0; p < CFD_VARS; p++) {
        adi_lanes inverse;
        ADI_EACH_LANE(l)
            inverse[l] = 1.0 / a[p][p][l];
        for (int c = p + 1; c < CFD_VARS; c++)
            ADI_EACH_LANE(l)
                a[p][c][l] *= inverse[l];
        for (int c = 0; c < CFD_VARS; c++)
            ADI_EACH_LANE(l)
                upper[p * CFD_VARS + c][l] *= inverse[l];
        ADI_EACH_LANE(l)
            right[p][l] *= inverse[l];
        for (int r = p + 1; r < CFD_VARS; r++) {
            for (int c = p + 1; c < CFD_VARS; c++)
                ADI_EACH_LANE(l)
                    a[r][c][l] -= a[r][p][l] * a[p][c][l];
            for (int c = 0; c < CFD_VARS; c++)
                ADI_EACH_LANE(l)
                    upper[r * CFD_VARS + c][l] -= a[r][p][l] * upper[p * CFD_VARS + c][l];
            ADI_EACH_LANE(l)
                right[r][l] -= a[r][p][l] * right[p][l];
        }
    }
    for (int p = CFD_VARS - 1; p > 0; p--)
        for (int r = 0; r < p; r++) {
            for (int c = 0; c < CFD_VARS; c++)
                ADI_EACH_LANE(l)
                    upper[r * CFD_VARS + c][l] -= a[r][p][l] * upper[p * CFD_VARS + c][l];
            ADI_EACH_LANE(l)
                right[r][l] -= a[r][p][l] * right[p][l];
        }
}

static void eliminate(const adi_batch *batch, adi_lanes *rows)
{
    const double factor = batch->axis == 0 ? batch->dt : 1.0;
    point_blocks ring[3]; /* of points i-1, i, i+1; point i in place i mod 3 */

    for (int i = 0; i < 3; i++)
        prepare_blocks(batch, &ring[i]);
    load_blocks(batch, -1, &ring[2]);
    load_blocks(batch, 0, &ring[0]);
    for (int i = 0; i < batch->points; i++) {
        adi_lanes *row = rows + (DEPTH + i) * ROW_SIZE, *before = row - ROW_SIZE;
        point_blocks *below = &ring[(i + 2) % 3], *here = &ring[i % 3];
        point_blocks *above = &ring[(i + 1) % 3];
        const double *rhs = batch->block->rhs + i * batch->step;
        block5 pivot;

        load_blocks(batch, i + 1, above);
        memcpy(pivot, here->diagonal, sizeof pivot);
        memcpy(row + UPPER, above->upper, sizeof above->upper);
        for (int m = 0; m < CFD_VARS; m++)
            ADI_EACH_LANE(l)
                row[RIGHT + m][l] = factor * rhs[m * batch->block->var + batch->offset[l]];
        eliminate_lower(below->lower, before, pivot, row + RIGHT);
        solve_block(pivot, row + UPPER, row + RIGHT);
    }
}

static void substitute(const adi_batch *batch, adi_lanes *rows, adi_lanes *after)
{
    const cfd_block *b = batch->block;

    for (int i = batch->points - 1; i >= 0; i--) {
        adi_lanes *row = rows + (DEPTH + i) * ROW_SIZE;
        double *target = (batch->axis == 2 ? b->u : b->rhs) + i * batch->step;
        adi_lanes x[CFD_VARS];

        for (int m = 0; m < CFD_VARS; m++)
            ADI_EACH_LANE(l) {
                double sum = row[RIGHT + m][l];
                for (int s = 0; s < CFD_VARS; s++)
                    sum -= row[UPPER + m * CFD_VARS + s][l] * after[s][l];
                x[m][l] = sum;
            }
        memcpy(after, x, sizeof x);
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
        .name = "BT",
        .depth = DEPTH,
        .row_size = ROW_SIZE,
        .operations = {0.0, 28023.7, -17655.7, 3478.8},
        .eliminate = eliminate,
        .substitute = substitute,
    };
    return adi_main(argc, argv, &method, &problems[NPB_CLASS_INDEX]);
}
