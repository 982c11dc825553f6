"""The shim on real programs, of gcc and clang: which number of threads they have, and what they read."""

from __future__ import annotations

import itertools
import os
import random
import select
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any, NamedTuple
from collections.abc import Iterator

import pytest

from conftest import LIMIT, mpirun_environment, wait_until
from support.agents import StandIn, nodes  # noqa: F401
from vrm.live.launch.environment import tagged
from vrm.ext.lending import build
from vrm.ext.lending.job_variables import following, rigid
from vrm.ext.lending.nodes import lending, masks
from vrm.live.runner import proc
from vrm.ext.lending.orders import MaskReport, set_masks
from vrm.live.nodes.agent_events import SweepDone
from support.shim import HERE, can_build

START = 4
CPUS = sorted(os.sched_getaffinity(0))


@pytest.fixture(scope="module", params=["gcc", "clang"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """patterns.c built by a compiler."""
    folder = tmp_path_factory.mktemp(request.param)
    if not can_build(request.param, folder):
        pytest.skip(f"no {request.param} with OpenMP")
    made = folder / "patterns"
    subprocess.run([request.param, "-O1", "-fopenmp", HERE / "patterns.c", "-o", made], check=True)
    return made


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The shim is built here, once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield Path(os.environ["XDG_CACHE_HOME"])


class Running(NamedTuple):
    """A program under the shim."""

    process: subprocess.Popen[str]
    place: str

    def state(self, epoch: int = 0, share: tuple[int, int] = (START, START),
              cpus: list[int] | None = None) -> dict[str, int] | None:
        """What it says, after an order if that is new."""
        stat = proc.read_stat(self.process.pid)
        return stat and lending.write_order(self.place, self.process.pid, stat[1], epoch,
                                            CPUS if cpus is None else cpus, share)

    def follows(self, epoch: int, threads: int, cpus: list[int] | None = None) -> dict[str, int]:
        """Order so many threads, and wait until it has them."""
        def there() -> dict[str, int] | None:
            assert self.process.poll() is None, "it has ended"
            said = self.state(epoch, (threads, START), cpus)
            return said if said is not None and said["acknowledged"] == epoch else None
        found: dict[str, int] = wait_until(there, f"epoch {epoch} is followed")
        return found

    def end(self) -> dict[str, int]:
        """What it has seen."""
        self.process.send_signal(signal.SIGTERM)
        output, _ = self.process.communicate(timeout=LIMIT)
        assert self.process.returncode == 0, output
        words = output.splitlines()[-1].split()
        return {name: int(number) for name, number in zip(words[::2], words[1::2])}


@pytest.fixture
def start() -> Iterator[Any]:
    """Starts a program in a mode, with variables."""
    found: list[Running] = []
    numbers = itertools.count(1)

    def started(program: Path, mode: str, *words: str, **variables: str) -> Running:
        job = next(numbers)
        run = f"shim-{os.getpid()}"
        made, why = following(program, run, job, {})
        assert not why
        process = subprocess.Popen(
            [program, mode, *words], env={**os.environ, "OMP_NUM_THREADS": str(START), **made, **variables},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        found.append(Running(process, lending.folder(run, job)))
        assert process.stdout is not None
        assert process.stdout.readline() == f"started with {START}\n"
        return found[-1]

    yield started
    for running in found:
        running.process.kill()
        running.process.communicate()
        lending.remove(running.place)


@pytest.mark.parametrize("mode", ["asks", "fortran", "sets"])
def test_nothing_stale_is_read(program: Path, start: Any, mode: str) -> None:
    """The rule: an order is taken only where the program does not rely on the number."""
    running = start(program, mode)
    draw = random.Random(mode)
    for epoch in range(1, 61):
        threads = draw.randint(1, START)
        said = running.follows(epoch, threads)
        assert said["threads"] == threads
    seen = running.end()
    assert seen["stale"] == 0 and seen["widest"] <= START
    assert seen["changes"] >= 20 and seen["rounds"] >= 60


def test_every_construct_has_its_results(program: Path, start: Any) -> None:
    running = start(program, "all", "10")
    draw, epochs = random.Random(3), itertools.count(1)

    def changed() -> bool:
        """Another order; on a busy machine the program takes several in one round, and counts the last."""
        epoch = next(epochs)
        running.follows(epoch, draw.randint(1, START))
        return epoch >= 40 and bool(select.select([running.process.stdout], [], [], 0)[0])

    wait_until(changed, "it has changed its number of threads ten times")
    assert running.process.stdout is not None and running.process.stdout.readline() == "changed 10 times\n"
    seen = running.end()
    assert seen["wrong"] == 0 and seen["widest"] <= START
    assert seen["clause"] == 0  # what a num_threads clause says is kept


def test_who_starts_on_fewer_cores_than_it_asked_for_has_room_for_all(program: Path, start: Any) -> None:
    """Its first region has all threads, then they are as many as its cores, and at last it gets the others."""
    running = start(program, "asks", VRM_LENDING_CORES=f"2/{START}")
    by_itself = start(program, "asks", VRM_LENDING_CORES=f"1/{START}")
    for epoch, cores in ((1, 2), (2, START), (3, 1), (4, START)):
        wait_until(lambda: (running.state(epoch, (cores, max(2, cores))) or {}).get("acknowledged") == epoch, "it follows")
        assert running.state()["threads"] == cores
    seen = running.end()
    assert (seen["stale"], seen["widest"]) == (0, START) and seen["changes"] >= 3
    wait_until(lambda: sum(map(int, Path(f"/proc/{by_itself.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
               > 2, "it has worked")
    seen = by_itself.end()  # without an order
    assert (seen["stale"], seen["widest"], seen["changes"]) == (0, START, 1)


@pytest.mark.parametrize("mode", ["broken", "later"])
def test_what_cannot_be_saved_is_seen(program: Path, start: Any, mode: str) -> None:
    """Else the tests above could not fail."""
    running = start(program, mode)
    for epoch in range(1, 41):
        running.follows(epoch, 1 + START * (epoch % 2) // 2)
    assert running.end()["stale"] > 0


@pytest.mark.skipif(len(CPUS) < 2, reason="needs 2 CPUs")
@pytest.mark.parametrize("bound", [{}, {"OMP_PROC_BIND": "close", "OMP_PLACES": "threads"}])
def test_threads_that_the_runtime_places_stay_on_the_wanted_cores(program: Path, start: Any,
                                                                  bound: dict[str, str]) -> None:
    running = start(program, "asks", **bound)
    pid = running.process.pid

    def inside(cpus: list[int]) -> bool:
        try:
            allowed = [os.sched_getaffinity(thread) for thread in proc.threads(pid)]
        except ProcessLookupError:  # one has ended meanwhile: look again
            return False
        return all(one <= set(cpus) for one in allowed)

    epoch = 0
    for cpus in (CPUS[:1], CPUS[:2], CPUS[1:2]):
        # Fewer threads, and then more: the new ones are made on the wanted cores, too.
        for threads in (2, START):
            epoch += 1
            running.follows(epoch, threads, cpus)
            if threads == 2:  # what an agent does; nobody does it for those that come later
                masks.confine(pid, frozenset(cpus))
            wait_until(lambda: len(proc.threads(pid)) >= threads and inside(cpus),
                       f"{threads} threads are on {cpus}")
    assert running.end()["stale"] == 0


def test_a_clean_end_leaves_no_file_and_a_killed_one_is_swept(program: Path, start: Any) -> None:
    running = start(program, "asks")
    running.follows(1, 2)
    running.end()
    assert os.listdir(running.place) == []
    other = start(program, "asks")
    other.follows(1, 2)
    other.process.kill()
    other.process.wait()
    assert len(os.listdir(other.place)) == 1
    lending.remove(other.place)
    assert not os.path.exists(other.place)


def test_outside_of_a_malleable_job_it_does_nothing(program: Path) -> None:
    env = {**os.environ, "LD_PRELOAD": str(build.shim()), "OMP_NUM_THREADS": str(START)}
    process = subprocess.Popen([program, "asks"], env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    seen = Running(process, "").end()
    assert seen["widest"] == START and seen["changes"] == seen["stale"] == 0


ONE_THREAD = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
extern int omp_get_max_threads(void) __attribute__((weak));
extern void omp_set_num_threads(int) __attribute__((weak));
int main(void)
{
    int (*found)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "omp_get_max_threads_");
    if (omp_set_num_threads)
        omp_set_num_threads(3);
    printf("threads %d %d\\n", omp_get_max_threads ? omp_get_max_threads() : 1, found ? found() : 1);
    return 0;
}
"""
"""A program without OpenMP that asks whether it is there, as libraries do."""


@pytest.mark.parametrize("malleable", [True, False])
def test_a_program_without_openmp_has_one_thread(tmp_path: Path, malleable: bool) -> None:
    (tmp_path / "a.c").write_text(ONE_THREAD)
    if not shutil.which("gcc") or subprocess.run(["gcc", "a.c", "-o", "a", "-ldl"], cwd=tmp_path).returncode:
        pytest.skip("no gcc")
    made, why = following(tmp_path / "a", f"shim-{os.getpid()}", 99, {})
    assert not why
    env = {**os.environ, **(made if malleable else {"LD_PRELOAD": str(build.shim())})}
    try:
        done = subprocess.run([tmp_path / "a"], env=env, capture_output=True, text=True, timeout=LIMIT)
    finally:
        lending.remove(lending.folder(f"shim-{os.getpid()}", 99))
    assert (done.stdout, done.stderr, done.returncode) == ("threads 1 1\n", "", 0)


def test_a_folder_that_is_not_private_is_not_used(program: Path, tmp_path: Path) -> None:
    """The program runs on as if there were none."""
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    for place in (tmp_path / "open", tmp_path / "no" / "such", Path("relative")):
        env = {**os.environ, "LD_PRELOAD": str(build.shim()), "VRM_LENDING": str(place)}
        process = subprocess.Popen([program, "asks"], env=env, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        assert Running(process, "").end()["stale"] == 0
    assert not os.listdir(tmp_path / "open")


# ------------------------------------------------------------------------------- where there is none


def test_the_shim_is_built_once_for_a_compiler(own_cache: Path) -> None:
    first = build.shim()
    assert build.shim() == first and first.parent == own_cache / "vrm"
    before = first.stat().st_mtime_ns
    assert build.shim().stat().st_mtime_ns == before
    assert [path.name for path in first.parent.iterdir()] == [first.name]


def test_without_a_compiler_the_reason_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(build.ShimError, match="no C compiler was found") as raised:
        build.shim({"PATH": str(tmp_path), "HOME": str(tmp_path)})
    assert "\n" not in str(raised.value) and "affinity alone" in str(raised.value)
    cc = tmp_path / "cc"
    cc.write_text("#!/bin/sh\necho 'x.c:1: error: no such thing'\nexit 1\n")
    cc.chmod(0o755)
    with pytest.raises(build.ShimError, match=r"cannot build the shim: x.c:1: error: no such thing; .*affinity"):
        build.shim({"PATH": str(tmp_path), "HOME": str(tmp_path)})
    assert list((tmp_path / ".cache" / "vrm").iterdir()) == []


def test_programs_that_nothing_can_be_preloaded_into(tmp_path: Path) -> None:
    if not shutil.which("gcc"):
        pytest.skip("no gcc")
    (tmp_path / "a.c").write_text("int main(void) { return 0; }\n")
    subprocess.run(["gcc", "a.c", "-o", "plain"], cwd=tmp_path, check=True)
    assert rigid(tmp_path / "plain") == ""
    setuid = tmp_path / "setuid"
    shutil.copy(tmp_path / "plain", setuid)
    setuid.chmod(0o4755)
    assert "setuid" in rigid(setuid)
    other = tmp_path / "other"
    text = bytearray((tmp_path / "plain").read_bytes())
    text[18:20] = (183 if os.uname().machine == "x86_64" else 62).to_bytes(2, "little")
    other.write_bytes(text)
    assert f"this machine is {os.uname().machine}" in rigid(other)
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    assert rigid(script) == rigid(tmp_path / "nowhere") == ""
    static = tmp_path / "static"
    if subprocess.run(["gcc", "-static", "a.c", "-o", static], cwd=tmp_path, capture_output=True).returncode == 0:
        assert "linked statically" in rigid(static)
        variables, why = following(static, "r", 1, {})
        assert "LD_PRELOAD" not in variables and "linked statically" in why and variables["VRM_LENDING"]


# ----------------------------------------------------------------------------- all of it together


@pytest.mark.skipif(len(CPUS) < 2, reason="needs 2 CPUs")
def test_ranks_of_mpirun_follow_an_agents_orders(program: Path, nodes: StandIn) -> None:
    """The kernel's masks at the answer, the number of threads at the next region, in both ranks."""
    mpirun = shutil.which("mpirun")
    if not mpirun:
        pytest.skip("no mpirun")
    loop = nodes.make("n1").start()
    run = loop.agents.run
    variables, why = following(program, run, 1, {})
    assert not why and variables["OMPI_MCA_mpi_yield_when_idle"] == "1"
    process = subprocess.Popen(
        [mpirun, "-np", "2", "--oversubscribe", "--bind-to", "none", program, "asks"],
        env={**mpirun_environment(), **tagged(variables, run, 1), "OMP_NUM_THREADS": "2"},
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True)
    assert process.stdout is not None
    try:
        assert [process.stdout.readline() for _ in range(2)] == ["started with 2\n"] * 2
        for epoch, tasks in enumerate([{0: CPUS[:1], 1: CPUS[1:2]}, {0: CPUS[:2], 1: CPUS[:2]}], 1):
            def follow() -> bool:
                set_masks(loop.agents, 1, epoch, {"n1": {rank: frozenset(cpus) for rank, cpus in tasks.items()}},
                                      ("OMPI_COMM_WORLD_RANK",))
                answer = loop.next(MaskReport)
                assert answer.clear and answer.epoch == epoch
                return bool(answer.acknowledged == {0, 1})
            loop.until(follow, f"both ranks follow epoch {epoch}")
            states = [lending.HEAD.unpack_from(Path(lending.folder(run, 1), name).read_bytes())
                      for name in os.listdir(lending.folder(run, 1))]
            assert [state[4] for state in states] == [len(tasks[0])] * 2
        loop.agents.sweep(1)
        loop.next(SweepDone)
        assert not os.path.exists(lending.folder(run, 1))
    finally:
        process.kill()
        process.communicate()
