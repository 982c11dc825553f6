/* The compression of conservative backfilling: every reservation, in the order of the queue, moves to its earliest
 * hole. It performs the same operations on the same numbers as the Python version,
 * `vrm.scheduling.backfilling.compressing.compress`, so the plans are bit-identical. */

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    double *times;
    int64_t *free;
    int64_t steps;
} plan;

/* Returns the first step at `time` or later among the first `count`; `count` if there is none. */
static int64_t at_or_after(const double *times, int64_t count, double time)
{
    int64_t low = 0;
    while (count > low) {
        int64_t middle = low + (count - low) / 2;
        if (times[middle] < time)
            low = middle + 1;
        else
            count = middle;
    }
    return low;
}

/* Returns the first step after `time` among the first `count`; `count` if there is none. */
static int64_t after(const double *times, int64_t count, double time)
{
    int64_t low = 0;
    while (count > low) {
        int64_t middle = low + (count - low) / 2;
        if (times[middle] <= time)
            low = middle + 1;
        else
            count = middle;
    }
    return low;
}

static int64_t step_at(plan *p, double time)
{
    int64_t at = at_or_after(p->times, p->steps, time);
    if (at == p->steps || p->times[at] != time) {
        int64_t free = p->free[at ? at - 1 : p->steps - 1];
        memmove(p->times + at + 1, p->times + at, (size_t)(p->steps - at) * sizeof(double));
        memmove(p->free + at + 1, p->free + at, (size_t)(p->steps - at) * sizeof(int64_t));
        p->times[at] = time;
        p->free[at] = free;
        p->steps++;
    }
    return at;
}

static void drop(plan *p, int64_t at)
{
    memmove(p->times + at, p->times + at + 1, (size_t)(p->steps - at - 1) * sizeof(double));
    memmove(p->free + at, p->free + at + 1, (size_t)(p->steps - at - 1) * sizeof(int64_t));
    p->steps--;
}

/* Frees (or allocates, if negative) units from begin to end. */
static void change(plan *p, double begin, double end, int64_t units)
{
    int64_t first, last, at;
    if (!(begin < end))
        return;
    first = step_at(p, begin);
    last = end < INFINITY ? step_at(p, end) : p->steps;
    for (at = first; at < last; at++)
        p->free[at] += units;
    if (last < p->steps && p->free[last] == p->free[last - 1])
        drop(p, last);
    if (first && p->free[first] == p->free[first - 1])
        drop(p, first);
}

static int64_t most(const plan *p, double begin, double end)
{
    int64_t first = after(p->times, p->steps, begin) - 1, last = at_or_after(p->times, p->steps, end);
    int64_t at, found;
    if (first < 0)
        first = 0;
    if (last <= first)
        return 0;
    found = p->free[first];
    for (at = first + 1; at < last; at++)
        if (p->free[at] > found)
            found = p->free[at];
    return found;
}

/* Returns the first time from which `size` units are free for `duration`, or until `limit`; returns `limit` if there
 * is none before it. The caller guarantees that no such time is at `until` or later. */
static double hole(const plan *p, int64_t size, double duration, double limit, double until)
{
    const double *times = p->times;
    const int64_t *free = p->free;
    int64_t stop = limit == INFINITY ? p->steps : at_or_after(times, p->steps, limit), begins = stop, at;
    double begin = -1.0, end = -1.0;
    if (limit < INFINITY && stop && free[stop - 1] < size) { /* it must end before the last blocked steps */
        int64_t blocked = stop - 1;
        while (blocked && free[blocked - 1] < size)
            blocked--;
        if (times[0] + duration > times[blocked])
            return limit;
        begins = after(times, blocked, times[blocked] - duration) + 1;
        if (begins > stop)
            begins = stop;
    }
    if (until < times[p->steps - 1])
        begins = at_or_after(times, begins, until);
    for (at = 0; at < stop; at++) {
        if (free[at] < size) {
            if (at + 1 >= begins)
                return limit;
            begin = -1.0;
        } else {
            if (begin < 0) {
                begin = times[at];
                end = begin + duration;
            }
            if (at + 1 == stop || times[at + 1] >= end) /* a step lasts until the next one, the last step for ever */
                return begin;
        }
    }
    return limit;
}

/* `times` and `free` have `steps` steps, and space for four more for each of the `rows` of `order`. `time` are
 * the starts, which are changed. `freed` is the time until which more is free than before; it is set to the time
 * until which moves have freed units for jobs handled earlier (-INFINITY if none). Returns the number of steps. */
__attribute__((visibility("default")))
int64_t vrm_compress(double *times, int64_t *free, int64_t steps, const int64_t *order, int64_t rows,
                     const int64_t *size, const double *duration, double *time, double *freed)
{
    plan p = {times, free, steps};
    double now = times[0], until = *freed, left = -INFINITY;
    int64_t room = most(&p, now, until), turn;
    for (turn = 0; turn < rows; turn++) {
        int64_t row = order[turn], units = size[row], more;
        double old = time[row], new, end;
        if (units > room || old <= now)
            continue;
        new = hole(&p, units, duration[row], old, until);
        if (!(new < old))
            continue;
        end = new + duration[row];
        change(&p, new, old < end ? old : end, -units);
        change(&p, old > end ? old : end, old + duration[row], units);
        time[row] = new;
        if (old == INFINITY)
            continue;
        more = most(&p, old > end ? old : end, old + duration[row]);
        end = old + duration[row];
        if (end > left)
            left = end;
        if (end > until)
            until = end;
        if (more > room)
            room = more;
    }
    *freed = left;
    return p.steps;
}
