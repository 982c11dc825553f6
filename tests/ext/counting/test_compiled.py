"""Compression in C gives the plans of the one in Python, to the last bit, and vrm does without it, too."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from collections.abc import Iterator

import pytest

from vrm.model import Job
from vrm.scheduling.backfilling import compression
from vrm.scheduling.backfilling.compression import Compress
from vrm.api import Machine, Rules, Submission, simulate
from vrm.ext.counting.compiled import compiled


@pytest.fixture(autouse=True)
def nothing_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What was taken before is not, and the cache is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    compression._taken.clear()
    yield
    compression._taken.clear()


def drawn(seed: int) -> list[Submission]:
    """Jobs that wait by the hundred, most of which end long before their requests are over."""
    draw = random.Random(seed)
    found = []
    for number, submit in enumerate(sorted(draw.uniform(0, 1e5) for _ in range(250))):
        walltime = draw.choice((600.0, 3600.0, 36000.0, draw.uniform(1, 1e5)))
        job = Job(number, "a.x", min(31, int(2 ** draw.uniform(0, 5))), walltime, submit=submit)
        found.append(Submission(job, walltime * draw.choice((0.01, 1.0, draw.uniform(0, 1)))))
    return found


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
@pytest.mark.parametrize("algorithm", ["FCFS", "WFP3"])  # its places in the queue are fixed; they change
def test_the_plans_are_the_same(algorithm: str) -> None:
    in_c = compiled()
    assert in_c is not None
    used = []

    def counted(*arguments: object) -> float:
        used.append(len(arguments[0]))  # type: ignore[arg-type]
        return in_c(*arguments)  # type: ignore[arg-type]

    for seed in range(2):
        found = []
        for compress in (compression.compress, counted):
            compression._taken[:] = [compress]
            outcome = simulate(drawn(seed), Machine.of(31), Rules(algorithm=algorithm, backfill="conservative"))
            found.append([(job.id, job.start) for job in outcome.jobs])
        assert found[0] == found[1]
    assert len(used) > 100 and max(used) > 100


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_it_is_taken_for_long_plans(tmp_path: Path) -> None:
    assert compression.fastest(5) is compression.compress
    assert not compression._taken
    taken: Compress = compression.fastest(1000)
    assert taken is not compression.compress and compression.fastest(5) is compression.compress
    assert len(list((tmp_path / "cache" / "vrm").iterdir())) == 1


def test_without_a_compiler_it_stays_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert compression.fastest(1000) is compression.compress
    assert not os.path.exists(tmp_path / "cache")


def test_a_library_that_others_could_have_put_there_is_not_loaded(tmp_path: Path) -> None:
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    assert compiled() is not None
    (tmp_path / "cache" / "vrm").chmod(0o777)
    assert compiled() is None
    (tmp_path / "cache" / "vrm").chmod(0o700)
    made, = (tmp_path / "cache" / "vrm").iterdir()
    made.chmod(0o666)
    assert compiled() is None
