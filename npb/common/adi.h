/*
 * Time stepping by approximate factorisation, shared by SP and BT: a step of size
 * dt solves, one axis after the other, systems that couple only the points of a
 * line parallel to the axis (RNR-94-007, chapter 3).
 *
 *     (I - dt A_x) (I - dt A_y) (I - dt A_z) delta U = dt (R(U) + H)
 *
 * Decomposition: multi-partition (Bruno and Cappello).  q^2 processes cut the
 * cube into q^3 blocks, and each owns q of them on a diagonal, one in every slab
 * across every axis.  A sweep along any axis visits slab after slab; in each of
 * its q stages every process has exactly one block to work on, and hands its
 * results to the same neighbour.  Nobody waits for a pipeline to fill.
 *
 * A program supplies the two halves of the line solver: elimination from the low
 * end to the high end, and substitution back.  Lines are solved ADI_LANES at a
 * time, side by side, so that the recurrence along a line does not keep the
 * compiler from using vector instructions.
 */
#ifndef NPB_ADI_H
#define NPB_ADI_H

#include "cfd.h"

#define ADI_LANES 4

typedef double adi_lanes[ADI_LANES];

/* A loop over the lanes.  GCC would unroll so short a loop before it looks for
 * vector instructions, and then miss most of them. */
#if defined(__GNUC__) && !defined(__clang__)
#define ADI_EACH_LANE(l) _Pragma("GCC unroll 1") for (int l = 0; l < ADI_LANES; l++)
#else
#define ADI_EACH_LANE(l) for (int l = 0; l < ADI_LANES; l++)
#endif

/* A batch of parallel lines through one block. */
typedef struct {
    const cfd_block *block;
    int axis;
    int points;                  /* unknowns on each line */
    int global_first;            /* index along the axis of the first of them */
    int global_points;           /* points along the axis in the whole cube */
    ptrdiff_t step;              /* from a point of a line to its next */
    ptrdiff_t offset[ADI_LANES]; /* of each line's first unknown, component 0 */
    int lines;                   /* that are real; the lanes beyond repeat the last */
    double convect;              /* dt / (2 h) */
    double diffuse;              /* dt / h^2 */
    double dt;
} adi_batch;

/*
 * Row i of the eliminated systems, at rows + (depth + i) * row_size, says how unknown i
 * follows from the `depth` unknowns after it; the first `depth` rows belong to the
 * points before the batch.  All are zero before the first unknown of the line.
 */
typedef struct {
    const char *name;
    int depth;            /* 1 for tridiagonal, 2 for pentadiagonal systems */
    int row_size;         /* numbers that make up a row */
    double operations[4]; /* of a time step, for cfd_operations */

    /* Eliminates: computes rows depth, depth + 1, ... from those before. */
    void (*eliminate)(const adi_batch *batch, adi_lanes *rows);

    /* Substitutes from the last row to the first and stores the solution: in rhs,
     * and after the last axis added to U.  after[depth][CFD_VARS] holds the unknowns
     * after the batch, the nearest first; on return those at its beginning. */
    void (*substitute)(const adi_batch *batch, adi_lanes *rows, adi_lanes *after);
} adi_method;

typedef struct {
    int n;
    int steps;
    double dt;
    double residual[CFD_VARS]; /* official norms after the last step */
    double error[CFD_VARS];
} adi_problem;

/* The whole program: solves the problem by the method, reports and verifies.
 * Returns the exit status. */
int adi_main(int argc, char **argv, const adi_method *method, const adi_problem *problem);

#endif
