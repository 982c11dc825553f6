"""Builds what vrm has in C, a shared library at a time, with the user's compiler.

Libraries are kept in the user's cache directory, which the nodes see as they see the home directory, one for
each source, compiler and kind of machine. None is ever built in place: who has it mapped keeps a copy.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Mapping, Optional, Sequence

from vrm.system.trust import distrust

FLAGS = ("-O2", "-shared", "-fPIC", "-std=gnu99", "-fvisibility=hidden")
COMPILERS = ("cc", "gcc", "clang", "icx", "nvc")
SECONDS = 60.0
"""Seconds that a compiler may take."""


class CompileError(RuntimeError):
    """There is no library, and why."""


def cache(env: Optional[Mapping[str, str]] = None) -> Path:
    """The directory in which libraries are kept."""
    env = os.environ if env is None else env
    base = env.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path(env.get("HOME") or "~").expanduser() / ".cache") / "vrm"


def find_compiler(env: Optional[Mapping[str, str]] = None) -> str:
    """The C compiler: that of the variable CC, else the first on PATH. CompileError without one."""
    env = os.environ if env is None else env
    wished = shlex.split(env.get("CC", ""))[:1]
    for name in (*wished, *COMPILERS):
        found = shutil.which(name, path=env.get("PATH"))
        if found:
            return found
    raise CompileError("no C compiler was found (install gcc or clang, or set CC)")


@functools.cache
def _version(compiler: str) -> str:
    try:
        done = subprocess.run([compiler, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileError(f"{compiler} cannot be run: {error}") from error
    return done.stdout.partition("\n")[0]


def library(name: str, what: str, source: Path, headers: Sequence[Path] = (), options: Sequence[str] = (),
            env: Optional[Mapping[str, str]] = None) -> Path:
    """The library of that name for this machine, built of its source when there is none yet. `what` it is
    called in messages; `options` are more of the compiler. CompileError when that cannot be done."""
    compiler = find_compiler(env)
    digest = hashlib.sha256("\0".join((compiler, _version(compiler), platform.machine(), *FLAGS, *options)).encode())
    for file in (*headers, source):
        digest.update(file.read_bytes())
    path = cache(env) / f"{name}-{platform.machine()}-{digest.hexdigest()[:16]}.so"
    allow = "set XDG_CACHE_HOME to a directory of your own"
    reason = distrust(path.parent, allow=allow, home=True) or distrust(path, allow=allow)
    if reason:  # somebody could have put another library there
        raise CompileError(reason)
    if path.is_file():
        return path
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            made = Path(scratch) / path.name
            done = subprocess.run([compiler, *FLAGS, str(source), "-o", str(made), *options],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, errors="replace", timeout=SECONDS, check=False)
            if done.returncode or not made.is_file():
                first = next((line for line in done.stdout.splitlines() if "error" in line.lower()),
                             done.stdout.strip()[:200] or f"status {done.returncode}")
                raise CompileError(f"{compiler} cannot build {what}: {first}")
            os.replace(made, path)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileError(f"{path} cannot be made: {error}") from error
    return path
