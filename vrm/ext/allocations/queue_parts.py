"""Divides a queue file among several parallel allocations: each gets a part of its lines, and its own
configuration.

Lines that depend on each other, or that have their own times of submission, cannot be divided.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple
from collections.abc import Iterator, Sequence

import yaml

from vrm.config.paths import places
from vrm.config.yaml_reader import Document
from vrm.workload.queue_follower import QueueFollower
from vrm.workload.grammar import LineError

_TIED = ("after", "name", "begin", "deadline")


class WeightedLine(NamedTuple):
    """A line of a queue: its text, its number of jobs, and the product of their ranks and limits (seconds)."""

    text: str
    jobs: int
    area: float


def lines_of(path: str | Path) -> list[WeightedLine] | None:
    """Return the lines of a queue file that can be divided; None if they cannot, or if the file is not a queue
    file."""
    follower = QueueFollower(path)
    follower.finish()
    found = []
    for line in follower.read_new():
        if isinstance(line.parsed, LineError) or line.parsed.delay or any(name in line.parsed.fields for name in _TIED):
            return None
        jobs = len(line.parsed.fields.get("array", ())) or 1
        found.append(WeightedLine(line.text, jobs, jobs * line.parsed.procs * line.parsed.seconds))
    return found


def deal(lines: Sequence[WeightedLine], parts: int) -> list[list[int]]:
    """Divide the lines, given by their indices, into `parts` parts: the largest first, each to the part with
    the least work (Graham, "Bounds on multiprocessing timing anomalies", 1969). Parts keep the order of the
    lines."""
    found: list[list[int]] = [[] for _ in range(parts)]
    areas = [0.0] * parts
    for at in sorted(range(len(lines)), key=lambda at: -lines[at].area):
        least = areas.index(min(areas))
        areas[least] += lines[at].area
        found[least].append(at)
    return [sorted(places) for places in found]


def write(config: str, queue: str | Path, dealt: Sequence[Sequence[str]], force: bool = False
          ) -> Iterator[tuple[str, str]]:
    """Write a queue and a configuration for each list of lines, next to the original files, and yield their
    names. Raises FileExistsError if one exists, unless `force` replaces it."""
    for number, lines in enumerate(dealt, 1):
        names = part_name(config, number), part_name(str(queue), number)
        texts = (config_with(config, Path(log_of(config), f"part{number}"), names[1]),
                 "".join(f"{line}\n" for line in lines))
        for name, text in zip(names, texts):
            with open(name, "w" if force else "x", encoding="utf-8") as file:
                file.write(text)
        yield names


def log_of(config: str) -> Path:
    """Return the directory of a configuration's run."""
    before = places(config)
    return before.log if before is not None else Path(Document.read(config).source.directory, "logs")


def config_with(config: str, log: str | Path, queue: str | Path) -> str:
    """Return the text of a configuration with its own run directory and queue, for a file next to the original."""
    mapping = Document.read(config).mapping
    mapping = {**mapping, "Log": str(log),
               "Applications": {**mapping.get("Applications", {}), "Queue": os.path.abspath(queue)}}
    for key in ("State", "Directory"):
        mapping.pop(key, None)
    return str(yaml.safe_dump(mapping, sort_keys=False))


def part_name(path: str, number: int | str) -> str:
    """Return `dir/vrm.part1.yaml` for `dir/vrm.yaml`."""
    stem, suffix = os.path.splitext(path)
    return f"{stem}.part{number}{suffix}"
