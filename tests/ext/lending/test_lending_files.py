"""The file of a process: what each side makes of it when all is well, and when somebody else has been at it."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess

from pathlib import Path
from typing import Any
from collections.abc import Iterator

import pytest

from conftest import LIMIT, wait_until
from support.agents import OPEN_MPI, Jobs, StandIn, jobs, nodes  # noqa: F401
from vrm.ext.lending import build, vrm_lending
from vrm.ext.lending.nodes import lending
from vrm.live.runner import proc
from vrm.ext.lending.orders import MASKS, MaskReport, set_masks
from vrm.live.nodes.agent_events import SweepDone

CPUS = frozenset(os.sched_getaffinity(0))
FEW = frozenset(sorted(CPUS)[:1])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a job, of which this process is a part."""
    monkeypatch.setenv("VRM_LENDING", str(tmp_path / "job"))
    return tmp_path / "job"


@pytest.fixture
def cores(place: Path) -> Iterator[vrm_lending.Lending]:
    """This process's side."""
    found = vrm_lending.Lending()
    assert found.active
    yield found
    found.close()


def write_order(place: Path, epoch: int, cpus: Any = FEW, **more: Any) -> dict[str, int] | None:
    """vrm's side."""
    stat = proc.read_stat(os.getpid())
    assert stat is not None
    return lending.write_order(str(place), os.getpid(), stat[1], epoch, cpus, **more)


def test_an_order_and_its_acknowledgement(place: Path, cores: vrm_lending.Lending) -> None:
    assert cores.take() is None
    assert write_order(place, 5, FEW, share=(2, 8)) == {"acknowledged": 0, "threads": 0}
    wanted = cores.take()
    assert wanted == vrm_lending.Wanted(5, 2, 8, FEW) and cores.take() is None
    cores.acknowledge(wanted, wanted.threads(8))
    assert write_order(place, 5) == write_order(place, 4) == {"acknowledged": 5, "threads": 2}
    assert cores.take() is None  # neither was news
    for epoch in range(6, 600):  # the index begins again at 0
        write_order(place, epoch, share=(epoch, 999))
        found = cores.take()
        assert found is not None and (found.epoch, found.cores) == (epoch, epoch)
    assert write_order(place, 600) is not None
    counted = cores.take()
    assert counted is not None and counted.cores == 1 and counted.of == lending.count(CPUS)


@pytest.mark.parametrize("at_start, cores_now, of, threads", [
    (4, 4, 4, 4), (4, 2, 4, 2), (4, 1, 4, 1), (2, 2, 4, 2), (2, 1, 4, 1), (8, 2, 4, 4), (8, 1, 4, 2),
    (6, 1, 4, 2), (1, 3, 4, 1), (4, 8, 4, 4), (3, 0, 4, 1)])
def test_how_many_threads(at_start: int, cores_now: int, of: int, threads: int) -> None:
    assert vrm_lending.Wanted(1, cores_now, of, CPUS).threads(at_start) == threads


def test_a_writer_that_died_in_between_is_not_heard(place: Path, cores: vrm_lending.Lending) -> None:
    """The index still points to the other buffer, which is complete."""
    write_order(place, 1, share=(3, 4))
    path = place / str(os.getpid())
    index = path.read_bytes()[lending.INDEX]
    with open(path, "r+b") as file:
        file.seek(lending.FIRST + lending.WANTED.size * (1 - (index & 1)))
        file.write(b"\xff" * 300)
    found = cores.take()
    assert found is not None and (found.epoch, found.cores) == (1, 3)
    assert write_order(place, 2, share=(1, 4)) is not None  # the next writer writes it whole
    found = cores.take()
    assert found == vrm_lending.Wanted(2, 1, 4, FEW)


def spoil(path: Path, how: str) -> None:
    """What others may do to a file."""
    text = path.read_bytes()
    if how == "cut":
        os.truncate(path, 100)
    elif how == "empty":
        os.truncate(path, 0)
    elif how == "longer":
        os.truncate(path, 1 << 20)
    elif how == "foreign":
        path.write_bytes(b"something else".ljust(lending.SIZE, b"!"))
    elif how == "another process":
        path.write_bytes(text[:16] + struct.pack("=I", 1) + text[20:])
    elif how == "an earlier process of that number":
        path.write_bytes(text[:24] + struct.pack("=Q", 1) + text[32:])
    else:
        path.unlink()
        if how == "link":
            path.with_name("x").write_bytes(text)
            path.symlink_to(path.with_name("x"))
        elif how == "folder":
            path.mkdir()
        elif how == "pipe":
            os.mkfifo(path)
        elif how == "owner":
            path.write_bytes(text)
            os.chown(path, 12345, -1)


@pytest.mark.parametrize("how", ["cut", "empty", "longer", "foreign", "another process", "gone", "link", "folder",
                                 "pipe", "an earlier process of that number", "owner"])
def test_a_file_that_is_not_as_it_must_be_is_nobodys(place: Path, cores: vrm_lending.Lending, how: str) -> None:
    if how == "owner" and os.geteuid():
        pytest.skip("only root gives files away")
    path = place / str(os.getpid())
    whole = path.read_bytes()
    spoil(path, how)
    assert write_order(place, 1) is None
    for left in place.iterdir():
        if left.is_dir():
            left.rmdir()
        else:
            left.unlink()
    path.write_bytes(whole)
    path.chmod(0o600)
    assert write_order(place, 1) is not None  # the file alone was the reason


def test_a_folder_of_others_is_not_used(place: Path, cores: vrm_lending.Lending) -> None:
    place.chmod(0o755)
    assert write_order(place, 1) is None
    lending.remove(str(place))
    assert len(list(place.iterdir())) == 1  # nor emptied
    assert not vrm_lending.Lending().active
    place.chmod(0o700)
    assert write_order(place, 1) is not None


def test_one_writer_at_a_time(place: Path, cores: vrm_lending.Lending) -> None:
    with open(place / str(os.getpid()), "r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert write_order(place, 1) is None
    assert write_order(place, 1) is not None


def test_outside_of_a_job_nothing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for place in ("", "relative", str(tmp_path / "no" / "such")):
        monkeypatch.setenv("VRM_LENDING", place)
        found = vrm_lending.Lending()
        assert not found.active and found.take() is None
        found.acknowledge(vrm_lending.Wanted(1, 1, 1, CPUS), 1)
        found.close()


C_PROGRAM = r"""
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "vrm_lending.h"
int main(void)
{
    struct vrm_lending *cores = vrm_lending_open(VRM_LENDING_PROGRAM);
    struct vrm_lending_wanted wanted;
    printf("%d\n", cores != NULL);
    fflush(stdout);
    while (getchar() != EOF) {
        if (vrm_lending_take(cores, &wanted)) {
            int threads = vrm_lending_threads(&wanted, 8);
            vrm_lending_pin(&wanted, 0);
            vrm_lending_acknowledge(cores, &wanted, threads);
            printf("%llu %u %u %d\n", (unsigned long long)wanted.epoch, wanted.cores, wanted.of, threads);
        } else
            printf("-\n");
        fflush(stdout);
    }
    vrm_lending_close(cores);
    return 0;
}
"""


@pytest.mark.parametrize("language", ["c", "c++"])
def test_the_header(tmp_path: Path, place: Path, language: str) -> None:
    """A program in C, or C++, that follows its cores by itself."""
    compiler = shutil.which("gcc" if language == "c" else "g++")
    if not compiler:
        pytest.skip(f"no compiler of {language}")
    (tmp_path / "own.c").write_text(C_PROGRAM)
    standard = "-std=c99" if language == "c" else "-std=c++11"
    subprocess.run([compiler, "-x", language, standard, "-Wall", "-Wextra", "-Werror", "-I", build.HERE, "own.c",
                    "-o", "own"], cwd=tmp_path, check=True)

    def ask(process: subprocess.Popen[str]) -> str:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(".")
        process.stdin.flush()
        return process.stdout.readline().strip()

    with subprocess.Popen([tmp_path / "own"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "1\n"
        stat = proc.read_stat(process.pid)
        assert stat is not None
        assert ask(process) == "-"
        assert lending.write_order(str(place), process.pid, stat[1], 3, FEW, (2, 4)) is not None
        assert ask(process) == "3 2 4 4" and ask(process) == "-"
        assert os.sched_getaffinity(process.pid) == FEW
        assert lending.write_order(str(place), process.pid, stat[1], 3, FEW) == {"acknowledged": 3, "threads": 4}
        lending.write_order(str(place), process.pid, stat[1], 4, FEW)
        assert ask(process) == f"4 1 {lending.count(CPUS)} {-(-8 // lending.count(CPUS))}"
        process.communicate(timeout=LIMIT)
    assert list(place.iterdir()) == []


# ----------------------------------------------------------------------------------------- agents


@pytest.mark.skipif(len(CPUS) < 2, reason="needs 2 CPUs")
def test_an_agent_writes_the_order_and_says_who_follows(nodes: StandIn, jobs: Jobs) -> None:
    """Also to a process that makes its file after the order; a sweep removes the folder."""
    loop = nodes.make("n1").start()
    run = loop.agents.run
    place = lending.folder(run, 1)
    module = Path(vrm_lending.__file__).parent
    follower = (f"sys.path.insert(0, {str(module)!r})\nimport vrm_lending\n"
                "cores = vrm_lending.Lending()\nassert cores.active\nprint(flush=True)\n"
                "while True:\n    wanted = cores.take()\n"
                "    if wanted: cores.acknowledge(wanted, wanted.threads(4))\n    time.sleep(0.005)")
    jobs.start(follower, OMPI_COMM_WORLD_RANK="0", VRM_LENDING=place)
    jobs.start("wait()", OMPI_COMM_WORLD_RANK="1", VRM_LENDING=place)

    def followed(epoch: int) -> MaskReport:
        set_masks(loop.agents, 1, epoch, {"n1": {0: FEW, 1: CPUS}}, OPEN_MPI)
        found: MaskReport = loop.next(MaskReport)
        assert found.clear and found.epoch == epoch
        return found

    loop.until(lambda: followed(1).acknowledged == {0}, "rank 0 follows")
    late = jobs.start(follower, OMPI_COMM_WORLD_RANK="1", VRM_LENDING=place)
    path = Path(place, str(late.pid))
    wait_until(lambda: path.exists() and lending.HEAD.unpack_from(path.read_bytes())[6] == 1,
               "what came later follows, too")
    loop.agents.sweep(1)
    loop.next(SweepDone)
    assert not os.path.exists(place)


@pytest.mark.skipif(len(CPUS) < 2, reason="needs 2 CPUs")
def test_a_process_whose_cores_are_lent_before_it_makes_its_file(nodes: StandIn, jobs: Jobs) -> None:
    """It sees nothing but the mask that it has then: the order says how many cores it has without the lend."""
    loop = nodes.make("n1").start()
    place = lending.folder(loop.agents.run, 1)
    few, many = lending.count(FEW), lending.count(CPUS)
    job = jobs.start(f"sys.path.insert(0, {str(Path(vrm_lending.__file__).parent)!r})\nimport vrm_lending\n"
                     "print(flush=True)\nwhile len(os.sched_getaffinity(0)) > 1: time.sleep(0.005)\n"
                     "cores = vrm_lending.Lending()\n"
                     "while True:\n    wanted = cores.take()\n"
                     f"    if wanted: cores.acknowledge(wanted, wanted.threads({many}))\n    time.sleep(0.005)",
                     OMPI_COMM_WORLD_RANK="0", VRM_LENDING=place)
    path = Path(place, str(job.pid))

    def threads(epoch: int, cpus: frozenset[int]) -> int:
        set_masks(loop.agents, 1, epoch, {"n1": {0: cpus}}, OPEN_MPI, {"n1": {0: CPUS}})
        assert loop.next(MaskReport).clear
        wait_until(lambda: path.exists() and lending.HEAD.unpack_from(path.read_bytes())[6] == epoch, "it follows")
        return int(lending.HEAD.unpack_from(path.read_bytes())[4])

    assert threads(1, FEW) == few < many
    assert threads(2, CPUS) == many
    loop.agents.sweep(1)
    loop.next(SweepDone)


def test_the_folder_of_a_whole_run_goes(nodes: StandIn) -> None:
    loop = nodes.make("n1").start()
    for job in (1, 12):
        os.mkdir(lending.folder(loop.agents.run, job), 0o700)
    other = lending.folder("another.run", 1)
    os.mkdir(other, 0o700)
    Path(lending.folder(loop.agents.run, 1), "123").touch()
    try:
        loop.agents.know(MASKS)
        loop.agents.sweep(None)
        loop.next(SweepDone)
        assert lending.places(loop.agents.run, None) == [] and os.path.exists(other)
    finally:
        lending.remove(other)
