"""Builds what vrm has in C, with the user's compiler: shared libraries, and one program.

They are kept in the user's cache directory, which the nodes see as they see the home directory, one for
each source, options and kind of machine, whichever compiler built it: so nodes without one have it, too. None is
ever built in place: who has it mapped keeps a copy. Of each name the KEPT that were used last stay.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from collections.abc import Mapping, Sequence

from vrm.system.trust import distrust

PROGRAM = ("-O2",)
LIBRARY = (*PROGRAM, "-shared", "-fPIC", "-std=gnu99", "-fvisibility=hidden")
"""Options of the compiler."""

COMPILERS = ("cc", "gcc", "clang", "icx", "nvc")
KEPT = 8
"""Builds of one name that are kept; others are removed when one is made."""

DAY = 86400.0
"""Seconds after which the use of a build is noted again, as its time of change."""

SECONDS = 60.0
"""Seconds that a compiler may take."""


class CompileError(RuntimeError):
    """It was not built, and why."""


class NotKept(CompileError):
    """The cache cannot be used, and why; elsewhere it might be built."""


def cache(env: Mapping[str, str] | None = None) -> Path:
    """The directory in which all is kept."""
    env = os.environ if env is None else env
    base = env.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path(env.get("HOME") or "~").expanduser() / ".cache") / "vrm"


def find_compiler(env: Mapping[str, str] | None = None) -> str:
    """The C compiler: that of the variable CC, else the first on PATH. CompileError without one."""
    env = os.environ if env is None else env
    wished = shlex.split(env.get("CC", ""))[:1]
    for name in (*wished, *COMPILERS):
        found = shutil.which(name, path=env.get("PATH"))
        if found:
            return found
    raise CompileError("no C compiler was found (install gcc or clang, or set CC)")


@dataclass(frozen=True)
class Recipe:
    """What is built of a `source`: under which `name` it is kept, and with which `flags` before the source and
    `options` behind it. `what` it is called in messages. It is built again when the source or one of the
    `headers` changes."""

    name: str
    what: str
    source: Path
    headers: Sequence[Path] = ()
    options: Sequence[str] = ()
    flags: tuple[str, ...] = LIBRARY

    @property
    def mark(self) -> str:
        """What tells it from what other sources and options give."""
        digest = hashlib.sha256("\0".join((*self.flags, *self.options)).encode())
        for file in (*self.headers, self.source):
            digest.update(file.read_bytes())
        return digest.hexdigest()

    def kept(self, env: Mapping[str, str] | None = None) -> Path:
        """Where it is kept, or would be. NotKept where somebody else could have put it there."""
        suffix = ".so" if "-shared" in self.flags else ""
        path = cache(env) / f"{self.name}-{platform.machine()}-{self.mark[:16]}{suffix}"
        allow = "set XDG_CACHE_HOME to a directory of your own"
        reason = distrust(path.parent, allow=allow, home=True) or distrust(path, allow=allow)
        if reason:
            raise NotKept(reason)
        return path

    def made(self, env: Mapping[str, str] | None = None) -> Path:
        """The same, built when it is not there yet. CompileError when that cannot be done."""
        path = self.kept(env)
        if not path.is_file():
            self.build(path, env)
            self._clean(path)
        elif time.time() - path.stat().st_mtime > DAY:
            with contextlib.suppress(OSError):
                os.utime(path)
        return path

    def _clean(self, path: Path) -> None:
        """Remove the builds of this name that were used least lately."""
        with contextlib.suppress(OSError):  # other processes may be doing the same
            found = sorted(path.parent.glob(f"{self.name}-{platform.machine()}-" + "[0-9a-f]" * 16 + path.suffix),
                           key=lambda each: -each.stat().st_mtime)
            for old in found[KEPT:]:
                if old != path:
                    old.unlink()

    def build(self, path: Path, env: Mapping[str, str] | None = None) -> None:
        """Build it at this path. CompileError when that cannot be done."""
        compiler = find_compiler(env)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent, prefix=".build.") as scratch:
                made = Path(scratch) / path.name
                done = subprocess.run([compiler, *self.flags, str(self.source), "-o", str(made), *self.options],
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      text=True, errors="replace", timeout=SECONDS, check=False)
                if done.returncode or not made.is_file():
                    first = next((line for line in done.stdout.splitlines() if "error" in line.lower()),
                                 done.stdout.strip()[:200] or f"status {done.returncode}")
                    raise CompileError(f"{compiler} cannot build {self.what}: {first}")
                os.replace(made, path)
        except OSError as error:
            raise NotKept(f"{path} cannot be made: {error}") from error
        except subprocess.TimeoutExpired as error:
            raise CompileError(f"{compiler} cannot build {self.what}: it takes longer than {SECONDS:g} s") from error
