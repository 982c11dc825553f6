"""Defects that are put into vrm, one at a time: the world must find each."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

MOST = 4000
"""Worlds in which a defect must be found."""


class Mutation(NamedTuple):
    """A defect: `changes` are of modules, a text that is there once, and what stands there instead. `earlier`: vrm has had
    it, as the commit or review that is named tells."""

    name: str
    changes: tuple[tuple[str, str, str], ...]
    earlier: str = ""


ALL: tuple[Mutation, ...] = ()


def found(name: str) -> Mutation:
    """The mutation of this name."""
    return next(each for each in ALL if each.name == name)


def seeds_until_found(mutation: Mutation, first: int, minutes: float = 3.0) -> tuple[int, str]:
    """How many worlds it took, and what was wrong then; 0 when it was not found."""
    script = [sys.executable, str(Path(__file__).with_name("run.py")), "--first", str(first), "--seeds", str(MOST), "--minutes",
              str(minutes), "--stop", "--mutation", mutation.name, "--worker", f"{first},1"]
    done = subprocess.run(script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.startswith('{"failed"'):
            said = json.loads(line)
            return said["failed"] - first + 1, said["wrong"][0].strip().splitlines()[0]
    return 0, done.stdout.strip()[-300:] if done.returncode else ""


def all_found(arguments: argparse.Namespace) -> int:
    """Try each; the exit status."""
    missed = 0
    for mutation in ALL:
        seeds, wrong = seeds_until_found(mutation, 1)
        missed += not seeds
        print(f"{f'{seeds:5d} seeds' if seeds else '  NOT FOUND'}  {mutation.name}"
              + f" (earlier: {mutation.earlier})" * bool(mutation.earlier) + f": {wrong[:200]}", flush=True)
    print(f"{len(ALL) - missed} of {len(ALL)} found")
    return int(bool(missed))
