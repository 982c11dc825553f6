"""What vrm builds in C is kept in the cache, and old builds are removed."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

import pytest

from vrm.ext.building.compiling import KEPT, Recipe, find_compiler


def test_the_builds_that_were_used_last_are_kept(tmp_path: Path) -> None:
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("no C compiler")
    assert find_compiler()
    tmp_path.chmod(0o700)
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    cache = tmp_path / "cache" / "vrm"
    cache.mkdir(parents=True, mode=0o700)
    cache.parent.chmod(0o700)
    old = [cache / f"probe-{platform.machine()}-{number:016x}" for number in range(KEPT + 4)]
    for number, path in enumerate(old):
        path.touch()
        os.utime(path, (1000 + number, 1000 + number))
    other = cache / f"other-{platform.machine()}-{0:016x}"
    other.touch()
    source = tmp_path / "probe.c"
    source.write_text("int main(void) { return 0; }\n")
    made = Recipe("probe", "a probe", source, flags=("-O0",)).made(env)
    assert sorted(cache.iterdir()) == sorted([other, made, *old[-(KEPT - 1):]])
    os.utime(made, (1000, 1000))  # used again: it is not the oldest any more
    assert Recipe("probe", "a probe", source, flags=("-O0",)).made(env) == made and made.stat().st_mtime > 2000
