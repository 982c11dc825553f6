"""Copies files that are not in the package into the wheel: the benchmarks' sources (npb/), the reference of the
configuration, the pages of docs/. It also writes the manual page.

setup.cfg has everything else. It cannot do these two: setuptools takes a package's files from the package's own
directory only, and the manual page is made from the commands. In an editable installation the files stay where they
are.
"""

import sys
from pathlib import Path
from shutil import copy2

from setuptools import setup
from setuptools.command.build_py import build_py

from distutils.command.install_data import install_data  # that of setuptools, which is imported first

SOURCES = ("README.md", "build.py", "*.c", "common/*.[ch]")
MANUALS = "share/man/man1"


class BuildWithFiles(build_py):
    """Also copies npb/ to vrm/npb, config/reference.yaml to vrm/config, and the Markdown pages of docs/ to vrm/docs."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        sources = [path for pattern in SOURCES for path in sorted(Path("npb").glob(pattern))]
        for source in [*sources, *sorted(Path("docs").rglob("*.md")), Path("config", "reference.yaml")]:
            target = Path(self.build_lib, "vrm", source)
            target.parent.mkdir(parents=True, exist_ok=True)
            copy2(source, target)


class InstallManual(install_data):
    """Writes what `vrm help --man` prints. This part of vrm needs none of its dependencies."""

    def run(self) -> None:
        super().run()
        sys.path.insert(0, str(Path(__file__).resolve().parent))
        from vrm.cli import parser
        from vrm.ext.help.manual import manual

        page = Path(self.install_dir, MANUALS, "vrm.1")
        page.write_text(manual(parser()), encoding="utf-8")
        self.outfiles.append(str(page))


setup(cmdclass={"build_py": BuildWithFiles, "install_data": InstallManual}, data_files=[(MANUALS, [])])
