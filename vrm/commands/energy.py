"""`vrm energy check`, `measure`, `add`, `predict` and `show`."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

from vrm.commands.parsing import command, group
from vrm.commands.shared import CannotRun, factor, seconds, settings_of


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the group to the program's commands."""
    actions = group(commands, "energy", "measure and predict what programs draw, and show what jobs drew",
                    "vrm energy check")
    command(actions, "check", check, "say what of energy and frequencies this user can read and set here", [],
            "vrm energy check")
    parser = command(
        actions, "measure", measure, "run a program on this node and put what it drew into the database",
        [shared], "vrm energy measure lu.C --class p1 -- mpirun -n 48 bin/lu.C.x",
        "Run it on one node of each class, with all cores: the run times there give the time coefficients. "
        "Energy comes from the kernel (powercap) or from perf, cycles and cache misses from perf.", rest="program")
    _entry(parser)
    parser.add_argument("--limit", metavar="SECONDS", type=seconds, default=3600.0,
                        help="end a run that takes longer (default: 3600)")
    parser = command(actions, "add", add, "put figures that you have into the database", [shared],
                     "vrm energy add lu.C --class p1 --seconds 52.5 --watts 386 --cpi 0.67 --tpi 19.6\n"
                     "vrm energy add lu.C --class p1 --slurm 1234.0")
    _entry(parser)
    for name, text in (("seconds", "its run time"), ("cpi", "cycles for an instruction"),
                       ("tpi", "memory transactions for 1,000 instructions")):
        parser.add_argument(f"--{name}", metavar=name[0].upper(), type=factor, help=text)
    parser.add_argument("--slurm", metavar="JOBID[.STEP]",
                        help="take seconds and energy from Slurm's accounting of a job")
    parser = command(
        actions, "predict", predict, "print what a program draws on each class at each frequency", [shared],
        "vrm energy predict lu.C --machine cluster.yaml --db energy.yaml")
    parser.add_argument("app", nargs="?", metavar="PROGRAM", help="the program (default: a line for each)")
    _database(parser)
    parser.add_argument("--machine", metavar="FILE",
                        help="the machine file with the classes (default: NodeClasses of the configuration)")
    parser.add_argument("--weight", metavar="W", type=factor, default=1.0,
                        help="how much more time counts than energy (default: 1)")
    parser = command(actions, "show", show, "print what the jobs of a run drew, and draw it", [],
                     "vrm energy show logs --out power.png")
    parser.add_argument("run", metavar="DIR", help="a run's directory with a jobs.csv, or such a file")
    parser.add_argument("--out", metavar="FILE", help="a picture of the power over time (.png or .svg)")


def _database(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--db", metavar="FILE",
                        help="the database (default: Energy.Database of the configuration, else energy.yaml)")


def _entry(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("app", metavar="PROGRAM", help="the program's name in queues, as lu.C")
    _database(parser)
    parser.add_argument("--class", metavar="NAME", dest="name",
                        help="the class of this node (default: the one of NodeClasses that has it)")
    parser.add_argument("--watts", metavar="W", type=factor, help="the power of the node, where it is known")
    parser.add_argument("--frequency", metavar="GHZ", type=factor, default=0.0,
                        help="at which frequency (default: the highest of the class)")


def check(arguments: argparse.Namespace) -> int:
    """Say what is possible here; 0."""
    from vrm.live.nodes import power
    from vrm.measure.energy import usable_events
    try:
        zones = power.counters()
        print(f"energy: {len(zones)} zone(s) of powercap can be read")
    except power.PowerError as error:
        print(f"energy: no: {error}")
    cpu = min(os.sched_getaffinity(0))
    try:
        low, high = power.frequencies(cpu)
        print(f"frequencies: {low:g} to {high:g} GHz (CPU {cpu})")
    except power.PowerError as error:
        print(f"frequencies: {error}")
    trouble = power.settable(cpu)
    print(f"setting them: {f'no: {trouble}' if trouble else 'yes'}"
          + "; under Slurm, srun --cpu-freq asks for one" * bool(trouble and "SLURM_JOB_ID" in os.environ))
    events = usable_events()
    print(f"perf: {', '.join(events) if events else 'counts nothing here'}")
    return 0


def _place(arguments: argparse.Namespace, need_class: bool = True) -> "tuple[Path, str]":
    """The database and the class of a measurement."""
    settings: Optional[Any] = None
    if arguments.db is None or (need_class and arguments.name is None):
        settings = settings_of(arguments)
    database = Path(arguments.db or (settings and settings.energy.database) or "energy.yaml")
    if not need_class or arguments.name:
        return database, getattr(arguments, "name", None) or ""
    assert settings is not None
    host = socket.gethostname()
    for each in settings.node_classes:
        if each.energy is not None and {host, host.partition(".")[0]} & set(each.names):
            return database, each.energy.name
    raise CannotRun(f"{host} is in no class of NodeClasses with Energy; name its class (--class NAME)")


def measure(arguments: argparse.Namespace) -> int:
    """Measure; 0 done, 2 could not."""
    from vrm.measure import energy
    database, name = _place(arguments)
    if not arguments.program:
        raise CannotRun("nothing to run: write the program behind `--`, as -- mpirun -n 48 bin/lu.C.x")
    return _write(database, arguments.app, name, energy.measure(
        arguments.program, arguments.watts or 0.0, arguments.frequency, arguments.limit))


def add(arguments: argparse.Namespace) -> int:
    """Add; 0 done, 2 could not."""
    from vrm.measure import energy
    from vrm.model.energy import Measured
    database, name = _place(arguments)
    if arguments.slurm:
        found = energy.of_slurm(arguments.slurm)
    elif arguments.seconds and arguments.watts:
        found = energy.Found(Measured(arguments.seconds, arguments.watts), ("as given",))
    else:
        raise CannotRun("give --seconds and --watts, or --slurm JOBID")
    return _write(database, arguments.app, name, energy.Found(found.measured._replace(
        cpi=arguments.cpi or 0.0, tpi=arguments.tpi or 0.0, frequency=arguments.frequency), found.sources))


def _write(database: Path, app: str, name: str, found: Any) -> int:
    from vrm.config.energy import write_program
    write_program(database, app, name, found.measured)
    one = found.measured
    cycles = (f", {one.cpi:.2f} cycles for an instruction, {one.tpi:.2f} memory transactions for 1,000"
              if one.cpi else "")
    print(f"{app} on {name}: {one.seconds:.2f} s, {one.watts:.1f} W{cycles} ({'; '.join(found.sources)})")
    print(f"{database}: name it in the configuration (Energy: {{Database: {database}}}), or "
          f"`vrm energy predict {app} --db {database}`")
    return 0


def predict(arguments: argparse.Namespace) -> int:
    """Print predictions; 0 done, 1 the program is not known, 2 could not."""
    from vrm.config.energy import read_programs
    from vrm.model.energy import PowerClass, chosen
    if arguments.machine:
        from vrm.config.machine import read_machine
        found = [node.power for node in read_machine(arguments.machine).nodes]
    else:
        found = [each.energy.power() for each in settings_of(arguments).node_classes if each.energy is not None]
    classes: Dict[str, PowerClass] = {each.name: each for each in found if each is not None}
    programs = read_programs(_place(arguments, need_class=False)[0])
    if not classes:  # then all that is known is what was measured
        classes = {name: PowerClass(name) for app in programs for name in programs.of(app)}
    if arguments.app and not programs.of(arguments.app):
        print(f"vrm energy: nothing was measured of {arguments.app}; known: {', '.join(programs)}", file=sys.stderr)
        return 1
    if not arguments.app:
        rows = [["program", "class", "best GHz", "seconds", "W", "J", "time coefficient", "score"]]
        for app in programs:
            for offer in sorted(programs.offers(app, classes, weight=arguments.weight),
                                key=lambda offer: offer.score):
                one, ratio = offer.prediction, programs.time_coefficient(app, offer.name)
                rows.append([app, offer.name, f"{one.frequency:g}", f"{one.seconds:.2f}", f"{one.watts:.1f}",
                             f"{one.joules:.0f}", f"{ratio:.3f}", f"{offer.score:.3f}"])
    else:
        rows = [["class", "GHz", "W", "cycles/instruction", "seconds", "J", ""]]
        for name, measured in programs.of(arguments.app).items():
            if name not in classes:
                continue
            predictions = classes[name].predictions(measured)
            marks = {"balanced": "best", "energy": "least energy", "runtime": "least time"}
            picked = {goal: chosen(predictions, goal, arguments.weight) for goal in marks}
            for one in predictions:
                rows.append([name, f"{one.frequency:g}", f"{one.watts:.1f}", f"{one.cpi:.3f}",
                             f"{one.seconds:.2f}", f"{one.joules:.0f}",
                             ", ".join(word for goal, word in marks.items() if picked[goal] is one)])
    _print(rows)
    return 0


def show(arguments: argparse.Namespace) -> int:
    """Show; 0 done, 2 could not."""
    from vrm.report.power import draw_power
    from vrm.results.energy import drawn_of, energy_of, power_over_time
    from vrm.results.jobs import read_jobs
    path = Path(arguments.run)
    path = path / "jobs.csv" if path.is_dir() else path
    drawn = drawn_of(read_jobs(path))
    found = energy_of(drawn)
    if not found:
        print(f"{path}: nothing is known of the power of its jobs")
        return 0
    _print([[name.replace("_", " "), f"{value:,.1f}" if isinstance(value, float) else str(value), unit]
            for (name, value), unit in zip(found.items(), _units(found))])
    if arguments.out:
        draw_power(Path(arguments.out), [(str(path), power_over_time(drawn))])
        print(f"{arguments.out} written")
    return 0


def _units(found: Dict[str, Any]) -> List[str]:
    units = {"energy": "J", "mean_power": "W", "highest_power": "W", "average_frequency": "GHz"}
    return [units.get(name, "") for name in found]


def _print(rows: List[List[str]]) -> None:
    """A table of texts."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
