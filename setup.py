"""Puts the benchmarks' sources, which lie in npb/ at the top, into the package of a wheel.

Everything else is in setup.cfg. In an editable installation they stay where they are.
"""

from pathlib import Path
from shutil import copy2

from setuptools import setup
from setuptools.command.build_py import build_py

SOURCES = ("README.md", "build.py", "*.c", "common/*.[ch]")


class BuildWithBenchmarks(build_py):
    """Also copies npb/ to vrm/npb."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for source in (path for pattern in SOURCES for path in sorted(Path("npb").glob(pattern))):
            target = Path(self.build_lib, "vrm", source)
            target.parent.mkdir(parents=True, exist_ok=True)
            copy2(source, target)


setup(cmdclass={"build_py": BuildWithBenchmarks})
