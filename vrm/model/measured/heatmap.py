"""The co-run heatmap: how well two applications share sockets, as ranks (lower is better), and which pairs should not
share at all."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from vrm.model.job import application_kind

_NO_NAME = re.compile(r"""[][{}()<>"'`,;:=]""")
"""Characters that no line of the rank form contains: with them, it is another kind of file."""


class Throughput:
    """Measured combined throughput of pairs of applications. 1 means as much as running the two one after the other on
    the same nodes, each alone on its half of the cores; 2 means that neither slows the other down.

    `pairs` has the values of pairs of loads (`bt.D.256`: application, class and ranks). A pair that was not measured
    has the mean of the pairs of the same applications and classes, on any number of ranks; otherwise that of the same
    applications; otherwise no value.
    """

    def __init__(self, pairs: Mapping[tuple[str, str], float]) -> None:
        self.pairs = dict(pairs)
        found: list[dict[tuple[str, str], list[float]]] = [{}, {}, {}]
        for (load, partner), value in pairs.items():
            for step, names in enumerate(zip(_names(load), _names(partner))):
                found[step].setdefault(names, []).append(value)
        self._steps = [{names: sum(values) / len(values) for names, values in step.items()}
                       for step in found]
        self._known: dict[tuple[str, int, str, int], float | None] = {}

    def of(self, app: str, procs: int, partner: str, partner_procs: int) -> float | None:
        """Return the value of two jobs, by their executables and ranks; None if there is none."""
        key = (app, procs, partner, partner_procs)
        if key not in self._known:
            names = zip(_names(load_name(app, procs)), _names(load_name(partner, partner_procs)))
            self._known[key] = next((step[pair] for step, pair in zip(self._steps, names)
                                     if pair in step), None)
        return self._known[key]


def load_name(app: str, procs: int | None) -> str:
    """Return the name of a load: `bt.D.256` for `bt.D.x` on 256 ranks."""
    short = ".".join(app.split(".")[:2])
    return short if procs is None else f"{short}.{procs}"


def _names(load: str) -> tuple[str, str, str]:
    """Return the names of a load: with its ranks, with its class, and as an application alone."""
    load = load.lower()
    short, _, last = load.rpartition(".")
    return load, short if short and last.isdigit() else load, application_kind(load)


class Heatmap:
    """Rank of every ordered pair of applications: 1 is the best partner of the row's application.

    Unknown pairs get the neutral rank, the middle of the row or, for an unknown application, of the whole map.

    `throughput` has the measured throughput of pairs, if any. Pairs below `least` are refused; unknown pairs never
    are.
    """

    node_order = "heatmap"
    """Name of the node order that `strip` takes with this heatmap, unless the rules name one."""

    def __init__(self, ranks: Mapping[str, Mapping[str, float]],
                 throughput: Throughput | None = None, least: float = 0.0) -> None:
        self.ranks: dict[str, dict[str, float]] = {app: dict(row) for app, row in ranks.items()}
        self.throughput = throughput
        self.least = least
        largest = max((len(row) for row in self.ranks.values()), default=1)
        self._neutral = (largest + 1) / 2
        self._known: dict[tuple[str, str], float] = {}

    @classmethod
    def parse(cls, lines: Iterable[str]) -> Heatmap:
        """Read the rank form: each line has an application, then all partners from best to worst.

        Blank lines and `#` comments are skipped. Raises ValueError with the line's number.
        """
        ranks: dict[str, dict[str, float]] = {}
        for number, line in enumerate(lines, 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            odd = next((word for word in words if _NO_NAME.search(word)), None)
            if odd:
                raise ValueError(f"line {number}: `{odd}` is not an application; a line is an "
                                 "application and then all from its best to its worst partner: "
                                 "`ep cg bt ep`")
            row = application_kind(words[0]).lower()
            partners = [application_kind(word).lower() for word in words[1:]]
            if not partners:
                raise ValueError(f"line {number}: `{row}` has no partners after it")
            if row in ranks:
                raise ValueError(f"line {number}: `{row}` has a line already")
            repeated = _first_repeated(partners)
            if repeated:
                raise ValueError(f"line {number}: `{repeated}` is twice in the row of `{row}`")
            ranks[row] = {partner: float(rank) for rank, partner in enumerate(partners, 1)}
        return cls(ranks)

    def rank(self, app: str, partner: str) -> float:
        """Return the rank of running `app` together with `partner` (executables or bare names)."""
        known = self._known.get((app, partner))
        if known is None:
            known = self._known[app, partner] = self._rank(app, partner)
        return known

    def _rank(self, app: str, partner: str) -> float:
        row = self.ranks.get(application_kind(app).lower())
        if row is None:
            return self._neutral
        known = row.get(application_kind(partner).lower())
        return (len(row) + 1) / 2 if known is None else known

    def refuses(self, app: str, procs: int, partner: str, partner_procs: int) -> bool:
        """Return whether the combined throughput of two jobs, by their executables and ranks, is known to be below
        `least`."""
        if self.throughput is None:
            return False
        together = self.throughput.of(app, procs, partner, partner_procs)
        return together is not None and together < self.least

    @property
    def refused(self) -> list[tuple[str, str]]:
        """The measured pairs of loads that are refused."""
        if self.throughput is None:
            return []
        return [pair for pair, value in self.throughput.pairs.items() if value < self.least]

    def missing(self, apps: Iterable[str]) -> list[str]:
        """Return the applications of `apps` that have no row."""
        return sorted({application_kind(a).lower() for a in apps} - set(self.ranks))


def _first_repeated(words: Sequence[str]) -> str:
    seen = set()
    for word in words:
        if word in seen:
            return word
        seen.add(word)
    return ""
