"""Fake mpirun programs that print the version texts of MPI libraries."""

from __future__ import annotations

import os
from pathlib import Path


OPEN_MPI = "mpirun (Open MPI) {}\n\nReport bugs to http://www.open-mpi.org/community/help/\n"
MPICH = ("HYDRA build details:\n    Version:                                 5.0.2\n"
         "    Release Date:                            Fri Sep 25 20:45:26 UTC 2026\n"
         "    CC:                              cc\n")
INTEL = ("Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005 (id: 74c4a23)\n"
         "Copyright 2003-2023, Intel Corporation.\n")


def fake(folder: Path, text: str, name: str = "mpirun") -> str:
    """Write a program that prints the text; return its path."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.txt").write_text(text)
    program = folder / name
    program.write_text(f"#!/bin/sh\nexec /bin/cat '{folder}/{name}.txt'\n")
    program.chmod(0o755)
    return str(program)


def only(*folders: Path) -> dict[str, str]:
    return {"PATH": os.pathsep.join(map(str, folders))}
