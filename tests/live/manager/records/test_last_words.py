"""What is shown of a job that failed: the last line that is the program's own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from conftest import mpirun_environment, mpiruns
from vrm.live.launch.openmpi import find_mpirun
from vrm.live.manager.records.last_lines import last_line

FRAME = "-" * 74 + "\n"

# What the mpiruns print on standard error when a rank has failed, as they printed it.
ABORT_4 = FRAME + """MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD
with errorcode 3.

NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.
You may or may not see output from other processes, depending on
exactly when Open MPI kills them.
""" + FRAME
ABORT_5 = FRAME + """MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD
  Proc: [[58408,1],0]
  Errorcode: 3

NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.
You may or may not see output from other processes, depending on
exactly when Open MPI kills them.
""" + FRAME
EXITED_5 = FRAME + """prterun has exited due to process rank 0 with PID 0 on node vm calling
"abort". This may have caused other processes in the application to be
terminated by signals sent by prterun (as reported here).
""" + FRAME + "\0"
STATUS_4 = FRAME + """Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
""" + FRAME + FRAME + """mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[17293,1],0]
  Exit code:    4
""" + FRAME
STATUS_5 = FRAME + """prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-vm-12448@1,0]
   Exit code:    4
""" + FRAME
UNREACHABLE_5 = ("[vm:12448] PMIX ERROR: PMIX_ERR_UNREACH in file "
                 "/openmpi-5.0.11/3rd-party/openpmix/src/server/pmix_server.c at line 3146\n")
NO_MESSAGE_4 = ("[vm:12134] [[17304,0],0] ORTE_ERROR_LOG: Out of resource in file "
                "../../../orte/util/show_help.c at line 501\n")
BACKTRACE = """[vm:12164] *** Process received signal ***
[vm:12164] Signal: Segmentation fault (11)
[vm:12164] Signal code: Address not mapped (1)
[vm:12164] Failing at address: (nil)
[vm:12164] [ 0] /lib/x86_64-linux-gnu/libc.so.6(+0x3c050)[0x7f0c32d1d050]
[vm:12164] [ 1] ./solver(+0x135f)[0x55b86bce635f]
[vm:12164] *** End of error message ***
"""
SIGNAL_4 = FRAME + "mpirun noticed that process rank 0 with PID 0 on node vm exited on signal 11 (Segmentation fault).\n" + FRAME
SIGNAL_5 = FRAME + ("prterun noticed that process rank 0 with PID 12463 on node vm exited on\n"
                    "signal 11 (Segmentation fault).\n") + FRAME
TRUNCATED = """[vm:12300] *** An error occurred in MPI_Recv
[vm:12300] *** reported by process [1124204545,1]
[vm:12300] *** on communicator MPI_COMM_WORLD
[vm:12300] *** MPI_ERR_TRUNCATE: message truncated
[vm:12300] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,
[vm:12300] ***    and potentially your MPI job)
"""
ABORT_MPICH = "Abort(3) on node 0 (rank 0 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 3) - process 0\n"
INVOKED = "MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD"


@pytest.mark.parametrize("text, line", [
    ("", ""), ("one\ntwo\n\n", "two"), ("no end", "no end"), ("a\tb \n", "a\\tb"), ("\0", ""), ("said\n\0\n\0", "said"),
    ("mine\n" + ABORT_4, "mine"), (ABORT_4, INVOKED),
    ("mine\n" + ABORT_5 + EXITED_5, "mine"), (ABORT_5 + EXITED_5, INVOKED),
    ("mine\n" + STATUS_4, "mine"), (STATUS_4, ""), (STATUS_5, ""), ("mine\n" + STATUS_5, "mine"), ("mine\n" + STATUS_5 + UNREACHABLE_5, "mine"),
    (NO_MESSAGE_4, NO_MESSAGE_4.strip()), ("mine\n" + NO_MESSAGE_4, "mine"),
    ("mine\n" + BACKTRACE + SIGNAL_4, "mine"), ("mine\n" + BACKTRACE + SIGNAL_5, "mine"),
    (BACKTRACE + SIGNAL_4, SIGNAL_4.splitlines()[1]), (BACKTRACE + SIGNAL_5, SIGNAL_5.splitlines()[1]),
    ("mine\n" + TRUNCATED, "MPI_ERR_TRUNCATE: message truncated"),
    ("mine\n" + TRUNCATED + EXITED_5, "MPI_ERR_TRUNCATE: message truncated"),
    ("mine\n" + ABORT_MPICH, "mine"), (ABORT_MPICH, ABORT_MPICH.strip()),
    (FRAME + "There are not enough slots available in the system to satisfy the 3 slots\nthat were\n" + FRAME,
     "There are not enough slots available in the system to satisfy the 3 slots"),
    ("mine\nsrun: error: n0: task 0: Exited with exit code 3\n", "mine"),
    ("x" * 5000, "x" * 160 + "..."),
])
def test_the_last_line_is_the_programs_own(tmp_path: Path, text: str, line: str) -> None:
    (tmp_path / "e").write_text(text)
    assert last_line(tmp_path / "e") == line


def test_the_errors_of_a_launcher_that_are_gone_are_none(tmp_path: Path) -> None:
    assert last_line(tmp_path / "nothing") == ""


ABORTS = """#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    fprintf(stderr, "cannot open mesh nomesh\\n");
    MPI_Abort(MPI_COMM_WORLD, 3);
}
"""


@pytest.mark.mpi
@pytest.mark.parametrize("mpirun", mpiruns())
def test_after_a_real_mpi_abort_too(tmp_path: Path, mpirun: str) -> None:
    env = mpirun_environment()
    found = find_mpirun(mpirun, env)[0]
    compiler = Path(found).with_name("mpicc")
    if not compiler.exists():
        pytest.skip(f"no mpicc with {found}")
    (tmp_path / "aborts.c").write_text(ABORTS)
    subprocess.run([compiler, "aborts.c", "-o", "aborts"], cwd=tmp_path, env=env, check=True)
    with open(tmp_path / "e", "wb") as errors:
        done = subprocess.run([found, "-n", "1", "./aborts"], cwd=tmp_path, env=env, stderr=errors, timeout=60)
    assert done.returncode == 3
    assert last_line(tmp_path / "e") == "cannot open mesh nomesh"
