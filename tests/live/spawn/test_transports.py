"""What every transport must do (`vrm.system.transports.base`): the same programs, signals, kills and stalls with each.

| transport | nodes | needs |
|---|---|---|
| local | this machine, without a relay | |
| command | this machine, by a user's own command for each node | |
| group | this machine, three times, by one command as srun and `flux exec` are: a stand-in | |
| ssh, srun, srun-group | the test cluster's, by the real programs | root |
| flux | three brokers of a real instance, if VRM_TEST_FLUX names its program | Flux |
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import pytest
from conftest import wait_until
from support.spawning import ENV, PYTHON, Desk, end_sessions, place  # noqa: F401
from support.testbed import Testbed

from vrm.live.nodes.runner_commands import command_line, group_line
from vrm.live.relay.boot import MARK
from vrm.live.relay.process import RelayProcess
from vrm.live.spawn.messages import Ended, LaunchFailed, Started, SupervisorLost
from vrm.live.spawn.spawner import Spawner
from vrm.system.transports.base import transports

HOSTS = ("n0", "n1", "n2")

GROUP = r"""
import os, subprocess, sys, threading
def lines(source, target, lock):
    for line in source:
        with lock:
            os.write(target, line)
hosts, words = sys.argv[1].split(","), sys.argv[2:]
lock = threading.Lock()
programs = [subprocess.Popen(words, env={**os.environ, "SLURMD_NODENAME": host}, stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE) for host in hosts]
for program in programs:
    for source, target in ((program.stdout, 1), (program.stderr, 2)):
        threading.Thread(target=lines, args=(source, target, lock)).start()
def end(host, program):
    program.wait()
    os.write(2, f"error: {host}: task 0: ended\n".encode())
    if all(each.poll() is not None for each in programs):
        os._exit(0)
for host, program in zip(hosts, programs):
    threading.Thread(target=end, args=(host, program)).start()
while True:
    data = os.read(0, 1 << 16)
    for program in programs:
        try:
            program.stdin.write(data) if data else program.stdin.close()
            program.stdin.flush() if data else None
        except OSError:
            pass
    if not data:
        break
"""
"""One command that starts a program for each host, gives its own input to all, and prints their lines."""


class Site:
    """A transport: `ways` and `groups` are those of `RelayProcess`, to which `before` comes first. `host` is the node that
    is used ("": this machine), `where` runs a command on it."""

    def __init__(self, ways: Mapping[str, Sequence[str]] | None = None, groups: Sequence[tuple[Sequence[str], Sequence[str]]] = (),
                 env: Mapping[str, str] | None = None, before: Sequence[str] = ()) -> None:
        self.ways = ways or {}
        self.groups = groups
        self.env = os.environ if env is None else env
        self.before = tuple(before)
        self.host = next(iter(self.ways), "")


class Nodes(Desk):
    """A desk whose jobs run on the node of a transport. `gate`: its command waits for this file."""

    def __init__(self, place: Path, site: Site, timeout: float = 60.0, gate: Path | None = None) -> None:
        before = ("sh", "-c", 'until [ -e "$0" ]; do sleep 0.01; done; exec "$@"', gate, *site.before) if gate else site.before
        self.site = site
        self.relay = RelayProcess({host: list(map(str, (*before, *way))) for host, way in site.ways.items()}, site.env, timeout,
                                  [(hosts, list(map(str, (*before, *way)))) for hosts, way in site.groups]) if site.ways else None
        super().__init__(place, Spawner(relay=self.relay))
        self.spawner.start()

    def launch(self, job: object, argv: Sequence[str], **values: object) -> None:
        super().launch(job, argv, **{"host": self.site.host, **values})

    def begun(self, job: object, argv: Sequence[str]) -> tuple[str, Started]:
        """Launch a job that prints something and goes on; what it has printed, and its start."""
        self.launch(job, argv)
        output = self.place / f"{job}.o"
        said = wait_until(lambda: self.collect() or (output.exists() and output.read_text()), f"{job} runs")
        started = self.await_event(job, Started)
        assert isinstance(started, Started)
        return str(said), started

    def lost(self, job: object) -> None:
        """The job has ended with the connection to its node."""
        assert self.end_of(job).code == 255
        assert (self.place / f"{job}.e").read_text() == f"vrm: the connection to {self.site.host} was lost\n"

    def command(self) -> list[psutil.Process]:
        """The processes of the transport's command here, without the runners that it has started in the place of nodes."""
        assert self.relay is not None and self.relay.pid is not None
        found: list[psutil.Process] = []
        looked = psutil.Process(self.relay.pid).children()
        while looked:
            process = looked.pop(0)
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if not any(word.startswith(f'exec("{MARK[:-1]}') for word in process.cmdline()[1:5]):
                    found.append(process)
                    looked += process.children()
        return found


@contextlib.contextmanager
def flux_instance(program: str, place: Path) -> Iterator[Site]:
    """Three brokers on this machine, with names of their own."""
    brokers = subprocess.Popen([program, "start", "--test-size=3", "--test-hosts=n[0-2]", "sh", "-c",
                                f"env -0 >{place}/env.new && mv {place}/env.new {place}/env && until [ -e {place}/over ]; do sleep 0.05; done"],
                               stdin=subprocess.DEVNULL)
    try:
        wait_until(lambda: (place / "env").exists(), "the instance is there")
        env = dict(pair.split("=", 1) for pair in (place / "env").read_text().split("\0") if pair)
        with pytest.MonkeyPatch.context() as patch:
            for name in ("FLUX_URI", "PATH"):
                patch.setenv(name, env[name])
            yield Site({host: command_line(host, "flux", 60.0) for host in HOSTS}, [(HOSTS, group_line(HOSTS, "flux", 60.0))], env)
    finally:
        (place / "over").touch()
        brokers.wait()


@contextlib.contextmanager
def site_of(name: str, place: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    """The transport of this name."""
    if name == "local":
        yield Site()
    elif name == "command":
        yield Site({"n0": ["sh", "-c", "exec " + command_line("n0", "ssh", 60.0, ("ssh",))[-1]]})
    elif name == "group":
        words = group_line(HOSTS, "srun", 60.0)
        words = words[words.index("/bin/sh"):]
        yield Site({host: [sys.executable, "-c", GROUP, host, *words] for host in HOSTS},
                   [(HOSTS, [sys.executable, "-c", GROUP, ",".join(HOSTS), *words])])
    elif name == "flux":
        with flux_instance(os.environ["VRM_TEST_FLUX"], place) as site:
            yield site
    else:
        testbed: Testbed = request.getfixturevalue("testbed")
        into = ("nsenter", "-t", str(testbed._inside["login"].pid), "-n", "-u", "-m", "-p")
        reach = name.partition("-")[0]
        if reach == "ssh":
            yield Site({host: command_line(host, reach, 60.0) for host in HOSTS}, env=testbed.env, before=into)
            return
        with testbed.allocation(len(HOSTS)) as batch:
            env = transports()["srun"].environment({**testbed.env, **batch.env})
            yield Site({host: command_line(host, reach, 60.0) for host in batch.nodes},
                       [(batch.nodes, group_line(batch.nodes, reach, 60.0))] if name == "srun-group" else [], env, into)


REAL = [pytest.param(name, marks=[pytest.mark.testbed, pytest.mark.xdist_group("testbed")]) for name in ("ssh", "srun", "srun-group")]
RELAYED = ["command", "group", *REAL, *["flux"] * bool(os.environ.get("VRM_TEST_FLUX"))]


@contextlib.contextmanager
def open_nodes(place: Path, site: Site, timeout: float = 60.0, gate: Path | None = None) -> Iterator[Nodes]:
    """A desk with the nodes of a transport; afterwards nothing of it may run."""
    before = {process.pid for process in psutil.process_iter()}
    nodes = Nodes(place, site, timeout, gate)
    try:
        yield nodes
    finally:
        (place / "end").touch()
        relay = nodes.relay.pid if nodes.relay else None
        end_sessions(nodes.sessions)
        nodes.spawner.close()
    wait_until(lambda: relay is None or not psutil.pid_exists(relay), "the relay has ended")

    def left() -> list[str]:
        lines = [words_of(process) for process in psutil.process_iter() if process.pid not in before]
        return [line for line in lines if str(place) in line]
    wait_until(lambda: not left(), f"nothing is left: {left()}")


def words_of(process: psutil.Process) -> str:
    """The command line of a process, nothing of one that is gone."""
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


@pytest.fixture
def relayed(request: pytest.FixtureRequest, place: Path) -> Iterator[Site]:
    """A transport to another node."""
    with site_of(request.param, place, request) as site:
        yield site


@pytest.fixture
def any_site(request: pytest.FixtureRequest, place: Path) -> Iterator[Nodes]:
    """A desk with any transport."""
    with site_of(request.param, place, request) as site, open_nodes(place, site) as nodes:
        yield nodes


every = pytest.mark.parametrize("any_site", ["local", *RELAYED], indirect=True)
other = pytest.mark.parametrize("relayed", RELAYED, indirect=True)


# ------------------------------------------------------------------------------------------- start, output, usage, end

ODD = ["", "a b", "$(touch hit)", "'; touch hit; '", '"`touch hit`"', "a\nb", "\\", "*", "\u00e9\t", os.fsdecode(b"\xff")]


@every
def test_a_program_has_what_it_is_given_and_ends_as_it_is_said(any_site: Nodes) -> None:
    nodes = any_site
    cpu = max(os.sched_getaffinity(0))
    folder = nodes.place / "a ' $(b)"
    folder.mkdir()
    told = json.loads(nodes.python("tell", """
import json, os, sys
print(json.dumps([os.environ['ODD'], os.environ.get('SSH_TTY') if os.environ['HERE'] != 'True' else None,
                  os.getcwd(), sorted(os.sched_getaffinity(0)), os.readlink('/proc/self/fd/0'),
                  sorted(map(int, os.listdir('/proc/self/fd')))[:4], os.getpgrp() == os.getpid()]))
""", env={**ENV, "ODD": "".join(ODD), "SSH_TTY": "/dev/pts/1", "HERE": str(not nodes.site.host)}, cwd=folder, affinity=[cpu]))
    # (the fourth open file is the directory that is being listed)
    assert told == ["".join(ODD), None, str(folder), [cpu], "/dev/null", [0, 1, 2, 3], True]
    nodes.run("words", [*PYTHON, "import json, sys\nprint(json.dumps(sys.argv[1:]))", *ODD])
    assert json.loads((nodes.place / "words.o").read_text()) == ODD
    assert not list(nodes.place.rglob("hit"))
    for code, number, body in ((3, None, "import sys; sys.exit(3)"), (None, 11, "import os; os.kill(os.getpid(), 11)"),
                               (None, 9, "import os; os.kill(os.getpid(), 9)")):
        job = f"ends{code}{number}"
        status = nodes.run(job, [*PYTHON, body])
        assert (status.code, status.signal) == (code, number)
    assert not list(nodes.place.glob("core*"))


@every
def test_what_a_program_has_used_is_said(any_site: Nodes) -> None:
    status = any_site.run("job", [*PYTHON, "import time\nx = bytearray(1 << 26)\nwhile time.process_time() < 0.3: pass"])
    assert 0.25 < status.user + status.system < 5 and status.maxrss > 1 << 26


@every
def test_all_of_a_long_output_is_there(any_site: Nodes) -> None:
    body = "import os, sys\nfor n in range(10000):\n    print(n, 'x' * 90)\n    print(-n, file=sys.stderr)"
    assert any_site.run("job", [*PYTHON, body]).ok
    assert (any_site.place / "job.o").read_text().splitlines() == [f"{n} {'x' * 90}" for n in range(10000)]
    assert (any_site.place / "job.e").read_text().splitlines() == [str(-n) for n in range(10000)]


@every
def test_what_cannot_start_says_why(any_site: Nodes) -> None:
    of_node = f"{any_site.site.host}: " if any_site.site.host else ""
    for job, argv, values, message in (
            ("a", ["/no/such"], {}, "/no/such: No such file or directory"),
            ("b", ["true"], {"cwd": "/no/such"}, "working directory /no/such: No such file or directory"),
            ("c", ["true"], {"stdout": "/no/such/o"}, "output file /no/such/o: No such file or directory"),
            ("d", ["true"], {"affinity": [1 << 10]}, "CPUs 1024: Invalid argument")):
        any_site.launch(job, argv, **values)
        event = any_site.await_event(job, Ended, LaunchFailed)
        assert isinstance(event, LaunchFailed) and event.message == of_node + message


# ---------------------------------------------------------------------------------------------------- signals and kills


@every
def test_a_signal_reaches_the_program(any_site: Nodes) -> None:
    said, started = any_site.begun("job", ["sh", "-c", "trap 'echo term; exit 7' TERM; echo ready; "
                                           "while :; do sleep 0.01; done"])
    assert said == "ready\n"  # the trap is set
    os.kill(started.pid, signal.SIGTERM)
    assert any_site.end_of("job").code == 7
    assert (any_site.place / "job.o").read_text() == "ready\nterm\n"


HEARTBEAT = 'while [ ! -e "$0/end" ]; do date +%s%N >"$0/beat"; sleep 0.01; done'
"""A program that shows that it runs, as long as the test does."""


def beats(place: Path) -> bool:
    """Whether HEARTBEAT runs."""
    before = (place / "beat").read_text().strip() if (place / "beat").exists() else ""
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(["sh", "-c", f'until [ "$(cat {shlex.quote(str(place))}/beat)" != "$0" ]; do sleep 0.01; done', before],
                       timeout=0.5, check=True)
        return True
    return False


@every
def test_who_kills_the_process_here_kills_the_program(any_site: Nodes) -> None:
    _, started = any_site.begun("job", ["sh", "-c", f"echo ready; {HEARTBEAT}", any_site.place])
    assert beats(any_site.place)
    os.kill(started.pid, signal.SIGKILL)
    assert any_site.end_of("job").signal == signal.SIGKILL
    wait_until(lambda: not beats(any_site.place), "the program has been killed")


@every
def test_a_program_goes_on_without_its_supervisor(any_site: Nodes) -> None:
    _, started = any_site.begun("job", ["sh", "-c", f"echo ready; {HEARTBEAT}", any_site.place])
    os.kill(started.supervisor_pid, signal.SIGKILL)
    assert any_site.await_event("job", SupervisorLost, Ended) == SupervisorLost("job", started.supervisor_pid, started.leader)
    assert beats(any_site.place) and any_site.marker("job").exists()
    os.kill(started.pid, signal.SIGKILL)  # as the next manager would that stops it
    wait_until(lambda: not beats(any_site.place), "the program has been killed")


@pytest.mark.parametrize("victim", ["relay", "command", "runner"])
@other
def test_a_lost_connection_ends_the_job_and_is_made_anew(relayed: Site, place: Path, victim: str) -> None:
    with open_nodes(place, relayed) as nodes:
        nodes.begun("job", ["sh", "-c", f"echo $PPID; {HEARTBEAT}", place])
        if victim == "relay":
            assert nodes.relay is not None and nodes.relay.pid is not None
            os.kill(nodes.relay.pid, signal.SIGKILL)
        elif victim == "runner":  # by its child, since it may have another number here
            nodes.launch("murder", ["sh", "-c", "kill -9 $PPID"])
        else:
            assert nodes.relay is not None
            for process in nodes.command() or psutil.Process(nodes.relay.pid).children():  # where it has become the runner
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        nodes.lost("job")
        if victim == "relay":  # else the agent ends what is left, before the job runs again
            wait_until(lambda: not beats(place), "its runner has ended it")
        assert nodes.python("next", "print('well')") == "well\n"


@other
def test_whichever_process_of_the_command_is_killed_programs_start_and_end(relayed: Site, place: Path) -> None:
    with open_nodes(place, relayed) as nodes:
        nodes.run("first", ["true"])
        tries = itertools.count()
        for at in range(len(nodes.command())):
            _, started = nodes.begun(at, ["sh", "-c", f"echo ready; {HEARTBEAT}", place])
            for process in nodes.command()[at:at + 1]:
                process.kill()
            wait_until(lambda: nodes.run(f"next{next(tries)}", ["true"]).ok, "programs start again")
            with contextlib.suppress(ProcessLookupError):
                os.kill(started.pid, signal.SIGKILL)  # it may go on
            status = nodes.end_of(at)
            assert (status.code, status.signal) in ((255, None), (None, signal.SIGKILL))


# --------------------------------------------------------------------------------------------------- slow nodes, stalls


@other
def test_what_was_ended_before_its_node_answered_does_not_start(relayed: Site, place: Path) -> None:
    with open_nodes(place, relayed, gate=place / "open") as nodes:
        for job in ("ended", "lives"):
            nodes.launch(job, ["touch", place / f"{job}.ran"])
        ended, lives = (nodes.await_event(job, Started) for job in ("ended", "lives"))
        assert isinstance(ended, Started) and isinstance(lives, Started)
        os.kill(ended.pid, signal.SIGKILL)
        assert nodes.end_of("ended").signal == signal.SIGKILL
        (place / "open").touch()
        assert nodes.end_of("lives").ok
        assert (place / "lives.ran").exists() and not (place / "ended.ran").exists()


@other
def test_more_orders_than_the_pipe_takes(relayed: Site, place: Path) -> None:
    """The node stands still meanwhile: its runner, stopped by its child, which lets it go on."""
    with open_nodes(place, relayed) as nodes:
        nodes.begun("stops", ["sh", "-c", f"kill -STOP $PPID; echo stopped; until [ -e {shlex.quote(str(place))}/go ]; "
                              "do sleep 0.01; done; kill -CONT $PPID"])
        env = {**ENV, "LONG": "x" * 100_000}
        jobs = range(40)
        for job in jobs:
            nodes.launch(job, ["sh", "-c", f"echo {job} ${{#LONG}}"], env=env)
        for job in jobs:
            nodes.await_event(job, Started)
        (place / "go").touch()
        for job in jobs:
            assert nodes.end_of(job).ok and (place / f"{job}.o").read_text() == f"{job} 100000\n"
        assert nodes.end_of("stops").ok


@other
def test_a_node_that_falls_silent_is_given_up(relayed: Site, place: Path) -> None:
    with open_nodes(place, relayed) as nodes:
        nodes.run("first", ["true"])
    with open_nodes(place, relayed, timeout=3.0) as nodes:
        (place / "end").unlink()
        nodes.run("again", ["true"])  # it answers
        nodes.begun("job", ["sh", "-c", f"kill -STOP $PPID; echo stopped; {HEARTBEAT}; kill -9 $PPID", place])
        nodes.lost("job")
        assert nodes.run("next", ["true"]).ok
