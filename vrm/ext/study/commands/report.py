"""The command `vrm report`."""

from __future__ import annotations

import argparse
import math
import sys
from functools import partial
from pathlib import Path
from typing import Any
from collections.abc import Callable, Iterable

from vrm.commands.parsing import command
from vrm.commands.shared import BOUND, CannotRun, moment, seconds, words

TEXTS = ("text", "csv", "markdown", "latex")
PICTURES = ("png", "svg")
FORMATS = (*TEXTS, "html", *PICTURES)


def _formats(text: str) -> tuple[str, ...]:
    found = words(text.lower())
    wrong = [name for name in found if name not in FORMATS]
    if wrong:
        raise argparse.ArgumentTypeError(f"there is no format {wrong[0]}; the formats are "
                                         f"{', '.join(FORMATS)}")
    return found


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command to the main parser."""
    parser = command(commands, "report", report,
                     "tables and pictures of an experiment, of live or simulated runs", [],
                     "vrm report runs/sweep\nvrm report runs/sweep --out pages --format html,png")
    add = parser.add_argument
    add("directories", metavar="DIR", nargs="+",
        help="an experiment, the Log of a live run, the --out of a simulation; several are read "
             "together")
    add("--out", metavar="DIR", help="write files there (default: print)")
    add("--format", metavar="LIST", type=_formats, action="append", default=[],
        help=f"of {', '.join(FORMATS)}; separated by commas, may be repeated (default: text, and "
             "with --out html)")
    for name, field, where in (("--from", "begin", "begin"), ("--to", "end", "end")):
        add(name, dest=field, metavar="TIME", type=moment,
            help=f"{where} the pictures over time at this time after the first submission: seconds, or "
                 "as 90m, 36h, 5d")
    add("--threshold", metavar="SECONDS", type=seconds, default=BOUND,
        help=f"of the bounded slowdown (default: {BOUND:g})")


def report(arguments: argparse.Namespace) -> int:
    """Run `vrm report`; return 0 on success, 2 if it is impossible."""
    from vrm.system.memory import rare_collections
    with rare_collections():
        return _report(arguments)


def _report(arguments: argparse.Namespace) -> int:
    from vrm.ext.study.report.table_formats import comma_separated, joined
    from vrm.ext.study.report.study_files import read_study
    from vrm.ext.study.report.study_findings import findings
    from vrm.ext.study.report.study_tables import tables
    from vrm.system.printing.text import printable_lines

    formats = [name for names in arguments.format for name in names]
    window = _window(arguments.begin, arguments.end)
    study = read_study(arguments.directories, arguments.threshold, _progress)
    if arguments.out is not None:
        return _write(study, Path(arguments.out), formats or ["html"], window)
    _progress("")
    formats = formats or ["text"]
    unprintable = [name for name in formats if name not in TEXTS]
    if unprintable:
        raise CannotRun(f"{unprintable[0]} needs a place: give --out DIR")
    shown = tables(study)
    for name in formats:
        if name == "text":
            print(printable_lines("\n".join(findings(study))), end="\n\n")
        print(printable_lines("\n".join(map(comma_separated, shown)) if name == "csv" else
                              joined(shown, name)), end="")
    return 0


def _progress(text: str) -> None:
    """Show the current step on a terminal, in one line that the next call overwrites."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _window(begin: float | None, end: float | None) -> tuple[float, float] | None:
    if begin is None and end is None:
        return None
    if end is not None and end <= (begin or 0):
        raise CannotRun("--to is a time after that of --from")
    return begin or 0.0, math.inf if end is None else end


def _write(study: Any, out: Path, formats: list[str],
           window: tuple[float, float] | None) -> int:
    from vrm.ext.study.report import table_formats as texts
    from vrm.ext.study.report.html_page import page
    from vrm.ext.study.report.study_findings import findings
    from vrm.ext.study.report.study_tables import tables

    written: list[Path] = []

    def write(name: str, content: Callable[[], str]) -> None:
        path = out / name
        path.write_text(content(), encoding="utf-8")
        written.append(path)

    try:
        out.mkdir(parents=True, exist_ok=True)
        shown = tables(study)
        for name in dict.fromkeys(formats):
            if name == "csv":
                for table in shown:
                    write(f"{table.name}.csv", partial(texts.comma_separated, table))
            elif name in texts.FORMATS:
                mark = "- " if name == "markdown" else ""
                head = "" if name == "latex" else "".join(
                    f"{mark}{said}\n" for said in findings(study)) + "\n"
                text = head + texts.joined(shown, name)
                write(f"report{texts.FORMATS[name][1]}", partial(str, text))
            elif name == "html":
                write("report.html", lambda: page(study, window, _progress))
            else:
                written += _draw(study, out, name, window)
    except OSError as error:
        raise CannotRun(f"cannot write {error.filename}: {error.strerror}") from error
    _progress("")
    for path in written:
        print(path)
    return 0


def _draw(study: Any, out: Path, ending: str,
          window: tuple[float, float] | None) -> list[Path]:
    """Write every picture to a file; return the paths."""
    from vrm.ext.study.report import study_pictures as pictures
    from vrm.ext.study.report.study_timelines import timelines

    over = list(study.averaged_queues)
    if len(study.queues) > 1 and over == [None]:
        over += study.queues
    drawn: list[Callable[[], Iterable[Any]]] = [
        lambda: (pictures.averages(study, queue) for queue in over),
        lambda: pictures.distributions(study), lambda: timelines(study, window)]
    written = []
    for make in drawn:
        for picture in make():
            path = out / f"{picture.name}.{ending}"
            _progress(str(path))
            picture.save(path)
            written.append(path)
    return written
