"""Reads the database of programs (YAML). Errors are reported with file, line, key and the fix.

`vrm energy measure` fills it:

    Programs:
      lu.C:
        p1: {Seconds: 52.5, Watts: 386, CPI: 0.669, TPI: 19.6, Frequency: 2.7}
        p2: {Seconds: 57.4, Watts: 367}
"""

from __future__ import annotations

import os
from typing import Annotated

from pydantic import BaseModel, Field

from vrm.ext.energy.keys import FROM0, Above0
from vrm.config.validators import STRICT, kind
from vrm.config.yaml_reader import Document
from vrm.model.measured.energy import MeasuredProgram, Programs


class MeasurementEntry(BaseModel):
    """One measurement of a program on a class of nodes."""

    model_config = STRICT
    seconds: Above0
    watts: Above0
    CPI: FROM0 = Field(0.0, alias="CPI")
    TPI: FROM0 = Field(0.0, alias="TPI")
    frequency: FROM0 = 0.0


_ONE = "{Seconds: 52.5, Watts: 386}"
_NAME = Annotated[str, Field(pattern=r"^[^/\s]{1,200}$"), kind("the name of a program", "lu.C")]
_CLASS = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}$"),
                   kind("the name of a node class", "p1")]


class Database(BaseModel):
    """The keys of a database of programs."""

    model_config = STRICT
    programs: Annotated[
        dict[_NAME, Annotated[dict[_CLASS, Annotated[MeasurementEntry, kind("a group of keys", _ONE)]],
                              Field(min_length=1), kind("classes with measurements",
                                                        "{p1: " + _ONE + "}")]],
        kind("programs with measurements", "{lu.C: {p1: " + _ONE + "}}", empty={})] = Field(
            default_factory=dict)


def read_programs(path: str | os.PathLike[str]) -> Programs:
    """Return the database in a file. Raises ConfigError with all errors in it."""
    found = Document.read(path, 4, "Programs: {lu.C: {p1: " + _ONE + "}}").checked(Database)
    return Programs({app: {name: MeasuredProgram(each.seconds, each.watts, each.CPI, each.TPI, each.frequency)
                           for name, each in classes.items()}
                     for app, classes in found.programs.items()})
