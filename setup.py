"""Puts the benchmarks' sources, which lie in npb/ at the top, and the reference of the configuration into
the package of a wheel, and makes the manual page.

Everything else is in setup.cfg. In an editable installation the files stay where they are.
"""

import sys
from pathlib import Path
from shutil import copy2

from setuptools import setup
from setuptools.command.build_py import build_py

from distutils.command.install_data import install_data  # that of setuptools, which is imported first

SOURCES = ("README.md", "build.py", "*.c", "common/*.[ch]")
MANUALS = "share/man/man1"


class BuildWithBenchmarks(build_py):
    """Also copies npb/ to vrm/npb, and config/reference.yaml to vrm/config."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        sources = [path for pattern in SOURCES for path in sorted(Path("npb").glob(pattern))]
        for source in [*sources, Path("config", "reference.yaml")]:
            target = Path(self.build_lib, "vrm", source)
            target.parent.mkdir(parents=True, exist_ok=True)
            copy2(source, target)


class InstallManual(install_data):
    """Writes what `vrm help --man` prints. This part of vrm needs none of its dependencies."""

    def run(self) -> None:
        super().run()
        sys.path.insert(0, str(Path(__file__).resolve().parent))
        from vrm.cli import parser
        from vrm.commands.guide import manual

        page = Path(self.install_dir, MANUALS, "vrm.1")
        page.write_text(manual(parser()), encoding="utf-8")
        self.outfiles.append(str(page))


setup(cmdclass={"build_py": BuildWithBenchmarks, "install_data": InstallManual}, data_files=[(MANUALS, [])])
