"""Runs `python -m vrm.cli` by forking a process that has everything loaded, because a new Python takes longer for loading
than most tests take for the rest.

Each test worker has one server, which forks for each call. The fork runs vrm like `-m vrm.cli`, with the arguments,
directory, environment, open files, cores and limits of the caller, and ends as a Python does. Options that take effect at
the start of Python (variables such as PYTHONPATH or LC_ALL, `preexec_fn`) need a new Python.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any
from collections.abc import Sequence

VRM = [sys.executable, "-m", "vrm.cli"]
FIXED = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "COVERAGE_")
"""Prefixes of the variables that Python or the C library reads at its start."""
LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


class Warm(subprocess.Popen):  # type: ignore[type-arg]
    """A vrm process forked by the server; used like any `subprocess.Popen`."""

    _server: socket.socket | None = None
    _server_pid = 0

    def __init__(self, words: Sequence[Any], **options: Any) -> None:
        self._exit: socket.socket | None = None
        super().__init__([str(word) for word in words], **options)

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any,  # type: ignore
                       cwd: Any, env: Any, *rest: Any) -> None:
        env = dict(os.environ if env is None else env)
        if args[:len(VRM)] != VRM or preexec_fn or pass_fds or not _as_here(env):
            super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds,  # type: ignore[misc]
                                   cwd, env, *rest)
            return
        pipes = rest[3:9]
        p2cread, _, _, c2pwrite, _, errwrite = pipes
        self._exit, theirs = socket.socketpair()
        directory = os.open("." if cwd is None else cwd, os.O_RDONLY | os.O_DIRECTORY)
        files = [given if given >= 0 else own for own, given in enumerate((p2cread, c2pwrite, errwrite))]
        call = json.dumps([args[len(VRM):], env, os.getpid()]).encode()
        try:
            socket.send_fds(self.server(), [b"%d\n" % len(call)], [theirs.fileno(), directory, *files])
            self.server().sendall(call)
        finally:
            theirs.close()
            os.close(directory)
        self.pid = _number(self._exit)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    @classmethod
    def server(cls) -> socket.socket:
        """Return the connection to this process's server, which is started at the first call."""
        if cls._server is None or cls._server_pid != os.getpid():
            cls._server, theirs = socket.socketpair()
            cls._server_pid = os.getpid()
            subprocess.Popen([sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()],
                             stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONUNBUFFERED": "1"})
            theirs.close()
        return cls._server

    def _internal_poll(self, *rest: Any, **named: Any) -> int | None:  # type: ignore[override]
        return super()._internal_poll(*rest, **named) if self._exit is None else self._ended(0)  # type: ignore[misc]

    def _wait(self, timeout: float | None) -> int:  # type: ignore[override]
        if self._exit is None:
            return super()._wait(timeout)  # type: ignore[misc]
        if self._ended(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def _ended(self, timeout: float | None) -> int | None:
        """Wait up to `timeout` seconds (None: without limit) for the exit status; return it, or None if the process still runs."""
        if self.returncode is None and self._exit is not None and select.select([self._exit], [], [], timeout)[0]:
            self.returncode = _number(self._exit)
            self._exit.close()
        return self.returncode


def _number(connection: socket.socket) -> int:
    """Return the next number from the server: the process id, then the exit status. Both may arrive together."""
    return int(connection.recv(20, socket.MSG_WAITALL))


def run(words: Sequence[Any], timeout: float | None = None, **options: Any
        ) -> subprocess.CompletedProcess[str]:
    """Run `VRM` with `words` like `subprocess.run(capture_output=True, text=True)`."""
    options = {"text": True, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    with Warm([*VRM, *words], **options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _as_here(env: dict[str, str]) -> bool:
    """Return whether a Python with this environment would start like the server did."""
    def fixed(of: dict[str, str]) -> dict[str, str]:
        return {name: value for name, value in of.items() if name.startswith(FIXED)}
    return {**fixed(env), "PYTHONUNBUFFERED": "1"} == {**fixed(dict(os.environ)), "PYTHONUNBUFFERED": "1"}


# The server.


def load() -> None:
    """Import all modules of vrm, and load the default configuration, so that everything built at first use exists."""
    import vrm
    for found in pkgutil.walk_packages(vrm.__path__, "vrm."):
        if found.name != "vrm.cli" and not found.name.endswith(".__main__"):
            with contextlib.suppress(ImportError):  # modules that need optional packages
                importlib.import_module(found.name)
    from vrm.config.schema import load
    load(None)


def serve(calls: socket.socket) -> None:
    """Serve calls until the caller has ended. Returns only in the forks, which are then set up for their call."""
    running: dict[int, socket.socket] = {}
    ends, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    while True:
        ready = select.select([calls, ends], [], [])[0]
        if ends in ready:
            os.read(ends, 4096)
        for pid in list(running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                with contextlib.suppress(OSError), running.pop(pid) as connection:
                    connection.sendall(b"%20d" % os.waitstatus_to_exitcode(status))
        if calls not in ready:
            continue
        size, files, _, _ = socket.recv_fds(calls, 20, 5)
        if not size:
            os._exit(0)
        call = b""
        while len(call) < int(size):
            call += calls.recv(int(size) - len(call))
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for handle in [calls.fileno(), ends, wake, files[0], *(each.fileno() for each in running.values())]:
                os.close(handle)
            become(*json.loads(call), *files[1:])
            return
        running[pid] = socket.socket(fileno=files[0])
        running[pid].sendall(b"%20d" % pid)
        for handle in files[1:]:
            os.close(handle)


def become(words: Sequence[str], env: dict[str, str], caller: int, directory: int, *files: int) -> None:
    """Take over limits, cores, umask, directory, open files and environment as if the caller had started this process."""
    for kind in LIMITS:
        resource.setrlimit(kind, resource.prlimit(caller, kind))
    os.sched_setaffinity(0, os.sched_getaffinity(caller))
    with open(f"/proc/{caller}/status") as status:
        os.umask(int(next(line for line in status if line.startswith("Umask")).split()[1], 8))
    os.fchdir(directory)
    os.close(directory)
    for number, handle in enumerate(files):
        os.dup2(handle, number)
        os.close(handle)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    sys.argv[1:] = words


def end(ended: SystemExit) -> None:
    """End as a Python does, but without the clean-up of all modules: after a fork it copies memory and costs as much as
    a start. Returns if Python itself must report an error."""
    if ended.code is not None and not isinstance(ended.code, int):
        return
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()
    try:
        for file in (sys.stdout, sys.stderr):
            if file is not None and not file.closed:
                file.flush()
    except (OSError, ValueError):
        return
    os._exit((ended.code or 0) & 0xff)


if __name__ == "__main__":
    sys.path[0] = ""
    load()
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[1])))
    sys.path[0] = os.getcwd()
    try:
        runpy.run_module("vrm.cli", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        end(ended)
        raise
