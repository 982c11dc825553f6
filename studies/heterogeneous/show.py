"""What came out of the runs that are there: tables (tables.md), claims (claims.md), pictures."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import cells
import numpy as np
from cells import ESTIMATES, ORDERS, REAL, SCHEDULERS

from vrm.config.machine import read_machine
from vrm.ext.study.report.plotting import picture

SHORT = {"first-fit": "first-fit (Simple)", "best-fit": "best-fit (Consolidate)"}
COLOURS = ("#56B4E9", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#0072B2")
"""Of the node orders (Okabe and Ito)."""

HIGH = 0.75
"""Moments at which more of the machine is in use count as busy."""


@dataclass(frozen=True)
class Found:
    """A run that is there."""

    scheduler: str
    order: str
    estimates: str
    figures: Dict[str, Any]
    path: Path

    def array(self, name: str) -> Any:
        """One of its arrays."""
        with np.load(self.path) as found:
            return found[name]

    @property
    def slowdown(self) -> Any:
        """Of each job: (wait + run) / run."""
        return (self.array("wait") + self.array("run")) / self.array("run")


Runs = Dict[Tuple[str, str, str], Found]


def read(out: Path) -> Dict[str, Runs]:
    """The runs of each workload."""
    found: Dict[str, Runs] = {}
    for path in cells.done(out):
        workload, scheduler, order, estimates = path.name[:-4].split(".")
        with np.load(path) as arrays:
            figures = json.loads(str(arrays["figures"]))
        found.setdefault(workload, {})[scheduler, order, estimates] = Found(
            scheduler, order, estimates, figures, path)
    return found


def show(out: Path, real: Optional[str]) -> None:
    """Write all of it."""
    runs = read(out)
    if not runs:
        print(f"{out}: no run is there")
        return
    waited = None
    if real is not None:
        known = cells.waited(real)
        waited = sum(known.values()) / len(known)
        (out / "real.json").write_text(json.dumps({"wait": waited, "jobs": len(known)}))
    elif (out / "real.json").exists():
        waited = json.loads((out / "real.json").read_text())["wait"]
    (out / "tables.md").write_text(tables(runs, waited), encoding="utf-8")
    (out / "claims.md").write_text(claims(runs), encoding="utf-8")
    pictures(out, runs, waited)
    print(f"{out}: {sum(map(len, runs.values()))} runs; tables.md, claims.md and pictures are written")


# ------------------------------------------------------------------------------------------ tables


def tables(runs: Dict[str, Runs], waited: Optional[float]) -> str:
    """Mean wait, slowdown, queue and RAE of each run."""
    text: List[str] = []
    for workload, found in runs.items():
        spared = waited if workload == REAL else None
        text.append(f"## {workload}: {next(iter(found.values())).figures['jobs']} jobs\n")
        if spared is not None:
            text.append(f"What really happened: mean wait {spared:.0f} s. In brackets: how much of it would "
                        "have been spared.\n")
        for title, key, form in (("Mean wait [s]", "wait", "{:.0f}"), ("Mean slowdown", "slowdown", "{:.1f}"),
                                 ("Mean queue [jobs]", "queue", "{:.1f}"), ("Mean RAE", "rae", "{:.3f}")):
            text += [f"**{title}**\n", _grid(found, key, form, spared if key == "wait" else None), ""]
        text += ["**Median slowdown** of the jobs that waited in some run\n", _medians(found), ""]
    return "\n".join(text)


def _grid(found: Runs, key: str, form: str, real: Optional[float]) -> str:
    lines = ["| | | " + " | ".join(ORDERS) + " |", "|---|---|" + "---:|" * len(ORDERS)]
    for scheduler in SCHEDULERS:
        for estimates in ESTIMATES:
            row = []
            for order in ORDERS:
                run = found.get((scheduler, order, estimates))
                cell = "" if run is None else form.format(run.figures[key])
                if run is not None and real is not None:
                    cell += f" ({100 * (1 - run.figures[key] / real):+.0f} %)"
                row.append(cell)
            if any(row):
                lines.append(f"| {scheduler} | {estimates} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def waited_somewhere(found: Runs) -> Any:
    """Which jobs (by place) waited in some run: a job whose slowdown is 1 in all runs is left out."""
    some = None
    for run in found.values():
        here = run.array("wait") > 0
        some = here if some is None else some | here
    return some


def _medians(found: Runs) -> str:
    kept = waited_somewhere(found)
    lines = ["| | | " + " | ".join(ORDERS) + " |", "|---|---|" + "---:|" * len(ORDERS)]
    for scheduler in SCHEDULERS:
        for estimates in ESTIMATES:
            row = [found.get((scheduler, order, estimates)) for order in ORDERS]
            if any(row):
                lines.append(f"| {scheduler} | {estimates} | " + " | ".join(
                    "" if run is None else f"{np.median(run.slowdown[kept]):.2f}" for run in row) + " |")
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------ claims


def claims(runs: Dict[str, Runs]) -> str:
    """Each of the thesis's claims A1 to A13, and what the runs say."""
    text = ["Claims of the thesis (section 6) and what was found. Changes are of means over the node orders, "
            "unless it says otherwise.\n"]
    for workload, found in runs.items():
        if len(found) < 12:
            text += [f"## {workload}\n", _spreads(found), ""]
            continue
        text.append(f"## {workload}\n")
        for name, judge in JUDGES.items():
            text.append(f"- **{name}** {judge(found, workload)}")
        text.append("")
    return "\n".join(text)


def mean_of(found: Runs, key: str, scheduler: str, estimates: Sequence[str] = ESTIMATES,
            orders: Sequence[str] = ORDERS) -> float:
    """The mean of a figure over runs (nan where there are none)."""
    values = [found[scheduler, order, each].figures[key] for order in orders for each in estimates
              if (scheduler, order, each) in found]
    return float(np.mean(values)) if values else float("nan")


def there(found: Runs) -> List[str]:
    """The schedulers of which there are runs."""
    return [name for name in SCHEDULERS if any(key[0] == name for key in found)]


def _a1(found: Runs, workload: str) -> str:
    kept = waited_somewhere(found)
    parts = []
    for estimates in ESTIMATES:
        median = {name: float(np.median(np.concatenate([
            found[name, order, estimates].slowdown[kept] for order in ORDERS
            if (name, order, estimates) in found]))) for name in there(found)
            if any((name, order, estimates) in found for order in ORDERS)}
        ranked = sorted(median, key=lambda name: median[name])
        if ranked:
            parts.append(f"{estimates}: " + ", ".join(f"{name} {median[name]:.2f}" for name in ranked)
                         + f" (factor {median[ranked[-1]] / median[ranked[0]]:.0f})")
    return "medians of the slowdown (up to three orders of magnitude apart): " + "; ".join(parts)


def _a2(found: Runs, workload: str) -> str:
    ranked = {each: sorted(there(found), key=lambda name: mean_of(found, "slowdown", name, (each,)))
              for each in ESTIMATES}
    return "order by mean slowdown (CP, SJF, then EASY and PRB, LJF last): " + "; ".join(
        f"{each}: " + ", ".join(f"{name} {mean_of(found, 'slowdown', name, (each,)):.1f}" for name in names
                                if mean_of(found, "slowdown", name, (each,)) > 0)
        for each, names in ranked.items())


def _a3(found: Runs, workload: str) -> str:
    parts = []
    for name in there(found):
        before = mean_of(found, "slowdown", name, ("requested",))
        changes = [(each, 100 * (mean_of(found, "slowdown", name, (each,)) / before - 1))
                   for each in ("predicted", "actual")]
        known = [f"{each} {value:+.0f} %" for each, value in changes if value == value]
        parts += [f"{name}: {', '.join(known)}"] * bool(known)
    return ("mean slowdown against requested times (all gain, but PRB unchanged and LJF better with "
            "requested): " + "; ".join(parts))


def _a4(found: Runs, workload: str) -> str:
    return "mean queue (CP least): " + ", ".join(
        f"{name} {mean_of(found, 'queue', name):.0f}" for name in there(found))


def _a5(found: Runs, workload: str) -> str:
    parts = []
    for name in there(found):
        for resources in ("all", "core"):
            load, seconds = busy(found[next(key for key in found if key[0] == name)], workload, resources)
            high = load > HIGH
            parts.append(f"{name} {resources} " + (
                f"{100 * np.average(load[high], weights=seconds[high]):.0f} % in "
                f"{100 * seconds[high].sum() / seconds.sum():.0f} % of the time" if high.any() else "never"))
    return f"load while above {100 * HIGH:.0f} % (about 78 % for all): " + "; ".join(parts)


def busy(run: Found, workload: str, resources: str = "all") -> Tuple[Any, Any]:
    """The load (0 to 1) from change to change, and the seconds."""
    machine = read_machine(cells.HERE / ("real.yaml" if workload == REAL else "year.yaml"))
    whole = np.array(cells.capacity(machine))
    used = run.array("used")
    load = used.sum(1) / whole.sum() if resources == "all" else used[:, 0] / whole[0]
    return load, run.array("seconds")


def change(found: Runs, scheduler: str, estimates: str, order: str, other: str, key: str = "slowdown") -> float:
    """How much less a figure is under an order than under another one, per cent."""
    first = mean_of(found, key, scheduler, (estimates,), (order,))
    return 100 * (1 - first / mean_of(found, key, scheduler, (estimates,), (other,)))


def _a6(found: Runs, workload: str) -> str:
    return "less mean slowdown than first-fit (15 to 20 %): " + "; ".join(
        f"{name} {each}: balanced {change(found, name, each, 'balanced', 'first-fit'):+.0f} %, weighted "
        f"{change(found, name, each, 'weighted', 'first-fit'):+.0f} %"
        for name in ("EASY", "PRB") if name in there(found) for each in ESTIMATES)


def spread(found: Runs, scheduler: str, estimates: str, key: str) -> float:
    """By how much the worst node order exceeds the best one, per cent (nan where there is only one)."""
    values = [found[scheduler, order, estimates].figures[key] for order in ORDERS
              if (scheduler, order, estimates) in found]
    return 100 * (max(values) / min(values) - 1) if len(values) > 1 and min(values) > 0 else float("nan")


def spreads(found: Runs, scheduler: str, key: str) -> str:
    """Those for each of the estimates of which there is one: `5/9/12 %`; empty for none."""
    values = [spread(found, scheduler, each, key) for each in ESTIMATES]
    return "/".join(f"{value:.0f}" for value in values if value == value) + " %" if any(
        value == value for value in values) else ""


def _a7(found: Runs, workload: str) -> str:
    return "worst node order above the best, mean slowdown (LJF > 50 %, SJF and CP hardly): " + "; ".join(
        f"{name} {text}" for name in there(found) if (text := spreads(found, name, "slowdown")))


def _a8(found: Runs, workload: str) -> str:
    relative: Dict[str, List[float]] = {order: [] for order in ORDERS}
    worst = dict.fromkeys(ORDERS, 0)
    best = dict.fromkeys(ORDERS, 0)
    groups = 0
    for name in there(found):
        for each in ESTIMATES:
            values = {order: found[name, order, each].figures["slowdown"] for order in ORDERS
                      if (name, order, each) in found}
            if len(values) < len(ORDERS):
                continue
            groups += 1
            for order, value in values.items():
                relative[order].append(value / values["first-fit"])
            worst[max(values, key=lambda order: values[order])] += 1
            best[min(values, key=lambda order: values[order])] += 1
    return ("mean slowdown as a part of first-fit's (Weighted and Priority-Weighted most reliable, Consolidate "
            f"worst), in {groups} groups: " + "; ".join(
                f"{order} {np.mean(values):.2f} ({min(values):.2f} to {max(values):.2f}; best {best[order]} times, "
                f"worst {worst[order]})" for order, values in relative.items() if values))


def _a9(found: Runs, workload: str) -> str:
    parts = [f"{name} queue {text}" for name in there(found) if (text := spreads(found, name, "queue"))]
    if "PRB" in there(found):
        parts.append("PRB with best-fit against weighted: " + "/".join(
            f"{-change(found, 'PRB', each, 'best-fit', 'weighted', 'queue'):+.0f} %" for each in ESTIMATES))
    return "worst node order above the best, mean queue (less than slowdown; LJF most): " + "; ".join(parts)


def _a10(found: Runs, workload: str) -> str:
    every = {key: run.figures["rae"] for key, run in found.items()}
    by_order = {order: np.mean([value for key, value in every.items() if key[1] == order]) for order in ORDERS}
    return (f"mean RAE of jobs (below 0.6 everywhere; Consolidate highest; LJF lower): {min(every.values()):.3f} to "
            f"{max(every.values()):.3f}; " + ", ".join(f"{order} {by_order[order]:.3f}" for order in sorted(
                by_order, key=lambda order: -by_order[order])) + "; " + ", ".join(
                    f"{name} {mean_of(found, 'rae', name):.3f}" for name in there(found)))


def sample(found: Runs) -> Found:
    """The run that pictures of single moments show: CP, weighted and actual, or the next best."""
    for name in ("CP", "SJF", "EASY", "PRB", "LJF"):
        for each in ("actual", "predicted", "requested"):
            if (name, "weighted", each) in found:
                return found[name, "weighted", each]
    return next(iter(found.values()))


def _a11(found: Runs, workload: str) -> str:
    run = sample(found)
    rae, nodes, seconds = run.array("rae")[:, 0], run.array("nodes"), run.array("seconds")
    kept = nodes > 0
    inside = kept & (rae >= 0.6) & (rae <= 0.8)
    return (f"RAE of the machine under {run.scheduler}, weighted, {run.estimates} (mostly 60 to 80 %, whatever the "
            f"number of nodes): {100 * seconds[inside].sum() / seconds[kept].sum():.0f} % of the time in 60 to 80 %; "
            f"mean {100 * np.average(rae[kept], weights=seconds[kept]):.0f} %; correlation with the nodes in use "
            f"{np.corrcoef(rae[kept], nodes[kept])[0, 1]:+.2f}")


def _a12(found: Runs, workload: str) -> str:
    run = sample(found)
    rae, used, seconds = run.array("rae"), run.array("used"), run.array("seconds")
    parts = []
    for place, name in enumerate(cells.TYPES, 1):
        kept = used[:, place - 1] > 0
        parts.append(f"{name} {100 * np.average(rae[kept, place], weights=seconds[kept]):.0f} %" if kept.any()
                     else f"{name} never")
    return ("RAE of the machine by type, of what nodes have whose jobs ask for it (GPU and MIC 80 to 100 %, memory "
            "40 to 80 %, CPU low): " + ", ".join(parts))


def _a13(found: Runs, workload: str) -> str:
    values = [spread(found, name, each, "slowdown") for name in there(found) for each in ESTIMATES]
    known = [value for value in values if value == value]
    return (f"worst node order above the best (20 % over a year, far more over months): median {np.median(known):.0f} "
            f"%, most {max(known):.0f} %")


JUDGES: Dict[str, Callable[[Runs, str], str]] = {
    f"A{number}": judge for number, judge in enumerate(
        (_a1, _a2, _a3, _a4, _a5, _a6, _a7, _a8, _a9, _a10, _a11, _a12, _a13), 1)}


def _spreads(found: Runs) -> str:
    """A month with one case."""
    lines = []
    for scheduler in there(found):
        for each in ESTIMATES:
            orders = [order for order in ORDERS if (scheduler, order, each) in found]
            if orders:
                lines.append(f"- {scheduler}, {each}: mean slowdown " + ", ".join(
                    f"{order} {found[scheduler, order, each].figures['slowdown']:.2f}" for order in orders)
                    + f"; worst above the best {spread(found, scheduler, each, 'slowdown'):.0f} %, queue "
                    f"{spread(found, scheduler, each, 'queue'):.0f} %")
    return "\n".join(lines)


# ---------------------------------------------------------------------------------------- pictures


def pictures(out: Path, runs: Dict[str, Runs], waited: Optional[float]) -> None:
    """All pictures of what is there."""
    for workload, found in runs.items():
        for key, label in (("wait", "mean wait"), ("slowdown", "mean slowdown"), ("queue", "mean number of waiting jobs"),
                           ("rae", "mean RAE of jobs")):
            scale = 3600.0 if key == "wait" else 1.0
            _points(out / f"{workload}-{key}.png",
                    {name: run.figures[key] / scale for name, run in found.items()}, label,
                    waited / scale if key == "wait" and workload == REAL and waited is not None else None)
        _boxes(out / f"{workload}-slowdowns.png", found)
        _load(out / f"{workload}-load.png", found, workload)
        _scatter(out / f"{workload}-rae-nodes.png", found)
        _classes(out / f"{workload}-classes.png", found)


MARKERS = "os^Dv*"
HOURS = {1 / 12: "5 min", 1 / 6: "10 min", 0.5: "30 min", 1.0: "1 h", 2.0: "2 h", 5.0: "5 h", 10.0: "10 h", 24.0: "1 d"}


def _points(path: Path, values: Dict[Tuple[str, str, str], float], label: str, real: Optional[float]) -> None:
    """A figure of all runs: a panel for each kind of run times, a line for each scheduler, a mark for each node
    order."""
    from matplotlib.ticker import FixedLocator, NullLocator
    shown = [each for each in ESTIMATES if any(key[2] == each for key in values)]
    names = [name for name in SCHEDULERS if any(key[0] == name for key in values)]
    with picture(path, ValueError, "leave out the pictures", 3.4 * len(shown) + 0.6, 3.4) as figure:
        axes = figure.subplots(1, len(shown), sharey=True, sharex=True, squeeze=False)[0]
        for axis, each in zip(axes, shown):
            for place, order in enumerate(ORDERS):
                found = [(values[name, order, each], line + (place - 2.5) * 0.11) for line, name in enumerate(names)
                         if (name, order, each) in values]
                axis.plot([value for value, _ in found], [line for _, line in found], MARKERS[place],
                          color=COLOURS[place], markersize=5, label=SHORT.get(order, order))
            axis.set_yticks(range(len(names)), names)
            axis.set_title(f"with {each} run times")
            axis.grid(axis="x", color="0.9", linewidth=0.7)
            if real is not None:
                axis.axvline(real, color="black", linestyle="--", linewidth=1, label="the real machine")
        axes[0].invert_yaxis()
        if max(values.values()) > 10 * min(values.values()) > 0:
            axes[0].set_xscale("log")
            label += ", logarithmic"
            if "wait" in label:
                low, high = axes[0].get_xlim()
                inside = [at for at in HOURS if low <= at <= high]
                axes[0].xaxis.set_major_locator(FixedLocator(inside))
                axes[0].xaxis.set_minor_locator(NullLocator())
                axes[0].xaxis.set_major_formatter(lambda value, _: HOURS.get(value, ""))
            else:
                axes[0].xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        figure.supxlabel(label, fontsize=9)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=7, fontsize=7, frameon=False,
                      title="node order", title_fontsize=7, alignment="left", handletextpad=0.2, columnspacing=1.2)


def _boxes(path: Path, found: Runs) -> None:
    kept = waited_somewhere(found)
    shown = [(name, each) for name in there(found) for each in ESTIMATES
             if any((name, order, each) in found for order in ORDERS)]
    with picture(path, ValueError, "leave out the pictures", 0.7 * len(shown) + 2, 3.4) as figure:
        axis = figure.subplots()
        axis.boxplot([np.concatenate([found[name, order, each].slowdown[kept] for order in ORDERS
                                      if (name, order, each) in found]) for name, each in shown],
                     whis=(0, 100), showmeans=True, widths=0.6)
        axis.set_xticks(range(1, len(shown) + 1), [f"{name}\n{each[:4]}." for name, each in shown], fontsize=7)
        axis.set_yscale("log")
        axis.set_ylabel("slowdown (logarithmic)")


def _load(path: Path, found: Runs, workload: str) -> None:
    run = sample(found)
    with picture(path, ValueError, "leave out the pictures", 6.5, 2.4) as figure:
        axis = figure.subplots()
        for resources, colour in (("core", COLOURS[0]), ("all", COLOURS[1])):
            load, seconds = busy(run, workload, resources)
            axis.step(np.cumsum(seconds) / 86400, 100 * load, where="pre", linewidth=0.7, color=colour,
                      label={"core": "cores", "all": "all types added up"}[resources])
        axis.set_xlabel("days")
        axis.set_ylabel("share in use [%]")
        axis.set_title(f"{run.scheduler}, weighted, {run.estimates}")
        axis.legend(fontsize=7, frameon=False)


def _scatter(path: Path, found: Runs) -> None:
    run = sample(found)
    rae, used, nodes = run.array("rae"), run.array("used"), run.array("nodes")
    with picture(path, ValueError, "leave out the pictures", 10, 2.4) as figure:
        axes = figure.subplots(1, 1 + len(cells.TYPES), sharey=True)
        for place, (axis, name) in enumerate(zip(axes, ("all types", *cells.TYPES))):
            kept = (nodes > 0) & ((used[:, place - 1] > 0) if place else True)
            if kept.any():
                axis.hexbin(nodes[kept], 100 * rae[kept, place], gridsize=24, cmap="viridis", bins="log",
                            extent=(0, 64, 0, 100))
            axis.set_title(name)
            axis.set_xlabel("nodes with jobs")
        axes[0].set_ylabel("RAE of the machine [%]")


def _classes(path: Path, found: Runs) -> None:
    run = next(iter(found.values()))
    kinds, length = run.array("kind"), run.array("run")
    with picture(path, ValueError, "leave out the pictures", 6.5, 2.4) as figure:
        axis = figure.subplots()
        for place, kind in enumerate(sorted(set(kinds))):
            values = np.sort(length[kinds == kind])
            axis.step(values / 60, np.arange(1, len(values) + 1) / len(values), where="post", color=COLOURS[place],
                      label=f"{kind} ({len(values)} jobs)")
        axis.set_xscale("log")
        axis.set_xlabel("run time [min]")
        axis.set_ylabel("share of jobs")
        axis.legend(fontsize=7, frameon=False)
