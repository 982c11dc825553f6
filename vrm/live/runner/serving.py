"""Starts and ends the process that serves the programs of a script, if an extension has one (variable SERVER). It is
used by the process that has started the script: a supervisor, or a runner on another node. These run it with no other
part of vrm than the files of this folder."""

import os
import resource
import select
import sys

import _signal as signal  # see `wire.py`
import _socket as socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Optional, Tuple

FOLDER = b"VRM_STEPS"
"""The variable of a script with the directory of its own files (see `vrm.system.job_variables`)."""

SERVER = "VRM_SERVER"
"""The variable of a script that names a module. Its function `serve` is called at the first call of a program, with
the socket that listens in that directory, and with a pipe that closes when the script has ended."""

AFTER = 0.01
"""Seconds after which a program counts as one that runs for a while; many programs have ended by then, without
steps."""

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
"""The directory that contains the package vrm."""


class ScriptServer:
    """The server of a program with the environment `env`; there is none unless a variable names its module."""

    def __init__(self, env: "Mapping[bytes, bytes]") -> None:
        self.module = os.fsdecode(env.get(SERVER.encode(), b""))
        self.folder = env.get(FOLDER, b"") if self.module else b""
        self.pid = 0
        self._usage: "Optional[resource.struct_rusage]" = None
        self._life = -1

    def start(self) -> None:
        """Fork the server. If that fails, programs work without it, but slower."""
        if not self.folder:
            return
        try:
            alive, self._life = os.pipe()
            self.pid = os.fork()
        except OSError:
            return
        if self.pid:
            os.close(alive)
            return
        try:
            signal.set_wakeup_fd(-1)
            os.dup2(0, 2)
            # Close all other files: an open copy would hide the end of the process that has started this one.
            os.dup2(alive, 3)
            os.closerange(4, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
            self._serve(3)
        finally:
            os._exit(0)

    def _serve(self, alive: int) -> None:
        """Wait for the first call; only then import the module that answers."""
        directory = os.open(self.folder, os.O_PATH | os.O_DIRECTORY)
        path = b"/proc/self/fd/%d/socket" % directory
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.unlink(path + b".new")
        except OSError:
            pass
        listening.bind(path + b".new")
        listening.listen(64)
        os.rename(path + b".new", path)  # a program that finds it gets an answer
        os.close(directory)
        if alive not in select.select([listening.fileno(), alive], [], [])[0]:
            sys.path.insert(0, ROOT)
            __import__(self.module)
            sys.modules[self.module].serve(listening, alive)

    def ended(self, child: int, usage: "resource.struct_rusage") -> None:
        """Note that a child has ended, which may be this server."""
        if child == self.pid:
            self.pid, self._usage = 0, usage

    def end(self, usage: "resource.struct_rusage") -> "Tuple[float, float, int]":
        """End the server after its script, which has used `usage`. Return what both have used, including all processes
        that they waited for: CPU seconds (user, system), and the bytes of the largest process."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            self.ended(*os.wait4(self.pid, 0)[::2])
        if self._life >= 0:
            os.close(self._life)
            self._life = -1
        both = [usage] if self._usage is None else [usage, self._usage]
        return (sum(each.ru_utime for each in both), sum(each.ru_stime for each in both),
                max(each.ru_maxrss for each in both) * 1024)
