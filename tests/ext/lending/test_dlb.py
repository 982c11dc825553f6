"""Orders to processes that follow by DLB: through a stand-in for its library, which can fail and hang, and through
the real one where VRM_TEST_LIBDLB names it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from conftest import wait_until
from support.agents import CPUS, OPEN_MPI, Jobs, StandIn, jobs, nodes, two_cpus  # noqa: F401
from support.shim import HERE, can_build
from vrm.ext.lending.job_variables import following
from vrm.ext.lending.nodes import dlb
from vrm.live.runner import proc
from vrm.ext.lending.orders import MaskReport, set_masks
from vrm.live.nodes.agent_events import SweepDone

ONE, BOTH = frozenset(CPUS[:1]), frozenset(CPUS[:2])

LIBRARY = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void note(const char *what, int pid, const unsigned char *mask)
{
    FILE *file = fopen(getenv("DLB_NOTES"), "a");
    fprintf(file, "%s %d %d\n", what, pid == atoi(getenv("DLB_RANK")), mask ? mask[0] : 0);
    fclose(file);
}
int DLB_DROM_Attach(void)
{
    const char *how = getenv("DLB_HOW");
    if (!strcmp(how, "dies"))
        abort();
    if (!strcmp(how, "hangs"))
        sleep(600);
    note("attach", 0, NULL);
    return strcmp(how, "refuses") ? 0 : -4;
}
int DLB_DROM_SetProcessMask(int pid, const unsigned char *mask, int flags)
{
    static int calls;
    note("set", pid, mask);
    return flags ? -1 : ++calls < 3 ? -7 : 0; /* the last order is not taken yet, at first */
}
int DLB_DROM_Detach(void)
{
    note("detach", 0, NULL);
    return 0;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in."""
    folder = tmp_path_factory.mktemp("dlb")
    if not shutil.which("gcc"):
        pytest.skip("no gcc")
    (folder / "dlb.c").write_text(LIBRARY)
    subprocess.run(["gcc", "-shared", "-fPIC", "dlb.c", "-o", "libdlb.so"], cwd=folder, check=True)
    return folder / "libdlb.so"


@two_cpus
@pytest.mark.parametrize("how, taken", [("works", True), ("refuses", False), ("dies", False), ("hangs", False)])
def test_an_order_goes_through_the_library(library: Path, nodes: StandIn, jobs: Jobs, tmp_path: Path,
                                           monkeypatch: pytest.MonkeyPatch, how: str, taken: bool) -> None:
    """Whatever the library does, the kernel's masks are set."""
    notes = tmp_path / "notes"
    notes.touch()
    rank = jobs.start("wait()", OMPI_COMM_WORLD_RANK="0", LD_PRELOAD=str(library), DLB_ARGS="--drom --ompt")
    monkeypatch.setenv("DLB_NOTES", str(notes))
    monkeypatch.setenv("DLB_HOW", how)
    monkeypatch.setenv("DLB_RANK", str(rank.pid))
    loop = nodes.make("n1").start()
    for epoch in (1, 1):  # asking again is allowed
        set_masks(loop.agents, 1, epoch, {"n1": {0: ONE}}, OPEN_MPI)
        answer = loop.next(MaskReport)
        assert answer.clear and answer.acknowledged == ({0} if taken else set())
        assert os.sched_getaffinity(rank.pid) == ONE
        if how == "hangs":
            break
    if taken:
        bits = sum(1 << cpu for cpu in ONE if cpu < 8)
        assert notes.read_text().split("\n")[:5] == ["attach 0 0", *[f"set 1 {bits}"] * 3, "detach 0 0"]
    loop.agents.sweep(1)
    loop.next(SweepDone)


def test_who_follows_by_dlb(library: Path, jobs: Jobs) -> None:
    """A process that has the library and is run with --drom; such a job gets no shim."""
    def of(**env: str) -> str:
        process = jobs.start("wait()", **env)
        return dlb.dlb_library(process.pid, proc.environment_of(process.pid))

    assert of(LD_PRELOAD=str(library), DLB_ARGS="--lewi --drom") == str(library)
    assert of(LD_PRELOAD=str(library), DLB_ARGS="--lewi") == of(DLB_ARGS="--drom") == of() == ""
    variables, reason = following("/bin/sh", "r", 1, {"DLB_ARGS": "--drom", "LD_PRELOAD": str(library)})
    assert "LD_PRELOAD" not in variables and not reason


@two_cpus
def test_the_real_library(nodes: StandIn, tmp_path: Path) -> None:
    real = os.environ.get("VRM_TEST_LIBDLB", "")
    if not real or not can_build("clang", tmp_path):
        pytest.skip("set VRM_TEST_LIBDLB to the path of libdlb.so (and have clang with OpenMP)")
    subprocess.run(["clang", "-O1", "-fopenmp", HERE / "patterns.c", "-o", tmp_path / "patterns"], check=True)
    loop = nodes.make("n1").start()
    env = {**os.environ, "VRM_RUN": loop.agents.run, "VRM_JOB_ID": "1", "OMPI_COMM_WORLD_RANK": "0",
           "OMP_NUM_THREADS": "2", "LD_PRELOAD": real, "DLB_ARGS": f"--drom --ompt --shm-key=vrm{os.getpid()}"}
    process = subprocess.Popen([tmp_path / "patterns", "asks"], env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "started with 2\n"

        def order(epoch: int, cpus: Any) -> MaskReport:
            set_masks(loop.agents, 1, epoch, {"n1": {0: cpus}}, OPEN_MPI)
            answer: MaskReport = loop.next(MaskReport)
            return answer

        epochs = iter(range(1, 1000))
        loop.until(lambda: order(next(epochs), BOTH).acknowledged == {0}, "DLB knows the process")
        answer = order(next(epochs), ONE)
        assert answer.clear and answer.acknowledged == {0}
        threads: list[int] = proc.threads(process.pid)
        wait_until(lambda: all(os.sched_getaffinity(thread) == ONE for thread in threads), "all are there")
        loop.agents.sweep(1)
        loop.next(SweepDone)
    finally:
        process.kill()
        process.communicate()
