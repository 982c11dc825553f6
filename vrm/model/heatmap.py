"""The co-run heatmap: how well two applications share sockets, as ranks (lower is better), and
which should not do so at all."""

from __future__ import annotations

import re
from typing import Dict, Iterable, List, Mapping, Optional, Sequence

from vrm.model.job import application_kind

_NO_NAME = re.compile(r"""[][{}()<>"'`,;:=]""")
"""What no line of the rank form has: it is another kind of file."""


class Heatmap:
    """Rank of every ordered pair of applications: 1 is the best partner of the row's own.

    Pairs that are not known get the neutral rank, the middle of the row or, for an unknown
    application, of the whole map.

    Where it was measured, `throughput` is that of a pair together: 1 is as much as running the two
    one after the other on the same nodes. Pairs below `least` are refused; unknown ones never are.
    """

    def __init__(self, ranks: Mapping[str, Mapping[str, float]],
                 throughput: Optional[Mapping[str, Mapping[str, float]]] = None,
                 least: float = 0.0) -> None:
        self.ranks: Dict[str, Dict[str, float]] = {app: dict(row) for app, row in ranks.items()}
        self.throughput = {app: dict(row) for app, row in (throughput or {}).items()}
        self.least = least
        largest = max((len(row) for row in self.ranks.values()), default=1)
        self._neutral = (largest + 1) / 2

    @classmethod
    def parse(cls, lines: Iterable[str]) -> "Heatmap":
        """Read the rank form: each line an application, then all from best to worst partner.

        Blank lines and `#` comments are passed over. Raises ValueError with the line's number.
        """
        ranks: Dict[str, Dict[str, float]] = {}
        for number, line in enumerate(lines, 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            odd = next((word for word in words if _NO_NAME.search(word)), None)
            if odd:
                raise ValueError(f"line {number}: `{odd}` is no application; a line is an "
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
                raise ValueError(f"line {number}: `{repeated}` stands twice in the row of `{row}`")
            ranks[row] = {partner: float(rank) for rank, partner in enumerate(partners, 1)}
        return cls(ranks)

    def rank(self, app: str, partner: str) -> float:
        """The rank of running `app` beside `partner` (executables or bare names)."""
        row = self.ranks.get(application_kind(app).lower())
        if row is None:
            return self._neutral
        known = row.get(application_kind(partner).lower())
        return (len(row) + 1) / 2 if known is None else known

    def refuses(self, app: str, partner: str) -> bool:
        """Whether the two do less together than one after the other."""
        row = self.throughput.get(application_kind(app).lower())
        known = None if row is None else row.get(application_kind(partner).lower())
        return known is not None and known < self.least

    @property
    def refused(self) -> List[Sequence[str]]:
        """The ordered pairs that are refused."""
        return [(app, partner) for app, row in self.throughput.items() for partner in row
                if self.refuses(app, partner)]

    def missing(self, apps: Iterable[str]) -> List[str]:
        """The applications of `apps` that have no row."""
        return sorted({application_kind(a).lower() for a in apps} - set(self.ranks))


def _first_repeated(words: Sequence[str]) -> str:
    seen = set()
    for word in words:
        if word in seen:
            return word
        seen.add(word)
    return ""
