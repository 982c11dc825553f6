/*
 * IS, integer sort: ranks N keys with a bell-shaped distribution ten times, by
 * a bucket sort whose buckets are shared out among the processes.
 * Integer work and all-to-all exchange (RNR-94-007, section 2.3, kernel IS).
 */
#include "npb.h"

#include <stdio.h>
#include <string.h>

#define ITERATIONS 10
#define PROBES 5 /* keys whose rank is known for every iteration */

typedef int32_t key;
#define MPI_KEY MPI_INT32_T

/*
 * Iteration i changes two keys, which moves the rank of every probe by a known
 * amount: +(i + offset) for probes of the set `rising`, -(i + offset) for the rest.
 */
typedef struct {
    int log2_keys, log2_max_key, log2_buckets;
    int64_t probe_index[PROBES];
    int64_t probe_rank[PROBES];
    bool rising[PROBES];
    int rising_offset, falling_offset;
} problem;

static const problem problems[] = {
    {16, 11, 9,
     {48427, 17148, 23627, 62548, 4431},
     {0, 18, 346, 64917, 65463},
     {true, true, true, false, false}, 0, 0},
    {20, 16, 10,
     {357773, 934767, 875723, 898999, 404505},
     {1249, 11698, 1039987, 1043896, 1048018},
     {true, true, false, false, false}, -2, 0},
    {23, 19, 10,
     {2112377, 662041, 5336171, 3642833, 4250760},
     {104, 17523, 123928, 8288932, 8388264},
     {true, true, true, false, false}, -1, -1},
    {25, 21, 10,
     {41869, 812306, 5102857, 18232239, 26860214},
     {33422937, 10244, 59149, 33135281, 99},
     {false, true, true, false, true}, 0, 0},
    {27, 23, 10,
     {44172927, 72999161, 74326391, 129606274, 21736814},
     {61147, 882988, 266290, 133997595, 133525895},
     {true, true, true, false, false}, 0, 0},
};

/* Everything one process holds.  Arrays with the length of `received` are sized
 * by the untimed first ranking and are large enough from then on. */
typedef struct {
    const problem *p;
    npb_world world;
    int buckets;        /* their number */
    int shift;          /* key >> shift is its bucket */
    int64_t total_keys; /* of all processes */
    int local_keys;     /* generated here */

    key *keys;          /* [local_keys], in the order of generation */
    key *bucketed;      /* [local_keys], the same keys grouped by bucket */
    int *bucket_count;  /* [buckets], of the local keys */
    int *bucket_total;  /* [buckets], of the keys of all processes */
    int *bucket_place;  /* [buckets], next free place in `bucketed` */
    int *send_count, *send_start; /* [ranks] */
    int *recv_count, *recv_start; /* [ranks] */

    key *received;      /* [received_keys], all keys of the buckets owned here */
    int received_keys, received_capacity;
    key first_key;      /* smallest key of the owned buckets */
    int key_range;      /* number of different keys in them */
    int *not_above;     /* [key_range], local keys <= first_key + index */
    int range_capacity;
    int64_t keys_below; /* keys in the buckets of lower ranks */
} sorter;

/* Every key is the mean of four random numbers, scaled to [0, max_key). */
static void generate_keys(sorter *s)
{
    uint64_t first = (uint64_t)s->world.rank * (uint64_t)s->local_keys;
    uint64_t x = npb_random_jump(NPB_RANDOM_SEED, NPB_RANDOM_A, 4 * first);
    double quarter = (double)(1 << (s->p->log2_max_key - 2));

    for (int i = 0; i < s->local_keys; i++) {
        double sum = npb_randlc(&x, NPB_RANDOM_A);
        sum += npb_randlc(&x, NPB_RANDOM_A);
        sum += npb_randlc(&x, NPB_RANDOM_A);
        sum += npb_randlc(&x, NPB_RANDOM_A);
        s->keys[i] = (key)(quarter * sum);
    }
}

static void sorter_init(sorter *s, const problem *p, npb_world world)
{
    size_t ranks = (size_t)world.size;

    memset(s, 0, sizeof *s);
    s->p = p;
    s->world = world;
    s->buckets = 1 << p->log2_buckets;
    s->shift = p->log2_max_key - p->log2_buckets;
    s->total_keys = INT64_C(1) << p->log2_keys;
    s->local_keys = (int)(s->total_keys / world.size);
    s->keys = npb_alloc((size_t)s->local_keys, sizeof *s->keys);
    s->bucketed = npb_alloc((size_t)s->local_keys, sizeof *s->bucketed);
    s->bucket_count = npb_alloc((size_t)s->buckets, sizeof *s->bucket_count);
    s->bucket_total = npb_alloc((size_t)s->buckets, sizeof *s->bucket_total);
    s->bucket_place = npb_alloc((size_t)s->buckets, sizeof *s->bucket_place);
    s->send_count = npb_alloc(ranks, sizeof *s->send_count);
    s->send_start = npb_alloc(ranks, sizeof *s->send_start);
    s->recv_count = npb_alloc(ranks, sizeof *s->recv_count);
    s->recv_start = npb_alloc(ranks, sizeof *s->recv_start);
    generate_keys(s);
}

static void sorter_free(sorter *s)
{
    npb_free(s->keys);
    npb_free(s->bucketed);
    npb_free(s->bucket_count);
    npb_free(s->bucket_total);
    npb_free(s->bucket_place);
    npb_free(s->send_count);
    npb_free(s->send_start);
    npb_free(s->recv_count);
    npb_free(s->recv_start);
    npb_free(s->received);
    npb_free(s->not_above);
}

/* Step 1: groups the local keys by bucket and counts the buckets everywhere.  What the
 * loops over the keys read is kept in local variables: the compiler has to expect that
 * a write to an array of int changes the fields of `s`. */
static void fill_buckets(sorter *s)
{
    const key *restrict keys = s->keys;
    key *restrict bucketed = s->bucketed;
    int *restrict count = s->bucket_count, *restrict next = s->bucket_place;
    const int n = s->local_keys, shift = s->shift;
    int place = 0;

    memset(count, 0, (size_t)s->buckets * sizeof *count);
    for (int i = 0; i < n; i++)
        count[keys[i] >> shift]++;
    for (int b = 0; b < s->buckets; b++) {
        next[b] = place;
        place += count[b];
    }
    for (int i = 0; i < n; i++)
        bucketed[next[keys[i] >> shift]++] = keys[i];
    MPI_Allreduce(s->bucket_count, s->bucket_total, s->buckets, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
}

/* Step 2: gives consecutive buckets to each rank until the ranks so far own
 * their proportional part of the keys.  A rank may remain without buckets. */
static void share_buckets(sorter *s)
{
    int bucket = 0;
    int sent = 0;
    int64_t owned = 0; /* keys owned by the ranks so far */

    s->received_keys = 0;
    for (int r = 0; r < s->world.size; r++) {
        int64_t goal = s->total_keys / s->world.size * (r + 1);
        int first_bucket = bucket;
        int64_t below = owned;
        s->send_start[r] = sent;
        while (bucket < s->buckets && owned < goal) {
            owned += s->bucket_total[bucket];
            sent += s->bucket_count[bucket];
            bucket++;
        }
        if (r == s->world.size - 1) /* trailing empty buckets have an owner too */
            bucket = s->buckets;
        s->send_count[r] = sent - s->send_start[r];
        if (r == s->world.rank) {
            s->keys_below = below;
            s->received_keys = (int)(owned - below);
            s->first_key = (key)first_bucket << s->shift;
            s->key_range = (bucket - first_bucket) << s->shift;
        }
    }
}

static void reserve(int wanted, int *capacity, void **memory, size_t element_size)
{
    if (wanted <= *capacity)
        return;
    npb_free(*memory);
    *memory = npb_alloc((size_t)wanted, element_size);
    *capacity = wanted;
}

/* Step 3: sends every key to the owner of its bucket. */
static void exchange_keys(sorter *s)
{
    int start = 0;
    void *memory = s->received;

    reserve(s->received_keys, &s->received_capacity, &memory, sizeof *s->received);
    s->received = memory;
    MPI_Alltoall(s->send_count, 1, MPI_INT, s->recv_count, 1, MPI_INT, MPI_COMM_WORLD);
    for (int r = 0; r < s->world.size; r++) {
        s->recv_start[r] = start;
        start += s->recv_count[r];
    }
    MPI_Alltoallv(s->bucketed, s->send_count, s->send_start, MPI_KEY, s->received, s->recv_count,
                  s->recv_start, MPI_KEY, MPI_COMM_WORLD);
}

/* Step 4: counts the owned keys; the running sum of the counts gives the rank
 * of every key that can occur here. */
static void count_keys(sorter *s)
{
    void *memory = s->not_above;

    reserve(s->key_range, &s->range_capacity, &memory, sizeof *s->not_above);
    s->not_above = memory;
    memset(s->not_above, 0, (size_t)s->key_range * sizeof *s->not_above);

    const key *restrict keys = s->received;
    int *restrict not_above = s->not_above;
    const int n = s->received_keys, range = s->key_range;
    const key first = s->first_key;
    int sum = 0;
    for (int i = 0; i < n; i++)
        not_above[keys[i] - first]++;
    for (int k = 0; k < range; k++) {
        sum += not_above[k];
        not_above[k] = sum;
    }
}

/* The two keys every iteration changes, so that no ranking repeats the last. */
static void change_keys(sorter *s, int iteration)
{
    if (s->world.rank == 0) {
        s->keys[iteration] = iteration;
        s->keys[iteration + ITERATIONS] = (1 << s->p->log2_max_key) - iteration;
    }
}

/* Hands every process the present keys at the probe positions. */
static void read_probes(const sorter *s, key *probes)
{
    for (int i = 0; i < PROBES; i++) {
        int owner = (int)(s->p->probe_index[i] / s->local_keys);
        if (owner == s->world.rank)
            probes[i] = s->keys[s->p->probe_index[i] % s->local_keys];
        MPI_Bcast(&probes[i], 1, MPI_KEY, owner, MPI_COMM_WORLD);
    }
}

/* Compares the probes' ranks with the official ones; returns how many that are
 * found here are right. */
static int check_probes(const sorter *s, const key *probes, int iteration)
{
    const problem *p = s->p;
    int right = 0;

    for (int i = 0; i < PROBES; i++) {
        int index = probes[i] - s->first_key;
        if (index < 0 || index >= s->key_range)
            continue;
        int64_t rank = s->keys_below + (index == 0 ? 0 : s->not_above[index - 1]);
        int64_t official = p->rising[i] ? p->probe_rank[i] + (iteration + p->rising_offset)
                                        : p->probe_rank[i] - (iteration + p->falling_offset);
        char label[64];
        snprintf(label, sizeof label, "iteration %d: rank of key %lld", iteration,
                 (long long)p->probe_index[i]);
        right += npb_verify_integer(label, rank, official);
    }
    return right;
}

/* Ranks all keys once; returns the number of probes right on this process. */
static int rank_keys(sorter *s, int iteration)
{
    key probes[PROBES];

    change_keys(s, iteration);
    read_probes(s, probes);
    fill_buckets(s);
    share_buckets(s);
    exchange_keys(s);
    count_keys(s);
    return check_probes(s, probes, iteration);
}

/*
 * Full verification: puts the keys where their ranks say, then looks for
 * neighbours out of order, also across processes.  Collective; returns the
 * number of faults on this process.
 */
static int64_t count_disorder(sorter *s)
{
    int n = s->received_keys;
    int64_t faults = 0;

    /* The unsorted keys have served; the sorted ones take their place in memory. */
    npb_free(s->keys);
    npb_free(s->bucketed);
    s->keys = s->bucketed = NULL;
    key *sorted = npb_alloc((size_t)n, sizeof *sorted);
    bool *taken = npb_alloc((size_t)n, sizeof *taken);

    for (int i = 0; i < n; i++) {
        int place = --s->not_above[s->received[i] - s->first_key];
        if (place < 0 || place >= n || taken[place]) {
            faults++;
            continue;
        }
        taken[place] = true;
        sorted[place] = s->received[i];
    }
    for (int i = 1; i < n; i++)
        faults += sorted[i - 1] > sorted[i];

    /* The largest key of all lower ranks; -1 where there is none. */
    key last = n > 0 ? sorted[n - 1] : -1;
    key largest_below = -1;
    MPI_Exscan(&last, &largest_below, 1, MPI_KEY, MPI_MAX, MPI_COMM_WORLD);
    if (s->world.rank > 0 && n > 0)
        faults += largest_below > sorted[0];

    npb_free(sorted);
    npb_free(taken);
    return faults;
}

int main(int argc, char **argv)
{
    const problem *p = &problems[NPB_CLASS_INDEX];
    npb_world world =
        npb_start(&argc, &argv, "IS", NPB_RANKS_POWER_OF_TWO, 1 << p->log2_buckets);
    sorter s;
    npb_timer timer;
    int right = 0;

    sorter_init(&s, p, world);
    rank_keys(&s, 1); /* untimed: touches the memory, sizes the buffers */

    npb_timer_clear(&timer);
    MPI_Barrier(MPI_COMM_WORLD);
    npb_timer_start(&timer);
    for (int iteration = 1; iteration <= ITERATIONS; iteration++)
        right += rank_keys(&s, iteration);
    npb_timer_stop(&timer);

    /* found[0]: right probes, [1]: places out of order, [2]: keys in all */
    int64_t here[3] = {right, count_disorder(&s), s.received_keys};
    int64_t found[3];
    MPI_Reduce(here, found, 3, MPI_INT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    sorter_free(&s);

    npb_result result = {
        .name = "IS",
        .size = {INT64_C(1) << p->log2_keys, 0, 0},
        .iterations = ITERATIONS,
        .seconds = npb_slowest(timer.seconds),
        .operations = (double)ITERATIONS * (double)(INT64_C(1) << p->log2_keys),
        .operation = "keys ranked",
    };
    if (world.rank == 0) {
        printf(" ranks right     %15lld of %d\n", (long long)found[0], PROBES * ITERATIONS);
        printf(" out of order    %15lld\n", (long long)found[1]);
        result.verified = found[0] == PROBES * ITERATIONS && found[1] == 0 &&
                          found[2] == INT64_C(1) << p->log2_keys;
    }
    return npb_finish(world, &result);
}
