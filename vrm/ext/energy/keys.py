"""Configuration keys of energy: `Energy` of the configuration and of node classes, tables of coefficients (CSV), and
`PowerCap`. Errors are reported with file, line, key and the fix."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, PlainSerializer, ValidationInfo
from pydantic_core import PydanticCustomError

from vrm.config.validators import OURS, STRICT, defaults, group, kind
from vrm.config.problems import ConfigError, Problem
from vrm.config.value_types import FilePath, Switch
from vrm.config.yaml_reader import reason
from vrm.model.measured.energy import Coefficients, PowerClass
from vrm.ext.energy.cap import PowerLimit

COLUMNS = "from_ghz,to_ghz,A,B,C,D,E,F"
"""The first line of a table of coefficients."""

_WATTS = kind("watts, 0 or more", "90")
Watts = Annotated[float, Field(ge=0, allow_inf_nan=False, le=1e9), _WATTS]
Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False, le=1e9), kind("a number above 0", "52.5")]
FROM0 = Annotated[float, Field(ge=0, allow_inf_nan=False, le=1e9), kind("a number, 0 or more", "0.67")]
Ghz = Annotated[float, Field(ge=0.05, le=100), kind("a frequency in GHz", "2.7")]
_GHZ = "[1.2, 1.8, 2.7]"


def _ours(message: str, hint: str) -> PydanticCustomError:
    return PydanticCustomError(OURS, "{message}", {"message": message, "hint": hint})


def _table(value: Any, info: ValidationInfo) -> Any:
    """Return the absolute path of a table after reading it; an error in it is reported as an error of the key."""
    if value is None:
        return None
    base = info.context.directory if info.context else ""
    path = os.path.abspath(os.path.join(base, os.path.expanduser(str(value).strip())))
    try:
        read_coefficients(path)
    except ConfigError as error:
        first = error.problems[0]
        place = f"{first.file}:{first.line}" if first.line else first.file
        raise _ours(f"{place}: {first.message}", first.hint) from None
    return path


def _ascending(values: list[float]) -> list[float]:
    if sorted(set(values)) != values:
        raise _ours("the frequencies do not ascend", f"write them in order, as {_GHZ}")
    return values


class Energy(BaseModel):
    """The key `Energy` of a node class."""

    model_config = STRICT
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}$"),
                    kind("the class's name in the database of programs", "p1")]
    idle: Watts = 0.0
    busy: Watts = 0.0
    frequencies: Annotated[list[Ghz], AfterValidator(_ascending),
                           kind("a list of frequencies in GHz", _GHZ, empty=[])] = Field(
                               default_factory=list)
    coefficients: Annotated[str | None, BeforeValidator(_table), PlainSerializer(
        lambda path: path, return_type=str | None)] = Field(None, validate_default=False)

    def power(self) -> PowerClass:
        """Return the class in the form of the scheduler. Without `frequencies`, those of the table are used."""
        table = read_coefficients(self.coefficients) if self.coefficients else {}
        frequencies = tuple(self.frequencies) or tuple(sorted({to for _, to in table}))
        return PowerClass(self.name, self.idle, self.busy, frequencies, table)


def read_coefficients(path: str | os.PathLike[str]) -> dict[tuple[float, float], Coefficients]:
    """Return the table of a class, with columns as in COLUMNS. Raises ConfigError for the first wrong line."""
    file = os.fspath(path)

    def wrong(line: int | None, message: str, hint: str) -> ConfigError:
        return ConfigError([Problem(file, line, "", message, hint)])

    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise wrong(None, reason(error), "correct the path of Coefficients") from None
    except UnicodeDecodeError:
        raise wrong(None, "not UTF-8 text", "name a table of coefficients (CSV)") from None
    if not lines or lines[0].strip() != COLUMNS:
        raise wrong(1, "this is not a table of coefficients", f"its first line is {COLUMNS}")
    found: dict[tuple[float, float], Coefficients] = {}
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        try:
            begin, end, entry = _coefficients(line)
        except (ValueError, TypeError):
            raise wrong(number, "the line does not have eight numbers", f"write {COLUMNS}") from None
        if not (0.05 <= begin <= 100 and 0.05 <= end <= 100):
            raise wrong(number, f"{begin:g} to {end:g} are not frequencies in GHz",
                        "frequencies are above 0.05 and at most 100 GHz")
        if (begin, end) in found:
            raise wrong(number, f"{begin:g} to {end:g} GHz is there twice", "remove one of the lines")
        found[begin, end] = entry
    return {between: entry for between, entry in found.items() if any(entry)}  # zeros: not available


def _coefficients(line: str) -> tuple[float, float, Coefficients]:
    """Return two frequencies and the coefficients between them. Raises ValueError or TypeError unless the line has
    eight numbers."""
    begin, end, *six = map(float, line.split(","))
    if not all(-1e9 <= each <= 1e9 for each in six):
        raise ValueError
    return begin, end, Coefficients(*six)


# ------------------------------------------------------------------------------------------ caps


def read_cap(path: str | os.PathLike[str]) -> PowerLimit:
    """Return the cap in a file with a line `time,watts` for each step, ascending. A time is in seconds (in a
    simulation those of the workload), or for live runs a date such as 2026-11-23 08:00. A first line of words, and
    lines that begin with #, are skipped. Raises ConfigError."""
    file = os.fspath(path)
    steps: list[tuple[float, float]] = []

    def wrong(line: int | None, message: str) -> ConfigError:
        return ConfigError([Problem(file, line, "PowerCap", message,
                                    "write a line time,watts for each step, as 0,5000 and then 28800,3000")])

    try:
        with open(file, encoding="utf-8") as stream:
            lines = stream.read().splitlines()
    except OSError as error:
        raise wrong(None, reason(error)) from None
    except UnicodeDecodeError:
        raise wrong(None, "not UTF-8 text") from None
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#") or (not steps and text.lower().startswith("time")):
            continue
        try:
            time, watts = text.split(",")
            steps.append((_time(time.strip()), float(watts)))
            PowerLimit(tuple(steps))
        except ValueError as error:
            said = str(error) if " cap " in str(error) else "this is not a step of a cap"
            raise wrong(number, said) from None
    if not steps:
        raise wrong(None, "it has no step")
    return PowerLimit(tuple(steps))


def _time(text: str) -> float:
    """Return seconds; a local date is converted to seconds since 1970. Raises ValueError."""
    return datetime.fromisoformat(text).timestamp() if "-" in text else float(text)


def cap_text(value: Any, base: str) -> str:
    """Return the text of a cap (see `PowerLimit.of`) for the value that a user gives: watts, such a text, or the path
    of a file, relative to the directory `base`. Raises ConfigError, or ValueError for numbers that are not a valid
    cap."""
    text = str("" if value is None else value).strip()
    try:
        return str(PowerLimit.of(text)) if text else ""
    except ValueError:
        if all(map(_number, text.replace("=", " ").split())):
            raise
    return str(read_cap(os.path.join(base, os.path.expanduser(text))))


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _power_cap(value: Any, info: ValidationInfo) -> str:
    try:
        return cap_text(value, info.context.directory if info.context else "")
    except ConfigError as error:
        first = error.problems[0]
        place = f"{first.file}:{first.line}" if first.line else first.file
        raise _ours(f"{place}: {first.message}", first.hint) from None
    except ValueError as error:
        raise _ours(str(error) if " cap " in str(error) else f"`{value}` is not a cap",
                    "give watts, as 5000, or the path of a file of lines time,watts") from None


PowerCap = Annotated[str, BeforeValidator(_power_cap)]


class EnergySection(BaseModel):
    """What is known about the energy of programs, and how it is used."""

    model_config = STRICT
    database: FilePath | None = None  # the database of programs; None = no program is known
    frequency: Switch = True  # set the cores' frequency where a policy chooses one and the user may


def energy() -> tuple[Any, Any]:
    """Return the type and default of the key `Energy`."""
    return Annotated[EnergySection, group("{Database: energy.yaml}")], Field(default_factory=defaults)


def power_cap() -> tuple[Any, Any]:
    """Return the type and default of the key `PowerCap`: the most watts that the machine may draw, over time; "" for
    no limit."""
    return PowerCap, ""


def of_nodes() -> tuple[Any, Any]:
    """Return the type and default of the key `Energy` of a class of nodes."""
    return Annotated[Energy | None, kind("a group of keys", "{Name: p1, Idle: 90}")], None
