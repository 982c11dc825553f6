"""`vrm heatmap` and what strip makes of it: real co-runs, continuation after a kill, every form of
file, the picture, pairs that are refused.
"""

from __future__ import annotations
from support import warm

import json
import os
import random
import re
import signal
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import Site, wait_until
from vrm.live.site.setup import Site as Allocation
from vrm.ext.measure.bench import MeasureError
from vrm.ext.measure.heatmap_measurement import MeasurementMethod, _Times, co_run_placements, ranks_for
from vrm.model import Cluster, Heatmap, Job, Node
from vrm.model.measured.speedups import SpeedError, Speedups
from vrm.ext.measure.heatmap_table import draw, grid_of, table
from vrm.ext.study.report.plotting import PictureError
from vrm.results.jobs import read_jobs
from vrm.results.placement_text import parse_cores
from vrm.scheduling import Scheduler, make_backfilling, make_ordering, make_policy
from vrm.api import Machine, Measurements, Recording, Rules, simulate
from vrm.ext.measured.heatmap_files import HeatmapLine, csv_text, rank_text, ranked, read, spread
from vrm.workload.submission import Submission

# A program that says 2 s if it has seen the partner run, and stays for the partner to see it. It
# looks for 1.2 s, else it says 1 s.
FEELS = """echo ran >> "$0.log"
grep Cpus_allowed_list /proc/self/status >> "$0.cpus"
touch "$0.here.$$"
seconds=1.00
looks=40
while [ $looks -gt 0 ]; do
    for other in "${0%/*}"/*.here.*; do
        case $seconds$other in 2.00*|*"$0.here.$$") ;; *) [ -e "$other" ] && seconds=2.00 looks=10;; esac
    done
    looks=$((looks - 1))
    sleep 0.03
done
rm "$0.here.$$"
echo " Time in seconds = $seconds"
"""
SAYS_ONE = "echo ran >> \"$0.log\"\necho ' Time in seconds = 1.00'\n"
QUICK = ("--runs", "2", "--period", "20", "--steady", "0.5")


def figures(path: Path) -> dict[str, HeatmapLine]:
    return {" ".join(filter(None, (one.placement, one.app, one.partner))): one
            for one in read(path).figures}


def runs(site: Site, name: str) -> int:
    log = site.bin / f"{name}.log"
    return len(log.read_text().splitlines()) if log.exists() else 0


@pytest.fixture
def two(site: Site) -> Site:
    """A site with two cores on one socket."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    site.config(Cores=2, Allocation={"Policy": "strip"})
    return site


# Measuring.


def test_every_pair_runs_side_by_side_on_cores_of_its_own(two: Site) -> None:
    for name in ("a.S.x", "b.S.x"):
        two.program(name, FEELS)
    done = two.run("heatmap", "measure", "--runs", "1", limit=120)
    assert done.returncode == 0, done.stderr
    steps = re.findall(r"^\[(\d)/7\] .*?(?:; about (.*) left)?$", done.stderr, re.M)
    assert [number for number, _ in steps] == list("1234567"), done.stderr
    assert all(left for _, left in steps[:-1]) and not steps[-1][1]
    found = figures(two.root / "heatmap.csv")
    assert sorted(found) == ["compact a.S.x", "compact b.S.x", "spare a.S.x", "spare b.S.x",
                             "strip a.S.x a.S.x", "strip a.S.x b.S.x", "strip b.S.x a.S.x",
                             "strip b.S.x b.S.x"]
    for name, one in found.items():
        together = name.startswith("strip")
        assert one.seconds == (2 if together else 1), name
        assert one.procs == 1
        if together:
            assert one.speedup_compact == one.speedup_spare == 0.5
            assert one.rank in (1, 2) and one.overlap is not None and one.overlap > 0
    cpus = {name: set((two.bin / f"{name}.cpus").read_text().split()) - {"Cpus_allowed_list:"}
            for name in ("a.S.x", "b.S.x")}
    assert all(len(each) == 2 for each in cpus.values()), cpus  # each was on either side
    ranks = [line.split() for line in (two.root / "heatmap.rank").read_text().splitlines()
             if not line.startswith("#")]
    assert [sorted(line[1:]) for line in ranks] == [["a", "b"], ["a", "b"]]
    assert [line[0] for line in ranks] == ["a", "b"]
    two.nothing_left()
    # And it is usable as it is: two of a pair that is half as fast are as good as one by one.
    two.config(Cores=2, Allocation={"Policy": "strip"}, Applications={
        "Path": str(two.bin), "Queue": str(two.queue), "Heatmap": "heatmap.csv"})
    two.lines("a.S.x 1 10 0", "b.S.x 1 10 0", "other.x 1 10 0", "other.x 1 10 0")
    two.program("other.x", "exit 0\n")
    said = two.run()
    assert said.returncode == 0, said.stderr
    assert said.stdout.count("other is not in the heatmap") == 1


def test_a_killed_measurement_goes_on_and_nothing_of_it_is_left(two: Site) -> None:
    two.program("a.x", SAYS_ONE)
    slow = two.program("b.x", SAYS_ONE + "while [ -e \"$0.hold\" ]; do sleep 0.02; done\n")
    hold = Path(f"{slow}.hold")
    hold.touch()
    first = two.start("heatmap", "measure", *QUICK)
    wait_until(lambda: runs(two, "b.x") == 1, "the second program runs")
    first.kill()
    first.wait()
    before = figures(two.root / "heatmap.csv")
    assert sorted(before) == ["compact a.x", "spare a.x"]
    assert two.processes(), "the run of the killed measurement goes on"
    ran = runs(two, "a.x")
    second = two.start("heatmap", "measure", *QUICK)
    wait_until(lambda: runs(two, "b.x") == 2, "the second program runs anew")
    assert runs(two, "a.x") == ran  # its figures are there
    hold.unlink()
    said = two.finish(second, 120)
    assert second.returncode == 0, said
    assert "continuing heatmap.csv: 2 figure(s) are there" in said
    after = figures(two.root / "heatmap.csv")
    assert len(after) == 8 and all(one.runs and one.runs >= 2 for one in after.values())
    assert all(after[name] == one for name, one in before.items())
    ran = runs(two, "a.x")
    again = two.run("heatmap", "measure", *QUICK)
    assert again.returncode == 0 and runs(two, "a.x") == ran
    wait_until(lambda: not two.processes(), "nothing is left running")


def test_it_is_told_when_something_else_has_the_cores(two: Site) -> None:
    two.program("busy.x", "i=0\nwhile [ $i -lt 30000 ]; do i=$((i+1)); done\n"
                          "echo ' Time in seconds = 0.01'\n")
    two.program("sleeps.x", "sleep 0.3\necho ' Time in seconds = 0.30'\n")
    for app, told in (("busy.x", False), ("sleeps.x", True)):
        done = two.run("heatmap", "measure", *QUICK, "--apps", app, "--out", f"{app}.csv")
        assert (f"!! {app} had its core(s) for" in done.stderr) is told, done.stderr


def test_noisy_figures_are_measured_again(two: Site) -> None:
    two.program("a.x", SAYS_ONE)
    assert two.run("heatmap", "measure", *QUICK).returncode == 0
    path = two.root / "heatmap.csv"
    there = read(path)
    noisy = [replace(one, seconds=4.0, spread=0.3) if one.placement != "strip" else
             replace(one, seconds=2.0, spread=0.0)
             for one in there.figures]
    path.write_text(csv_text(noisy, there.comments))
    ran = runs(two, "a.x")
    done = two.run("heatmap", "measure", *QUICK, "--redo", "0.2")
    assert done.returncode == 0, done.stderr
    assert "2 with a spread above 0.2 are measured again" in done.stderr
    assert runs(two, "a.x") == ran + 2  # alone, where compact and spare are the same
    found = figures(path)
    assert found["compact a.x"].seconds == 1 and found["strip a.x a.x"].speedup_compact == 0.5


def test_an_interrupted_measurement_ends_both_programs(two: Site) -> None:
    for name in ("a.x", "b.x"):
        two.program(name, "echo ran >> \"$0.log\"\necho ' Time in seconds = 1'\n"
                          "[ ! -e \"${0%/*}/hold\" ] || exec sleep 100\n")
    process = two.start("heatmap", "measure", "--runs", "1")
    wait_until(lambda: (two.root / "heatmap.csv").exists()
               and len(figures(two.root / "heatmap.csv")) >= 4, "they have run alone")
    (two.bin / "hold").touch()
    wait_until(lambda: len(list(two.processes())) >= 2, "programs are held")
    process.send_signal(signal.SIGTERM)
    said = two.finish(process)
    assert process.returncode == 130 and "continues" in said and "Traceback" not in said
    two.nothing_left()
    assert len(figures(two.root / "heatmap.csv")) >= 4


def test_a_program_that_fails_is_left_out(two: Site) -> None:
    two.program("a.x", SAYS_ONE)
    two.program("bad.x", "echo 'no such grid' >&2\nexit 4\n")
    two.program("is.S.x", "echo ' Time in seconds = 0.00'\n")  # as this one rounds
    done = two.run("heatmap", "measure", *QUICK)
    assert done.returncode == 1
    assert "not in the heatmap: bad.x: exit 4: no such grid" in done.stderr
    assert "not in the heatmap: is.S.x: it reports that it took 0 s" in done.stderr
    assert sorted(figures(two.root / "heatmap.csv")) == ["compact a.x", "spare a.x",
                                                         "strip a.x a.x"]
    assert (two.root / "heatmap.rank").read_text().splitlines()[-1] == "a a"


def test_figures_of_another_machine_are_not_mixed_in(two: Site) -> None:
    two.program("a.x", SAYS_ONE)
    (two.root / "heatmap.csv").write_text("# machine: another\n" + csv_text(
        [HeatmapLine("compact", "a.x", 1, seconds=1.0)]))
    done = two.run("heatmap", "measure", *QUICK)
    assert done.returncode == 2
    assert "measured elsewhere (machine: another; here: 1 node" in done.stderr
    assert runs(two, "a.x") == 0
    (two.root / "heatmap.csv").write_text("placement,app\n")
    done = two.run("heatmap", "measure", *QUICK)
    assert done.returncode == 2 and "no column `partner`" in done.stderr
    assert two.run("heatmap", "measure", *QUICK, "--fresh").returncode == 0


def test_one_core_cannot_be_shared(site: Site) -> None:
    site.program("a.x", FEELS)
    done = site.run("heatmap", "measure", "--runs", "1")
    assert done.returncode == 2 and "sockets of 2 cores or more" in done.stderr


# Where a pair runs.


def places(cluster: Cluster, large: int, small: int) -> list[dict[int, list[int]]]:
    """For each copy the cores it takes, by node; a core is counted over the node."""
    found = []
    for placement in co_run_placements(cluster, large, small):
        cores: dict[int, list[int]] = {}
        for slot in placement.slots(cluster.nodes):
            first = sum(cluster.nodes[slot.node].sockets[:slot.socket])
            cores.setdefault(slot.node, []).extend(first + core for core in slot.cores)
        found.append(cores)
    return found


def test_two_halves_of_every_socket() -> None:
    cluster = Cluster.regular(2, 2, 4)
    assert places(cluster, 8, 8) == [{0: [0, 1, 4, 5], 1: [0, 1, 4, 5]},
                                     {0: [2, 3, 6, 7], 1: [2, 3, 6, 7]}]
    assert places(cluster, 8, 4) == [{0: [0, 1, 4, 5], 1: [0, 1, 4, 5]}, {0: [2, 3, 6, 7]},
                                     {1: [2, 3, 6, 7]}]


@given(nodes=st.integers(1, 6), sockets=st.integers(1, 3), cores=st.integers(2, 7),
       data=st.data())
def test_every_node_of_the_larger_has_a_neighbour_if_there_is_room(
        nodes: int, sockets: int, cores: int, data: st.DataObject) -> None:
    cluster = Cluster.regular(nodes, sockets, cores)
    half = sockets * (cores // 2)
    large = data.draw(st.integers(1, nodes * half))
    small = data.draw(st.integers(1, large))
    found = places(cluster, large, small)
    assert sum(map(len, found[0].values())) == large
    assert all(sum(map(len, copy.values())) == small for copy in found[1:])
    taken = [(node, core) for copy in found for node, some in copy.items() for core in some]
    assert len(taken) == len(set(taken))
    each = -(-small // half)
    neighbours = {node for copy in found[1:] for node in copy}
    if nodes % each == 0:
        assert set(found[0]) <= neighbours
    assert len(found) - 1 <= -(-len(found[0]) // each)


def allocation(*sockets: int, nodes: int = 1) -> Allocation:
    cluster = Cluster(Node(f"n{i}", sockets) for i in range(nodes))
    return Allocation(cluster, False, None, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("app, nodes, sockets, most, ranks", [
    ("bt.A.x", 1, (2,), None, 1), ("bt.D.x", 4, (10, 10), None, 36),
    ("cg.D.x", 4, (10, 10), None, 32), ("ep.D.x", 4, (10, 10), None, 40), ("mine", 4, (10, 10), 12, 12), ("sp.A.x", 2, (5,), None, 4)])
def test_ranks_follow_from_the_allocation(app: str, nodes: int, sockets: tuple,
                                          most: int | None, ranks: int) -> None:
    assert ranks_for(app, allocation(*sockets, nodes=nodes), most) == ranks
    with pytest.raises(MeasureError, match="9 only"):
        ranks_for("bt.A.9", allocation(4))


@pytest.mark.parametrize("times, runs_, steady", [
    ([1.0, 1.0], 3, False), ([1.0, 1.02, 1.01], 3, True), ([1.0, 2.0, 3.0], 3, False),
    ([1.0, 1.0, 1.0, 1.0, 9.0], 3, True), ([2.0], 1, True)])
def test_when_a_figure_is_steady(times: list[float], runs_: int, steady: bool) -> None:
    assert _Times(times, times).steady(MeasurementMethod(runs_, steady=0.05)) is steady


def test_the_spread_is_the_middle_half() -> None:
    assert spread([1, 2, 3, 4, 5]) == pytest.approx(2 / 3) and spread([4.0]) == 0
    assert spread([0.0, 0.0]) == 0


# Files.

NAMES = st.sampled_from(["bt", "cg", "ep", "ft"])
SPEEDS = st.dictionaries(NAMES, st.dictionaries(NAMES, st.floats(0.2, 3), min_size=1), min_size=1)


@given(SPEEDS)
@pytest.mark.slow
def test_ranks_survive_every_way_round(pairs: dict[str, dict[str, float]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "h"
        figures_ = ranked([HeatmapLine("strip", f"{app}.S.x", 1, f"{partner}.S.x", 1,
                                  speedup_compact=value)
                           for app, row in pairs.items() for partner, value in row.items()])
        path.write_text(csv_text(figures_, ["machine: m"]))
        measured = read(path)
        assert measured.comments == ("machine: m",) and measured.speedups is not None
        for app, row in pairs.items():
            for partner, value in row.items():
                assert measured.speedups.beside(f"{app}.S.x", 1, f"{partner}.S.x",
                                                1) == pytest.approx(value, rel=1e-5)
        order = measured.heatmap.ranks
        path.write_text(rank_text(measured.heatmap, ["a comment"]))
        assert read(path).heatmap.ranks == order and read(path).speedups is None
        path.write_text(csv_text(read(path).figures))
        assert read(path).heatmap.ranks == order and read(path).speedups is None


@pytest.mark.slow
def test_a_pool_becomes_figures(tmp_path: Path) -> None:
    def load(name: str, compact: list[float], partners: dict[str, list[list[float]]]) -> str:
        return json.dumps({"load_name": name, "num_of_processes": 4, "compact_timelogs": compact,
                           "coscheduled_timelogs": partners})
    pool = tmp_path / "pool.json"
    pool.write_text(json.dumps({"machine": "m", "loads": [
        load("bt.A.4", [10, 11, 12], {"cg.A.4": [[9, 11], [10]], "bt.A.4": [[22.0]]}),
        load("cg.A.4", [5], {"bt.A.4": [[4]]})]}))
    found = {f"{one.placement} {one.app} {one.partner}": one for one in read(pool).figures}
    one = found["strip bt.A cg.A"]
    assert (one.seconds, one.runs, one.speedup_compact, one.rank) == (10, 3, 1.1, 1)
    assert found["strip bt.A bt.A"].rank == 2 and found["compact bt.A "].spread == pytest.approx(
        1 / 11, abs=1e-4)
    out = tmp_path / "out.csv"
    run = convert(pool, out)
    assert run.returncode == 0, run.stderr
    again = read(out)
    assert again.heatmap.ranks == read(pool).heatmap.ranks
    assert again.speedups is not None and again.speedups.compact_time("bt.A.x", 4) == 11
    assert convert(out, tmp_path / "ranks").returncode == 0
    assert (tmp_path / "ranks").read_text().splitlines() == [
        "# an application, then all from its best to its worst partner", "# from pool.json",
        "bt cg bt", "cg bt"]
    assert "exists; name another file" in convert(out, tmp_path / "ranks").stderr
    back = convert(tmp_path / "ranks", tmp_path / "r.CSV")
    assert back.returncode == 0 and "3 figure(s)" in back.stdout
    assert (tmp_path / "r.CSV").read_text().splitlines()[:2] == [
        "# seconds = median, spread = the middle half of the runs by the median",
        "# from pool.json"]


def convert(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    return vrm("convert", str(source), str(target), cwd=target.parent)


def vrm(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return warm.run(["heatmap", *arguments], cwd=cwd, env={**os.environ, **env}, timeout=60)


HEAD = "placement,app,partner,speedup_compact\n"


@pytest.mark.parametrize("text, message", [
    ("", "empty"), ("# only a comment\n", "empty"),
    ("placement,app,partner,speed\n", ":1: unknown column `speed`"),
    (HEAD + "strip,a,b\n", ":2: 3 values for 4 columns"),
    (HEAD + "strip,a,b,x\n", ":2: speedup_compact: `x` is not a number"),
    (HEAD + "strip,a,b,-1\n", "below 0"), (HEAD + "strip,a,b,nan\n", "not finite"),
    (HEAD + "strip,a,b,0\n", "must be above 0"),
    (HEAD + "strip,a,,1\n", "a partner belongs"), (HEAD + "spare,a,b,1\n", "a partner belongs"),
    (HEAD + "odd,a,b,1\n", "not `odd` and `a`"),
    ("Applications: {Path: bin}\n", "line 1: `Applications:` is not an application"), ("bt\n", "`bt` has no partners"),
    ("{}", "not a pool"), ("{\"loads\": 3}", "not a pool"), ("{\"loads\": [\"x\"]}", "not a pool"),
    ("bt cg\nbt 1\n", "1 speed-ups for 2 columns")])
@pytest.mark.slow
def test_files_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "h"
    path.write_text(text)
    with pytest.raises(SpeedError) as caught:
        read(path)
    assert message in str(caught.value) and str(path) in str(caught.value)
    done = vrm("show", "h", cwd=tmp_path)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr


def test_a_configuration_names_the_line_of_a_wrong_heatmap(site: Site) -> None:
    site.program("a.x", "exit 0\n")
    (site.root / "h.csv").write_text(HEAD + "strip,a,b,x\n")
    site.config(Allocation={"Policy": "strip"}, Applications={
        "Path": str(site.bin), "Queue": str(site.queue), "Heatmap": "h.csv"})
    site.lines("a.x 1 10 0")
    done = site.run()
    assert done.returncode == 2
    assert "Applications.Heatmap" in done.stderr and "h.csv:2: speedup_compact" in done.stderr


# Tables and pictures.

MEASURED = Speedups({"bt.S.1": {"bt.S.1": 0.5, "cg.S.1": 0.875}, "cg.S.1": {"bt.S.1": 1.25}},
                    spare={"bt.S.1": 1.25}, compact={"bt.S.1": 4.0})


def test_the_table() -> None:
    text = table(grid_of(MEASURED.heatmap(), MEASURED)).splitlines()
    assert [line.split() for line in text[1:4]] == [
        ["bt.S", "cg.S", "alone"], ["bt.S", "0.50", "0.88", "1.25"], ["cg.S", "1.25", "-", "-"]]
    assert "mean 0.88 of 3 pairs" in text[4]
    spare = table(grid_of(MEASURED.heatmap(), MEASURED, "spare")).splitlines()
    assert spare[2].split() == ["bt.S", "0.40", "0.70"]
    ranks = table(grid_of(Heatmap.parse(["ep cg ep", "cg ep cg"]), None)).splitlines()
    assert [line.split() for line in ranks[1:4]] == [["ep", "cg"], ["ep", "2", "1"],
                                                     ["cg", "1", "2"]]


@pytest.mark.parametrize("ending, magic", [(".png", b"\x89PNG"), (".svg", b"<?xml")])
@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.slow
def test_the_picture(tmp_path: Path, ending: str, magic: bytes, measured: bool) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    path = tmp_path / f"h{ending}"
    draw(grid_of(MEASURED.heatmap(), MEASURED if measured else None), path, "a machine")
    assert path.read_bytes().startswith(magic) and path.stat().st_size > 2000


@pytest.mark.slow
def test_colours_are_centred_on_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The picture's numbers: white in the middle, the same distance to both ends."""
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    from matplotlib.axes import Axes
    seen = {}
    real = Axes.imshow

    def imshow(self, numbers, cmap, norm, **more):  # type: ignore[no-untyped-def]
        seen.update(norm=norm, middle=cmap(norm(1.0)), low=cmap(norm(0.5)), high=cmap(norm(1.25)))
        return real(self, numbers, cmap=cmap, norm=norm, **more)

    monkeypatch.setattr(Axes, "imshow", imshow)
    draw(grid_of(MEASURED.heatmap(), MEASURED), tmp_path / "h.png")
    assert (seen["norm"].vmin, seen["norm"].vcenter, seen["norm"].vmax) == (0.5, 1.0, 1.5)
    assert min(seen["middle"][:3]) > 0.9
    assert seen["low"][0] > seen["low"][2] and seen["high"][2] > seen["high"][0]  # red, blue


def test_the_scale_of_ranks_has_whole_numbers(tmp_path: Path,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    from matplotlib.figure import Figure
    ticks: list[float] = []
    real = Figure.savefig

    def savefig(figure, *words, **more):  # type: ignore[no-untyped-def]
        real(figure, *words, **more)
        ticks.extend(figure.axes[1].get_yticks())

    monkeypatch.setattr(Figure, "savefig", savefig)
    draw(grid_of(Heatmap.parse(["a a b c", "b b c a", "c c a b"]), None), tmp_path / "h.png")
    assert ticks and all(tick == int(tick) for tick in ticks)


def test_a_picture_that_cannot_be_drawn(tmp_path: Path) -> None:
    grid = grid_of(MEASURED.heatmap(), MEASURED)
    with pytest.raises(PictureError, match=".png, .svg, .pdf"):
        draw(grid, tmp_path / "h.doc")
    with pytest.raises(PictureError, match="nothing to draw"):
        draw(grid_of(Heatmap({}), None), tmp_path / "h.png")
    (tmp_path / "h").write_text("ep cg ep\ncg ep cg\n")
    (tmp_path / "matplotlib.py").write_text("raise ImportError('none here')\n")
    done = vrm("show", "h", "--out", "h.png", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 2 and "pip install matplotlib" in done.stderr
    assert "ep  cg" in done.stdout, "the table is shown all the same"


# Refusing pairs.


def test_throughput_compares_with_one_after_the_other() -> None:
    # bt alone on half the cores has 1.25 of compact's speed; beside bt 0.5, so 0.4 each.
    assert {tuple(load.split(".")[0] for load in pair): value
            for pair, value in MEASURED.throughput().pairs.items()} == {
        ("bt", "bt"): 0.8, ("bt", "cg"): pytest.approx(0.7 + 1.25),
        ("cg", "bt"): pytest.approx(1.25 + 0.7)}
    heatmap = MEASURED.heatmap(least=1.0)
    assert heatmap.refuses("bt.S.x", 1, "bt.A.x", 1) and not heatmap.refuses("bt", 1, "cg", 1)
    assert not heatmap.refuses("nix", 1, "bt", 1) and not MEASURED.heatmap(0.0).refused
    assert MEASURED.heatmap(2.0).refuses("cg", 1, "bt", 1)


def started(heatmap: Heatmap, *apps: str, nodes: int = 2) -> list[list[int]]:
    """Where jobs of one node each start under strip: the nodes of those that start at once."""
    cluster = Cluster.regular(nodes, 1, 2)
    scheduler = Scheduler(make_ordering("FCFS"), make_backfilling("none"),
                          make_policy("strip", cluster, heatmap))
    queue = scheduler.new_queue()
    for number, app in enumerate(apps):
        queue.add(Job(number, app, 1, 10.0))
    return [start.booking.placement.nodes for start in scheduler.step(0.0, queue, cluster)]


def test_strip_refuses_a_pair_that_does_less_together() -> None:
    apps = ["bt.S.x", "bt.S.x", "bt.S.x"]
    assert started(MEASURED.heatmap(0.0), *apps) == [[0], [1], [0]]
    assert started(MEASURED.heatmap(1.0), *apps) == [[0], [1]]
    assert started(MEASURED.heatmap(1.0), "bt.S.x", "cg.S.x", "bt.S.x", "unknown") == [
        [0], [1], [1], [0]]


@pytest.mark.parametrize("backfilling", ["none", "easy", "conservative", "3"])
@pytest.mark.parametrize("least", [0.0, 1.0])
def test_no_refused_pair_ever_shares_a_node_and_every_job_runs(
        backfilling: str, least: float, tmp_path: Path) -> None:
    draw_ = random.Random(5)
    jobs, now = [], 0.0
    for number in range(80):
        now += draw_.choice([0, 5, 20])
        jobs.append(Submission(Job(number, draw_.choice(["bt.S.x", "cg.S.x", "other"]),
                                   draw_.randint(1, 8), 60.0, now), draw_.randint(5, 50)))
    simulate(jobs, Machine.of(4, sockets=2, cores=4), Rules(backfill=backfilling, policy="strip", min_throughput=least),
             measured=Measurements(speedups=MEASURED), record=Recording(out=tmp_path))
    rows = list(read_jobs(tmp_path / "jobs.csv"))
    assert len(rows) == 80
    nodes = {row.id: {node for node, _ in parse_cores(row.cores)} for row in rows}
    together = {frozenset((one.app, other.app)) for index, one in enumerate(rows)
                for other in rows[index + 1:]
                if one.start < other.end and other.start < one.end
                and nodes[one.id] & nodes[other.id]}
    assert (frozenset(["bt.S.x"]) in together) is (least == 0.0)
    assert frozenset(["bt.S.x", "cg.S.x"]) in together
