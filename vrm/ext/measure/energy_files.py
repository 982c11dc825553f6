"""Writes the database of measured programs for `vrm energy measure`."""

from __future__ import annotations

import os
from pathlib import Path

import yaml

from vrm.ext.energy.database import read_programs
from vrm.model.measured.energy import MeasuredProgram
from vrm.system.files import write_atomically


def write_program(path: str | os.PathLike[str], app: str, name: str, measured: MeasuredProgram) -> None:
    """Write a measurement into a database, replacing an earlier one of the same program and class (`name`); create
    the file if it does not exist. Raises ConfigError if the file is not a database, OSError if it cannot be
    written."""
    known: dict[str, dict[str, dict[str, float]]] = {}
    if os.path.lexists(path):
        read_programs(path)
        with open(path, encoding="utf-8") as stream:
            known = (yaml.safe_load(stream) or {}).get("Programs") or {}
    entry = {"Seconds": round(measured.seconds, 3), "Watts": round(measured.watts, 3),
             "CPI": round(measured.cpi, 4), "TPI": round(measured.tpi, 4),
             "Frequency": round(measured.frequency, 3)}
    known.setdefault(app, {})[name] = {key: value for key, value in entry.items() if value}
    lines = ["# Programs on one node of each class: written by vrm energy measure.", "Programs:"]
    for each, classes in known.items():
        lines.append(f"  {yaml_word(each)}:")
        lines += [f"    {yaml_word(where)}: {{" + ", ".join(f"{key}: {value}" for key, value
                                                            in values.items()) + "}"
                  for where, values in classes.items()]
    write_atomically(Path(path), "\n".join(lines) + "\n")


def yaml_word(text: str) -> str:
    """Return a name in YAML syntax."""
    return yaml.safe_dump(text, default_style='"').strip() if not text.isidentifier() else text
