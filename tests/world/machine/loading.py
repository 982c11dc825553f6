"""Loads vrm as the programs of a simulated machine: each of its modules is executed with builtins of its own, by which
`import os` and the like, `open` and `Path` are those of the machine. Nothing in vrm knows of that; what other packages
import stays as it is."""

from __future__ import annotations

import builtins
import functools
import gc as real_gc
import importlib.abc
import importlib.machinery
import importlib.util
import os as real_os
import posixpath as real_path
import resource as real_resource
import shlex as real_shlex
import shutil as real_shutil
import signal as real_signal
import stat
import subprocess as real_subprocess
import sys
import time as real_time
import uuid as real_uuid
import zlib as real_zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from world.machine import file_calls as files
from world.machine import open_files
from world.machine import path_calls as paths
from world.machine import process_calls as processes
from world.machine import socket_calls as sockets
from world.machine.kernel import K, UID

PYTHON = "/usr/bin/python3"
"""Path of sys.executable on the machine."""

HOUSE = "/opt/vrm"
"""Directory in which vrm is installed on the machine."""

EXTENSIONS: dict[str, tuple[str, ...]] = {"vrm.fields": ("ranks", "speedup"), "vrm.dispatchers": ("moldable", "sd")}
"""Extensions that each world has."""

PARTS: list[str] = []
"""Manager parts of this world."""

_PURE = ("fspath", "fsdecode", "fsencode", "strerror", "WIFSIGNALED", "WTERMSIG", "WEXITSTATUS", "WIFEXITED", "WIFSTOPPED",
         "waitstatus_to_exitcode", "PathLike", "error", "get_terminal_size", "stat_result")


class PerProcess:
    """Module state that is per process: each process has its own, and a fork copies it."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.__dict__["_make"] = make

    def _own(self) -> Any:
        alone = K.current.alone
        if id(self) not in alone:
            alone[id(self)] = self._make()
        return alone[id(self)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._own(), name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._own()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._own()[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._own()[key]

    def __iter__(self) -> Any:
        return iter(self._own())


def _module(name: str, /, **members: Any) -> ModuleType:
    made = ModuleType(name)
    made.__dict__.update(members)
    return made


def _missing(name: str) -> Any:
    def call(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"the world has no {name}")
    return call


def _of(module: ModuleType, name: str, /, **members: Any) -> ModuleType:
    """Return a module with the constants and types of a real one, and these functions."""
    found: dict[str, Any] = {}
    for each in dir(module):
        value = getattr(module, each)
        if each.startswith("__") or isinstance(value, ModuleType):
            continue
        found[each] = value if isinstance(value, (int, str, bytes, type, tuple)) or each in _PURE else _missing(f"{name}.{each}")
    return _module(name, **{**found, **members})


ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/home/user", "USER": "user", "LANG": "C.UTF-8"}
"""The variables of the shell from which vrm is started."""


def _os() -> ModuleType:
    path = _module("os.path", **{name: getattr(real_path, name) for name in dir(real_path) if not name.startswith("__")})
    path.__dict__.update(
        exists=paths.exists, lexists=paths.lexists, isfile=paths.kind_is(stat.S_ISREG), isdir=paths.kind_is(stat.S_ISDIR),
        islink=paths.kind_is(stat.S_ISLNK, False), abspath=paths.abspath, realpath=paths.realpath, relpath=paths.relpath,
        getsize=lambda path: files.stat_(path).st_size, getmtime=lambda path: files.stat_(path).st_mtime,
        samefile=lambda one, other: files.stat_(one).st_ino == files.stat_(other).st_ino,
        expanduser=lambda path: path.replace("~", "/home/user", 1) if path.startswith("~") else path)
    calls = {name: getattr(files, name) for name in (
        "close", "closerange", "read", "write", "pread", "pwrite", "lseek", "fsync", "fdatasync", "posix_fadvise",
        "ftruncate", "truncate", "fstat", "lstat", "access", "listdir", "mkdir", "makedirs", "unlink", "rmdir", "rename",
        "link", "symlink", "readlink", "chmod", "utime", "getxattr", "statvfs", "getcwd", "chdir", "pipe", "dup", "dup2",
        "set_inheritable", "set_blocking")}
    calls |= {name: getattr(processes, name) for name in (
        "getpid", "getppid", "getsid", "getpgid", "setsid", "setpgid", "kill", "killpg", "pidfd_open", "wait4", "waitpid",
        "sched_getaffinity", "sched_setaffinity", "uname", "posix_spawn")}
    return _of(real_os, "os", **calls, open=files.open_, stat=files.stat_, replace=files.rename, remove=files.unlink,
               _exit=processes.exit_, posix_spawnp=processes.posix_spawn, path=path, environ=dict(ENVIRONMENT),
               environb={name.encode(): value.encode() for name, value in ENVIRONMENT.items()}, sep="/", linesep="\n",
               nice=lambda more: more, getuid=lambda: UID, geteuid=lambda: UID, getgid=lambda: UID, getegid=lambda: UID, getgroups=lambda: [UID],
               cpu_count=lambda: 2, sysconf=lambda name: 100 if name == "SC_CLK_TCK" else 4096, getenv=ENVIRONMENT.get, umask=lambda mask: 0o022, devnull="/dev/null",
               getlogin=lambda: "user", urandom=lambda size: K.chance.getrandbits(8 * size).to_bytes(size, "big"))


def _time() -> ModuleType:
    def monotonic() -> float:
        K.now += 1e-7
        return K.now - K.current.host.booted

    def wall() -> float:
        K.now += 1e-7
        return K.now + K.ahead

    def sleep(seconds: float) -> None:
        K.enter()
        K.sleep(seconds)

    def local(moment: float | None = None) -> Any:
        return real_time.gmtime(wall() if moment is None else moment)

    return _of(real_time, "time", monotonic=monotonic, perf_counter=monotonic, time=wall, sleep=sleep,
               process_time=processes.process_time, time_ns=lambda: int(wall() * 1e9), localtime=local, gmtime=local,
               strftime=lambda form, moment=None: real_time.strftime(form, moment or local()), mktime=real_time.mktime,
               monotonic_ns=lambda: int(monotonic() * 1e9))


def _signal() -> ModuleType:
    return _of(real_signal, "signal", signal=processes.signal, pthread_sigmask=processes.pthread_sigmask,
               set_wakeup_fd=processes.set_wakeup_fd, sigtimedwait=processes.sigtimedwait, sigpending=processes.sigpending,
               pidfd_send_signal=processes.pidfd_send_signal, alarm=processes.alarm,
               valid_signals=lambda: set(range(1, 32)) | set(range(34, 65)),
               getsignal=lambda number: K.current.actions.get(int(number), real_signal.SIG_DFL))


def _sockets() -> ModuleType:
    return _module("socket", **sockets.FLAGS, socket=sockets.Socket, socketpair=sockets.socketpair,
                   recv_fds=sockets.recv_fds, gethostname=sockets.gethostname, error=OSError, timeout=TimeoutError,
                   CMSG_SPACE=lambda size: size, CMSG_LEN=lambda size: size)


def _library() -> ModuleType:
    """ctypes, with inotify and prctl of the C library only."""
    library = SimpleNamespace(inotify_init1=lambda flags: files.new_bell(), inotify_add_watch=files.watch,
                              prctl=processes.prctl)
    return _module("ctypes", CDLL=lambda *_, **__: library, get_errno=lambda: 0)


class _Asked:
    """psutil.Process."""

    def __init__(self, pid: int) -> None:
        self._pid = int(pid)

    def environ(self) -> Mapping[str, str]:
        K.enter()
        process = K.processes.get(self._pid)
        if process is None or process.dead:
            raise ProcessLookupError(3, "No such process")
        return dict(process.env)


@functools.lru_cache(4096)
def _words(text: str) -> tuple[str, ...]:
    return tuple(real_shlex.split(text))


def _split(text: str) -> list[str]:
    """shlex.split, cached, as each life of a world reads the same lines."""
    return list(_words(text))


def _others() -> dict[str, ModuleType]:
    user = SimpleNamespace(pw_name="user", pw_uid=UID, pw_gid=UID, pw_dir="/home/user", pw_shell="/bin/sh")
    group = SimpleNamespace(gr_name="user", gr_gid=UID, gr_mem=[])
    nothing = {name: (lambda *_: None) for name in ("disable", "enable", "freeze", "collect", "set_threshold")}
    return {
        "fcntl": _module("fcntl", flock=files.flock, LOCK_SH=1, LOCK_EX=2, LOCK_NB=4, LOCK_UN=8),
        "pathlib": _module("pathlib", Path=open_files.Path, PurePath=open_files.PurePosixPath,
                           PurePosixPath=open_files.PurePosixPath),
        "shutil": _of(real_shutil, "shutil", rmtree=paths.rmtree, which=lambda name, mode=0, path=None: (
            f"/usr/bin/{name}" if paths.exists(f"/usr/bin/{name}") else None)),
        "zlib": _module("zlib", **{**vars(real_zlib), "compress": functools.lru_cache(8)(real_zlib.compress)}),  # for each relay
        "shlex": _module("shlex", **{**vars(real_shlex), "split": _split}),
        "psutil": _module("psutil", Process=_Asked, Error=OSError),
        "ctypes": _library(),
        "resource": _of(real_resource, "resource", getrlimit=processes.getrlimit, setrlimit=processes.setrlimit),
        "subprocess": _of(real_subprocess, "subprocess", Popen=processes.Popen),
        "select": _module("select", **sockets.EPOLL, epoll=sockets.Epoll, poll=sockets.Poll, select=sockets.select),
        "selectors": _module("selectors", DefaultSelector=sockets.Selector, BaseSelector=sockets.Selector, EVENT_READ=1,
                             EVENT_WRITE=2, SelectorKey=sockets.Key),
        "uuid": _module("uuid", UUID=real_uuid.UUID,
                        uuid4=lambda: real_uuid.UUID(int=K.chance.getrandbits(128), version=4)),
        "secrets": _module("secrets", token_hex=open_files.random_hex),
        "pwd": _module("pwd", getpwuid=lambda uid: user, getpwnam=lambda name: user),
        "grp": _module("grp", getgrgid=lambda gid: group, getgrnam=lambda name: group),
        "getpass": _module("getpass", getuser=lambda: "user"),
        "gc": _module("gc", **nothing, get_threshold=lambda: (700, 10, 10), isenabled=real_gc.isenabled),
    }


MODULES: dict[str, ModuleType] = {"os": _os(), "time": _time(), "signal": _signal(), "socket": _sockets(), **_others()}
MODULES |= {"os.path": MODULES["os"].path, "_signal": MODULES["signal"], "_socket": MODULES["socket"]}


def _import(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
    if not level and name in MODULES:
        return MODULES[name if fromlist or name in ("_signal", "_socket") else name.partition(".")[0]]
    return builtins.__import__(name, globals, locals, fromlist, level)


BUILTINS = {**vars(builtins), "open": open_files.open_file, "__import__": _import}
PATCHES: dict[str, list[tuple[str, str]]] = {}
"""Changed source texts by module (see `mutations`)."""
PATCHED: set[str] = set()
"""Modules whose text was changed."""


class _Loader(importlib.machinery.SourceFileLoader):
    """Executes a module of vrm with the builtins of the simulated machine."""

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        if name in PATCHES:
            PATCHED.add(name)
            source = self.get_data(self.path).decode()
            for old, new in PATCHES[name]:
                if source.count(old) != 1:
                    raise ValueError(f"{name} has {source.count(old)} times: {old!r}")
                source = source.replace(old, new)
            code: Any = compile(source, self.path, "exec", dont_inherit=True)
        else:
            code = self.get_code(name)
        own = module.__dict__
        own["__builtins__"] = BUILTINS
        own["__file__"] = f"{HOUSE}{self.path.rpartition('/vrm')[2] or ''}" if self.path.endswith("/vrm/__init__.py") else \
            f"{HOUSE}/{self.path.rpartition('/vrm/')[2]}"
        exec(code, own)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of vrm."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] != "vrm":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.origin is None:
            return spec
        return importlib.util.spec_from_file_location(name, spec.origin, loader=_Loader(name, spec.origin),
                                                      submodule_search_locations=spec.submodule_search_locations)


def load() -> None:
    """Load vrm into the machine. Must be called once, before anything of vrm is imported."""
    if any(name.partition(".")[0] == "vrm" for name in sys.modules):
        raise RuntimeError("vrm is loaded already")
    sys.executable = PYTHON
    sys.meta_path.insert(0, _Finder())
    from vrm.live.runner import starting
    starting.fork_into = K.fork_into  # type: ignore[attr-defined]
    starting.PREPARED = PerProcess(starting.PreparedFiles)  # type: ignore[assignment]
    from vrm.system import plugins
    every = plugins._declared(Path(__file__).parents[3] / "vrm" / "ext" / "entry_points.ini")
    kept = {group: tuple(plugin for plugin in found if plugin.name in EXTENSIONS.get(group, ())) for group, found in every.items()}
    plugins._declared = lambda file: {**kept, "vrm.parts": tuple(  # type: ignore[assignment]
        plugin for plugin in every["vrm.parts"] if plugin.name in PARTS)}
    plugins._untrusted = lambda package: ""


def log_calls() -> None:
    """Put each system call of vrm into the trace."""
    def logged(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*words: Any, **more: Any) -> Any:
            if K.trace is None or K.current is K.init:
                return call(*words, **more)
            try:
                found = call(*words, **more)
            except OSError as error:
                K.trace.append(f"{K.steps:7d} {K.current!r:18}     {name}{_short(words)}: {error.strerror}")
                raise
            K.trace.append(f"{K.steps:7d} {K.current!r:18}     {name}{_short(words)} = {_short(found)}")
            return found
        return wrapper

    for name in ("open", "write", "read", "pread", "pwrite", "rename", "replace", "unlink", "link", "fsync", "fdatasync",
                 "ftruncate", "truncate", "close", "kill", "killpg", "wait4", "waitpid", "posix_spawn", "mkdir", "listdir"):
        vars(MODULES["os"])[name] = logged(name, getattr(MODULES["os"], name))
    for name in ("recvmsg", "send", "sendmsg", "close"):
        setattr(sockets.Socket, name, logged(f"socket.{name}", getattr(sockets.Socket, name)))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 150 else f"{text[:110]} ... {text[-30:]}"


def forget() -> None:
    """Clear the caches of functions of vrm about the machine, for a new world. Caches about packages stay."""
    for name, module in sys.modules.items():
        if name.startswith(_REACH) and name != "vrm.system.plugins" and name not in _SEEN:
            _SEEN.add(name)
            _CACHES.extend(value for value in vars(module).values() if hasattr(value, "cache_clear")
                           and getattr(value, "__module__", "") == name)
    for cached in _CACHES:
        cached.cache_clear()


_REACH = ("vrm.system.", "vrm.live.", "vrm.run.", "vrm.workload.")
"""Modules whose functions may ask the machine; the others are pure."""

_SEEN: set[str] = set()
_CACHES: list[Any] = []

