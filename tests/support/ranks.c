/* An MPI program for tests of launchers: every rank tells where it is, on which CPUs, and
 * when it began and ended.
 *
 *   ranks FOLDER NAME [OTHER [LIMIT [ENDING]]]
 *
 * Rank R makes the file FOLDER/NAME.R and waits until there is a file FOLDER/OTHER, but no longer
 * than LIMIT seconds. Then it ends, rank 1 as ENDING says: `exit=N`, `abort=N` or `signal=N`.
 */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* The CPUs that this process may use, as the kernel lists them. */
static void cpus(char *list) {
  char line[4096];
  FILE *file = fopen("/proc/self/status", "r");
  strcpy(list, "-");
  while (file && fgets(line, sizeof line, file))
    sscanf(line, "Cpus_allowed_list: %255s", list);
  if (file) fclose(file);
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
  int rank, size, number, met = 1;
  char host[256], list[256], path[4096];
  const char *folder = argv[1], *name = argv[2], *other = argc > 3 ? argv[3] : "";
  const double limit = argc > 4 ? atof(argv[4]) : 20;
  const char *ending = argc > 5 ? argv[5] : "";
  struct stat found;

  alarm(120); /* whatever goes wrong */
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  gethostname(host, sizeof host);
  cpus(list);
  const double start = now();
  printf("rank %d of %d on %s pid %d cpus %s job %s start %.6f\n", rank, size, host, (int)getpid(),
         list, getenv("VRM_JOB_ID") ? getenv("VRM_JOB_ID") : "-", start);
  fflush(stdout);
  snprintf(path, sizeof path, "%s/%s.%d", folder, name, rank);
  fclose(fopen(path, "w"));
  if (*other) {
    snprintf(path, sizeof path, "%s/%s", folder, other);
    while ((met = stat(path, &found) == 0) == 0 && now() < start + limit) usleep(5000);
  }
  printf("rank %d end %.6f met %d\n", rank, now(), met);
  fflush(stdout);
  if (rank == 1 && sscanf(ending, "exit=%d", &number) == 1) _exit(number);
  if (rank == 1 && sscanf(ending, "abort=%d", &number) == 1) MPI_Abort(MPI_COMM_WORLD, number);
  if (rank == 1 && sscanf(ending, "signal=%d", &number) == 1) raise(number);
  MPI_Finalize();
  return 0;
}
