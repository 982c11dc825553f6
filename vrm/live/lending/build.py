"""Builds the shim (`shim.c`) with the user's C compiler, once for each compiler and kind of machine.

It is kept in the user's cache directory, which the nodes see as they see the home directory. Nothing is
ever built in place: a job that has it mapped keeps its copy.
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
from typing import Mapping, Optional

HERE = Path(__file__).resolve().parent
FLAGS = ("-O2", "-shared", "-fPIC", "-std=gnu99", "-fvisibility=hidden")
COMPILERS = ("cc", "gcc", "clang", "icx", "nvc")
SECONDS = 60.0
"""Seconds that a compiler may take."""


class BuildError(RuntimeError):
    """There is no shim, and why; jobs lend by affinity alone then."""


def cache(env: Optional[Mapping[str, str]] = None) -> Path:
    """The directory in which the shim is kept."""
    env = os.environ if env is None else env
    base = env.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path(env.get("HOME") or "~").expanduser() / ".cache") / "vrm"


def find_compiler(env: Optional[Mapping[str, str]] = None) -> str:
    """The C compiler: that of the variable CC, else the first on PATH. BuildError without one."""
    env = os.environ if env is None else env
    wished = shlex.split(env.get("CC", ""))[:1]
    for name in (*wished, *COMPILERS):
        found = shutil.which(name, path=env.get("PATH"))
        if found:
            return found
    raise BuildError("no C compiler was found (install gcc or clang, or set CC): jobs lend cores by affinity "
                     "alone, and their number of threads stays")


@functools.cache
def _version(compiler: str) -> str:
    try:
        done = subprocess.run([compiler, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{compiler} cannot be run: {error}; jobs lend cores by affinity alone") from error
    return done.stdout.partition("\n")[0]


def shim(env: Optional[Mapping[str, str]] = None) -> Path:
    """The shim for this machine, built when there is none yet. BuildError when that cannot be done."""
    compiler = find_compiler(env)
    digest = hashlib.sha256("\0".join((compiler, _version(compiler), platform.machine(), *FLAGS)).encode())
    for name in ("vrm_lending.h", "shim.c"):
        digest.update((HERE / name).read_bytes())
    path = cache(env) / f"lending-{platform.machine()}-{digest.hexdigest()[:16]}.so"
    if path.is_file():
        return path
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            made = Path(scratch) / path.name
            done = subprocess.run([compiler, *FLAGS, str(HERE / "shim.c"), "-o", str(made), "-ldl", "-lpthread"],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, errors="replace", timeout=SECONDS, check=False)
            if done.returncode or not made.is_file():
                first = next((line for line in done.stdout.splitlines() if "error" in line.lower()),
                             done.stdout.strip()[:200] or f"status {done.returncode}")
                raise BuildError(f"{compiler} cannot build the shim: {first}; jobs lend cores by affinity alone")
            os.replace(made, path)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{path} cannot be made: {error}; jobs lend cores by affinity alone") from error
    return path
