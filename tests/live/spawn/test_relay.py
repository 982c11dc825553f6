"""The relay with nodes that hang, lie or end as ssh does: they are this machine, reached by commands such as a user's own.
What all transports must do is in test_transports.py.
"""

from __future__ import annotations

import marshal
import os
import select
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from collections.abc import Iterator, Sequence

import psutil
import pytest
from conftest import wait_until
from support.spawning import BLOCK, ENV, PYTHON, Desk, children, end_sessions

from vrm.live.nodes.runner_commands import command_line
from vrm.live.runner import wire
from vrm.live.relay import rsh_agent
from vrm.live.relay.boot import MARK
from vrm.live.relay.boot import program as modules
from vrm.live.relay.process import RelayProcess
from vrm.live.spawn.records import read_status
from vrm.live.spawn.messages import Ended, LaunchFailed, Started
from vrm.live.spawn.spawner import Spawner

RUNNER = ["/bin/sh", "-c", "exec " + command_line("n5", "ssh", 5.0, ("ssh",))[-1]]


class Nodes(Desk):
    """A desk whose jobs run on other nodes."""

    def __init__(self, place: Path, ways: dict[str, Sequence[str]], timeout: float) -> None:
        self.relay = RelayProcess(ways, os.environ, timeout)
        super().__init__(place, Spawner(relay=self.relay))
        self.spawner.start()

    def launch(self, job: object, argv: Sequence[str], **values: object) -> None:
        super().launch(job, argv, **{"host": "n5", **values})

    def failure(self, job: object, argv: Sequence[str], **values: object) -> str:
        """Launch what cannot start; why."""
        self.launch(job, argv, **values)
        event = self.await_event(job, Ended, LaunchFailed)
        assert isinstance(event, LaunchFailed), event
        recorded = read_status(self.status(job))
        assert recorded is not None and recorded.error == event.message
        return event.message

    def begun(self, job: object) -> int:
        """Launch a job that blocks; its process number on the node."""
        self.launch(job, PYTHON + [f"import os\nprint(os.getpid(), flush=True)\n{BLOCK}"])
        return int(self.printed(job))

    def printed(self, job: object) -> str:
        """What a job has printed, as soon as that is something."""
        output = self.place / f"{job}.o"
        return str(wait_until(lambda: self.collect() or (output.exists() and output.read_text()),
                              f"{job} runs"))

    def process(self, name: str) -> int:
        """The process of the relay or of a runner."""
        def found() -> int:
            return next((child.pid for child in psutil.Process().children(recursive=True)
                         if any(word.endswith(f"/{name}.py") or (name == "runner" and word.startswith(f'exec("{MARK[:-1]}'))
                                for word in words(child)[1:5])), 0)
        return int(wait_until(found, f"there is a {name}"))


def words(process: psutil.Process) -> list[str]:
    """The command line of a process, nothing of one that is gone."""
    try:
        return list(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with room for markers and statuses."""
    (tmp_path / "pids").mkdir()
    (tmp_path / "ended").mkdir()
    return tmp_path


def made(place: Path, way: Sequence[str] | None = None, timeout: float = 30.0
         ) -> Iterator[Nodes]:
    """A desk with the node n5; afterwards nothing of it may run."""
    nodes = Nodes(place, {"n5": RUNNER if way is None else way}, timeout)
    relay = nodes.process("relay")
    try:
        yield nodes
    finally:
        end_sessions(nodes.sessions)
        nodes.spawner.close()
    wait_until(lambda: not psutil.pid_exists(relay), "the relay has ended")
    left = [words(process) for process in psutil.process_iter()
            if str(place) in " ".join(words(process))]
    assert not left


@pytest.fixture
def nodes(place: Path) -> Iterator[Nodes]:
    """A desk with a node that can be reached."""
    yield from made(place)


def gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# ------------------------------------------------------------------------------ what a job gets


def test_a_node_of_which_nobody_knows(nodes: Nodes) -> None:
    assert nodes.failure("job", ["true"], host="n6") == "n6: cannot be reached: not a node of this run"


def test_the_directory_of_an_output_may_come_a_moment_later(nodes: Nodes) -> None:
    waits, made, ended = (nodes.place / name / "out" for name in ("waits", "made", "stopped"))
    nodes.launch("waits", ["echo", "here"], stdout=waits, stderr=waits, patience=60.0)
    nodes.launch("ended", ["echo", "here"], stdout=ended, stderr=ended, patience=60.0)
    assert nodes.run("made", ["echo", "here"], stdout=made, stderr=made, patience=0.01, make=True).ok
    assert made.read_text() == "here\n"  # the others keep nobody waiting
    event = nodes.await_event("ended", Started)
    for pid, _ in children(event.supervisor_pid):
        os.kill(pid, signal.SIGTERM)
    assert nodes.end_of("ended").signal == signal.SIGTERM
    waits.parent.mkdir()
    assert nodes.end_of("waits").ok and waits.read_text() == "here\n"
    assert not ended.parent.exists()


@pytest.mark.parametrize("program, status, printed", [("exit 3", 3, 0), ("seq 30000 >&2; echo end; kill -9 $$", 137, 30_001)])
def test_a_daemon_opens_the_file_of_errors_when_it_prints(nodes: Nodes, program: str, status: int, printed: int) -> None:
    """No file of the shared file system is opened on a node for a daemon that has nothing to say; of others each line comes."""
    errors = nodes.place / "errors"
    env = {**ENV, "VRM_RELAY": nodes.relay.address, "VRM_ERRORS": str(errors), "SHELL": "/bin/sh"}
    asks = [sys.executable, "-I", "-S", rsh_agent.__file__, "-x", "n5", program]
    done = subprocess.run(asks, env=env, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (status, b"") and errors.exists() == bool(printed)
    assert not printed or errors.read_text().split() == [*map(str, range(1, 30_001)), "end"]


def test_a_script_that_waited_asks_for_daemons_on_its_own_node(nodes: Nodes) -> None:
    output = nodes.place / "late" / "out"
    nodes.launch("late", ["sh", "-c", 'echo "$VRM_RELAY"'], stdout=output, stderr=output, patience=60.0,
                 env={**ENV, "VRM_RELAY": nodes.relay.address})
    assert nodes.run("first", ["true"]).ok  # the other one waits by now
    output.parent.mkdir()
    assert nodes.end_of("late").ok and output.read_text().startswith("vrm-")
    assert output.read_text().strip() != nodes.relay.address


@pytest.mark.slow
def test_hundreds_at_once(nodes: Nodes) -> None:
    jobs = range(200)
    for job in jobs:
        nodes.launch(job, ["sh", "-c", f"echo {job}; exit {job % 3}"])

    def ends() -> dict[object, int | None]:
        nodes.collect()
        return {e.id: e.status.code for e in nodes.seen if isinstance(e, Ended)}
    wait_until(lambda: len(ends()) == len(jobs), "all have ended")
    assert ends() == {job: job % 3 for job in jobs}
    assert all((nodes.place / f"{job}.o").read_text() == f"{job}\n" for job in jobs)
    assert len(nodes.seen) == 2 * len(jobs)


def test_a_long_environment_goes_through(nodes: Nodes) -> None:
    env = {**ENV, **{f"V{number}": "x" * 100_000 for number in range(15)}}
    program = "import os\nprint(sum(len(v) for k, v in os.environ.items() if k[0] == 'V'))"
    assert int(nodes.python("job", program, env=env)) == 15 * 100_000


@pytest.mark.slow
def test_what_runs_goes_on_when_the_manager_ends(place: Path) -> None:
    nodes = Nodes(place, {"n5": RUNNER}, 30.0)
    nodes.launch("job", ["sh", "-c", f"echo ready; until [ -e {place}/go ]; do sleep 0.01; done; "
                         "exit 3"])
    nodes.printed("job")
    relay = psutil.Process(nodes.process("relay"))
    nodes.spawner.close()
    assert relay.is_running() and nodes.marker("job").exists()
    (place / "go").touch()
    status = wait_until(lambda: read_status(nodes.status("job")), "its end is recorded")
    assert status.code == 3
    wait_until(lambda: gone(relay.pid), "the relay has ended")


# ------------------------------------------------------------------------------ another user

STRANGER = """
import marshal, socket, sys
connection = socket.socket(socket.AF_UNIX)
if sys.argv[1] == "listen":
    connection.bind("\\0" + sys.argv[2])
    connection.listen()
    print("listens", flush=True)
    print(connection.accept()[0].recv(9))
else:
    connection.connect("\\0" + sys.argv[2])
    order = marshal.dumps((b"p", ([b"/usr/bin/touch", sys.argv[3].encode()], {}, b"/", b"/dev/null", b"/dev/null", None, ())), 2)
    data = b"pn5\\0" + order
    connection.sendall(len(data).to_bytes(4, "little") + data)
    print(connection.recv(9))
"""


def stranger(*words: object) -> subprocess.Popen[str]:
    """A program of another user's; skips where there can be none."""
    if os.geteuid() or not os.access("/usr/bin/python3", os.X_OK):
        pytest.skip("needs root, and a Python for other accounts")
    return subprocess.Popen(["/usr/bin/python3", "-I", "-c", STRANGER, *map(str, words)], user=65534, cwd="/", text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_another_user_has_nothing_started(nodes: Nodes) -> None:
    nodes.place.chmod(0o777)
    said = stranger("connect", nodes.relay.address, nodes.place / "hit").communicate(timeout=60)
    assert said[0] == "b''\n" or "Broken pipe" in said[1] or "reset" in said[1], said
    assert nodes.run("job", ["true"]).ok and not (nodes.place / "hit").exists()


def test_a_relay_of_another_user_gets_no_order() -> None:
    name = f"vrm-test-{os.getpid()}"
    with stranger("listen", name) as process:
        assert process.stdout is not None and process.stdout.readline() == "listens\n"
        with pytest.raises(PermissionError, match="another user"):
            wire.connect(name.encode(), wire.PROGRAM, b"n5", ([b"true"], {}))
        assert process.communicate(timeout=60)[0] == "b''\n"


# ------------------------------------------------------------------------------ ways to a node


@pytest.mark.parametrize("way, message", [
    (["/no/such/ssh"], "cannot be reached: /no/such/ssh cannot be started: No such file or directory"),
    (["sh", "-c", "echo 'ssh: n5: No route to host' >&2; exit 255"],
     "cannot be reached: ssh: n5: No route to host"),
    (["sh", "-c", "echo hm >&2; exec sleep 600"],
     "cannot be reached: no answer within 0.4 s; it said: hm"),
    (["yes", "I am a login script"],
     "cannot be reached: something other than an agent answers there: I am a login script")])
def test_a_node_that_cannot_be_reached(place: Path, way: Sequence[str], message: str) -> None:
    for nodes in made(place, way, 30.0 if way[0] == "yes" else 0.4):
        assert nodes.failure("job", ["true"]) == f"n5: {message}"
        assert nodes.failure("again", ["true"]) == f"n5: {message}"


def test_what_a_login_script_says_is_no_answer(place: Path) -> None:
    way = ["sh", "-c", f"echo Welcome; printf 'no line end'; exec {shlex.join(RUNNER)}"]
    for nodes in made(place, way):
        assert nodes.python("job", "print('well')") == "well\n"


def test_a_runner_without_its_relay_ends_its_programs(place: Path) -> None:
    """As on a node whose connection was closed at the other end."""
    inbox, ours = os.pipe()
    theirs, outbox = os.pipe()
    pid = os.fork()
    if not pid:
        os.dup2(inbox, 0)
        os.dup2(outbox, 1)
        for end in (ours, theirs):
            os.close(end)
        os.execv(RUNNER[0], RUNNER)
    os.close(inbox)
    os.close(outbox)
    try:
        order = ([os.fsencode(word) for word in (*PYTHON, BLOCK)], {}, b"/", b"/dev/null",
                 b"/dev/null", None, ())
        os.write(ours, modules() + wire.frame(b"n5", 3, marshal.dumps((wire.PROGRAM, order), wire.PORTABLE)) + wire.frame(b"n5", 0))
        heard = bytearray()

        def answered() -> bool:
            if select.select([theirs], [], [], 0.05)[0]:
                heard.extend(os.read(theirs, 4096))
            return heard.count(wire.lines(b"n5", 0)) == 2  # the first one says that it has begun
        wait_until(answered, "the runner has taken the order")
        program, = [child for child, state in children(pid) if state != "Z"]
        os.close(ours)
        wait_until(lambda: os.waitpid(pid, os.WNOHANG)[0], "the runner has ended")
        wait_until(lambda: gone(program), "its program has ended")
    finally:
        os.close(theirs)
