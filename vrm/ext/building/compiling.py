"""Builds vrm's C code with the user's compiler: shared libraries, and one program.

Builds are kept in the user's cache directory, which nodes see as they see the home directory. There is one for each
source, set of options and kind of machine, whichever compiler built it, so nodes without a compiler have it, too. A
build is never changed in place: a process that has it mapped keeps its copy. For each name, the last KEPT used builds
stay.
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
"""Number of builds of one name that are kept; older ones are removed when one is made."""

DAY = 86400.0
"""Seconds after which another use of a build is recorded, as its modification time."""

SECONDS = 60.0
"""Maximum run time of a compiler, in seconds."""


class CompileError(RuntimeError):
    """The build failed; the text says why."""


class CacheError(CompileError):
    """The cache cannot be used; the text says why. With another cache directory, the build might work."""


def cache(env: Mapping[str, str] | None = None) -> Path:
    """Return the directory of all builds."""
    env = os.environ if env is None else env
    base = env.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path(env.get("HOME") or "~").expanduser() / ".cache") / "vrm"


def find_compiler(env: Mapping[str, str] | None = None) -> str:
    """Return the C compiler: that of the variable CC, otherwise the first on PATH. Raises CompileError if there is
    none."""
    env = os.environ if env is None else env
    wished = shlex.split(env.get("CC", ""))[:1]
    for name in (*wished, *COMPILERS):
        found = shutil.which(name, path=env.get("PATH"))
        if found:
            return found
    raise CompileError("no C compiler was found (install gcc or clang, or set CC)")


@dataclass(frozen=True)
class Recipe:
    """What to build from `source`: the `name` under which the build is kept, the `flags` before the source and the
    `options` after it. `what` is its name in messages. It is built again when the source or one of the `headers`
    changes."""

    name: str
    what: str
    source: Path
    headers: Sequence[Path] = ()
    options: Sequence[str] = ()
    flags: tuple[str, ...] = LIBRARY

    @property
    def mark(self) -> str:
        """Hash of the source, the headers and the options, which identifies the build."""
        digest = hashlib.sha256("\0".join((*self.flags, *self.options)).encode())
        for file in (*self.headers, self.source):
            digest.update(file.read_bytes())
        return digest.hexdigest()

    def kept(self, env: Mapping[str, str] | None = None) -> Path:
        """Return the path of the build, whether it exists or not. Raises CacheError if another user could have put it
        there."""
        suffix = ".so" if "-shared" in self.flags else ""
        path = cache(env) / f"{self.name}-{platform.machine()}-{self.mark[:16]}{suffix}"
        allow = "set XDG_CACHE_HOME to a directory of your own"
        reason = distrust(path.parent, allow=allow, home=True) or distrust(path, allow=allow)
        if reason:
            raise CacheError(reason)
        return path

    def made(self, env: Mapping[str, str] | None = None) -> Path:
        """Return the path of the build, and build it first if it does not exist. Raises CompileError if that fails."""
        path = self.kept(env)
        if not path.is_file():
            self.build(path, env)
            self._clean(path)
        elif time.time() - path.stat().st_mtime > DAY:
            with contextlib.suppress(OSError):
                os.utime(path)
        return path

    def _clean(self, path: Path) -> None:
        """Remove the least recently used builds of this name."""
        with contextlib.suppress(OSError):  # other processes may do this at the same time
            found = sorted(path.parent.glob(f"{self.name}-{platform.machine()}-" + "[0-9a-f]" * 16 + path.suffix),
                           key=lambda each: -each.stat().st_mtime)
            for old in found[KEPT:]:
                if old != path:
                    old.unlink()

    def build(self, path: Path, env: Mapping[str, str] | None = None) -> None:
        """Build it at this path. Raises CompileError if that fails."""
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
            raise CacheError(f"{path} cannot be made: {error}") from error
        except subprocess.TimeoutExpired as error:
            raise CompileError(f"{compiler} cannot build {self.what}: it takes longer than {SECONDS:g} s") from error
