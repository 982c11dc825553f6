"""The result of a simulation for users' programs: metrics, jobs, and tables for other tools."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload
from collections.abc import Iterator, Sequence

from vrm.model.cluster import Cluster
from vrm.model.job import Job
from vrm.results.names import policy_name, time_text
from vrm.simulation.results import Results, ResultRow
from vrm.workload.submission import Submission
from vrm.workload.swf import write

_SWF_STATUS = {"completed": 1, "timeout": 0}


class Jobs(Sequence[ResultRow]):
    """The jobs that ran, in the order of their ends; each is made when it is accessed."""

    def __init__(self, results: Results) -> None:
        self._results = results

    def __len__(self) -> int:
        return self._results.ran

    def __iter__(self) -> Iterator[ResultRow]:
        return self._results.rows()

    @overload
    def __getitem__(self, index: int) -> ResultRow: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[ResultRow]: ...

    def __getitem__(self, index: int | slice) -> ResultRow | Sequence[ResultRow]:
        if isinstance(index, slice):
            return [self._results.row(at) for at in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} jobs; {index} is out of range")
        return self._results.row(index % len(self))


@dataclass(repr=False)
class Outcome:
    """A finished (or interrupted) simulation.

    `summary` holds the metrics (see `vrm.results.summary.summarise`) and facts about the run; `dirt` counts, by
    reason, the rows of the workload that were dropped or changed. `efficiency` is None unless it was requested.
    """

    summary: dict[str, Any]
    results: Results
    cluster: Cluster
    dirt: dict[str, int] = field(default_factory=dict)
    interrupted: bool = False
    efficiency: Any = None

    @property
    def jobs(self) -> Jobs:
        """The jobs that ran, in the order of their ends: a sequence of `vrm.simulation.results.ResultRow`, times in
        seconds of the workload."""
        return Jobs(self.results)

    def columns(self) -> dict[str, Any]:
        """Return the jobs that ran as columns: numpy arrays, or lists of texts, by the field names of `ResultRow`,
        and also `wait` and `run` (s)."""
        import numpy as np
        rows = list(self.jobs)
        found: dict[str, Any] = {}
        for name, values in zip(ResultRow._fields, zip(*rows) if rows else [()] * len(ResultRow._fields)):
            found[name] = list(values) if name in ("user", "app", "status") else np.array(values)
        found["wait"] = found["start"] - found["submit"]
        found["run"] = found["end"] - found["start"]
        return found

    def moments(self) -> dict[str, Any]:
        """Return the state after each time at which something happened, as numpy arrays: `time` (s), number of
        `queued` jobs, `cores_queued` that they request, `cores_busy`."""
        return self.results.moments()

    def write_moments(self, path: str | Path) -> int:
        """Write `moments` as CSV; return the number of rows."""
        found = self.moments()
        rows = zip(*(values.tolist() for values in found.values()))
        with open(path, "w", encoding="ascii", newline="\n") as out:
            out.write(",".join(found) + "\n")
            out.writelines(",".join(f"{value:.12g}" for value in row) + "\n" for row in rows)
        return len(found["time"])

    def to_pandas(self) -> Any:
        """Return the jobs that ran as a pandas DataFrame: `columns`, with the job's id as index.

        Raises ImportError, with the fix, if pandas is not installed: vrm does not need it.
        """
        try:
            from pandas import DataFrame
        except ImportError as error:
            raise ImportError(f"to_pandas() needs pandas ({error}); install it with `python -m pip "
                              "install pandas`, or use columns(), which needs numpy alone"
                              ) from error
        return DataFrame(self.columns()).set_index("id")

    def plot(self) -> Any:
        """Return a matplotlib figure over the time of the run (hours): the busy cores with the number of all cores,
        and the waiting jobs. A notebook shows it; `plot().savefig("run.png")` saves it.

        Raises ImportError, with the fix, if matplotlib is not installed.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ImportError(f"plot() needs matplotlib ({error}); install it with `python -m pip install "
                              "matplotlib`, or draw what moments() gives") from error
        moments = self.moments()
        hours = moments["time"] / 3600
        figure = Figure(figsize=(9, 4.5), layout="constrained")
        busy, waiting = figure.subplots(2, 1, sharex=True)
        busy.fill_between(hours, moments["cores_busy"], step="post", color="#4477aa")
        busy.axhline(self.cluster.cores, color="black", linewidth=0.8)
        busy.set(title=_policies(self.summary), ylabel="busy cores", ylim=(0, 1.05 * self.cluster.cores))
        waiting.step(hours, moments["queued"], where="post", color="#aa3377")
        waiting.set(xlabel="time [h]", ylabel="waiting jobs")
        waiting.set_ylim(bottom=0)
        return figure

    def write_swf(self, path: str | Path) -> int:
        """Write the jobs that ran as a trace (SWF; compressed if the name ends in .gz), with the waits and run times
        of this run; return the number of rows.

        A job's processors are the cores that it held. Programs and users whose names are not numbers get a number;
        the header lists them (`Note`).
        """
        rows = sorted(self.jobs, key=lambda row: (row.submit, row.id))
        found = {row.id: row for row in rows}
        summary = self.summary
        return write(
            path, (Submission(Job(row.id, row.app, row.processors, row.estimate, row.submit,
                                  user=row.user), row.end - row.start) for row in rows),
            {"Computer": f"simulated by vrm: {_policies(summary)}", "MaxJobs": len(rows),
             "MaxRecords": len(rows), "MaxNodes": len(self.cluster.nodes),
             "MaxProcs": self.cluster.cores},
            starts=lambda job: (found[job].start, found[job].end),
            status=lambda job: _SWF_STATUS[found[job].status], names=rows)

    def __repr__(self) -> str:
        """Return a short text: the policies and the most important metrics."""
        summary = self.summary
        wait = summary["average_wait"]
        return (f"<Outcome of {_policies(summary)}: {summary['jobs']} jobs, mean wait "
                f"{'-' if wait is None else time_text(wait)}, utilisation {summary['utilisation']:.3f}; `summary` has "
                "all metrics>")

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: the policies, and the metrics with their distributions."""
        summary = self.summary
        heads = ("mean", "median", "p95", "maximum")
        lines = [f"<tr><th style='text-align:left'>{html.escape(name)}</th><td colspan=4 "
                 f"style='text-align:left'>{html.escape(text)}</td></tr>" for name, text in (
                     ("policy", _policies(summary)),
                     ("machine", f"{len(self.cluster.nodes)} nodes, {self.cluster.cores} cores"),
                     ("jobs", str(summary["jobs"])), ("makespan", time_text(summary["makespan"])),
                     ("utilisation", f"{summary['utilisation']:.4f}"))]
        lines.append("<tr><th></th>" + "".join(f"<th>{head}</th>" for head in heads) + "</tr>")
        for name in ("wait", "running", "turnaround", "bounded_slowdown"):
            values = [summary[name][head] for head in heads]
            shown = ["-" if value is None else f"{value:.2f}" if "slowdown" in name
                     else time_text(value) for value in values]
            lines.append(f"<tr><th style='text-align:left'>{name.replace('_', ' ')}</th>"
                         + "".join(f"<td>{text}</td>" for text in shown) + "</tr>")
        note = " (interrupted: what had ended)" if self.interrupted else ""
        return f"<table><caption>vrm simulation{note}</caption>{''.join(lines)}</table>"


def _policies(summary: dict[str, Any]) -> str:
    return f"{policy_name(summary['algorithm'], summary['backfilling'])}, {summary['policy']}"
