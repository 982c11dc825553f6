"""The commands `vrm energy check`, `measure`, `calibrate`, `learn`, `add`, `predict` and `show`."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from pathlib import Path
from typing import Any
from collections.abc import Iterable

from vrm.commands.parsing import command, group
from vrm.commands.shared import CannotRun, factor, seconds, settings_of, words
from vrm.system.printing.output import aligned


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the group of commands to the main parser."""
    actions = group(commands, "energy", "measure and predict what programs draw, and show what jobs drew",
                    "vrm energy check")
    command(actions, "check", check, "show which energy counters and frequencies this user can read and set here", [],
            "vrm energy check")
    parser = command(
        actions, "measure", measure, "run a program on this node and put what it drew into the database",
        [shared], "vrm energy measure lu.C --class p1 -- mpirun -n 48 bin/lu.C.x",
        "Run it on one node of each class, with all cores: the run times there give the time coefficients. "
        "Energy comes from the kernel (powercap) or from perf, cycles and cache misses from perf.", rest="program")
    _entry(parser)
    parser.add_argument("--limit", metavar="SECONDS", type=seconds, default=3600.0,
                        help="end a run that takes longer (default: 3600)")
    parser = command(
        actions, "calibrate", calibrate, "run programs on a node of each class, and fill the database", [shared],
        "vrm energy calibrate --apps 'lu.C.x,ep.D.x'",
        "Runs each program once on one node of each class of NodeClasses, with all its cores, where the database "
        "has no entry. The run times give the time coefficients. The same command continues where it was interrupted.")
    parser.add_argument("--apps", metavar="LIST", type=words, default=(),
                        help="programs in Applications.Path; * and ? match (default: all)")
    parser.add_argument("--limit", metavar="SECONDS", type=seconds, default=3600.0,
                        help="end a run that takes longer (default: 3600)")
    parser.add_argument("--class", metavar="NAME", dest="name",
                        help="of this class alone; without NodeClasses all nodes are of it")
    parser.add_argument("--watts", metavar="W", type=factor, help="the power of a node, where nothing measures it")
    _database(parser)
    parser = command(
        actions, "learn", learn, "fill the database from jobs whose energy was measured", [shared],
        "vrm energy learn logs", "Takes jobs that completed alone on one node, at its own frequency.")
    parser.add_argument("runs", metavar="DIR", nargs="+", help="a run's directory with a jobs.csv, or such a file")
    _database(parser)
    parser.add_argument("--class", metavar="NAME", dest="name",
                        help="the class of all nodes (default: by NodeClasses)")
    parser.add_argument("--watts", metavar="W", type=factor, help="the power of a node, where nothing measured it")
    parser.add_argument("--fresh", action="store_true", help="replace existing entries")
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
    """Print what can be measured and set here; return 0."""
    from vrm.ext.energy.nodes import power
    from vrm.ext.measure.energy import usable_events
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


def _place(arguments: argparse.Namespace, need_class: bool = True) -> tuple[Path, str]:
    """Return the database file and the class of a measurement."""
    settings: Any | None = None
    if arguments.db is None or (need_class and arguments.name is None):
        settings = settings_of(arguments)
    database = Path(arguments.db or (settings and settings.extended("Energy.Database")) or "energy.yaml")
    if not need_class or arguments.name:
        return database, getattr(arguments, "name", None) or ""
    assert settings is not None
    host = socket.gethostname()
    for each in settings.node_classes:
        if each.energy is not None and {host, host.partition(".")[0]} & set(each.names):
            return database, each.energy.name
    raise CannotRun(f"{host} is in no class of NodeClasses with Energy; name its class (--class NAME)")


def measure(arguments: argparse.Namespace) -> int:
    """Run `vrm energy measure`; return 0 on success, 2 if it is impossible."""
    from vrm.ext.measure import energy
    database, name = _place(arguments)
    if not arguments.program:
        raise CannotRun("nothing to run: write the program behind `--`, as -- mpirun -n 48 bin/lu.C.x")
    return _write(database, arguments.app, name, energy.measure(
        arguments.program, arguments.watts or 0.0, arguments.frequency, arguments.limit))


def learn(arguments: argparse.Namespace) -> int:
    """Run `vrm energy learn`; return 0 on success, 2 if it is impossible."""
    from vrm.results.jobs import read_jobs
    settings = settings_of(arguments) if arguments.db is None or arguments.name is None else None
    database = Path(arguments.db or (settings and settings.extended("Energy.Database")) or "energy.yaml")
    paths = [Path(run) / "jobs.csv" if Path(run).is_dir() else Path(run) for run in arguments.runs]
    rows = [row for path in paths for row in read_jobs(path)]
    known = {} if settings is None else {name: each.energy.name for each in settings.node_classes
                                         if each.energy is not None for name in each.names}
    _store_learned(database, rows, lambda host: arguments.name or known.get(host) or known.get(host.partition(".")[0]),
                   arguments.watts or 0.0, arguments.fresh)
    return 0


def _store_learned(database: Path, rows: Iterable[Any], class_of: Any, watts: float, fresh: bool = False) -> None:
    """Write the entries learned from jobs into the database, and print them."""
    from vrm.ext.energy.database import read_programs
    from vrm.ext.measure.energy_files import write_program
    from vrm.ext.measure import learning
    found = learning.learn(rows, class_of, watts)
    programs = read_programs(database) if database.exists() else None
    for (app, name), (one, jobs, cores) in found.found.items():
        if not fresh and programs is not None and name in programs.of(app):
            print(f"{app} on {name}: is known already (--fresh replaces it)")
            continue
        write_program(database, app, name, one)
        print(f"{app} on {name}: {one.seconds:.2f} s, {one.watts:.1f} W ({jobs} job(s) with {cores} cores)")
    for why, number in found.left_out.items():
        print(f"{number} job(s) {why}")
    if not found.found:
        print("nothing was learnt; `vrm energy check` says what can be read here")


def calibrate(arguments: argparse.Namespace) -> int:
    """Run `vrm energy calibrate`; return 0 if the database is complete, 1 if runs are missing, 2 if it is
    impossible, 130 if interrupted."""
    import shutil
    import subprocess

    import yaml

    from vrm.ext.energy.database import read_programs
    from vrm.config.schema import dump
    from vrm.ext.energy.nodes import power
    from vrm.live.site.setup import prepare
    from vrm.ext.measure import learning
    from vrm.ext.measure.bench import INTERRUPTED, find_apps
    from vrm.model.measured.energy import NO_PROGRAMS
    from vrm.results.jobs import read_jobs
    settings = settings_of(arguments)
    database = Path(arguments.db or settings.extended("Energy.Database") or "energy.yaml")
    apps = find_apps(settings.applications.path, arguments.apps)
    cluster = prepare(settings.model_copy(update={"power_cap": ""}), watch=False).cluster

    def missing() -> list[str]:
        return learning.calibration(apps, cluster, read_programs(database) if database.exists() else NO_PROGRAMS,
                                    arguments.limit, arguments.name or "")

    lines = missing()
    if not lines:
        print(f"{database}: nothing is missing; `vrm energy predict --db {database}`")
        return 0
    host = socket.gethostname()
    if not arguments.watts and {node.name for node in cluster.nodes} <= {host, host.partition(".")[0]}:
        try:
            power.counters()
        except power.PowerError as error:
            raise CannotRun(f"the energy of this node cannot be read ({error}); give what "
                            "your site's meter shows (--watts W)") from None
    folder = database.absolute().parent / f".{database.name}.runs"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "queue").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    keys = dump(settings)
    keys.update(Log=str(folder / "logs"), State=str(folder / "logs/state"), Directory=str(folder / "logs"),
                Scheduling={"Algorithm": "FCFS"}, Allocation={"Policy": "compact"}, Energy={}, Queues={},
                Walltime="kill", Retries=0)
    keys["Applications"] = {**keys["Applications"], "Queue": str(folder / "queue")}
    keys.pop("PowerCap", None)
    for each in keys["NodeClasses"]:
        if each.get("Energy"):
            each["Features"] = [*(each.get("Features") or ()), learning.feature(each["Energy"]["Name"])]
    (folder / "config.yaml").write_text(yaml.safe_dump(keys), encoding="utf-8")
    status = INTERRUPTED
    try:
        status = subprocess.run([sys.executable, "-m", "vrm.cli", "-c", str(folder / "config.yaml"), "--once"],
                                stdin=subprocess.DEVNULL).returncode
    except KeyboardInterrupt:
        print("vrm: interrupted; the same command continues with what is missing", file=sys.stderr)
    finally:
        jobs = folder / "logs" / "jobs.csv"
        if jobs.exists():
            names = {node.name: node.power.name if node.power is not None else arguments.name
                     for node in cluster.nodes}
            _store_learned(database, read_jobs(jobs), names.get, arguments.watts or 0.0)
    if status != INTERRUPTED:
        shutil.rmtree(folder, ignore_errors=True)
        return 1 if missing() else 0
    return INTERRUPTED


def add(arguments: argparse.Namespace) -> int:
    """Run `vrm energy add`; return 0 on success, 2 if it is impossible."""
    from vrm.ext.measure import energy
    from vrm.model.measured.energy import MeasuredProgram
    database, name = _place(arguments)
    if arguments.slurm:
        found = energy.slurm_seconds(arguments.slurm)
    elif arguments.seconds and arguments.watts:
        found = energy.MeasuredEnergy(MeasuredProgram(arguments.seconds, arguments.watts), ("as given",))
    else:
        raise CannotRun("give --seconds and --watts, or --slurm JOBID")
    return _write(database, arguments.app, name, energy.MeasuredEnergy(found.measured._replace(
        cpi=arguments.cpi or 0.0, tpi=arguments.tpi or 0.0, frequency=arguments.frequency), found.sources))


def _write(database: Path, app: str, name: str, found: Any) -> int:
    from vrm.ext.measure.energy_files import write_program
    write_program(database, app, name, found.measured)
    one = found.measured
    cycles = (f", {one.cpi:.2f} cycles for an instruction, {one.tpi:.2f} memory transactions for 1,000"
              if one.cpi else "")
    print(f"{app} on {name}: {one.seconds:.2f} s, {one.watts:.1f} W{cycles} ({'; '.join(found.sources)})")
    print(f"{database}: name it in the configuration (Energy: {{Database: {database}}}), or "
          f"`vrm energy predict {app} --db {database}`")
    return 0


def predict(arguments: argparse.Namespace) -> int:
    """Print predictions; return 0 on success, 1 if the program is unknown, 2 if it is impossible."""
    from vrm.ext.energy.database import read_programs
    from vrm.model.measured.energy import PowerClass, chosen
    if arguments.machine:
        from vrm.config.machine import read_machine
        found = [node.power for node in read_machine(arguments.machine).nodes]
    else:
        found = [each.energy.power() for each in settings_of(arguments).node_classes if each.energy is not None]
    classes: dict[str, PowerClass] = {each.name: each for each in found if each is not None}
    programs = read_programs(_place(arguments, need_class=False)[0])
    if not classes:  # without classes only the measured values are known
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
                rows.append([app, offer.name, _ghz(one.frequency), f"{one.seconds:.2f}", f"{one.watts:.1f}",
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
                rows.append([name, _ghz(one.frequency), f"{one.watts:.1f}", f"{one.cpi:.3f}",
                             f"{one.seconds:.2f}", f"{one.joules:.0f}",
                             ", ".join(word for goal, word in marks.items() if picked[goal] is one)])
    print(aligned(rows))
    return 0


def _ghz(frequency: float) -> str:
    """Return a frequency as text; `own` is the nodes' own frequency, if no other can be predicted."""
    return f"{frequency:g}" if frequency else "own"


def show(arguments: argparse.Namespace) -> int:
    """Run `vrm energy show`; return 0 on success, 2 if it is impossible."""
    from vrm.ext.measure.power_picture import draw_power
    from vrm.results.energy import power_of_rows, energy_of, power_over_time
    from vrm.results.jobs import read_jobs
    path = Path(arguments.run)
    path = path / "jobs.csv" if path.is_dir() else path
    drawn = power_of_rows(read_jobs(path))
    found = energy_of(drawn)
    if not found:
        print(f"{path}: the power of its jobs is not known")
        return 0
    print(aligned([[name.replace("_", " "), f"{value:,.1f}" if isinstance(value, float) else str(value), unit]
            for (name, value), unit in zip(found.items(), _units(found))]))
    if arguments.out:
        draw_power(Path(arguments.out), [(str(path), power_over_time(drawn))])
        print(f"{arguments.out} written")
    return 0


def _units(found: dict[str, Any]) -> list[str]:
    units = {"energy": "J", "mean_power": "W", "highest_power": "W", "average_frequency": "GHz"}
    return [units.get(name, "") for name in found]
