/* An MPI program that computes as long as nobody makes the file `done` of its job, for tests of jobs that stand still.
 *
 *   rounds
 *
 * In each round all ranks sum up their numbers and the round, without a pause. Rank R writes its process and the round to
 * $HERE/round.JOB.R about every hundredth of a second. In the end rank 0 prints the rounds, or that a sum was wrong.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int argc, char **argv) {
  int rank, size, over = 0, wrong = 0;
  char mine[4096], next[4096], done[4096];
  struct stat found;

  alarm(3600); /* whatever goes wrong */
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const char *here = getenv("HERE"), *job = getenv("VRM_JOB_ID");
  snprintf(mine, sizeof mine, "%s/round.%s.%d", here, job, rank);
  snprintf(next, sizeof next, "%s/.round.%s.%d", here, job, rank);
  snprintf(done, sizeof done, "%s/done.%s", here, job);
  double written = 0;
  long round = 0;
  while (!over) {
    long add = rank + round, sum = 0;
    MPI_Allreduce(&add, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    wrong |= sum != size * (size - 1L) / 2 + size * round;
    round++;
    if (MPI_Wtime() > written + 0.01) {
      FILE *file = fopen(next, "w");
      fprintf(file, "%d %ld\n", (int)getpid(), round);
      fclose(file);
      rename(next, mine);
      written = MPI_Wtime();
    }
    if (round % 64 == 0) {
      over = !rank && stat(done, &found) == 0;
      MPI_Bcast(&over, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
  }
  if (!rank) printf("%s after %ld rounds\n", wrong ? "WRONG" : "right", round);
  MPI_Finalize();
  return wrong;
}
