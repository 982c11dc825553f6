"""The tables of a study: averages, changes, single queues, energy, applications, runs."""

from __future__ import annotations

from statistics import fmean
from typing import Any
from collections.abc import Iterator, Sequence

from vrm.ext.study.report.table_formats import ReportColumn, Table, Value
from vrm.ext.study.report.study import FIGURES, MAIN, MEASURED, Study, applications
from vrm.results.energy import energy_of
from vrm.ext.study.confidence import CONFIDENCE


def tables(study: Study) -> list[Table]:
    """Return all tables of a study that are not empty."""
    found = [averages(study, queue) for queue in study.averaged_queues]
    found += [*_changes(study), *(machine(study, queue) for queue in study.averaged_queues)]
    if len(study.queues) > 1 and study.averaged_queues == [None]:
        found += [averages(study, queue) for queue in study.queues]
    return [*found, *_energy(study), *_applications(study), *_runs(study)]


def _note(study: Study) -> str:
    repeated = f"; ± is the {CONFIDENCE:.0%} confidence interval over the repetitions " \
               "(Student's t)" if study.repetitions > 1 else ""
    return "averages over completed jobs; running is the time that the application measured " \
           f"itself, where it did; turnaround is waiting and running{repeated}"


def averages(study: Study, queue: str | None = None) -> Table:
    """Return waiting, running and turnaround time of each scenario, on one queue or averaged over all (None)."""
    series = study.series
    heads = ["scenario"]
    for name in MAIN:
        heads += [f"{FIGURES[name].head} {one}".strip() for one in series]
    rows = []
    for group in study.groups:
        row: list[Value] = [group or series[0]]
        for name in MAIN:
            for one in series:
                found = study.scenario(group, one)
                row.append(study.mean(found.name, name, queue) if found else None)
        rows.append(tuple(row))
    where = f" on {queue}" if queue else " over the queues" if len(study.queues) > 1 else ""
    title = f"Average waiting, running and turnaround times{where}"
    return Table("averages" if queue is None else f"averages-{queue}", title,
                 tuple(map(ReportColumn, heads)), tuple(rows), _note(study))


def _changes(study: Study) -> Iterator[Table]:
    base = study.series[0]
    for series in study.series[1:]:
        queues = list(study.averaged_queues)
        if len(study.queues) > 1 and queues == [None]:
            queues += study.queues
        rows: list[Any] = []
        for queue in queues:
            for group in study.groups:
                changes = [study.change(group, series, name, queue) for name in MAIN]
                if any(change is not None for change in changes):
                    where = [queue or "all"] if len(queues) > 1 else []
                    rows.append((*where, group or series, *changes))
        if not rows:
            continue
        heads = [ReportColumn(head) for head in (["queue"] if len(queues) > 1 else []) + ["scenario"]]
        heads += [ReportColumn(f"{FIGURES[name].title} [%]", 0 if study.repetitions < 2 else 1, True)
                  for name in MAIN]
        note = f"negative: shorter under {series}"
        if study.repetitions > 1:
            note += "; ± is the interval of the differences within repetitions: where it is " \
                    "smaller than the change, the sign is sure"
        yield Table(f"change-{base}-{series}" if len(study.series) > 2 else "change",
                    f"Change from {base} to {series}", tuple(heads), tuple(rows), note)


def machine(study: Study, queue: str | None = None) -> Table:
    """Return makespan, utilisation and bounded slowdown of each scenario."""
    names = [name for name in FIGURES if name not in MAIN]
    columns = [ReportColumn("scenario"), *(ReportColumn(FIGURES[name].head) for name in names)]
    rows = tuple((one.label or one.name, *(study.mean(one.name, name, queue) for name in names))
                 for one in study.scenarios)
    return Table("machine" if queue is None else f"machine-{queue}",
                 f"The machine{f' on {queue}' if queue else ''}", tuple(columns), rows,
                 "makespan: from the first submission to the last end; utilisation: cores with a "
                 f"rank on them; bounded slowdown: over {study.runs[0].threshold:g} s, mean over "
                 "the jobs")


def _energy(study: Study) -> Iterator[Table]:
    """Yield the energy and power of the jobs of each scenario, averaged over its runs, if known."""
    rows: list[tuple[Value, ...]] = []
    for one in study.scenarios:
        found = [energy_of(run.drawn) for run in study.of(one.name) if run.drawn]
        if found:
            rows.append((one.label or one.name, *(
                None if name not in found[0] else round(fmean(each[name] for each in found) / unit, 6)
                for name, unit in (("energy", 1e6), ("mean_power", 1), ("highest_power", 1), ("average_frequency", 1))),
                sum(each["jobs_of_unknown_power"] for each in found) or None))
    if rows:
        yield _told("energy", "Energy of the jobs", [
            "scenario", "energy [MJ]", "mean power [W]", "highest power [W]", "mean frequency [GHz]",
            "jobs of unknown power"], rows, "nodes without a job are left out; mean power: over the makespan")


def _applications(study: Study) -> Iterator[Table]:
    found = applications(study)
    if not found:
        return
    several = len({one.policy for one in found}) > 1
    rows = []
    for one in found:
        company = f"with {one.beside}" if one.beside else "alone"
        rows.append((one.app, one.procs, *([one.policy] if several else []), company,
                     one.seconds.count, one.seconds, one.speedup))
    heads = [ReportColumn("program"), ReportColumn("ranks"), *([ReportColumn("placement")] if several else []),
             ReportColumn("company"), ReportColumn("runs"), ReportColumn("running [s]", 2), ReportColumn("speed-up", 2)]
    yield Table("applications", "Applications, alone and side by side", tuple(heads), tuple(rows),
                "with: that program was on its nodes for at least half of its running time; "
                "jobs between are left out; speed-up: against alone in the first placement, of times "
                f"from {MEASURED:g} s on; ±: {CONFIDENCE:.0%} interval over the runs")


def _runs(study: Study) -> Iterator[Table]:
    """Yield the table of the runs and that of their origins: what another person needs to repeat them."""
    origins: dict[tuple[Value, ...], list[int]] = {}  # origin -> its number, number of runs
    rows = []
    for run in study.runs:
        known = run.record
        versions, box = known.get("versions"), known.get("machine")
        origin = origins.setdefault((
            known.get("mode"), run.processors,
            " ".join(filter(None, [f"vrm {versions['vrm']} ({versions['source']})",
                                   f"Python {versions['python']}", versions.get("mpi")]))
            if versions else None,
            f"{box['cores']} cores of {box['processor']}, {box['system']}" if box else None),
            [len(origins) + 1, 0])
        origin[1] += 1
        rows.append((run.directory.name, len(run.table), run.done,
                     run.figures["makespan"], known.get("seed"), known.get("position"),
                     known.get("started"), box["load"][0] if box else None, origin[0]))
    yield _told("runs", "The runs", ["run", "jobs", "completed", "makespan [s]", "seed",
                                     "position", "started", "load before", "origin"], rows,
                "position: place in the order of the experiment; " * any(row[5] is not None for row in rows)
                + "origin: see the table of origins"
                + "; each run's directory has its config.yaml and run.json" * all(run.record for run in study.runs))
    yield _told("origins", "Origins of the runs",
                ["origin", "runs", "mode", "cores", "versions", "machine"],
                [(number, count, *origin) for origin, (number, count) in origins.items()],
                "cores: those that could be used")


def _told(name: str, title: str, heads: Sequence[str], rows: Sequence[tuple[Value, ...]],
          note: str) -> Table:
    """Return a table without the columns that are empty."""
    kept = [index for index in range(len(heads)) if any(row[index] is not None for row in rows)]
    return Table(name, title, tuple(ReportColumn(heads[index]) for index in kept),
                 tuple(tuple(row[index] for index in kept) for row in rows), note)
