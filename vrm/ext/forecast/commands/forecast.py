"""`vrm forecast`: when the jobs of a run are likely to start and to end."""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from collections.abc import Mapping, Sequence

from vrm.ext.forecast.commands import site_forecast
from vrm.commands.parsing import command
from vrm.commands.shared import CannotRun, ids_of, job_ids, seconds, settings_of, tell
from vrm.system.printing.output import show

if TYPE_CHECKING:
    from vrm.ext.forecast.files import RunFiles
    from vrm.ext.forecast.frozen import FrozenRun

LARGE = 1000
"""Number of waiting jobs from which a forecast takes so many seconds that the command says what it does."""

FRESH = 60.0
"""Age in seconds up to which the forecast of the background process is shown; an older one is computed again."""


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command."""
    parser = command(
        commands, "forecast", forecast, "when jobs are likely to start and end", [shared],
        "vrm forecast\nvrm forecast 7 --why\nvrm forecast 7 --json\nvrm forecast --estimate 7=20m\n"
        "vrm forecast --page forecast.html --watch\nvrm forecast --site",
        "Shows what the process alongside the manager has forecast; without a manager the forecast is made "
        "from the files of the run, for one that starts now. Start is the likely one, four starts of "
        "five are in Range, and Latest is the start if all jobs take as long as their users allow.")
    parser.usual = ("--json", "--why", "--estimate", "--score", "--page", "--watch", "--site")
    add = parser.add_argument
    add("ids", nargs="*", metavar="ID", help="a job's id or a range 3-7 (default: all)"
        ).completer = job_ids  # type: ignore[attr-defined]
    add("--json", action="store_true", help="as JSON: a list of jobs")
    add("--why", action="store_true", help="why the job waits, and what would let it start earlier")
    add("--estimate", metavar="ID=TIME", action="append", default=[], type=estimate,
        help="what if this job's estimate were this time (7=20m)? Nothing is changed")
    add("--score", action="store_true", help="how good the forecasts of this run were")
    add("--plot", metavar="FILE", help="with --score: draw it, too (.svg or .png)")
    add("--page", metavar="FILE", help="write it as a page of HTML, which needs no network")
    add("--watch", metavar="SECONDS", nargs="?", type=seconds, const=5.0,
        help="with --page: write it again and again (default: every 5 s) until the run ends or Ctrl-C; "
             "the page loads itself again")
    site_forecast.add_options(parser)


def estimate(text: str) -> tuple[int, float]:
    """Parse `7=20m` as (7, 1200.0)."""
    from vrm.model.quantities import seconds_of
    job_id, equals, length = text.partition("=")
    try:
        found = seconds_of(length)
        if equals and job_id.strip("# ").isdecimal() and 0 < found < math.inf:
            return int(job_id.strip("# ")), found
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"`{text}` is not a job with a time, such as 7=20m or 7=1200")


def forecast(arguments: argparse.Namespace) -> int:
    """Print the forecast; return 0."""
    if arguments.why:
        from vrm.ext.forecast.commands.explain import explain
        return explain(arguments)
    if site_forecast.wanted(arguments):
        return site_forecast.run(arguments)
    settings = settings_of(arguments)
    if arguments.score:
        return score(settings, arguments)
    if arguments.plot:
        raise CannotRun("--plot draws the score: add --score")
    if arguments.page is None and arguments.watch is not None:
        raise CannotRun("--watch goes with --page FILE; `vrm queue --watch` shows the queue again and "
                        "again")
    if arguments.page is not None:
        return page(arguments, settings)
    return _of_jobs(arguments, settings)


def _of_jobs(arguments: argparse.Namespace, settings: Any) -> int:
    """Print when jobs start and end; return 0."""
    from vrm.commands.naming import ids_for
    from vrm.ext.forecast.report import forecast_table as report

    ids = ids_of(ids_for(arguments, arguments.ids))
    if arguments.estimate:
        made, lines = _assumed(settings, arguments.estimate)
    else:
        made, lines = current(settings, ids), []
    known = {job["id"] for job in made["jobs"]}
    missing = [job_id for job_id in ids if job_id not in known]
    if missing and len(missing) == len(ids):
        raise CannotRun("\n".join(_others(settings, missing)))
    now = max(time.time(), made["time"])
    if arguments.json:
        print(json.dumps([report.facts(job, made) for job in report.chosen(made, ids)], indent=2))
        return 0
    for line in [*(_others(settings, missing) if missing else []), *lines]:
        print(line)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print(report.table(made, ids, now, width))
    return 0


def score(settings: Any, arguments: argparse.Namespace) -> int:
    """Print, and with `--plot` draw, how good the forecasts were that have come true; return 0."""
    from vrm.ext.forecast import score as scores
    from vrm.ext.forecast.files import RunFiles
    from vrm.ext.forecast.report.forecast_score import ComparedWait, draw

    files = RunFiles(settings)
    files.read_new()
    path = files.run_directory.forecasts
    try:
        made, wrong = scores.read(path)
    except FileNotFoundError:
        raise CannotRun(f"there is no {path}: no manager with forecasts has run here") from None
    except OSError as error:
        raise CannotRun(f"cannot read {path}: {error.strerror}") from error
    if wrong:
        print(f"vrm: {wrong} line(s) of {path} are not forecasts and are ignored", file=sys.stderr)
    started = files.past.started
    known = scores.scored_forecasts(made, lambda job_id: started[job_id]["time"] if job_id in started else None)
    if not known:
        raise CannotRun(f"no forecast job has started yet: {len({each.id for each in made})} job(s) wait that "
                        "have one. Jobs that start at once are not forecast")
    found = scores.Score.of(known)
    show(arguments.json, found.record, lambda: "\n".join(
        [*found.lines(), "Not included in forecasts: later submissions, failures, lost nodes."]))
    if arguments.plot:
        draw([ComparedWait(each.made.start - each.made.time, each.wait,
                           each.made.p10 <= each.truth <= each.made.p90 if each.made.calibrated else None)
              for each in known], Path(arguments.plot), f"{len(known)} forecasts of this run")
    return 0


def page(arguments: argparse.Namespace, settings: Any) -> int:
    """Write the page once, or again and again until the run ends; return 0."""
    from vrm.ext.forecast.report.forecast_page import name_of, page as drawn
    from vrm.results import state as states
    from vrm.system.errors import RunError
    from vrm.system.files import write_atomically

    path, watched = Path(arguments.page), arguments.watch
    made: dict[str, Any] | None = None
    while True:
        try:
            state = states.current(states.read(settings.state))
        except (OSError, ValueError):
            state = None
        over = state is None or state["manager"]["phase"] == "ended"
        try:
            made = current(settings)
        except RunError:
            if made is None:
                raise
            over = False  # the files are being renewed
        text = drawn(made, state, max(time.time(), made["time"]), name_of(settings.directory),
                     max(1, round(watched)) if watched and not over else None)
        try:
            write_atomically(path, text)
        except OSError as error:
            raise CannotRun(f"cannot write {path}: {error.strerror}") from error
        if watched is None or over:
            print(f"the page is {path}" + ("; the run has ended" if watched and over else ""))
            return 0
        try:
            time.sleep(watched)
        except KeyboardInterrupt:
            return 0


def current(settings: Any, ids: Sequence[int] = ()) -> dict[str, Any]:
    """Return the latest forecast of the manager's background process. If there is none, or it is too old or
    lacks one of the jobs `ids`, compute a new one."""
    from vrm.results import forecast as forecasts
    from vrm.run.rundir import RunDirectory

    run = RunDirectory(settings.directory, settings.log, settings.state)
    try:
        made = forecasts.read(run.forecast)
        if (abs(time.time() - made["time"]) < FRESH and run.manager_runs()
                and {job["id"] for job in made["jobs"]}.issuperset(ids)):
            return named(settings, made)
    except (OSError, ValueError):
        pass
    files, frozen = current_run(settings)
    waiting = len(frozen.waiting())
    if waiting > LARGE:
        tell(f"making a forecast of {waiting} waiting jobs")
    return named(settings, _made(files, frozen))


def named(settings: Any, made: Mapping[str, Any]) -> dict[str, Any]:
    """Return a forecast with the names of its jobs, as far as the state file has them."""
    from vrm.results import state as states

    try:
        names = {job["id"]: states.label(job) for job in states.current(states.read(settings.state))["jobs"]}
    except (OSError, ValueError):
        names = {}
    return {**made, "jobs": [{**job, "name": names.get(job["id"], "")} for job in made["jobs"]]}


def current_run(settings: Any) -> tuple[RunFiles, FrozenRun]:
    """Return the run at this moment, from its files. Prints a warning if the journal cannot be read whole."""
    from vrm.ext.forecast.files import RunFiles

    files = RunFiles(settings)
    files.read_new()
    if files.trouble:
        print(f"vrm: the journal cannot be read whole, this is the run before: {files.trouble}",
              file=sys.stderr)
    return files, files.frozen(files.told())


def _made(files: RunFiles, frozen: FrozenRun) -> dict[str, Any]:
    """Return the forecast of a run or of a changed copy of it, with the calibration of the run."""
    from vrm.ext.forecast.live.process import calibration_of, log_of, made
    from vrm.ext.forecast.parallel import available
    try:
        calibration = calibration_of(files, log_of(files))
    except OSError as error:
        print(f"vrm: ranges are not calibrated, for {error.filename} cannot be read: {error.strerror}",
              file=sys.stderr)
        calibration = None
    return made(frozen, calibration, available()).record()


def _assumed(settings: Any, estimates: list[tuple[int, float]]) -> tuple[dict[str, Any], list[str]]:
    """Return the forecast with other estimates for some jobs, and lines that show what they change."""
    from vrm.ext.forecast.report import forecast_table as report

    files, frozen = current_run(settings)
    waiting = {job.id for job in frozen.waiting()}
    wrong = [job_id for job_id, _ in estimates if job_id not in waiting]
    if wrong:
        raise CannotRun("an estimate can be assumed of a job that waits: "
                        + "; ".join(files.about(job_id) for job_id in wrong))
    before, after = _made(files, frozen), _made(files, frozen.with_walltimes(dict(estimates)))
    return after, report.changes(before, after, [job_id for job_id, _ in estimates], frozen.now)


def _others(settings: Any, ids: list[int]) -> list[str]:
    """Return lines about jobs that neither run nor wait."""
    from vrm.ext.forecast.files import RunFiles

    files = RunFiles(settings)
    files.read_new()
    return [files.about(job_id) for job_id in ids[:20]]


def test_only(arguments: argparse.Namespace, line: str) -> int:
    """Print when a job would start if it were submitted now; nothing is submitted. Returns 0."""
    from vrm.live.site.programs import WantedProgram, program_fault
    from vrm.model import Infeasible
    from vrm.ext.forecast.report import forecast_table as report
    from vrm.run.entry import JobStateError

    settings = settings_of(arguments)
    files, frozen = current_run(settings)
    try:
        jobs, details = files.submitted(line, frozen.now)
        for wanted in WantedProgram.of(jobs[0]):
            fault = program_fault(settings.applications, wanted, settings.trust)
            if fault:
                raise ValueError(fault)
        for job, each in zip(jobs, details):
            frozen = frozen.with_job(job, each)
    except (Infeasible, JobStateError, ValueError) as never:
        raise CannotRun(f"it would be refused: {never}") from None
    made = _made(files, frozen)
    now = max(time.time(), made["time"])
    ids = {job.id for job in jobs}
    if arguments.json:
        print(json.dumps([report.facts(job, made) for job in report.chosen(made, ids)], indent=2))
        return 0
    print(f"nothing is submitted; submitted now, {'these jobs' if len(ids) > 1 else 'this job'} would "
          "wait and run like this:")
    width: int | None = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print(report.table(made, ids, now, width))
    return 0
