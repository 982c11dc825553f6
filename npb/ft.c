/*
 * FT, Fourier transform: solves the diffusion equation on a periodic box by one
 * forward three-dimensional FFT and one inverse FFT per time step.
 * All-to-all communication of the whole state (RNR-94-007, section 2.3, kernel FT).
 *
 * Complex arrays are pairs of doubles (real, imaginary), x running fastest.  In
 * space the box is cut across z ("slabs", order z y x); in the spectrum across y
 * (order y z x), so that every process holds whole lines in z.  Between the two lies
 * one exchange in which rows along x stay together.  On one process both orders
 * would only cost a copy, and the spectrum keeps the order z y x.
 */
#include "npb.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define ALPHA 1e-6 /* diffusivity */
#define EPSILON 1e-12
#define MAX_ITERATIONS 20
#define CHECKSUM_POINTS 1024

typedef struct {
    double re, im;
} complex_number;

typedef struct {
    int nx, ny, nz;
    int iterations;
    complex_number checksum[MAX_ITERATIONS]; /* official, after each time step */
} problem;

static const problem problems[] = {
    {64, 64, 64, 6,
     {{5.546087004964e+2, 4.845363331978e+2},
      {5.546385409189e+2, 4.865304269511e+2},
      {5.546148406171e+2, 4.883910722336e+2},
      {5.545423607415e+2, 4.901273169046e+2},
      {5.544255039624e+2, 4.917475857993e+2},
      {5.542683411902e+2, 4.932597244941e+2}}},
    {128, 128, 32, 6,
     {{5.673612178944e+2, 5.293246849175e+2},
      {5.631436885271e+2, 5.282149986629e+2},
      {5.594024089970e+2, 5.270996558037e+2},
      {5.560698047020e+2, 5.260027904925e+2},
      {5.530898991250e+2, 5.249400845633e+2},
      {5.504159734538e+2, 5.239212247086e+2}}},
    {256, 256, 128, 6,
     {{5.046735008193e+2, 5.114047905510e+2},
      {5.059412319734e+2, 5.098809666433e+2},
      {5.069376896287e+2, 5.098144042213e+2},
      {5.077892868474e+2, 5.101336130759e+2},
      {5.085233095391e+2, 5.104914655194e+2},
      {5.091487099959e+2, 5.107917842803e+2}}},
    {512, 256, 256, 20,
     {{5.177643571579e+2, 5.077803458597e+2},
      {5.154521291263e+2, 5.088249431599e+2},
      {5.146409228649e+2, 5.096208912659e+2},
      {5.142378756213e+2, 5.101023387619e+2},
      {5.139626667737e+2, 5.103976610617e+2},
      {5.137423460082e+2, 5.105948019802e+2},
      {5.135547056878e+2, 5.107404165783e+2},
      {5.133910925466e+2, 5.108576573661e+2},
      {5.132470705390e+2, 5.109577278523e+2},
      {5.131197729984e+2, 5.110460304483e+2},
      {5.130070319283e+2, 5.111252433800e+2},
      {5.129070537032e+2, 5.111968077718e+2},
      {5.128182883502e+2, 5.112616233064e+2},
      {5.127393733383e+2, 5.113203605551e+2},
      {5.126691062020e+2, 5.113735928093e+2},
      {5.126064276004e+2, 5.114218460548e+2},
      {5.125504076570e+2, 5.114656139760e+2},
      {5.125002331720e+2, 5.115053595966e+2},
      {5.124551951846e+2, 5.115415130407e+2},
      {5.124146770029e+2, 5.115744692211e+2}}},
    {512, 512, 512, 20,
     {{5.195078707457e+2, 5.149019699238e+2},
      {5.155422171134e+2, 5.127578201997e+2},
      {5.144678022222e+2, 5.122251847514e+2},
      {5.140150594328e+2, 5.121090289018e+2},
      {5.137550426810e+2, 5.121143685824e+2},
      {5.135811056728e+2, 5.121496764568e+2},
      {5.134569343165e+2, 5.121870921893e+2},
      {5.133651975661e+2, 5.122193250322e+2},
      {5.132955192805e+2, 5.122454735794e+2},
      {5.132410471738e+2, 5.122663649603e+2},
      {5.131971141679e+2, 5.122830879827e+2},
      {5.131605205716e+2, 5.122965869718e+2},
      {5.131290734194e+2, 5.123075927445e+2},
      {5.131012720314e+2, 5.123166486553e+2},
      {5.130760908195e+2, 5.123241541685e+2},
      {5.130528295923e+2, 5.123304037599e+2},
      {5.130310107773e+2, 5.123356167976e+2},
      {5.130103090133e+2, 5.123399592211e+2},
      {5.129905029333e+2, 5.123435588985e+2},
      {5.129714421109e+2, 5.123465164008e+2}}},
};

/* ---- One-dimensional transforms ----------------------------------------------
 * LINES transforms run side by side: element n of line l is at [n * LINES + l],
 * real and imaginary parts in separate arrays.  All inner loops then have unit
 * stride and no complex shuffling. */

#define LINES 16
#define MAX_LENGTH 512

typedef struct {
    double re[MAX_LENGTH * LINES], im[MAX_LENGTH * LINES];
} batch;

typedef struct {
    batch data, spare;
    double cosine[MAX_LENGTH], sine[MAX_LENGTH]; /* of 2 pi k / MAX_LENGTH */
} transformer;

static void transformer_init(transformer *t)
{
    for (int k = 0; k < MAX_LENGTH; k++) {
        t->cosine[k] = cos(2.0 * NPB_PI * k / MAX_LENGTH);
        t->sine[k] = sin(2.0 * NPB_PI * k / MAX_LENGTH);
    }
}

/*
 * One radix-4 step of the self-sorting (Stockham) FFT with factors
 * exp(-2 pi i k / length): `length` is that of the sub-transforms, `stride` the
 * number of doubles in one of their elements.
 */
static void radix4_step(const transformer *t, int length, int stride,
                        const double *restrict in_re, const double *restrict in_im,
                        double *restrict out_re, double *restrict out_im)
{
    const int quarter = length / 4;
    const int leap = quarter * stride;

    for (int p = 0; p < quarter; p++) {
        const int k = p * (MAX_LENGTH / length);
        const double c1 = t->cosine[k], s1 = t->sine[k];
        const double c2 = t->cosine[2 * k], s2 = t->sine[2 * k];
        const double c3 = t->cosine[3 * k], s3 = t->sine[3 * k];
        const double *restrict re = in_re + p * stride, *restrict im = in_im + p * stride;
        double *restrict to_re = out_re + 4 * p * stride;
        double *restrict to_im = out_im + 4 * p * stride;

        for (int q = 0; q < stride; q++) {
            double even_re = re[q] + re[q + 2 * leap], even_im = im[q] + im[q + 2 * leap];
            double half_re = re[q] - re[q + 2 * leap], half_im = im[q] - im[q + 2 * leap];
            double odd_re = re[q + leap] + re[q + 3 * leap];
            double odd_im = im[q + leap] + im[q + 3 * leap];
            double turn_re = im[q + leap] - im[q + 3 * leap]; /* -i (b - d) */
            double turn_im = re[q + 3 * leap] - re[q + leap];

            double a_re = half_re + turn_re, a_im = half_im + turn_im;
            double b_re = even_re - odd_re, b_im = even_im - odd_im;
            double d_re = half_re - turn_re, d_im = half_im - turn_im;
            to_re[q] = even_re + odd_re;
            to_im[q] = even_im + odd_im;
            to_re[q + stride] = c1 * a_re + s1 * a_im;
            to_im[q + stride] = c1 * a_im - s1 * a_re;
            to_re[q + 2 * stride] = c2 * b_re + s2 * b_im;
            to_im[q + 2 * stride] = c2 * b_im - s2 * b_re;
            to_re[q + 3 * stride] = c3 * d_re + s3 * d_im;
            to_im[q + 3 * stride] = c3 * d_im - s3 * d_re;
        }
    }
}

/* The last step where the length is not a power of four; works in place. */
static void radix2_step(int stride, double *restrict re, double *restrict im)
{
    for (int q = 0; q < stride; q++) {
        double first_re = re[q], first_im = im[q];
        re[q] = first_re + re[q + stride];
        im[q] = first_im + im[q + stride];
        re[q + stride] = first_re - re[q + stride];
        im[q + stride] = first_im - im[q + stride];
    }
}

/* Transforms the batch t->data of lines of `length` numbers (a power of two) and
 * returns the batch with the result.  The inverse transform (without the factor
 * 1/length) is the forward one with real and imaginary parts changing places. */
static batch *transform(transformer *t, int length, bool inverse)
{
    batch *from = &t->data, *to = &t->spare;
    int rest = length, stride = LINES;

    for (; rest >= 4; rest /= 4, stride *= 4) {
        if (inverse)
            radix4_step(t, rest, stride, from->im, from->re, to->im, to->re);
        else
            radix4_step(t, rest, stride, from->re, from->im, to->re, to->im);
        batch *swap = from;
        from = to;
        to = swap;
    }
    if (rest == 2)
        radix2_step(stride, from->re, from->im);
    return from;
}

/* ---- The box and its two orders ------------------------------------------ */

typedef struct {
    const problem *p;
    npb_world world;
    int local_z;  /* planes here, in space */
    int local_y;  /* planes here, in the spectrum */
    size_t spectrum_y, spectrum_z; /* distances between neighbours in the spectrum */
    size_t points; /* complex numbers here */
    complex_number *spectrum;
    complex_number *work;   /* the state in space, on its way from or to the spectrum */
    complex_number *buffer; /* for the exchange; not there on one process */
    double *decay[3];       /* of each wave number along x, y, z at the present time */
    transformer *t;
} solver;

static void solver_init(solver *s, const problem *p, npb_world world)
{
    memset(s, 0, sizeof *s);
    s->p = p;
    s->world = world;
    s->local_z = p->nz / world.size;
    s->local_y = p->ny / world.size;
    s->spectrum_y = (size_t)p->nx * (world.size > 1 ? (size_t)p->nz : 1);
    s->spectrum_z = (size_t)p->nx * (world.size > 1 ? 1 : (size_t)p->ny);
    s->points = (size_t)p->nx * (size_t)p->ny * (size_t)s->local_z;
    s->spectrum = npb_alloc(s->points, sizeof *s->spectrum);
    s->work = npb_alloc(s->points, sizeof *s->work);
    if (world.size > 1)
        s->buffer = npb_alloc(s->points, sizeof *s->buffer);
    s->decay[0] = npb_alloc((size_t)p->nx, sizeof *s->decay[0]);
    s->decay[1] = npb_alloc((size_t)p->ny, sizeof *s->decay[1]);
    s->decay[2] = npb_alloc((size_t)p->nz, sizeof *s->decay[2]);
    s->t = npb_alloc(1, sizeof *s->t);
}

static void solver_free(solver *s)
{
    npb_free(s->spectrum);
    npb_free(s->work);
    npb_free(s->buffer);
    for (int d = 0; d < 3; d++)
        npb_free(s->decay[d]);
    npb_free(s->t);
}

/* Columns: element n of line l is a[n * distance + l]. */
static void load_columns(batch *b, const complex_number *a, int length, size_t distance)
{
    for (int n = 0; n < length; n++)
        for (int l = 0; l < LINES; l++) {
            b->re[n * LINES + l] = a[(size_t)n * distance + (size_t)l].re;
            b->im[n * LINES + l] = a[(size_t)n * distance + (size_t)l].im;
        }
}

static void store_columns(const batch *b, complex_number *a, int length, size_t distance)
{
    for (int n = 0; n < length; n++)
        for (int l = 0; l < LINES; l++) {
            a[(size_t)n * distance + (size_t)l].re = b->re[n * LINES + l];
            a[(size_t)n * distance + (size_t)l].im = b->im[n * LINES + l];
        }
}

/* Rows: element n of line l is a[l * length + n]. */
static void load_rows(batch *b, const complex_number *a, int length)
{
    for (int n = 0; n < length; n++)
        for (int l = 0; l < LINES; l++) {
            b->re[n * LINES + l] = a[l * length + n].re;
            b->im[n * LINES + l] = a[l * length + n].im;
        }
}

static void store_rows(const batch *b, complex_number *a, int length)
{
    for (int n = 0; n < length; n++)
        for (int l = 0; l < LINES; l++) {
            a[l * length + n].re = b->re[n * LINES + l];
            a[l * length + n].im = b->im[n * LINES + l];
        }
}

/* Transforms planes of constant z along x and y, in place.  Plane by plane, as
 * the second direction then finds the plane in cache. */
static void transform_planes(solver *s, complex_number *a, bool inverse)
{
    const int nx = s->p->nx, ny = s->p->ny;

    for (int z = 0; z < s->local_z; z++) {
        complex_number *plane = a + (size_t)z * (size_t)nx * (size_t)ny;
        for (int y = 0; y < ny; y += LINES) {
            load_rows(&s->t->data, plane + y * nx, nx);
            store_rows(transform(s->t, nx, inverse), plane + y * nx, nx);
        }
        for (int x = 0; x < nx; x += LINES) {
            load_columns(&s->t->data, plane + x, ny, (size_t)nx);
            store_columns(transform(s->t, ny, inverse), plane + x, ny, (size_t)nx);
        }
    }
}

/* First row along x of (y, z) in the spectrum's order, y counted from here. */
static size_t spectrum_row(const solver *s, int y, int z)
{
    return (size_t)y * s->spectrum_y + (size_t)z * s->spectrum_z;
}

/* Multiplies a batch of columns along z by what is left of each wave. */
static void attenuate(const solver *s, batch *b, int x, int y)
{
    const double *restrict along_x = s->decay[0] + x;

    for (int z = 0; z < s->p->nz; z++) {
        double factor = s->decay[1][y] * s->decay[2][z];
        for (int l = 0; l < LINES; l++) {
            b->re[z * LINES + l] *= factor * along_x[l];
            b->im[z * LINES + l] *= factor * along_x[l];
        }
    }
}

/* Transforms along z, in the spectrum's order: forward from `work` into the
 * spectrum, or inverse from the attenuated spectrum into `work`. */
static void transform_z(solver *s, bool inverse)
{
    const complex_number *from = inverse ? s->spectrum : s->work;
    complex_number *to = inverse ? s->work : s->spectrum;
    const int first_y = s->world.rank * s->local_y;

    for (int y = 0; y < s->local_y; y++)
        for (int x = 0; x < s->p->nx; x += LINES) {
            size_t corner = spectrum_row(s, y, 0) + (size_t)x;
            load_columns(&s->t->data, from + corner, s->p->nz, s->spectrum_z);
            if (inverse)
                attenuate(s, &s->t->data, x, first_y + y);
            store_columns(transform(s->t, s->p->nz, inverse), to + corner, s->p->nz,
                          s->spectrum_z);
        }
}

/* ---- Exchange between the two orders -------------------------------------------
 * The message between ranks a (of a slab) and b (of the spectrum) holds the rows of
 * a's planes z and b's planes y, in the order z y x on both ways. */

static void copy_row(const solver *s, complex_number *to, const complex_number *from)
{
    memcpy(to, from, (size_t)s->p->nx * sizeof *to);
}

static void exchange(const solver *s, const complex_number *from, complex_number *to)
{
    int doubles = (int)(2 * s->points / (size_t)s->world.size);
    MPI_Alltoall(from, doubles, MPI_DOUBLE, to, doubles, MPI_DOUBLE, MPI_COMM_WORLD);
}

/* Gathers rows from a slab into messages (packing), or the other way round. */
static void repack_slab(const solver *s, complex_number *slab, complex_number *messages,
                        bool packing)
{
    const size_t nx = (size_t)s->p->nx;
    complex_number *next = messages;

    for (int rank = 0; rank < s->world.size; rank++)
        for (int z = 0; z < s->local_z; z++)
            for (int y = 0; y < s->local_y; y++, next += nx) {
                size_t line = (size_t)z * (size_t)s->p->ny + (size_t)(rank * s->local_y + y);
                if (packing)
                    copy_row(s, next, slab + line * nx);
                else
                    copy_row(s, slab + line * nx, next);
            }
}

/* The same for an array in the spectrum's order. */
static void repack_spectrum(const solver *s, complex_number *spectrum, complex_number *messages,
                            bool packing)
{
    complex_number *next = messages;

    for (int rank = 0; rank < s->world.size; rank++)
        for (int z = 0; z < s->local_z; z++)
            for (int y = 0; y < s->local_y; y++, next += s->p->nx) {
                complex_number *row = spectrum + spectrum_row(s, y, rank * s->local_z + z);
                if (packing)
                    copy_row(s, next, row);
                else
                    copy_row(s, row, next);
            }
}

static void swap_work_and_buffer(solver *s)
{
    complex_number *swap = s->work;
    s->work = s->buffer;
    s->buffer = swap;
}

/* Changes the order of `work`.  Messages are packed into the buffer, received in
 * the place of what they came from, and unpacked into the buffer, which then takes
 * the role of `work`: two arrays are enough. */
static void slabs_to_spectrum_order(solver *s)
{
    if (s->world.size == 1)
        return;
    repack_slab(s, s->work, s->buffer, true);
    exchange(s, s->buffer, s->work);
    repack_spectrum(s, s->buffer, s->work, false);
    swap_work_and_buffer(s);
}

static void spectrum_order_to_slabs(solver *s)
{
    if (s->world.size == 1)
        return;
    repack_spectrum(s, s->work, s->buffer, true);
    exchange(s, s->buffer, s->work);
    repack_slab(s, s->buffer, s->work, false);
    swap_work_and_buffer(s);
}

/* ---- The benchmark ------------------------------------------------------- */

/* Random state in space; every number of a slab follows on the one before. */
static void set_initial_state(solver *s)
{
    uint64_t first = 2 * (uint64_t)s->points * (uint64_t)s->world.rank;
    uint64_t x = npb_random_jump(NPB_RANDOM_SEED, NPB_RANDOM_A, first);
    npb_vranlc(2 * s->points, &x, NPB_RANDOM_A, &s->work->re);
}

static void forward_transform(solver *s)
{
    transform_planes(s, s->work, false);
    slabs_to_spectrum_order(s);
    transform_z(s, false);
}

/* exp(-4 alpha pi^2 k^2 time) for the wave numbers k = 0, 1, ..., -2, -1. */
static void set_decay(double *decay, int n, double time)
{
    for (int i = 0; i < n; i++) {
        double k = i < n / 2 ? i : i - n;
        decay[i] = exp(-4.0 * ALPHA * NPB_PI * NPB_PI * k * k * time);
    }
}

/* The state in space after `time`, in `work`, times the number of points. */
static void state_at(solver *s, double time)
{
    set_decay(s->decay[0], s->p->nx, time);
    set_decay(s->decay[1], s->p->ny, time);
    set_decay(s->decay[2], s->p->nz, time);
    transform_z(s, true);
    spectrum_order_to_slabs(s);
    transform_planes(s, s->work, true);
}

/* Sum over 1024 points spread over the box, on rank 0. */
static complex_number checksum(const solver *s)
{
    const problem *p = s->p;
    const int first_z = s->world.rank * s->local_z;
    const double all_points = (double)p->nx * p->ny * p->nz;
    complex_number here = {0.0, 0.0}, all = {0.0, 0.0};

    for (int j = 1; j <= CHECKSUM_POINTS; j++) {
        int x = j % p->nx, y = 3 * j % p->ny, z = 5 * j % p->nz - first_z;
        if (z < 0 || z >= s->local_z)
            continue;
        size_t line = (size_t)z * (size_t)p->ny + (size_t)y;
        complex_number c = s->work[line * (size_t)p->nx + (size_t)x];
        here.re += c.re;
        here.im += c.im;
    }
    MPI_Reduce(&here, &all, 2, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    all.re /= all_points;
    all.im /= all_points;
    return all;
}

static bool verify(const problem *p, const complex_number *sums)
{
    bool right = true;
    for (int i = 0; i < p->iterations; i++) {
        char label[32];
        snprintf(label, sizeof label, "step %2d real", i + 1);
        right &= npb_verify(label, sums[i].re, p->checksum[i].re, EPSILON);
        snprintf(label, sizeof label, "step %2d imag.", i + 1);
        right &= npb_verify(label, sums[i].im, p->checksum[i].im, EPSILON);
    }
    return right;
}

int main(int argc, char **argv)
{
    const problem *p = &problems[NPB_CLASS_INDEX];
    npb_world world = npb_start(&argc, &argv, "FT", NPB_RANKS_POWER_OF_TWO,
                                p->ny < p->nz ? p->ny : p->nz);
    const double points = (double)p->nx * p->ny * p->nz;
    complex_number sums[MAX_ITERATIONS];
    solver s;
    npb_timer timer;

    solver_init(&s, p, world);
    transformer_init(s.t);
    set_initial_state(&s);
    forward_transform(&s); /* untimed: touches all memory once */

    npb_timer_clear(&timer);
    MPI_Barrier(MPI_COMM_WORLD);
    npb_timer_start(&timer);
    transformer_init(s.t);
    set_initial_state(&s);
    forward_transform(&s);
    for (int i = 0; i < p->iterations; i++) {
        state_at(&s, i + 1.0);
        sums[i] = checksum(&s);
    }
    npb_timer_stop(&timer);
    solver_free(&s);

    npb_result result = {
        .name = "FT",
        .size = {p->nx, p->ny, p->nz},
        .iterations = p->iterations,
        .seconds = npb_slowest(timer.seconds),
        .operations = points * (14.8157 + 7.19641 * log(points) +
                                (5.23518 + 7.21113 * log(points)) * p->iterations),
        .operation = "floating point",
    };
    if (world.rank == 0)
        result.verified = verify(p, sums);
    return npb_finish(world, &result);
}
