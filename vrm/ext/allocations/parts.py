"""A queue file that is dealt to several allocations side by side: each has a part of its lines, and a configuration of
its own.

Lines that depend on each other, or are due at times of their own, cannot be dealt.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple
from collections.abc import Iterator, Sequence

import yaml

from vrm.config.paths import places
from vrm.config.yaml_reader import Document
from vrm.workload.following import QueueFollower
from vrm.workload.grammar import LineError

_TIED = ("after", "name", "begin", "deadline")


class Dealt(NamedTuple):
    """A line of a queue: its text, how many jobs it has, and their ranks times their limits (s)."""

    text: str
    jobs: int
    area: float


def lines_of(path: str | Path) -> list[Dealt] | None:
    """The lines of a queue file that can be dealt; None where they cannot, or it is none."""
    follower = QueueFollower(path)
    follower.finish()
    found = []
    for line in follower.read_new():
        if isinstance(line.parsed, LineError) or line.parsed.delay or any(name in line.parsed.fields for name in _TIED):
            return None
        jobs = len(line.parsed.fields.get("array", ())) or 1
        found.append(Dealt(line.text, jobs, jobs * line.parsed.procs * line.parsed.seconds))
    return found


def deal(lines: Sequence[Dealt], parts: int) -> list[list[int]]:
    """The lines, by their places, dealt to so many parts: the largest first, each to the part that has the least
    (Graham, "Bounds on multiprocessing timing anomalies", 1969). Parts keep the order of the lines."""
    found: list[list[int]] = [[] for _ in range(parts)]
    areas = [0.0] * parts
    for at in sorted(range(len(lines)), key=lambda at: -lines[at].area):
        least = areas.index(min(areas))
        areas[least] += lines[at].area
        found[least].append(at)
    return [sorted(places) for places in found]


def write(config: str, queue: str | Path, dealt: Sequence[Sequence[str]], force: bool = False
          ) -> Iterator[tuple[str, str]]:
    """Write a queue and a configuration for each of these lists of lines, next to those that there are; gives their
    names. FileExistsError for one that is there, unless it is to be replaced."""
    for number, lines in enumerate(dealt, 1):
        names = part_name(config, number), part_name(str(queue), number)
        texts = (config_with(config, Path(log_of(config), f"part{number}"), names[1]),
                 "".join(f"{line}\n" for line in lines))
        for name, text in zip(names, texts):
            with open(name, "w" if force else "x", encoding="utf-8") as file:
                file.write(text)
        yield names


def log_of(config: str) -> Path:
    """The directory of a configuration's run."""
    before = places(config)
    return before.log if before is not None else Path(Document.read(config).source.directory, "logs")


def config_with(config: str, log: str | Path, queue: str | Path) -> str:
    """The text of a configuration for a run and a queue of its own, in a file next to that one."""
    mapping = Document.read(config).mapping
    mapping = {**mapping, "Log": str(log),
               "Applications": {**mapping.get("Applications", {}), "Queue": os.path.abspath(queue)}}
    for key in ("State", "Directory"):
        mapping.pop(key, None)
    return str(yaml.safe_dump(mapping, sort_keys=False))


def part_name(path: str, number: int | str) -> str:
    """`dir/vrm.yaml` as `dir/vrm.part1.yaml`."""
    stem, suffix = os.path.splitext(path)
    return f"{stem}.part{number}{suffix}"
