"""Compares runs of one workload, as a table and as a picture.

A run is the `--out` of `vrm simulate` or the directory of a live manager; both hold a `jobs.csv`.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import asdict, dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any
from collections.abc import Sequence

from vrm.model.forms import json_checks
from vrm.model.rules import KEYS, Rules
from vrm.ext.study.report.job_table import JobTable
from vrm.ext.study.report.plotting import chart_label, picture
from vrm.results import state
from vrm.results.energy import energy_of
from vrm.results.job_columns import JobFileError
from vrm.results.metrics import THRESHOLD
from vrm.results.names import digits, policy_name, time_text, unit_of
from vrm.results.summary import Distribution, distribution, mean
from vrm.system.files import read_regular
from vrm.system.printing.output import boxed
from vrm.system.errors import UserError

# Okabe and Ito, "Color universal design" (2008), without black, and without yellow (invisible on white).
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7")
STYLES = ("solid", "dashed", "dotted")
POINTS = 800  # points of a curve; more are invisible and make the files large
TICKS = ((0, "0"), (1, "1 s"), (10, "10 s"), (60, "1 min"), (600, "10 min"), (3600, "1 h"),
         (36000, "10 h"), (345600, "4 d"), (3456000, "40 d"), (34560000, "400 d"))


class CompareError(UserError):
    """Runs that cannot be compared; the text names the place and the remedy."""


@dataclass(frozen=True)
class ComparedRun:
    """The figures of a run that are compared, over all of its jobs that ran, completed or not.

    `rules` and `processors` are None if the directory does not contain them. `waits` are the waiting times (s) in
    ascending order. The slowdown is bounded by `vrm.results.metrics.THRESHOLD`. `work` is equal for two runs of the
    same jobs. `energy` are the figures of `vrm.results.energy.energy_of`, empty if unknown.
    """

    name: str
    directory: Path
    rules: Rules | None
    processors: int | None
    waits: Sequence[float]
    wait: Distribution
    slowdown: float
    utilisation: float | None
    makespan: float
    work: int
    energy: dict[str, Any] = field(default_factory=dict)

    @property
    def mean_wait(self) -> float:
        """Mean waiting time in seconds."""
        return self.wait.mean or 0.0

    def ratio(self, first: ComparedRun) -> float | None:
        """Return the mean waiting time divided by that of `first`; None if the jobs of `first` did not wait."""
        return self.mean_wait / first.mean_wait if first.mean_wait else None


def read_runs(directories: Sequence[str]) -> list[ComparedRun]:
    """Read the runs; each is named after its directory, or by its path if two directories have the same name.

    Raises CompareError.
    """
    names = [Path(directory).resolve().name for directory in directories]
    return [_read(Path(directory), name if names.count(name) == 1 else directory)
            for directory, name in zip(directories, names)]


def _read(directory: Path, name: str) -> ComparedRun:
    path = directory / "jobs.csv"
    try:
        table = JobTable.read(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CompareError(f"{directory}: there is no jobs.csv; name what `vrm simulate --out` "
                           "wrote, or the directory (Log) of a live run") from error
    except OSError as error:
        raise CompareError(f"cannot read {path}: {error.strerror}") from error
    except JobFileError as error:
        raise CompareError(str(error)) from error
    jobs = table.ran
    wait, slowdown = distribution(jobs.wait), mean(jobs.bounded_slowdown())
    if slowdown is None:
        raise CompareError(f"{path}: none of its {len(table)} jobs ran; there is nothing to compare")
    rules, processors = rules_and_cores(directory)
    first, last = jobs.whole
    same = hash(frozenset(compress(zip(table.columns["id"], table.columns["procs"]), table.chosen.tolist())))
    return ComparedRun(name, directory, rules, processors, sorted(jobs.wait.tolist()), wait, slowdown,
               jobs.utilisation(processors) if processors else None, last - first, same, energy_of(table.drawn))


def rules_and_cores(directory: Path) -> tuple[Rules | None, int | None]:
    """Return the rules and the number of cores of a run: from summary.json for a simulation, from the file `state`
    for a live run; (None, None) if neither exists. Raises CompareError for a damaged file."""
    for name in ("summary.json", "state"):
        path = directory / name
        try:
            if name == "summary.json":
                record = json.loads(read_regular(path))
                cores = record["machine"]["all_cores"]
            else:
                found = state.read(path, ("scheduling", "nodes"))
                record = found["scheduling"]
                cores = sum(len(socket) for node in found["nodes"] for socket in node["sockets"])
            if not json_checks.positive(cores):
                raise ValueError("the cores are wrong")
            return Rules.read(record), cores
        except FileNotFoundError:
            continue
        except OSError as error:
            raise CompareError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CompareError(f"{path}: vrm has not written this ({error!r}); move it away, or "
                               "run again") from error
    return None, None


# --------------------------------------------------------------------------------------- as text


def table(runs: Sequence[ComparedRun]) -> str:
    """Return the runs as a table, one row per run, followed by notes that apply to all."""
    # If all runs have the same placement, it is printed once.
    placements = {run.rules.policy if run.rules else None for run in runs}
    common = next(iter(placements)) if len(placements) == 1 else None
    means = sorted(run.mean_wait for run in runs)
    unit = unit_of([means[len(means) // 2]])  # the unit that suits most of them
    whole = unit_of(run.makespan for run in runs)
    heads = ["run", "policy", "jobs", f"mean wait [{unit.name}]", "median", "95 %", "max", "slowdown",
             "used", f"makespan [{whole.name}]", "ratio",
             *(["energy [MJ]", "highest [W]"] if any(run.energy for run in runs) else [])]
    rows = []
    others = [name for name, key in KEYS.items() if not key.always
              and len({getattr(run.rules, name) for run in runs if run.rules is not None}) > 1]
    for run in runs:
        parts = _parts(run.rules, others, bool(common))
        ratio = run.ratio(runs[0])
        rows.append([run.name, ", ".join(filter(None, parts)) or "-", run.wait.count,
                     *map(unit.text, (run.wait.mean, run.wait.median, run.wait.p95,
                                      run.wait.maximum)),
                     figure(run.slowdown),
                     "-" if run.utilisation is None else f"{run.utilisation:.3f}",
                     whole.text(run.makespan), "-" if ratio is None else f"{ratio:.3f}",
                     *_energy(run, any(each.energy for each in runs))])
    notes = [f"slowdown: the mean of the bounded one ({THRESHOLD:g} s); used: "
             "utilisation; ratio: of mean wait to the first row"]
    if common:
        notes.append(f"placement: {common} in all")
    different = [run.name for run in runs if run.work != runs[0].work]
    text = "\n".join([boxed(heads, rows, left=(0, 1)), *notes])
    if different:
        text += f"\nnot the same jobs as in {runs[0].name} ran in: {', '.join(different)}"
    return text


def _energy(run: ComparedRun, wanted: bool) -> list[str]:
    """Return the energy and the highest power of a run as cells; no cells unless `wanted`."""
    found = run.energy
    return [f"{found['energy'] / 1e6:.2f}" if found else "-",
            f"{found['highest_power']:.0f}" if found else "-"] if wanted else []


def _parts(rules: Rules | None, others: Sequence[str], common: bool) -> list[str | None]:
    """Return the names of a run's policies; `others` are the other keys that differ between runs, `common` means
    that all runs have the same placement."""
    if rules is None:
        return [policy_name(None, None)]
    return [policy_name(rules.algorithm, rules.backfill), None if common else rules.policy,
            *rules.words(others)]


def figure(value: float | None) -> str:
    """Return a number with its significant digits: `0.04`, `12.3`, `1029965`."""
    return "-" if value is None else digits(value)


_UNKNOWN = dict.fromkeys(key.record or name for name, key in KEYS.items() if key.always)


def data(runs: Sequence[ComparedRun]) -> dict[str, Any]:
    """Return the runs as data for `json.dumps`: seconds, shares from 0 to 1, None for unknown values."""
    return {"bounded_slowdown_threshold": THRESHOLD, "runs": [{
        "name": run.name, "directory": str(run.directory),
        **(run.rules.record() if run.rules else _UNKNOWN), "processors": run.processors,
        "jobs": run.wait.count, "wait": asdict(run.wait),
        "average_bounded_slowdown": run.slowdown, "utilisation": run.utilisation,
        "makespan": run.makespan, "wait_ratio": run.ratio(runs[0]),
        "same_jobs": run.work == runs[0].work, **run.energy,
    } for run in runs]}


# ------------------------------------------------------------------------------------ as picture


def draw(runs: Sequence[ComparedRun], path: Path) -> None:
    """Draw the runs into a PNG or SVG file: mean waiting time, mean bounded slowdown, and the distribution of the
    waiting times. Raises CompareError."""
    # 9 inches are 900 px of a page, 9 points 12 px.
    with picture(path, CompareError, "leave --out away for the table", 9,
                 max(3.6, 1.6 + 0.44 * len(runs))) as shape:
        grid = shape.add_gridspec(2, 2, width_ratios=(1, 1.1))
        waits = [run.mean_wait for run in runs]
        _values(shape.add_subplot(grid[0, 0]), runs, waits, "mean waiting time",
                list(map(time_text, waits)), TICKS)
        slowdowns = [run.slowdown for run in runs]
        _values(shape.add_subplot(grid[1, 0]), runs, slowdowns,
                f"mean bounded slowdown ({THRESHOLD:g} s)", list(map(figure, slowdowns)))
        _curves(shape.add_subplot(grid[:, 1]), runs)


def _look(index: int) -> tuple[str, str]:
    """Return the colour and line style of a run."""
    return COLOURS[index % len(COLOURS)], STYLES[index // len(COLOURS) % len(STYLES)]


def _values(axes: Any, runs: Sequence[ComparedRun], values: Sequence[float], title: str,
            words: Sequence[str], named: Sequence[tuple[float, str]] = ()) -> None:
    """Draw one value per run: as bars from 0; if the shortest bar would be too short compared with the longest, as
    points on a logarithmic axis (where the length of a bar has no meaning). `named` are the ticks of an axis of
    times."""
    lines = range(len(runs))
    colours = [_look(index)[0] for index in lines]
    least, most = min(values), max(values)
    if least > 0 and most > 20 * least:
        axes.set_xscale("log")
        axes.scatter(values, lines, s=42, color=colours, zorder=3)
        for at, value, text in zip(lines, values, words):
            axes.annotate(text, (value, at), (7, 0), textcoords="offset points", va="center",
                          fontsize=8)
        axes.set_xlim(least / 2, most * (most / least) ** 0.35)  # space for the number at the largest point
        axes.set_xlabel("logarithmic", fontsize=8)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_ylim(-0.6, len(runs) - 0.4)
        axes.grid(axis="both", color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        low, high = axes.get_xlim()
        ticks = [(at, text) for at, text in named if low <= at <= high]
        if len(ticks) > 1:
            axes.set_xticks([at for at, _ in ticks], [text for _, text in ticks])
            axes.minorticks_off()
    else:
        bars = axes.barh(lines, values, height=0.7, color=colours)
        axes.bar_label(bars, words, padding=3, fontsize=8)
        axes.set_xlim(0, most * 1.25 or 1)
        if named:
            unit = unit_of(values)
            axes.set_xlabel(unit.name, fontsize=8)
            axes.xaxis.set_major_formatter(lambda value, _: f"{value / unit.seconds:g}")
            axes.xaxis.set_major_locator(_steps_of(unit.seconds, most))
        else:
            axes.locator_params(axis="x", nbins=5)
    axes.set_yticks(lines, [chart_label(run.name) for run in runs])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_title(title)
    axes.tick_params(axis="x", labelsize=8)


def _steps_of(unit: float, most: float) -> Any:
    """Return ticks at round numbers of a unit (s)."""
    from matplotlib.ticker import FixedLocator, MaxNLocator
    ticks = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(0, max(most, 1e-9) / unit)
    return FixedLocator([tick * unit for tick in ticks])


def _curves(axes: Any, runs: Sequence[ComparedRun]) -> None:
    right = 1.3 * max(1.0, *(run.waits[-1] for run in runs))
    for index, run in enumerate(runs):
        colour, style = _look(index)
        times, shares = steps(run.waits)
        axes.step([*times, right], [*shares, 1], where="post", color=colour, linestyle=style,
                  linewidth=1.6, label=chart_label(run.name))
    wide = right > 100
    if wide:  # linear up to 1 s, so that jobs that did not wait are drawn at 0
        axes.set_xscale("symlog", linthresh=1, linscale=0.5)
        axes.minorticks_off()
        shown = [(at, text) for at, text in TICKS if at <= right]
        axes.set_xticks([at for at, _ in shown], [text for _, text in shown], fontsize=8,
                        rotation=30 if len(shown) > 7 else 0)
    axes.set_xlim(0, right)
    axes.set_ylim(0, 1.02)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"], fontsize=8)
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel("waiting time (logarithmic from 1 s on)" if wide else "waiting time in seconds", fontsize=8)
    axes.set_ylabel("share of jobs that waited this long or less", fontsize=8)
    # Above the panel, where it hides no curve.
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncol=2, fontsize=8, frameon=False)


def steps(waits: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the empirical distribution of sorted values: times, and for each the share (0 to 1) of values that are
    not greater. At most about POINTS steps, including the first and the last value."""
    count = len(waits)
    ranks = range(count) if count <= POINTS else \
        [step * (count - 1) // POINTS for step in range(POINTS + 1)]
    times = list(dict.fromkeys(waits[rank] for rank in ranks))
    return times, [bisect_right(waits, time) / count for time in times]
