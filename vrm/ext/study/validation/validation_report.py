"""The results of `vrm validate`, a live run compared with its replay: as text, data and a scatter plot."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from vrm.ext.study.report.compare import COLOURS, CompareError, figure
from vrm.ext.study.report.plotting import picture
from vrm.ext.study.validation.validation_result import Error, Pair, ValidationResult
from vrm.system.printing.output import boxed

MARKERS = "os^DvPX<>*"
SOURCES = {"calibrated": "as calibrated",
           "actual": "as measured in the run, so that only the decisions can differ"}


def by_application(validation: ValidationResult) -> dict[str, list[Pair]]:
    """Group the jobs by application and number of ranks, in the order of names."""
    groups: dict[str, list[Pair]] = {}
    for pair in sorted(validation.jobs, key=lambda pair: (pair.app, pair.procs, pair.id)):
        groups.setdefault(f"{pair.app} {pair.procs}", []).append(pair)
    return groups


def table(validation: ValidationResult) -> str:
    """Return the errors as a table, one row per application and one for all, followed by the makespan."""
    heads = ["application", "jobs", "live run", "simulated", "error", "live turnaround", "simulated", "MAPE", "bias"]
    rows = []
    groups = {**by_application(validation), "all": list(validation.jobs)}
    for name, pairs in groups.items():
        count = len(pairs)
        runs = Error.of([pair.run_error for pair in pairs])
        whole = Error.of([pair.error for pair in pairs])
        rows.append([name, count, figure(sum(pair.live_run for pair in pairs) / count),
                     figure(sum(pair.simulated_run for pair in pairs) / count),
                     f"{runs.mape:.1%}", figure(sum(pair.live for pair in pairs) / count),
                     figure(sum(pair.simulated for pair in pairs) / count),
                     f"{whole.mape:.1%}", f"{whole.bias:+.1%}"])
    whole = validation.turnaround
    text = (f"{boxed(heads, rows, left=(0,), line_above_last=True)}\n"
            "mean times in s; error, MAPE: mean size of the relative error of the single jobs; bias: its mean with "
            "sign\n"
            f"makespan: live {validation.live_makespan:.2f} s, simulated "
            f"{validation.simulated_makespan:.2f} s: error {validation.makespan_error:+.1%}\n"
            f"turnaround per job: MAPE {whole.mape:.1%}, median {whole.median:.1%}, bias "
            f"{whole.bias:+.1%}\n"
            f"run times in the replay: {SOURCES[validation.known]}")
    if validation.left_out:
        text += (f"\n{validation.left_out} job(s) did not complete; they are replayed with the "
                 "time they took, and do not count")
    return text


def data(validation: ValidationResult) -> dict[str, Any]:
    """Return the errors as data for `json.dumps`: seconds, and errors as fractions (0.1 is 10 %)."""
    live, simulated = validation.mean_turnaround
    return {
        "known": validation.known,
        "makespan": {"live": validation.live_makespan, "simulated": validation.simulated_makespan,
                     "error": validation.makespan_error},
        "turnaround": {"live_mean": live, "simulated_mean": simulated,
                       **asdict(validation.turnaround)},
        "running": asdict(validation.running),
        "left_out": validation.left_out,
        "jobs": [{**asdict(pair), "live": pair.live, "simulated": pair.simulated,
                  "error": pair.error} for pair in validation.jobs],
    }


def draw(validation: ValidationResult, path: Path) -> None:
    """Draw the jobs' turnaround times, live against simulated, by application, into a PNG or SVG file.

    Raises CompareError.
    """
    with picture(path, CompareError, "leave --out away", 6.6, 5) as shape:
        _scatter(shape.add_subplot(), validation)


def _scatter(axes: Any, validation: ValidationResult) -> None:
    values = [value for pair in validation.jobs for value in (pair.live, pair.simulated)]
    low, high = min(values), max(values)
    if high > 20 * low:
        axes.set_xscale("log")
        axes.set_yscale("log")
        ends = [low / 1.3, high * 1.3]
    else:
        ends = [0.0, high * 1.06]
    axes.fill_between(ends, [0.9 * end for end in ends], [1.1 * end for end in ends],
                      color="0.92", linewidth=0, label="within 10 %")
    axes.plot(ends, ends, color="0.4", linewidth=1, label="equal")
    for number, (name, pairs) in enumerate(by_application(validation).items()):
        axes.plot([pair.live for pair in pairs], [pair.simulated for pair in pairs],
                  linestyle="none", marker=MARKERS[number % len(MARKERS)], markersize=6,
                  color=COLOURS[number % len(COLOURS)], markeredgecolor="white",
                  markeredgewidth=0.6, label=f"{name.replace('$', '')} rank"
                  + "s" * (not name.endswith(" 1")))
    axes.set_xlim(ends)
    axes.set_ylim(ends)
    axes.set_aspect("equal")
    axes.set_xlabel("turnaround in the live run (s)")
    axes.set_ylabel("turnaround in the simulation (s)")
    whole = validation.turnaround
    axes.set_title(f"run times {SOURCES[validation.known].partition(',')[0]}: turnaround MAPE "
                   f"{whole.mape:.1%}, makespan {validation.makespan_error:+.1%}")
    axes.grid(color="0.93", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8, frameon=False)
