"""Which assumptions explain the published running times under strip on ARIS, and which do not.

    python studies/founding/strip.py --queues DIR --heatmap FILE

For each recorded queue of ARIS and each assumption of `compare.CoRun`: the change of the mean
running time from compact to strip, as published and as imitated, over the four algorithms.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import List, Optional, Sequence

from compare import CoRun, Published, Study, StudyError, find_queues, read_published
from vrm.model.measured.speedups import SpeedError

VARIANTS = tuple((fills, alone) for alone in ("one", "best") for fills in ("node", "socket", "any"))


def changes(path: Path, published: Sequence[Published], corun: CoRun) -> List[float]:
    """The changes of running time from compact to strip, in percent, as imitated."""
    study = Study(path, published, corun)
    return [100 * (one.imitated.running / compact_of(one.published, published).running - 1)
            for one in study.run() if one.published.policy == "strip"]


def compact_of(one: Published, published: Sequence[Published]) -> Published:
    """The same scenario under compact."""
    return next(other for other in published
                if (other.queue, other.policy, other.name) == (one.queue, "compact", one.name))


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Print the table; 0 done, 2 could not."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--queues", metavar="DIR", type=Path, required=True)
    parser.add_argument("--heatmap", metavar="FILE", type=Path, required=True)
    chosen = parser.parse_args(arguments)
    published = [one for one in read_published() if one.machine == "aris"]
    try:
        queues = find_queues(chosen.queues, published)
        heads = [name for name in queues]
        print("| measured speed-ups for jobs that fill | alone on half a node | "
              + " | ".join(heads) + " |\n|---|---|" + "---:|" * len(heads))
        known = []
        for name in queues:
            own = [one for one in published if one.queue == name]
            known.append([100 * (one.running / compact_of(one, own).running - 1)
                          for one in own if one.policy == "strip"])
        print("| published | | " + " | ".join(map(_reach, known)) + " |")
        for fills, alone in VARIANTS:
            cells = [_reach(changes(path, [one for one in published if one.queue == name],
                                    CoRun(chosen.heatmap, fills, alone)))
                     for name, path in queues.items()]
            what = {"node": "a node or more", "socket": "a socket or more", "any": "any number"}
            speed = {"one": "speed 1", "best": "as with the best partner"}
            print(f"| {what[fills]} | {speed[alone]} | {' | '.join(cells)} |", flush=True)
    except (StudyError, SpeedError, OSError) as error:
        print(f"founding: {error}", file=sys.stderr)
        return 2
    return 0


def _reach(values: Sequence[float]) -> str:
    words = dict.fromkeys(f"{value:+.0f}" if round(value) else "0"
                          for value in (max(values), min(values)))
    return " to ".join(words) + " %"


if __name__ == "__main__":
    sys.exit(main())
