"""`vrm --on HOST`: from a machine to the nodes of the test cluster by the real sshd, as an ordinary user who has nothing
there yet; passwords and codes with a server that asks for them."""

from __future__ import annotations

import importlib.metadata
import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from collections.abc import Iterator, Sequence

import pytest

pytest.importorskip("fabric", reason="needs Fabric: the extra `remote`")

import paramiko

from conftest import LIMIT, mpirun_environment, wait_until
from support.testbed import Testbed, missing
from vrm import cli
from vrm.ext.remote import installing
from vrm.ext.remote.fetching import fetch
from vrm.ext.remote.host import place, target
from vrm.system.errors import RunError

CLI = [sys.executable, "-m", "vrm.cli", "--on"]


class Typist:
    """A program on a terminal of its own, whose questions are answered."""

    def __init__(self, argv: Sequence[str], env: dict[str, str], start: Any = subprocess.Popen, **how: Any) -> None:
        self.terminal, inner = pty.openpty()
        self.seen = b""
        self.process = start(
            ["setsid", "--ctty", "--wait", *argv], stdin=inner, stdout=inner, stderr=inner, env=env, **how)
        os.close(inner)

    def until(self, text: str, limit: float = LIMIT) -> str:
        """Wait for something to be shown; what has been shown so far, which then counts as read."""
        end = time.monotonic() + limit
        while text.encode() not in self.seen:
            if not select.select([self.terminal], [], [], max(0.0, end - time.monotonic()))[0]:
                pytest.fail(f"no {text!r} within {limit:g} s, but {self.seen!r}")
            if not self._read():
                pytest.fail(f"it ended before {text!r}: {self.seen!r}")
        before, _, self.seen = self.seen.partition(text.encode())
        return (before + text.encode()).decode(errors="replace")

    def _read(self) -> bool:
        try:
            data = os.read(self.terminal, 1 << 16)
        except OSError:  # the other side has closed
            return False
        self.seen += data
        return bool(data)

    def type(self, text: str) -> None:
        """Type."""
        os.write(self.terminal, text.encode())

    def end(self, limit: float = LIMIT) -> tuple[int, str]:
        """Its exit status, and the rest of what it showed."""
        stop = time.monotonic() + limit
        while select.select([self.terminal], [], [], max(0.0, stop - time.monotonic()))[0] and self._read():
            pass
        status = self.process.wait(max(1.0, stop - time.monotonic()))
        os.close(self.terminal)
        return status, self.seen.decode(errors="replace")


# ------------------------------------------------------------------------------ the test cluster


class Cluster:
    """Two nodes with an account `alice`; this user has the name `cluster` for n0 in ~/.ssh/config."""

    def __init__(self, testbed: Testbed, home: Path) -> None:
        self.testbed = testbed
        self.home = home
        self.there = testbed.home_of("alice")
        self.env = {"HOME": str(home), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        (home / ".ssh").mkdir(mode=0o700)
        self.config()

    def config(self, more: str = "") -> None:
        """~/.ssh/config; the key is named in the system's."""
        (self.home / ".ssh" / "config").write_text(
            "Host cluster\n  HostName n0\n  User alice\n" + more)

    def on(self, *words: object, host: str = "cluster:work", **how: Any) -> subprocess.CompletedProcess[str]:
        """Run `vrm --on HOST WORDS` on the login node."""
        return self.testbed.exec("login", [*CLI, host, *words], self.env, cwd=self.home, timeout=120, **how)

    def ssh(self, command: str) -> str:
        """What the plain ssh of the system says."""
        return self.testbed.exec("login", ["ssh", "alice@n0", command], check=True).stdout


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    reason = missing(slurm=False)
    if reason:
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="vrm-remote-"))
    folder.chmod(0o755)
    home = folder / "me"
    home.mkdir()
    try:
        with Testbed(1, slurm=False, directory=folder / "cluster", accounts=["alice"]) as testbed:
            yield Cluster(testbed, home)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def wheelhouse(folder: Path) -> Path:
    """All that vrm needs, as wheels: what is installed here, packed again."""
    folder.mkdir()
    waiting, seen = ["vrm"], set()
    while waiting:
        name = re.split(r"[ ;<>=!~\[(]", waiting.pop(), maxsplit=1)[0].lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            known = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another Python
        waiting += [text for text in known.requires or () if "extra ==" not in text]
        if name != "vrm":
            tags = sorted(re.findall(r"^Tag: (.*)$", known.read_text("WHEEL") or "", re.M), key=lambda tag: tag[:3] == "py2")
            files = {str(path): path.read_binary() for path in known.files or ()
                     if ".." not in path.parts and "__pycache__" not in path.parts and ".dist-info" not in path.parts[0]
                     and "tests" not in path.parts}
            wheel, data = installing.pack(name, files, tags)
            (folder / wheel).write_bytes(data)
    return folder


@pytest.mark.slow
@pytest.mark.testbed
@pytest.mark.xdist_group("remote")
def test_a_session_from_nothing_to_results(cluster: Cluster, tmp_path: Path) -> None:
    """An ordinary user, with nothing there: install offline, submit, look, fetch."""
    if cluster.ssh("python3 -c 'import sys; print(sys.version_info[:2])'").strip() != str(sys.version_info[:2]):
        pytest.skip("the system's Python is another than this one, whose packages are its wheels")
    none = cluster.on("queue", host="cluster")
    assert none.returncode == 127 and "install it: vrm --on cluster setup" in none.stderr

    house = wheelhouse(tmp_path / "wheelhouse")
    made = cluster.on("setup", "--wheelhouse", house)
    assert made.returncode == 0, made.stdout + made.stderr
    assert "sending" in made.stderr and "is on cluster, in" in made.stderr
    again = cluster.on("setup", "--wheelhouse", house)
    assert again.returncode == 0 and "sending" not in again.stderr
    base = cluster.there / ".local/share/vrm"
    assert len(list(base.glob("*/complete"))) == 2  # one version, and `current`
    assert not list(base.glob("*.wheels"))
    assert (base / "current/bin/vrm").stat().st_uid == cluster.testbed.accounts["alice"]

    cluster.ssh("mkdir -p work/bin; cd work; printf '#!/bin/sh\\necho result of $1\\n' > bin/solve; chmod +x bin/solve; "
                "printf '%s\\n' 'Applications: {Path: bin, Queue: queue}' 'Launcher: {Kind: direct}' 'Nodes: 1' "
                "'Sockets: 1' 'Cores: 1' 'Log: logs' > vrm.yaml; : > queue")
    wrong = cluster.on("queue", host="cluster:elsewhere")
    assert wrong.returncode == 2 and "to make it: ssh cluster mkdir -p elsewhere" in wrong.stderr
    manager = cluster.testbed.popen("login", [*CLI, "cluster:work", "run", "--wait"], cluster.env, cwd=cluster.home,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_until(lambda: cluster.ssh("cat work/logs/state 2>/dev/null || true"), "the manager runs")
        first = cluster.on("submit", "solve", 1, 60, "--", "it's $HOME; \"done\"")
        assert first.returncode == 0 and "0" in first.stdout, first.stderr
        held = cluster.on("submit", "solve", 1, 60, "--hold", "--name", "later")
        assert held.returncode == 0
        wait_until(lambda: "result" in cluster.ssh("cat work/logs/solve.0.o 2>/dev/null || true"), "the job ran")
        assert cluster.ssh("cat work/logs/solve.0.o") == 'result of it\'s $HOME; "done"\n'
        assert "held" in cluster.on("-i", "queue").stdout
        assert "n0" in cluster.on("-i", "state").stdout
        assert json.loads(cluster.on("queue", "--json").stdout)
        assert "solve" in cluster.on("forecast").stdout

        typist = Typist([*CLI, "cluster:work", "top"], {**cluster.env, "TERM": "xterm"}, cwd=cluster.home,
                        start=lambda argv, env, cwd, **how: cluster.testbed.popen("login", argv, env, cwd, **how))
        typist.until("Waiting 1")
        typist.type("q")
        assert typist.end()[0] == 0

        session = Typist([*CLI, "cluster:work"], {**cluster.env, "TERM": "xterm"}, cwd=cluster.home,
                         start=lambda argv, env, cwd, **how: cluster.testbed.popen("login", argv, env, cwd, **how))
        session.until("vrm on cluster> ")
        session.type("frobnicate\n")
        session.until("there is no command")
        session.until("vrm on cluster> ")
        session.type("vrm release 1\n")
        session.until("vrm on cluster> ")
        session.type("stop\n")
        session.until("vrm on cluster> ")
        session.type("quit\n")
        assert session.end()[0] == 2
        assert manager.wait(LIMIT) == 0
    finally:
        if manager.poll() is None:
            manager.kill()
            manager.wait()

    got = cluster.on("fetch", "logs")
    assert got.returncode == 0, got.stderr
    assert "solve.0.o" in os.listdir(cluster.home / "logs")
    assert (cluster.home / "logs/jobs.csv").read_text() == cluster.ssh("cat work/logs/jobs.csv")
    cluster.ssh("touch -d '1 hour ago' work/logs/*; echo more >> work/logs/solve.0.o")
    cluster.on("fetch", "logs")
    cluster.ssh("touch -d '10 minutes ago' work/logs/solve.0.o")
    some = cluster.on("fetch", "logs")
    assert some.returncode == 0 and some.stderr.startswith("1 file fetched"), some.stderr
    assert (cluster.home / "logs/solve.0.o").read_text().endswith("more\n")
    assert cluster.on("fetch", "nothing").returncode == 2

    cluster.ssh("mkdir site; cd site; printf '%s\\n' 'n0|p*|2|idle|1-00:00:00' > sinfo; : > squeue; "
                "printf '%s\\n' 'Applications: {Path: ., Any: true, Queue: queue}' > vrm.yaml; echo '/bin/sleep 1 600' > queue")
    plan = cluster.on("plan", "--squeue", "squeue", "--sinfo", "sinfo", "--members", "4", "--json", host="cluster:site")
    assert plan.returncode == 0, plan.stderr
    assert json.loads(plan.stdout)["requests"][0]["nodes"] == 1

    batch = cluster.testbed.exec("login", [*CLI, "cluster:work"], cluster.env, cwd=cluster.home)
    assert (batch.returncode, batch.stdout) == (0, "")


@pytest.mark.slow
@pytest.mark.testbed
@pytest.mark.xdist_group("remote")
def test_a_jump_host_is_passed(cluster: Cluster) -> None:
    cluster.config("  ProxyJump root@login\n")
    try:
        done = cluster.on("queue", host="cluster")
        assert "no vrm.yaml" in done.stderr or "there is no vrm" in done.stderr or "no manager has written" in done.stderr
        cluster.config("  ProxyJump root@login:1\n")
        lost = cluster.on("queue", host="cluster")
        assert lost.returncode == 2 and len(lost.stderr.splitlines()) == 1 and "refused" in lost.stderr
    finally:
        cluster.config()


@pytest.mark.slow
@pytest.mark.testbed
@pytest.mark.xdist_group("remote")
def test_who_cannot_be_reached_is_said_in_one_line_with_what_to_do(cluster: Cluster) -> None:
    for host, wanted in {"nowhere.invalid": "check the name", "bob@n0": "check User and IdentityFile"}.items():
        done = cluster.on("queue", host=host)
        assert done.returncode == 2 and wanted in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
    cluster.config("  StrictHostKeyChecking yes\n  UserKnownHostsFile ~/.ssh/known\n")
    try:
        unknown = cluster.on("queue")
        assert unknown.returncode == 2 and "in no file of known hosts" in unknown.stderr
        (cluster.home / ".ssh/known").write_text(
            "n0 ssh-ed25519 " + (cluster.testbed.directory / "id.pub").read_text().split()[1] + "\n")  # type: ignore
        other = cluster.on("queue")
        assert other.returncode == 2 and "ssh-keygen -R n0" in other.stderr
        (cluster.home / ".ssh/known").write_text(
            "n0 " + (cluster.testbed.directory / "hostkey.pub").read_text())  # type: ignore
        assert "known hosts" not in cluster.on("queue", host="cluster").stderr
    finally:
        cluster.config()


# ------------------------------------------------------------------ a server that asks questions


class Telling(paramiko.Transport):
    """It says when a request was answered with yes."""

    agreed = threading.Event()

    def _send_message(self, data: Any) -> None:
        super()._send_message(data)
        if data.asbytes()[:1] == b"\x63":  # SSH_MSG_CHANNEL_SUCCESS
            self.agreed.set()


class Asking(paramiko.ServerInterface):
    """A server that wants a password and then a code; or only the password."""

    def __init__(self, codes: bool) -> None:
        self.codes = codes
        self.ran: list[str] = []
        self.done = threading.Event()
        self.proved = False

    def get_allowed_auths(self, username: str) -> str:
        return ("keyboard-interactive" if self.proved else "publickey,password") if self.codes else "password"

    def check_auth_password(self, username: str, password: str) -> int:
        if password != "secret":
            return paramiko.AUTH_FAILED
        self.proved = True
        return paramiko.AUTH_PARTIALLY_SUCCESSFUL if self.codes else paramiko.AUTH_SUCCESSFUL

    def check_auth_interactive(self, username: str, submethods: str) -> Any:
        return paramiko.InteractiveQuery("Two factors", "From your\x1b[2J device.", ("One-time code: ", False))

    def check_auth_interactive_response(self, responses: Sequence[str]) -> int:
        return paramiko.AUTH_SUCCESSFUL if list(responses) == ["123456"] else paramiko.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_pty_request(self, *_: Any) -> bool:
        return True

    def check_channel_exec_request(self, channel: Any, command: bytes) -> bool:
        agreed = channel.transport.agreed = threading.Event()

        def answer() -> None:
            agreed.wait(LIMIT)
            self.ran.append(command.decode())
            channel.sendall(b"here it is\r\n")
            channel.send_exit_status(5)
            channel.close()

        threading.Thread(target=answer, daemon=True).start()
        return True


class Server:
    """It listens on this machine; each connection is asked as `Asking` says."""

    def __init__(self, codes: bool) -> None:
        import socket
        self.asking = Asking(codes)
        self.key = paramiko.ECDSAKey.generate()
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.transports: list[paramiko.Transport] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection = self.socket.accept()[0]
            except OSError:
                return
            transport = Telling(connection)
            transport.add_server_key(self.key)
            self.transports.append(transport)
            transport.start_server(server=self.asking, event=threading.Event())

    def close(self) -> None:
        self.socket.close()
        for transport in self.transports:
            transport.close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".ssh").mkdir(mode=0o700)
    return tmp_path


def started(home: Path, server: Server, *words: str) -> Typist:
    (home / ".ssh/config").write_text(f"Host far\n  HostName 127.0.0.1\n  Port {server.port}\n  User me\n")
    env = {**mpirun_environment(), "HOME": str(home), "SSH_AUTH_SOCK": ""}
    return Typist([*CLI, "far", *words], env)


@pytest.fixture(params=[False, True], ids=["password", "password and code"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(request.param)
    yield server
    server.close()


@pytest.mark.slow
def test_passwords_and_codes_are_asked_for(home: Path, server: Server) -> None:
    """And whether the server is the right one, the first time."""
    typist = started(home, server, "queue")
    typist.until("SHA256:")
    typist.until("(yes/no)? ")
    typist.type("yes\n")
    typist.until("Password of me: ")
    typist.type("sacret\n")
    typist.until("not accepted")
    typist.until("Password of me: ")
    typist.type("secret\n")
    if server.asking.codes:
        shown = typist.until("One-time code: ")
        assert "\\x1b[2J" in shown and "\x1b[2J" not in shown
        typist.type("123456\n")
    status, rest = typist.end()
    assert status == 5 and "here it is" in rest, rest
    assert "secret" not in rest and "123456" not in rest
    assert "queue" in server.asking.ran[0]
    known = (home / ".ssh/known_hosts").read_text()
    assert f"[127.0.0.1]:{server.port} ecdsa" in known


@pytest.mark.slow
def test_one_connection_serves_several_commands(home: Path) -> None:
    server = Server(codes=True)
    try:
        (home / ".ssh/known_hosts").write_text(
            f"[127.0.0.1]:{server.port} {server.key.get_name()} {server.key.get_base64()}\n")
        typist = started(home, server)
        typist.until("Password of me: ")
        typist.type("secret\n")
        typist.until("One-time code: ")
        typist.type("123456\n")
        for command in ("queue", "status"):
            typist.until("vrm on far> ")
            typist.type(command + "\n")
            typist.until("here it is")
        typist.until("vrm on far> ")
        typist.type("quit\n")
        assert typist.end()[0] == 5
        assert len(server.transports) == 1 and len(server.asking.ran) == 2
    finally:
        server.close()


@pytest.mark.slow
def test_without_a_terminal_a_question_is_an_error(home: Path) -> None:
    server = Server(codes=False)
    try:
        (home / ".ssh/config").write_text(f"Host far\n  HostName 127.0.0.1\n  Port {server.port}\n  User me\n")
        env = {**mpirun_environment(), "HOME": str(home), "SSH_AUTH_SOCK": ""}
        for known, wanted in (("", "known hosts"), (
                f"[127.0.0.1]:{server.port} {server.key.get_name()} {server.key.get_base64()}\n", "no terminal")):
            (home / ".ssh/known_hosts").write_text(known)
            done = subprocess.run([*CLI, "far", "queue"], env=env, text=True, capture_output=True, timeout=LIMIT,
                                  stdin=subprocess.DEVNULL, start_new_session=True, check=False)
            assert done.returncode == 2 and wanted in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    finally:
        server.close()


# --------------------------------------------------------------------------- files of the other side


class Files:
    """A server of files that says what it likes."""

    def __init__(self, tree: dict[str, list[tuple[str, int, bytes]]]) -> None:
        self.tree = tree

    def listdir_attr(self, path: str) -> list[paramiko.SFTPAttributes]:
        found = []
        for name, mode, data in self.tree[path]:
            entry = paramiko.SFTPAttributes()
            entry.filename, entry.st_mode, entry.st_size, entry.st_mtime = name, mode, len(data), 1000
            found.append(entry)
        return found

    def open(self, path: str, mode: str) -> Any:
        folder, _, name = path.rpartition("/")
        data = next(data for known, _, data in self.tree[folder] if known == name)

        class Reading:
            place = 0

            def __enter__(self) -> Reading:
                return self

            def __exit__(self, *_: Any) -> None:
                pass

            def prefetch(self, size: int) -> None:
                pass

            def read(self, size: int) -> bytes:
                self.place += size
                return data[self.place - size:self.place]

        return Reading()


FILE, FOLDER, LINK, PIPE = 0o100644, 0o040755, 0o120777, 0o010644


def test_no_name_leads_out_of_the_directory(tmp_path: Path) -> None:
    """Nor does a link that is there or here."""
    outside = tmp_path / "outside"
    outside.mkdir()
    target_ = tmp_path / "results"
    target_.mkdir()
    (target_ / "linked").symlink_to(outside)
    (target_ / "file-link").symlink_to(outside / "precious")
    (outside / "precious").write_text("precious")
    (target_ / "was-folder").mkdir()
    files = Files({
        "/run": [("../evil", FILE, b"x"), ("..", FOLDER, b""), (".", FOLDER, b""), ("a/b", FILE, b"x"), ("", FILE, b"x"),
                 ("ok", FILE, b"fine"), ("sub", FOLDER, b""), ("linked", FOLDER, b""), ("file-link", FILE, b"new"),
                 ("to-passwd", LINK, b"x"), ("pipe", PIPE, b""), ("was-folder", FILE, b"x"), ("n\0l", FILE, b"x"),
                 ("red\x1b[31m", FILE, b"r"), ("x" * 256, FILE, b"x")],
        "/run/sub": [("deep", FILE, b"deep")], "/run/linked": [("evil", FILE, b"evil")]})
    done = fetch(files, "/run", target_, 5000.0, lambda *_: None)
    assert os.listdir(outside) == ["precious"] and (outside / "precious").read_text() == "precious"
    assert not (tmp_path / "evil").exists()
    assert (target_ / "sub/deep").read_text() == "deep" and (target_ / "file-link").read_text() == "new"
    assert not (target_ / "file-link").is_symlink()
    assert not any(name.endswith(".part") for name in os.listdir(target_))
    assert done.files == 4 and len(done.refused) == 10, done.refused
    assert all(text.isprintable() for text in done.refused)
    again = fetch(files, "/run", target_, 5000.0, lambda *_: None)
    assert (again.files, again.same) == (0, 4)


def test_a_file_that_changes_this_second_is_fetched_the_next_time(tmp_path: Path) -> None:
    files = Files({"/run": [("log", FILE, b"one")]})
    assert fetch(files, "/run", tmp_path / "r", 1001.0, lambda *_: None).files == 1
    files.tree["/run"] = [("log", FILE, b"two")]  # of the same size, in the same second
    assert fetch(files, "/run", tmp_path / "r", 2000.0, lambda *_: None).files == 1
    assert (tmp_path / "r/log").read_text() == "two"
    assert fetch(files, "/run", tmp_path / "r", 2000.0, lambda *_: None).files == 0


def test_a_directory_in_itself_ends(tmp_path: Path) -> None:
    class Endless(Files):
        def listdir_attr(self, path: str) -> list[paramiko.SFTPAttributes]:
            self.tree[path] = [("again", FOLDER, b""), ("f", FILE, b"f")]
            return super().listdir_attr(path)

    done = fetch(Endless({}), "/run", tmp_path / "r", 5000.0, lambda *_: None)
    assert any("too deep" in text for text in done.refused)


@pytest.mark.parametrize("text, wanted", [
    ("cluster", ("cluster", "")), ("me@cluster:work/x y", ("me@cluster", "work/x y")), ("[::1]:d", ("::1", "d")),
    ("10.0.0.1:~/d", ("10.0.0.1", "~/d")), ("-oProxyCommand=x", None), ("a b", None), ("", None), ("a@-b", None)])
def test_what_can_be_a_host(text: str, wanted: tuple[str, str] | None) -> None:
    if wanted is None:
        with pytest.raises(RunError, match="HOST"):
            target(text)
    else:
        assert target(text) == wanted


@pytest.mark.parametrize("path", ["a b", "$HOME", "it's", "~/x y", "~", "~me"])
def test_a_directory_is_one_word_of_the_shell(path: str) -> None:
    said = subprocess.run(["sh", "-c", f"printf %s {place(path)}"], capture_output=True, text=True, check=True,
                          env={"HOME": "/h"}).stdout
    assert said == (path.replace("~", "/h", 1) if path in ("~", "~/x y") else path)


def test_without_fabric_it_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", "import sys; sys.modules['fabric'] = None; from vrm.cli import main; "
                           "sys.exit(main(['--on', 'cluster', 'queue']))"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "pip install 'fabric" in done.stderr and len(done.stderr.splitlines()) == 1


def test_on_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    from vrm.cli import main

    assert main(["-c", "f", "--on", "x", "queue"]) == 2
    assert "before all other words" in capsys.readouterr().err
    assert cli.is_remote(["--on=x"]) and not cli.is_remote(["run", "--on"])
    assert main(["--on", "--help"]) == 0
    assert "HOST" in capsys.readouterr().out
