#!/usr/bin/env python3
"""Write the pages of docs/reference/ that come from the code: configuration keys, fields of a job, columns of
jobs.csv, commands with their options, and the Python API.

    python tests/make_reference.py

tests/test_reference.py fails when a page is out of date.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import inspect
import os
import re
import textwrap
from pathlib import Path
from typing import Any
from collections.abc import Iterator, Sequence

from vrm import api, cli
from vrm.commands.guide import reference
from vrm.commands.parsing import Parser, every
from vrm.model.forms import field_types
from vrm.model.forms.fields import TABLE
from vrm.results.job_columns import COLUMNS, FIRST

RECORD = Path(__file__).with_name("api.txt")
HERE = RECORD.parents[1] / "docs" / "reference"
MADE = "Made by `python tests/make_reference.py` from the code of vrm.\n"

RESULTS = {
    "id": "the job's id", "app": "its program", "procs": "ranks", "submit": "when it was submitted",
    "start": "when it started; empty: it never ran", "end": "when it ended", "walltime": "its limit, in seconds",
    "status": "`completed`, `failed`, `timeout`, `cancelled` or `refused`",
    "exit_code": "as a shell shows it; empty: none", "app_time": "the program's own `Time in seconds`",
    "exclusive": "1: it shared no node", "backfilled": "1: it started before a job that was ahead of it",
    "nodes": "its nodes", "cores": "its cores on each node", "binding": "whether mpirun bound the ranks as planned",
    "reason": "why it failed or was refused", "index": "its index in an array, as `%i`",
    "devices": "the GPUs that it had", "expected": "how long it was expected to run, in seconds; empty: its limit",
    "memory_peak": "the most memory that it used on one node, of a job that asked for memory",
    "frequency": "GHz, where vrm set it", "energy": "joules", "power": "mean watts",
    "metered": "1: energy was measured; otherwise it is predicted, or empty",
    "mates": "the jobs that lent it cores", "lent": "core seconds that it lent",
    "borrowed": "core seconds that it borrowed",
    "cpu_time": "CPU seconds of its processes on all nodes, as far as they are known",
    "largest_process": "the most memory of one process, on its first node",
    "programs_use": "of each program of a coupled job that ran for 5 s, CPU seconds and the most memory of one process, as "
    "12.5 40M : 3.1 20M",
    "threads_beyond": "how many more threads ran at once on a node than it had cores there, of a job that ran for 5 s",
    "changes": "how often its cores changed", "cause": "what interrupted or ended it"}
"""What the columns say that are not fields of a job."""


def cell(text: str) -> str:
    """The text as a cell of a table."""
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


def table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A table of Markdown."""
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "".join("| " + " | ".join(map(cell, line)) + " |\n" for line in lines)


def linked(text: str) -> str:
    """The text with paths of pages as links from this folder."""
    return re.sub(r"docs/((?:[\w-]+/)?([\w-]+)\.md)",
                  lambda found: f"[{found[2]}]({os.path.relpath('docs/' + found[1], 'docs/reference')})", text)


def configuration() -> str:
    """The keys of config/reference.yaml, with their defaults and comments; those outside of sections come last."""
    intro, section, comment = "", "", []  # type: str, str, list[str]
    about: dict[str, str] = {}
    rows: dict[str, list[tuple[str, ...]]] = {}
    for line in reference().splitlines():
        found = re.match(r"( *)(\w+):\s*(.*)$", line)
        if line.lstrip().startswith("#"):
            comment.append(line.strip().lstrip("# "))
            continue
        said, comment = linked(" ".join(comment)), []
        if not found:
            intro = intro or said
        elif not found[1] and not found[3] and found[2] != "PowerCap":
            section = found[2]
            about[section] = said
        else:
            section = section if found[1] else ""
            rows.setdefault(section, []).append((f"`{section}{'.' if section else ''}{found[2]}`",
                                                 f"`{found[3]}`" if found[3] else "empty", said))
    heads = ("key", "default", "meaning")
    parts = [f"## {name}\n\n{text}\n\n{table(heads, rows[name])}" for name, text in about.items()]
    return "\n".join(["# Configuration keys\n", MADE, intro + "\n", *parts, "## Other keys\n", table(heads, rows[""])])


def fields() -> str:
    """The fields of a line of the queue file, and the options of `vrm submit` that say the same."""
    rows = []
    for field in TABLE:
        if field.word and field.wanted:
            option = f"`--{field.word.replace('_', '-')}`" if field.option else ""
            meaning = field.option.help.replace("%%", "%") if field.option else ""
            rows.append((f"`{field.word}`", field.wanted, option, meaning))
    return "\n".join(["# Fields of a job\n", MADE,
                      "The first four are the columns of a line; the others are written `key=value`. "
                      "[The life of a job](../guide/jobs.md) explains them with examples.\n",
                      table(("field", "value", "option of `vrm submit`", "meaning"), rows)])


def columns() -> str:
    """The columns of jobs.csv."""
    known = {field.column: field for field in TABLE if field.column}
    rows = []
    for column in COLUMNS:
        field = known.get(column.name)
        said = RESULTS.get(column.name) or (
            field and (f"field `{field.word}`: {field.wanted}" if field.wanted else "")) or RESULTS[column.name]
        rows.append((f"`{column.name}`", said))
    return "\n".join(["# Columns of jobs.csv\n", MADE,
                      "Moments are seconds since the epoch, in simulations seconds of the workload. The first "
                      f"{len(FIRST)} columns are in every file. A cell is empty where the value is the default.\n",
                      table(("column", "what it says"), rows)])


def options() -> str:
    """Each command, with its arguments and options."""
    parts = ["# Commands with their options\n", MADE,
             "[All commands](commands.md) has an example of each. `vrm help COMMAND` prints the same as this page.\n"]
    for parser, acts in every(cli.parser()):
        if acts:
            parts += [f"## {parser.prog}\n", f"{(parser.description or '').strip()}\n",
                      f"```text\n{' '.join(parser.format_usage().split()[1:])}\n```\n", table_of(parser)]
    return "\n".join(parts)


def table_of(parser: Parser) -> str:
    """The table of a command's arguments and options."""
    formatter = parser._get_formatter()
    rows = []
    for action in parser._actions:
        if action.help in (None, argparse.SUPPRESS) or isinstance(
                action, (argparse._HelpAction, argparse._SubParsersAction)):
            continue
        value = "" if action.nargs == 0 else formatter._format_args(
            action, action.dest.upper() if action.option_strings else action.dest)
        names = [name for name in action.option_strings if "_" not in name]
        rows.append((f"`{' '.join(filter(None, (', '.join(names), value)))}`", formatter._expand_help(action)))
    return table(("option", "meaning"), rows) if rows else ""


def python() -> str:
    """The public names of `vrm.api`."""
    parts = ["# Python API\n", MADE, inspect.getdoc(api) or "", ""]
    for name in api.__all__:
        thing = getattr(api, name)
        signature = "" if isinstance(thing, type) and issubclass(thing, Exception) else called(thing)
        parts += [f"## {name}\n", *([f"```python\n{name}{signature}\n```\n"] if signature else []),
                  (inspect.getdoc(thing) or "") + "\n", *methods(name)]
    return "\n".join(parts)


def called(thing: Any) -> str:
    """The parameters of a class or a function, with their types and defaults, on lines that fit a page."""
    said = []
    star = False
    for parameter in inspect.signature(thing).parameters.values():
        if parameter.name == "self":
            continue
        kind = parameter.annotation
        text = "" if kind is parameter.empty else getattr(kind, "__forward_arg__", kind if isinstance(kind, str) else
                                                            inspect.formatannotation(kind))
        default = parameter.default
        shown = "" if default is parameter.empty else (
            f"{type(default).__name__}()" if dataclasses.is_dataclass(default) else
            "..." if " at 0x" in repr(default) or "factory" in repr(default) else
            "inf" if default == float("inf") else repr(default))
        mark = {parameter.VAR_POSITIONAL.value: "*", parameter.VAR_KEYWORD.value: "**"}.get(parameter.kind.value, "")
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            said.append("*")
        star = star or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        said.append(mark + parameter.name + (f": {text}" if text else "") + (f" = {shown}" if shown else ""))
    return "(" + "\n    ".join(textwrap.wrap(", ".join(said), 110)) + ")"


def methods(name: str) -> Iterator[str]:
    """The public methods of a class, as they are recorded, with their docstrings."""
    for line, member in re.findall(rf"^  ({name}\.(\w+).*)$", RECORD.read_text(encoding="utf-8"), re.M):
        said = inspect.getdoc(getattr(getattr(api, name), member, None))
        if "(" in line and said:
            yield f"- `{line}`: {' '.join(said.split())}\n"


CLASSES = (
    "vrm.live.launch.base.Launcher", "vrm.live.launch.base.Launch", "vrm.live.batch.base.BatchSystem",
    "vrm.live.batch.base.BatchJob", "vrm.system.transports.base.Transport", "vrm.live.manager.part.Part",
    "vrm.workload.rows.Rows", "vrm.workload.rows.RowRequest", "vrm.model.constraint.Constraint",
    "vrm.model.constraint.CountedConstraint", "vrm.model.forms.fields.Field", "vrm.model.forms.fields.Option",
    "vrm.results.jobs.JobRow", "vrm.report.overviews.Overview", "vrm.ext.advice.advice.Objective",
    "vrm.simulation.executor.SpeedModel", "vrm.model.measured.heatmap.Heatmap", "vrm.ext.slurm.calls.names.Dialect")
"""The classes that extension points name."""


def extension_classes() -> str:
    """The classes of which packages have subclasses or objects, and the kinds of fields."""
    parts = ["# Classes for packages\n", MADE,
             "The classes that [extension points](extension-points.md) name. A subclass overrides the methods that it needs. Until 1.0 these "
             "classes may change with any version; the changelog says so.\n"]
    for path in CLASSES:
        module, _, name = path.rpartition(".")
        made = getattr(importlib.import_module(module), name)
        parts += [f"## {name}\n", f"```python\nfrom {module} import {name}\n```\n", (inspect.getdoc(made) or "") + "\n"]
        if issubclass(made, tuple) or dataclasses.is_dataclass(made):
            parts.append(f"```python\n{name}{called(made)}\n```\n")
        for member, found in vars(made).items():
            plain = found.__func__ if isinstance(found, (staticmethod, classmethod)) else found
            said = inspect.getdoc(plain.fget if isinstance(plain, property) else plain)
            if not member.startswith("_") and said and (inspect.isfunction(plain) or isinstance(plain, property)):
                shown = "" if isinstance(plain, property) else (
                    f"{' '.join(called(plain).split()).replace('(cls, ', '(')} -> {inspect.signature(plain).return_annotation}")
                parts.append(f"- `{member}{shown}`: {' '.join(said.split())}\n")
    rows = [(f"`{name}`", "; ".join(f"`{field.word}`: {field.wanted}" for field in TABLE if field.kind is kind and field.wanted))
            for name, kind in vars(field_types).items() if name.isupper() and isinstance(kind, field_types.Kind)]
    parts += ["## Kinds of fields\n", "Of `vrm.model.forms.field_types`, with the fields of vrm that are of this kind.\n",
              table(("kind", "fields"), [row for row in rows if row[1]])]
    return "\n".join(parts)


PAGES = {"configuration.md": configuration, "extension-classes.md": extension_classes, "job-fields.md": fields, "jobs-csv.md": columns, "options.md": options,
         "python.md": python}

if __name__ == "__main__":
    for page, make in PAGES.items():
        (HERE / page).write_text(make(), encoding="utf-8")
