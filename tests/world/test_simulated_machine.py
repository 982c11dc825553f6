"""Tests that the simulated machine behaves like the real one: small programs give the same results on both, and the disk
after a crash follows its rules."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import importlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from vrm.live.runner import starting

greenlet = pytest.importorskip("greenlet")

PROGRAMS = importlib.import_module("world.programs").PROGRAMS


def plain(value: Any) -> Any:
    """Return a value as it is after writing and reading it as JSON."""
    return json.loads(json.dumps(value, default=lambda each: each.decode("latin-1") if isinstance(each, bytes) else list(each)))


def on_the_real(body: Callable[[Any], Any], folder: Path) -> Any:
    """Return the result of a program on the real system."""
    system = SimpleNamespace(
        os=os, signal=signal, socket=socket, select=select, fcntl=fcntl, time=time, ctypes=ctypes, fork=starting.fork_into,
        subreaper=lambda: ctypes.CDLL(None).prctl(36, 1, 0, 0, 0))
    ready, pen = os.pipe()

    def child() -> None:
        signal.alarm(60)
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.chdir(folder)
        os.close(ready)
        os.dup2(pen, 200)
        os.closerange(3, 200)
        data = json.dumps(plain(body(system))).encode()
        os.write(200, data)
    pid = starting.fork_into(child)
    os.close(pen)
    with open(ready, "rb") as file:
        said = file.read()
    assert os.waitpid(pid, 0)[1] == 0, f"{body.__name__} failed on the real system"
    return json.loads(said)


def on_the_simulated(body: Callable[[Any], Any], seed: int) -> Any:
    """Return the result of a program on the simulated machine."""
    from world.machine.kernel import K
    from world.machine.loading import ENVIRONMENT, MODULES
    K.reset(seed)
    K.main = greenlet.getcurrent()
    K.quantum, K.socket_files = 3.0, True
    MODULES["os"].makedirs("/work")
    system = SimpleNamespace(**{name: MODULES[name] for name in ("os", "signal", "socket", "select", "fcntl", "time", "ctypes")},
                             fork=K.fork_into, subreaper=lambda: MODULES["ctypes"].CDLL(None).prctl(36, 1, 0, 0, 0))
    said: list[Any] = []

    def start() -> None:
        for _ in range(3):
            system.os.open("/dev/null", system.os.O_RDWR)
        system.os.setsid()
        system.os.chdir("/work")
        said.append(plain(body(system)))
    K.born(K.init, "program", ["program"], ENVIRONMENT, start)
    assert K.run(K.now + 300.0) and said, K.wrong or "it waits for ever"
    assert not K.wrong, K.wrong
    return said[0]


@pytest.mark.parametrize("body", PROGRAMS, ids=lambda body: body.__name__)
def test_it_does_what_the_real_one_does(body: Callable[[Any], Any], tmp_path: Path) -> None:
    real = on_the_real(body, tmp_path)
    for seed in range(5):
        assert on_the_simulated(body, seed) == real


# The disk after a crash cannot be tested on the real machine; these are its rules.


@pytest.fixture
def disk() -> Any:
    from world.machine.kernel import K
    K.reset(0)
    return K.disk


def calls() -> Any:
    from world.machine.loading import MODULES
    return MODULES["os"]


def after_crashes(make: Callable[[Any], None], strict: bool = False, times: int = 60) -> set[str]:
    """Return all states of the files f and g found after crashes: their contents, - for a missing file."""
    from world.machine.kernel import K
    found = set()
    for seed in range(times):
        K.reset(seed, strict)
        make(calls())
        K.disk.crash(Random(seed))
        found.add(" ".join(bytes(K.disk.root.names[name].data).decode().replace("\0", ".") if name in K.disk.root.names else "-"
                           for name in "fg"))
    return found


def written(system: Any, name: str, text: str, sync: bool = True, folder: bool = False) -> int:
    number: int = system.open(f"/{name}", system.O_RDWR | system.O_CREAT)
    system.pwrite(number, text.encode(), 0)
    if sync:
        system.fsync(number)
    if folder:
        system.fsync(system.open("/", system.O_RDONLY))
    return number


def test_what_was_synced_is_there() -> None:
    assert after_crashes(lambda system: written(system, "f", "old")) == {"old -"}
    assert after_crashes(lambda system: written(system, "f", "old"), strict=True) == {"old -", "- -"}
    assert after_crashes(lambda system: written(system, "f", "old", folder=True), strict=True) == {"old -"}


def test_what_was_not_synced_may_be_there() -> None:
    def make(system: Any) -> None:
        system.fsync(system.open("/", system.O_RDONLY))
        written(system, "f", "new", sync=False)
    assert after_crashes(make) == {"new -", " -", "- -"}


def test_a_rename_is_there_or_not() -> None:
    def make(system: Any) -> None:
        written(system, "f", "old")
        written(system, "g", "new")
        system.rename("/g", "/f")
    assert after_crashes(make) == {"old new", "new -"}


def test_names_change_in_their_order() -> None:
    def make(system: Any) -> None:
        written(system, "f", "")
        system.link("/f", "/g")
        system.unlink("/f")
    assert after_crashes(make) == {" -", " ", "- "}


def test_sectors_are_there_each_on_its_own() -> None:
    def make(system: Any) -> None:
        number = written(system, "f", "a" * 1024)
        system.pwrite(number, b"b" * 1536, 0)
    kinds = {"".join(dict.fromkeys(each.split()[0][at] for at in range(0, len(each.split()[0]), 512)))
             for each in after_crashes(make, times=200)}
    assert {"a", "b", "ab", "ba"} <= kinds


def test_a_failed_sync_loses_what_it_was_to_write() -> None:
    def make(system: Any) -> None:
        from world.machine.kernel import K
        number = written(system, "f", "old")
        system.pwrite(number, b"new", 0)
        K.disk.broken = 1
        with pytest.raises(OSError):
            system.fsync(number)
        system.fsync(number)  # nothing is left to write
        assert system.pread(number, 9, 0) == b"new"
    assert after_crashes(make) == {"old -"}


def test_a_full_disk_takes_a_part_and_what_is_there_already(disk: Any) -> None:
    system = calls()
    number = written(system, "f", "x" * 100, folder=True)
    disk.trouble, disk.left = errno.ENOSPC, 10
    assert system.pwrite(number, b"y" * 50, 100) == 10
    for call in (lambda: system.pwrite(number, b"z", 110), lambda: system.open("/g", system.O_CREAT | system.O_WRONLY)):
        with pytest.raises(OSError) as raised:
            call()
        assert raised.value.errno == errno.ENOSPC
    assert system.pwrite(number, b"z" * 50, 60) == 50
    system.unlink("/f")
