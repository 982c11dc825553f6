/*
 * What the three pseudo-applications LU, SP and BT have in common: a cube of
 * compressible flow, its spatial operator, its start values and its norms
 * (RNR-94-007, chapter 3).  They differ only in how they solve the implicit
 * system of a time step.
 *
 * The equation.  On the unit cube, with U = (density, three momenta, energy),
 *
 *     dU/dt = R(U) + H,
 *     R(U)  = sum over the axes a of
 *                 - d/da F_a(U)  +  d2/da2 Q_a(U)  -  eps h^4 d4/da4 U.
 *
 * With velocity v, v_a its part along the axis, pressure p = k2 (E - rho |v|^2 / 2),
 *
 *     F_a = (rho v_a,  m v_a + p e_a,  (E + p) v_a)
 *     Q_a = d_a U + k3 k4 (0,  v + v_a e_a / 3,
 *                          (1 - k1 k5) |v|^2 / 2 + v_a^2 / 6 + k1 k5 E / rho).
 *
 * All derivatives are central differences of second order on n points along each
 * edge.  The forcing H is minus R of a given polynomial, so this polynomial is the
 * steady state also of the discrete equation, and the error of U is known.  U is
 * fixed on the boundary.
 *
 * The storage.  A process owns one or more blocks of the cube.  Each of a block's
 * arrays keeps its five components one after the other, x running fastest, with
 * two layers of neighbouring points around, as far as the stencil reaches.
 */
#ifndef NPB_CFD_H
#define NPB_CFD_H

#include "npb.h"

#define CFD_VARS 5
#define CFD_HALO 2
#define CFD_MAX_N 162 /* points along an edge of the largest cube, class C */

/* Constants of gas and flow: k1 = 1.4, k2 = 0.4, k3 = 0.1, k4 = 1, k5 = 1.4. */
#define CFD_K1 1.4
#define CFD_K2 0.4
#define CFD_K3K4 0.1
#define CFD_K1K5 1.96

/* Coefficients d_a of the second-order dissipation along x, y, z (the same for
 * all five equations), and eps of the fourth-order one: a quarter of the largest. */
static const double cfd_diffusion[3] = {0.75, 0.75, 1.0};
#define CFD_DISSIPATION 0.25

typedef struct {
    int n[3];            /* points owned along x, y, z */
    int first[3];        /* global index of the first of them */
    int inner_first[3];  /* local range of the unknowns: the points owned */
    int inner_end[3];    /*   that are not on the boundary of the cube */
    ptrdiff_t stride[3]; /* from a point to the next along each axis */
    ptrdiff_t var;       /* from a component to the next */
    double *u;           /* the flow U; all three point to component 0 of the */
    double *rhs;         /* R(U) + H;   local point (0, 0, 0) */
    double *forcing;     /* H */
} cfd_block;

typedef struct cfd_flux_row cfd_flux_row;

typedef struct {
    int n;          /* points along each edge of the cube */
    double convect; /* 1 / (2 h) */
    double diffuse; /* 1 / h^2 */
    int blocks;
    cfd_block *block;
    int neighbour[3][2]; /* rank that owns the blocks below and above this
                            process' along each axis; any where there are none */
    double *outgoing[3][2], *incoming[3][2]; /* faces on their way */
    cfd_flux_row *scratch;               /* rows under way in cfd_compute_rhs */
} cfd_domain;

/* Where component 0 of a point is in a block's arrays. */
static inline ptrdiff_t cfd_at(const cfd_block *b, int i, int j, int k)
{
    return i * b->stride[0] + j * b->stride[1] + k * b->stride[2];
}

/* First of n points that belong to part i of so many parts: sizes differ by one
 * at most. */
static inline int cfd_cut(int n, int parts, int i)
{
    return (int)((int64_t)n * i / parts);
}

/*
 * Sets up a cube of n^3 points of which this process owns `blocks` blocks.  Along
 * axis a the cube is cut into parts[a] parts; block b is part coordinate[b][a].
 * The order of the blocks has to be such that what one process sends to a
 * neighbour block by block, the neighbour's blocks expect in their order.
 */
void cfd_init(cfd_domain *d, int n, const int parts[3], int blocks, const int (*coordinate)[3],
              const int neighbour[3][2]);
void cfd_free(cfd_domain *d);

/* Computes the forcing H; overwrites U. */
void cfd_set_forcing(cfd_domain *d);

/* Start values of U: the polynomial on the boundary, and in the interior a
 * combination of its values on the six faces. */
void cfd_set_start(cfd_domain *d);

/* Message tags from here on are not used by the exchange of halos. */
#define CFD_FREE_TAG 6

/* rhs = R(U) + H at all unknowns, fetching the neighbours' U first (collective). */
void cfd_compute_rhs(cfd_domain *d);

/* Root mean squares over the unknowns, one per component, on every rank: of rhs,
 * and of the error of U (collective). */
void cfd_residual_norm(const cfd_domain *d, double norm[CFD_VARS]);
void cfd_error_norm(const cfd_domain *d, double norm[CFD_VARS]);

/* Compares five norms with the official ones; on rank 0 only. */
bool cfd_verify(const char *what, const double computed[CFD_VARS],
                const double reference[CFD_VARS]);
#define CFD_EPSILON 1e-8

/* Tells on rank 0 where the run is: at the first, every 20th and the last step. */
void cfd_report_step(npb_world world, int step, int steps);

/* The official number of floating point operations of a time step, a polynomial
 * in n with coefficients in the order 1, n, n^2, n^3. */
double cfd_operations(const double coefficient[4], int n);

#endif
