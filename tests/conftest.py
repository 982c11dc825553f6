"""What the end-to-end tests share: a site with programs and a configuration, and the real `vrm`
run on it; waiting is always for a condition, with a limit.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any
from collections.abc import Callable, Iterator

import hypothesis
import psutil
import pytest
from support import warm
import yaml
from support.testbed import Testbed, missing

from vrm.live.launch.base import LaunchError
from vrm.ext.sites.hydra import find_mpiexec
from vrm.live.nodes.topology import read_topology
from vrm.results.jobs import JobRow, read_jobs

# The same random examples in every run, however busy the machine is; VRM_TEST_RANDOM=1 searches on.
hypothesis.settings.register_profile(
    "vrm", deadline=None, derandomize=not os.environ.get("VRM_TEST_RANDOM"),
    suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("vrm")

# What is learned from the runs of tests is not the user's.
_LEARNED = tempfile.TemporaryDirectory(prefix="vrm-learned-")
os.environ["XDG_DATA_HOME"] = _LEARNED.name

# Who starts the tests in the background may have Ctrl-C ignored, also by all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

LIMIT = 60.0
"""Seconds after which something awaited counts as not happening."""


def wait_until(condition: Callable[[], Any], what: str, limit: float = LIMIT) -> Any:
    """The condition's first true value; fails the test when it stays false."""
    end = time.monotonic() + limit
    while True:
        asked = time.monotonic()
        value = condition()
        if value:
            return value
        now = time.monotonic()
        if now > end:
            pytest.fail(f"not within {limit:g} s: {what}")
        select.select([], [], [], max(0.01, now - asked))  # give way to what is waited for


def descendants(pid: int, word: str) -> list[psutil.Process]:
    """The processes below one that live and whose command lines contain a word."""
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended while we looked
            if child.status() != psutil.STATUS_ZOMBIE and word in " ".join(child.cmdline()):
                found.append(child)
    return found


def mpirun_environment() -> dict[str, str]:
    """The environment of a user who may run mpirun, also as root: of no batch job, no other
    MPI's, and with tables as wide as they want to be."""
    env = {name: value for name, value in os.environ.items()
           if not name.startswith(("VRM_", "SLURM_", "PBS_", "LSB_", "PE_", "OMPI_", "PRTE_",
                                   "PMIX_", "PMI_", "HYDRA_", "I_MPI_", "HWLOC_"))
           and name not in ("COLUMNS", "LINES")}
    env["PYTHONUNBUFFERED"] = "1"
    if os.geteuid() == 0:
        env.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    return env


class _CapabilityHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


@contextlib.contextmanager
def permissions_obeyed() -> Iterator[None]:
    """For a while this thread gives up the rights of root to pass over the permissions of files.

    It stays root: another account might not reach the Python that runs the tests, whose modules
    are partly imported when they are first needed.
    """
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = _CapabilityHeader(0x20080522, 0)  # version 3: two words for each of the three sets
    before = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; then their second words
    if libc.capget(ctypes.byref(header), before):
        raise OSError(ctypes.get_errno(), "capget")
    fewer = (ctypes.c_uint32 * 6)(*before)
    fewer[0] &= ~(1 << 1 | 1 << 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    if libc.capset(ctypes.byref(header), fewer):
        raise OSError(ctypes.get_errno(), "capset")
    try:
        yield
    finally:
        libc.capset(ctypes.byref(header), before)


def obey_permissions() -> None:
    """In a child that root starts: give up the rights to pass over the permissions of files."""
    libc = ctypes.CDLL(None)
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP: takes effect at exec


def mpiruns() -> list[str]:
    """The mpiruns to test with: those of VRM_TEST_MPIRUNS (a list as PATH is), else vrm's choice."""
    listed = os.environ.get("VRM_TEST_MPIRUNS", "").split(os.pathsep)
    return [path for path in listed if path] or ["auto"]


def mpiexecs() -> list[str]:
    """The mpiexecs of MPICH and Intel MPI to test with: those of VRM_TEST_MPICH (a list as PATH
    is), else the one that vrm finds, if any."""
    listed = [path for path in os.environ.get("VRM_TEST_MPICH", "").split(os.pathsep) if path]
    try:
        return listed or [find_mpiexec()[0]]
    except LaunchError:
        return []


class Site:
    """A directory with programs, a queue and a configuration, and `vrm` on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "bin"
        self.queue = root / "queue"
        self.log = root / "log"
        self.pids = self.log / "pids"
        self.config_file = root / "vrm.yaml"
        self.env = mpirun_environment()
        self.started: list[subprocess.Popen[str]] = []
        self.bin.mkdir(parents=True)
        self.config()

    def config(self, **keys: Any) -> None:
        """Write the configuration: one core on one node, compact without backfilling, and what `keys` say over it."""
        settings: dict[str, Any] = {
            "Applications": {"Path": str(self.bin), "Queue": str(self.queue)},
            "Nodes": 1, "Sockets": 1, "Cores": 1, "Log": str(self.log), "Grace": 1}
        settings.update(keys)
        for group, plain in (("Allocation", {"Policy": "compact"}), ("Scheduling", {"Backfilling": "none"})):
            if isinstance(keys.get(group, {}), dict):
                settings[group] = {**plain, **keys.get(group, {})}
        self.config_file.write_text(yaml.safe_dump(settings))

    def program(self, name: str, script: str) -> Path:
        """A program of the site: a shell script."""
        path = self.bin / name
        path.write_text("#!/bin/sh\n" + textwrap.dedent(script))
        path.chmod(0o755)
        return path

    def lines(self, *lines: str, end: bool = True) -> None:
        """Write the queue file."""
        self.queue.write_text("".join(line + "\n" for line in (*lines, *["end"] * end)))

    def append(self, text: str) -> None:
        """Append to the queue file."""
        with open(self.queue, "a") as file:
            file.write(text)

    def start(self, *arguments: str, plain: bool = False, waits: bool = True, **env: str) -> subprocess.Popen[str]:
        """Start `vrm -c CONFIG ARGUMENTS` and return at once: a manager that waits for more lines, unless a command
        or `--once` is named, or not `waits`. `plain`: without root's right to read and write everything."""
        if waits and "--once" not in arguments and all(word.startswith("-") for word in arguments):
            arguments = (*arguments, "--wait")
        process = warm.Warm(
            [*warm.VRM, "-c", str(self.config_file), *arguments],
            cwd=self.root, env={**self.env, **env}, text=True, stdin=subprocess.DEVNULL,
            stdout=open(self.root / f"out.{len(self.started)}", "w"), stderr=subprocess.STDOUT,
            preexec_fn=obey_permissions if plain else None)
        process.output = self.root / f"out.{len(self.started)}"  # type: ignore[attr-defined]
        self.started.append(process)
        return process

    def said(self, process: subprocess.Popen[str]) -> str:
        """What a started vrm has printed so far."""
        return process.output.read_text()  # type: ignore[attr-defined]

    def finish(self, process: subprocess.Popen[str], limit: float = LIMIT) -> str:
        """Wait for a started vrm to end and return what it printed."""
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            pytest.fail(f"vrm did not end within {limit:g} s; it said:\n{self.said(process)}")
        return self.said(process)

    def run(self, *arguments: str, limit: float = LIMIT, **env: str
            ) -> subprocess.CompletedProcess[str]:
        """Run `vrm -c CONFIG ARGUMENTS` to its end."""
        return warm.run(["-c", str(self.config_file), *arguments], cwd=self.root, env={**self.env, **env},
                        timeout=limit)

    def rows(self) -> dict[int, JobRow]:
        """The lines of jobs.csv by job id."""
        return {row.id: row for row in read_jobs(self.log / "jobs.csv")}

    def statuses(self) -> dict[int, str]:
        """Status of every ended job by id."""
        return {job_id: row.status for job_id, row in sorted(self.rows().items())}

    def state(self) -> dict[str, Any] | None:
        """The state file's content, None while there is none."""
        path = self.log / "state"
        return json.loads(path.read_text()) if path.exists() else None

    def running(self) -> list[str]:
        """Ids of the jobs whose markers stand."""
        return sorted(p.name for p in self.pids.glob("[0-9]*")) if self.pids.exists() else []

    def processes(self) -> list[int]:
        """Processes that jobs of this site's runs have left or still run."""
        tag = os.fsencode(str(self.bin)) + b"/"
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if tag in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def kill_processes(self) -> None:
        """Kill them all."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                os.kill(pid, signal.SIGKILL)

    def nothing_left(self) -> None:
        """Fail unless no marker stands and no process of a job is there, killed ones being given
        the time to die."""
        assert self.running() == []
        wait_until(lambda: not self.processes(), "no process of a job is left")

    def close(self) -> None:
        """End what the test has left running, and fail it if a job outlived everything."""
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        try:  # what was killed may need a moment to die
            wait_until(lambda: not self.processes(), "no process of a job is left", limit=10)
        finally:
            self.kill_processes()


SHARED = {"programs": "npb", "larger_programs": "npb_W", "spoilt_programs": "npb_spoilt", "hybrids": "hybrids",
          "release": "release", "year": "year"}
"""Fixtures that are costly to make, and the group of tests that share one: with `--dist loadgroup`
each group stays with one worker. Not so the test clusters: their tests are many, and each worker has its own."""

LIVE = Path(__file__).with_name("live")
"""How jobs are launched and followed is tested with each MPI; what else is done with jobs that run, with one."""


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks at the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what needs an mpirun or the test cluster, which the fixtures and parameters show."""
    for item in items:
        wanted = set(getattr(item, "fixturenames", ()))
        groups = {SHARED[name] for name in wanted & SHARED.keys()}
        if wanted & {"testbed", "real"}:
            item.add_marker("testbed")
        for group in groups:
            item.add_marker(pytest.mark.xdist_group(group))
        if wanted & {"site", "mpirun", "mpiexec"}:
            item.add_marker("mpi")
        if item.path.is_relative_to(LIVE):
            item.add_marker("system")
    if hasattr(config, "workerinput"):  # of several workers: the one that got a long test last would keep all waiting
        items.sort(key=lambda item: not (getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
                                         or any(map(item.get_closest_marker, ("slow", "testbed", "xdist_group")))))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """An empty site with an mpirun to use."""
    beside = Path(sys.executable).with_name("mpirun")
    if not shutil.which("mpirun") and not beside.exists():
        pytest.skip("no mpirun on PATH and none beside this Python")
    site = Site(tmp_path / "site")
    yield site
    site.close()


@pytest.fixture(scope="session")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    """A cluster of 8 nodes of 2 sockets of 4 cores under Slurm, for the whole session. A test
    that kills a node restarts it."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    with Testbed(8, directory=tmp_path_factory.mktemp("testbed") / "cluster") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    """A cluster of 3 nodes that see this machine's own cores, at least two on a socket, so that
    binding is real. Not for tests that kill a node."""
    sockets = read_topology().sockets
    reason = missing() or ("" if len(sockets[0]) > 1 else "needs two cores")
    if reason:
        pytest.skip(reason)
    with Testbed(3, len(sockets), len(sockets[0]), synthetic=False,
                 directory=tmp_path_factory.mktemp("real") / "cluster") as cluster:
        yield cluster
