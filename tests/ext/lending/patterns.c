/*
 * The ways in which programs rely on the number of threads, each counting what goes wrong:
 *
 *     patterns MODE [TIMES]     runs until SIGTERM, then prints what it has seen
 *
 * asks      an array sized once; in each round: ask for the maximum, a region writes an entry for each
 *           thread, all of the maximum are read (LULESH's courant constraint)
 * fortran   as asks, by the name that Fortran programs call
 * sets      as asks, and sets the number itself before each second region
 * broken    the maximum is asked for once, at the start: no rule can save it
 * later     the maximum is asked for after the region: nor this, which looks like `asks`
 * refuses   ends with status 3 when the number of threads has changed (CP2K's DBCSR)
 * all       each kind of construct, and checks its sums. Prints a line when the number of threads has changed
 *           TIMES times
 */
#include <omp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 64
#define ITEMS 200

extern int omp_get_max_threads_(void);

static volatile sig_atomic_t over;
static void end(int number)
{
    (void)number;
    over = 1;
}

static long rounds, stale, widest, wrong, clause, changes, last;

static void saw(int team)
{
    changes += last && team != last;
    last = team;
    widest = team > widest ? team : widest;
}

static void all_constructs(void)
{
    static const long right = (long)ITEMS * (ITEMS - 1) / 2;
    long sum = 0, other = 0;

#pragma omp parallel for schedule(dynamic, 3) reduction(+ : sum)
    for (int i = 0; i < ITEMS; i++)
        sum += i;
    wrong += sum != right;
    sum = 0;
#pragma omp parallel for schedule(guided) reduction(+ : sum)
    for (int i = 0; i < ITEMS; i++)
        sum += i;
    wrong += sum != right;
    sum = 0;
#pragma omp parallel for schedule(runtime) reduction(+ : sum)
    for (int i = 0; i < ITEMS; i++)
        sum += i;
    wrong += sum != right;
    sum = 0;
#pragma omp parallel sections reduction(+ : sum)
    {
#pragma omp section
        sum += 1;
#pragma omp section
        sum += 2;
#pragma omp section
        sum += 4;
    }
    wrong += sum != 7;
    sum = 0;
#pragma omp parallel reduction(task, + : sum)
#pragma omp single
    for (int i = 0; i < ITEMS; i++)
#pragma omp task in_reduction(+ : sum) firstprivate(i)
        sum += i;
    wrong += sum != right;
    sum = 0;
#pragma omp teams num_teams(2) reduction(+ : sum)
#pragma omp distribute parallel for reduction(+ : sum)
    for (int i = 0; i < ITEMS; i++)
        sum += i;
    wrong += sum != right;
    sum = 0;
#pragma omp parallel reduction(+ : sum, other)
    {
#pragma omp parallel for num_threads(2) reduction(+ : other)
        for (int i = 0; i < ITEMS; i++)
            other += i;
        sum += right;
    }
    wrong += sum != other;
#pragma omp parallel num_threads(3)
#pragma omp master
    clause += omp_get_num_threads() != 3;
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "asks";
    const int start = omp_get_max_threads();
    long times = argc > 2 ? atol(argv[2]) : 0;
    long written[MOST] = {0};
    int most = start;

    signal(SIGTERM, end);
    printf("started with %d\n", start);
    fflush(stdout);
    do {
        if (!strcmp(mode, "asks") || !strcmp(mode, "sets"))
            most = omp_get_max_threads();
        else if (!strcmp(mode, "fortran"))
            most = omp_get_max_threads_();
        if (!strcmp(mode, "sets") && rounds % 2)
            omp_set_num_threads(most = start);
        rounds++;
#pragma omp parallel
        {
#pragma omp master
            saw(omp_get_num_threads());
            written[omp_get_thread_num()] = rounds;
        }
        if (!strcmp(mode, "later"))
            most = omp_get_max_threads();
        if (!strcmp(mode, "refuses") && last != start) {
            fprintf(stderr, "Thread number has changed\n");
            return 3;
        }
        for (int i = 0; i < most; i++)
            stale += written[i] != rounds;
        stale += last > most; /* entries that were missed */
        if (!strcmp(mode, "all"))
            all_constructs();
        if (times && changes >= times) {
            printf("changed %ld times\n", times);
            fflush(stdout);
            times = 0;
        }
    } while (!over);
    printf("rounds %ld stale %ld widest %ld wrong %ld clause %ld changes %ld\n", rounds, stale, widest, wrong,
           clause, changes);
    return 0;
}
