"""What a simulation gives back: jobs as a sequence, as columns, as pandas' table, as a trace, and in a
notebook; users seen by an ordering; and the examples of the pages on simulation."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vrm.cli import main
from vrm.model import Job
from vrm.scheduling import PolicyError
from vrm.api import Machine, Outcome, Recording, Rules, Submission, Watcher, simulate
from vrm.simulation.inputs import WorkloadError
from vrm.simulation.library import write_summary
from vrm.workload.swf import Trace

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return simulate("lublin:32:300", rules=Rules(backfill="easy"))


def test_jobs_are_a_sequence(outcome: Outcome) -> None:
    jobs = outcome.jobs
    assert len(jobs) == 300 == len(list(jobs)) == len(list(jobs))
    assert jobs[0] == next(iter(jobs)) and jobs[-1] == list(jobs)[-1]
    assert jobs[3:9:2] == list(jobs)[3:9:2]
    with pytest.raises(IndexError, match="there are 300 jobs"):
        jobs[300]
    one = jobs[5]
    assert one.user and one.app == "app" and one.status == "completed" and one.estimate > 0
    assert sum(row.backfilled for row in jobs) == outcome.summary["backfilled"] > 0


def test_columns(outcome: Outcome) -> None:
    found = outcome.columns()
    assert found["wait"].mean() == pytest.approx(outcome.summary["average_wait"])
    assert found["run"].mean() == pytest.approx(outcome.summary["average_running"])
    assert found["user"] == [row.user for row in outcome.jobs]
    empty = simulate([], Machine.of(1)).columns()
    assert set(empty) == set(found) and len(empty["wait"]) == 0


def most_free(job: Job, view: Any, node: int) -> float:
    """A node order of one's own."""
    return -view.free_on(node)


def raises(job: Job, now: float, nodes: int) -> float:
    """An order of one's own."""
    return 1 / (job.procs - job.procs)


def test_a_summary_is_data_whatever_the_policies_are(tmp_path: Path) -> None:
    outcome = simulate("lublin:8:40",
                       rules=Rules(policy="pack", node_order=most_free, algorithm=lambda job, now, nodes: job.id,
                                   backfill="easy"), record=Recording(out=tmp_path))
    assert json.loads(json.dumps(outcome.summary))["node_order"] == "most_free"
    write_summary(tmp_path, "lublin:8:40", outcome)
    assert json.loads((tmp_path / "summary.json").read_text())["algorithm"] == "<lambda>"


@pytest.mark.parametrize("own, told", [
    (raises, rf"`raises` failed at {re.escape(__file__)}:\d+: ZeroDivisionError"),
    (lambda job, now, nodes: "first", rf"`<lambda>` at {re.escape(__file__)}:\d+ gives 'first' for job \d+; an "
     "ordering gives a number")])
def test_an_order_that_fails_is_reported_with_its_place(own: Any, told: str) -> None:
    with pytest.raises(PolicyError, match=told):
        simulate("lublin:8:40", rules=Rules(algorithm=own))


def test_a_table_is_refused_with_what_to_write() -> None:
    columns = iter(["job", "run"])  # what iteration over a DataFrame gives
    with pytest.raises(WorkloadError, match="the workload has 'job', expected a vrm.simulation.Submission"):
        simulate(columns, Machine.of(4))  # type: ignore[arg-type]


def test_pandas(outcome: Outcome, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        outcome.to_pandas()

    class DataFrame:
        """What of pandas is used."""

        def __init__(self, data: dict[str, Any]) -> None:
            self.data = data
            assert len({len(values) for values in data.values()}) == 1

        def set_index(self, name: str) -> DataFrame:
            self.index = self.data.pop(name)
            return self

    pandas = ModuleType("pandas")
    pandas.DataFrame = DataFrame  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    table = outcome.to_pandas()
    assert list(table.index) == [row.id for row in outcome.jobs]
    assert {"submit", "start", "end", "wait", "run", "user", "app", "processors"} <= set(table.data)


def test_a_figure_shows_its_cores_and_its_queue(outcome: Outcome, monkeypatch: Any) -> None:
    pytest.importorskip("matplotlib")
    busy, waiting = outcome.plot().axes
    moments = outcome.moments()
    assert busy.dataLim.ymax == pytest.approx(outcome.cluster.cores)
    line, = waiting.lines
    assert list(line.get_ydata()) == list(moments["queued"])
    assert list(3600 * line.get_xdata()) == pytest.approx(list(moments["time"]))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        outcome.plot()


def test_a_notebook_shows_it() -> None:
    found = simulate([Submission(Job(0, "a", 1, 5.0), 5.0)], Machine.of(1),
                     Rules(algorithm=lambda job, now, nodes: 0.0))._repr_html_()
    assert "&lt;lambda&gt;" in found and "<script" not in found
    assert "5.00 s" in found and "utilisation" in found


# ------------------------------------------------------------------------------------ as a trace


def test_a_trace_that_is_read_gives_the_same_schedule(tmp_path: Path, capsys: Any) -> None:
    trace = tmp_path / "t.swf.gz"
    assert main(["simulate", "lublin:32:300", "--backfill", "easy", "--swf", str(trace),
                 "--json"]) == 0
    plain = simulate("lublin:32:300", rules=Rules(backfill="easy"))
    found = Trace(trace)
    jobs = {one.job.id: one for one in found}
    assert found.processors == 32 and not found.dirt and len(jobs) == 300
    for row in plain.jobs:
        one = jobs[row.id]
        assert (one.job.submit, one.job.procs, one.run, one.job.estimate, one.job.user) == (
            row.submit, row.processors, row.end - row.start, row.estimate, row.user)
    again = simulate(trace, rules=Rules(backfill="easy"))
    assert again.summary["start_hash"] == plain.summary["start_hash"]
    second = tmp_path / "again.swf.gz"
    again.write_swf(second)
    assert second.read_bytes() == trace.read_bytes()
    assert main(["simulate", str(trace), "--swf", str(trace)]) == 2
    assert "is the workload and would be overwritten" in capsys.readouterr().err
    assert main(["simulate", str(trace), "--swf", str(tmp_path / "none" / "t.swf")]) == 2
    assert "none/t.swf: No such file" in capsys.readouterr().err


ROWS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 4), st.integers(1, 2),
                          st.integers(1, 60), st.sampled_from(["bt.D.x", "app", "app7", "é"]),
                          st.sampled_from(["", "3", "ada"])), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, kill=st.booleans())
def test_every_job_that_ran_is_in_the_trace(rows: Any, kill: bool, tmp_path_factory: Any) -> None:
    jobs = [Submission(Job(number, app, procs, 30.0, submit, cores=cores, user=user), float(run))
            for number, (submit, procs, cores, run, app, user) in enumerate(
                sorted(rows, key=lambda one: one[0]))]
    found = simulate(jobs, Machine.of(1, cores=8), Rules(policy="pack", backfill="easy", kill=kill))
    path = tmp_path_factory.mktemp("swf") / "t.swf"
    assert found.write_swf(path) == len(jobs)
    lines = [line.split() for line in path.read_text().splitlines() if not line.startswith(";")]
    ran = {row.id: row for row in found.jobs}
    for words in lines:
        row = ran[int(words[0])]
        assert (float(words[1]), float(words[2]), float(words[3]), int(words[4]), words[10]) == (
            row.submit, row.start - row.submit, row.end - row.start, row.processors,
            "1" if row.status == "completed" else "0")
    notes = Trace(path).header.get("Note", "")
    assert all(row.app != "bt.D.x" for row in ran.values()) or "bt.D.x" in notes
    assert all(row.user != "ada" for row in ran.values()) or "User 1: ada" in notes


# ----------------------------------------------------------------------------------------- users


def test_an_ordering_sees_the_users_of_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "t.swf"
    trace.write_text("; MaxProcs: 1\n" + "".join(
        f"{number} 0 -1 10 1 -1 -1 1 10 -1 1 {user} -1 1 -1 -1 -1 -1\n"
        for number, user in enumerate([8, 8, 8, 9], 1)))

    class Fair(Watcher):
        def __init__(self) -> None:
            self.had: dict[str, float] = {}
            self.ends: list[int] = []

        def booked(self, booking: Any) -> None:
            user = booking.job.user
            self.had[user] = self.had.get(user, 0.0) + booking.job.estimate

        def released(self, booking: Any) -> None:
            self.ends.append(booking.job.id)

        def __call__(self, job: Job, now: float, nodes: int) -> float:
            return -self.had.get(job.user, 0.0)

    fair = Fair()
    found = simulate(trace, rules=Rules(algorithm=fair), record=Recording(watchers=[fair]))
    assert [row.id for row in found.jobs] == [1, 4, 2, 3] == fair.ends
    assert [row.user for row in found.jobs] == ["8", "9", "8", "8"]
    assert found.summary["algorithm"] == "Fair" and fair.had == {"8": 30.0, "9": 10.0}


# ---------------------------------------------------------------------------------- the documents


COMMAND_PAGES = ("guide/simulation.md", "reference/simulation.md")


def blocks(kind: str, *pages: str) -> list[str]:
    text = "".join((ROOT / "docs" / page).read_text(encoding="utf-8") for page in pages)
    return re.findall(rf"```{kind}\n(.*?)```", text, re.S)


@pytest.mark.parametrize("number", range(6))
def test_the_examples_in_python_run(number: int, tmp_path: Path, monkeypatch: Any,
                                    capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    code = blocks("python", "how-to/simulate-python.md")
    assert len(code) == 6
    names = {"__name__": "__main__"}
    exec(compile(code[number], f"docs/how-to/simulate-python.md, example {number + 1}", "exec"), names)
    assert capsys.readouterr().out


@pytest.mark.slow
def test_the_commands_run(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    import shlex
    monkeypatch.chdir(tmp_path)
    commands = [line.partition("#")[0] for block in blocks("sh", *COMMAND_PAGES) for line in block.splitlines()
                if line.startswith("vrm ") and not line.startswith("vrm check")]  # wants programs
    assert len(commands) >= 8
    (tmp_path / "trace.swf").write_text("; MaxProcs: 4\n" + "".join(
        f"{number} {number} -1 10 1 -1 -1 1 10 -1 1 1 -1 1 -1 -1 -1 -1\n" for number in range(1, 40)))
    (tmp_path / "queue").write_text("bt.D.x 4 60 0 3\n" * 9)
    machine, = (text for text in blocks("yaml", *COMMAND_PAGES) if text.startswith("# cluster.yaml"))
    (tmp_path / "cluster.yaml").write_text(machine)
    (tmp_path / "heatmap.csv").write_text(
        "placement,app,procs,partner,partner_procs,speedup_compact\nstrip,bt.D,4,bt.D,4,0.9\n")
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0, command


def test_simulate_is_a_name_of_the_package() -> None:
    import vrm
    from vrm.api import simulate
    assert vrm.simulate is simulate
