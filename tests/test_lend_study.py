"""The studies of live lends: what they compare with, and that they run, go on and write their tables."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import mpirun_environment, wait_until
from vrm.live.nodes.topology import read_topology
from vrm.ext.study.confidence import ConfidenceInterval

ROOT = Path(__file__).resolve().parents[1]
STUDIES = ROOT / "studies" / "malleable"


def study(name: str) -> Any:
    """A module of the studies, which are no package."""
    sys.path.insert(0, str(STUDIES))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(STUDIES))


@pytest.mark.parametrize("way", ["serial", "together", "lend"])
@pytest.mark.parametrize("first, second, come", [(90.0, 20.0, 30.0), (60.0, 60.0, 20.0), (30.0, 80.0, 10.0)])
def test_what_exact_arithmetic_allows_is_that_of_small_steps(way: str, first: float, second: float,
                                                             come: float) -> None:
    left, more, time, step = first, second, 0.0, 0.001
    ends = [0.0, 0.0]
    while left > 0 or more > 0:
        both = left > 0 and more > 0 and time >= come
        if left > 0:
            left -= step * (0.5 if both and way != "serial" else 1.0)
            ends[0] = time + step
        if more > 0 and time >= come and not (way == "serial" and both):
            more -= step * (0.5 if both else 1.0)
            ends[1] = time + step
        time += step
    found = study("live").allowed(first, second, come, way)
    assert (found.first, found.second, found.total) == pytest.approx(
        (ends[0], ends[1] - come, max(ends)), abs=0.01)


def test_the_queue_that_exact_arithmetic_allows() -> None:
    queues = study("live_queues")
    alone = [queues.Row(0.0, 0.0, 10.0, 20.0, 0.0, 0.0), queues.Row(1.0, 10.0, 11.0, 2.0, 0.0, 0.0)]
    static, shared = (queues.simulated(alone, way, 1, 2) for way in ("static", "sd"))
    assert [(row.start, row.end) for row in static] == [(0.0, 10.0), (10.0, 11.0)]
    # The second has one of two cores for 2 s, which costs the first one second.
    assert [(row.start, row.end) for row in shared] == [(0.0, 11.0), (1.0, 3.0)]
    assert [(row.lent, row.borrowed) for row in shared] == [(2.0, 0.0), (0.0, 2.0)]
    assert (queues.response(shared, alone), queues.slowdown(shared, alone), queues.total(shared, alone)) == (
        6.5, pytest.approx((1.1 + 2.0) / 2), 11.0)


@pytest.mark.parametrize("mean, half, best, says", [
    (-12.0, 1.0, -15.0, "reached"), (-8.0, 1.0, -15.0, "missed"), (-11.0, 1.5, -15.0, "reached by the mean, not certain"),
    (-9.0, None, -15.0, "missed by the mean, not certain"), (2.0, 1.0, -6.0, "missed: beyond what arithmetic allows")])
def test_a_goal_is_judged_by_the_whole_interval(mean: float, half: float | None, best: float, says: str) -> None:
    assert study("live").verdict(ConfidenceInterval(mean, half, 8 if half else 1), best, -10.0) == says


def test_tables_replace_what_a_page_has_between_its_comments(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- live.py -->\nold\n\n<!-- end of live.py -->\nbelow\n")
    study("bench").put_into(page, "live.py", "new\n\n")
    assert page.read_text() == "above\n<!-- live.py -->\nnew\n<!-- end of live.py -->\nbelow\n"
    before = page.read_text()
    with pytest.raises(study("bench").Failure, match="no comments <!-- live_queues.py -->"):
        study("bench").put_into(page, "live_queues.py", "new")
    assert page.read_text() == before


def test_a_process_of_others_that_wants_to_run_is_seen(tmp_path: Path) -> None:
    others = study("bench").Others
    loop = f"{sys.executable} -c 'while True: pass' here & echo $!; wait"
    with subprocess.Popen(["sh", "-c", loop, "sh", str(tmp_path)], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        busy = int(starter.stdout.readline())
        try:
            wait_until(lambda: b"pass\0here" in Path(f"/proc/{busy}/cmdline").read_bytes(), "it has begun")
            wait_until(lambda: others("elsewhere")._wants(Path(f"/proc/{busy}")), "it wants to run")
            assert not others("elsewhere", "while True: pass\0here")._wants(Path(f"/proc/{busy}")), "it is one of the study's"
            assert not others("elsewhere", tmp_path)._wants(Path(f"/proc/{busy}")), "one of the study's has started it"
        finally:
            os.kill(busy, signal.SIGKILL)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ep-omp in two classes."""
    if not shutil.which("mpicc") or len(read_topology().sockets[0]) < 2:
        pytest.skip("needs mpicc, and 2 cores on a socket")
    spec = importlib.util.spec_from_file_location("build_for_lends", ROOT / "npb" / "build.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder: Path = tmp_path_factory.mktemp("bin")
    assert not any(result.message for result in module.build(["ep-omp"], ["S", "A"], out=folder))
    return folder


def run(name: str, programs: Path, out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(STUDIES / name), "--bin", str(programs), "--out", str(out), *words],
                          env=mpirun_environment(), capture_output=True, text=True, timeout=240)


@pytest.mark.mpi
@pytest.mark.slow
def test_pairs_are_measured_once_and_only_by_their_plan(programs: Path, tmp_path: Path) -> None:
    some = run("live.py", programs, tmp_path, "--quick", "--only", "urgent", "--only", "changes")
    assert some.returncode == 0, some.stderr
    assert re.search(r"(?m)^changes here 0 lend .* lent [1-9]", some.stdout), some.stdout
    assert re.findall(r"(?m)^urgent here 0 (\w+) come", some.stdout) == ["serial", "together", "lend"]
    table = (tmp_path / "live.csv").read_text()
    assert "| lend against serial |" in (tmp_path / "live.md").read_text()
    assert re.search(r"(?m)^\| the number of its threads follows \| \d", some.stdout), some.stdout
    image, page = tmp_path / "live.png", tmp_path / "page.md"
    page.write_text("<!-- live.py -->\n<!-- end of live.py -->\n")
    again = run("live.py", programs, tmp_path, "--quick", "--only", "urgent", "--picture", str(image),
                "--docs", str(page))
    assert "| urgent | mean response | -10 % |" in page.read_text() and "](live.png)" in page.read_text()
    assert image.read_bytes().startswith(b"\x89PNG")
    assert again.returncode == 0 and not re.search(r"(?m)^urgent here 0", again.stdout)
    assert (tmp_path / "live.csv").read_text() == table
    other = run("live.py", programs, tmp_path, "--only", "urgent")
    assert other.returncode == 1 and "results of another plan" in other.stderr


@pytest.mark.mpi
@pytest.mark.slow
def test_a_queue_runs_both_ways(programs: Path, tmp_path: Path) -> None:
    done = run("live_queues.py", programs, tmp_path, "--quick")
    assert done.returncode == 0, done.stderr
    rows: dict[str, str] = dict(re.findall(r"(?m)^\| (static|sd) \|.*\| (\d+ \(\d+\)) \|$", done.stdout))
    assert rows["static"] == "0 (0)" and re.fullmatch(r"[12] \([12]\)", rows["sd"]), done.stdout
