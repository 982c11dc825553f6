/* Two codes that exchange a field: for tests of coupled jobs.
 *
 *   exchange STEPS [CODE [STATUS]]
 *
 * The ranks of each program hold a field of CELLS numbers together: all are 1 + the program's number at first. In each
 * step the programs give each other the mean of their fields, and each number becomes (3 * own + other's mean) / 4. In
 * the end the first rank of each program prints the mean. The program CODE aborts with STATUS instead,
 * after the steps; where it is negative, it exits with that without a word.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CELLS = 840 };

int main(int argc, char **argv) {
  int rank, size, own, ranks, there, *context;
  char host[256], list[256] = "-", line[4096];
  double field[CELLS];
  MPI_Comm mine, other;

  alarm(120); /* whatever goes wrong */
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &context, &there); /* srun sets none */
  const int code = strstr(argv[0], "atmos") != NULL;
  gethostname(host, sizeof host);
  FILE *file = fopen("/proc/self/status", "r");
  while (file && fgets(line, sizeof line, file)) sscanf(line, "Cpus_allowed_list: %255s", list);
  printf("rank %d of %d on %s cpus %s context %d threads %s\n", rank, size, host, list, there ? *context : -1, getenv("OMP_NUM_THREADS"));

  MPI_Comm_split(MPI_COMM_WORLD, code, rank, &mine);
  MPI_Comm_rank(mine, &own);
  MPI_Comm_size(mine, &ranks);
  int leader = own == 0 ? rank : size, first;                        /* of the other program, in the world */
  int leaders[2] = {code == 0 ? leader : size, code == 1 ? leader : size}, least[2];
  MPI_Allreduce(leaders, least, 2, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  first = least[1 - code];
  MPI_Intercomm_create(mine, 0, MPI_COMM_WORLD, first, 7, &other);

  const int cells = CELLS / ranks;
  for (int at = 0; at < cells; at++) field[at] = 1 + code;
  double mean = 0;
  for (int step = atoi(argv[1]); step >= 0; step--) {
    double sum = 0, theirs = 0;
    for (int at = 0; at < cells; at++) sum += field[at] / CELLS;
    MPI_Allreduce(&sum, &mean, 1, MPI_DOUBLE, MPI_SUM, mine);
    if (own == 0) MPI_Sendrecv(&mean, 1, MPI_DOUBLE, 0, 1, &theirs, 1, MPI_DOUBLE, 0, 1, other, MPI_STATUS_IGNORE);
    MPI_Bcast(&theirs, 1, MPI_DOUBLE, 0, mine);
    for (int at = 0; at < cells && step; at++) field[at] = (3 * field[at] + theirs) / 4;
  }
  if (own == 0) printf("code %d mean %.9f\n", code, mean);
  fflush(stdout);
  MPI_Barrier(MPI_COMM_WORLD);
  const int status = argc > 3 && atoi(argv[2]) == code ? atoi(argv[3]) : 0;
  if (status > 0) MPI_Abort(MPI_COMM_WORLD, status);
  if (status < 0) _exit(-status);
  MPI_Finalize();
  return 0;
}
