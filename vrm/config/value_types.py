"""The kinds of values that configuration keys accept, each with its error message."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, ValidationInfo
from pydantic_core import PydanticCustomError

from vrm.config.validators import OURS, kind, lower, refuse, strip
from vrm.config.paths import VERSION, InvalidPath, absolute, expanded
from vrm.model.quantities import seconds_of
from vrm.system import plugins
from vrm.system.transports.base import transports

# Validators run from the last one in Annotated[...] to the first.


def _over(value: Any) -> Any:
    """Return the word; YAML reads a bare `off` as false."""
    return "off" if value is False else lower(value)


def _backfilling(value: Any) -> Any:
    """Accept a registered name with its parameters, a number of reservations from 2 up (`3`, `3-kept`), or
    `module:function`, which is loaded; all are checked later, together with the other policies."""
    text = str(value).strip()
    if isinstance(value, (list, dict)):
        raise ValueError("no name")
    if ":" in text:
        return text
    text = text.lower()
    if text in ("0", "false", "no", "off", "none"):
        return "none"
    if text in ("1", "true", "yes", "on", "easy"):
        return "easy"
    if re.fullmatch("[0-9]+", text):
        return int(text)
    from vrm.scheduling.backfilling.easy import BACKFILLINGS
    if BACKFILLINGS.knows(text.partition(" ")[0]) or re.fullmatch("0*[1-9][0-9]{0,5}-kept", text):
        return text
    raise ValueError(text)


def _time(value: Any) -> Any:
    """Return seconds of a time such as 90m or 1:30:00; other texts in lower case."""
    text = str(value).strip().lower()
    try:
        return seconds_of(text)
    except ValueError:
        return text


def _expanded(text: str) -> str:
    try:
        return expanded(text)
    except InvalidPath as error:
        context = {"message": str(error), "hint": error.hint}
        raise PydanticCustomError(OURS, "{message}", context) from None


def _absolute(path: str | Path, info: ValidationInfo) -> str:
    return absolute(path, info.context.directory if info.context else "")


def _path(value: Any, info: ValidationInfo) -> Path:
    if isinstance(value, Path):  # a default, or a value from a program: nothing to expand
        return Path(_absolute(value, info))
    if not isinstance(value, str) or not value.strip():
        raise refuse(value, "a path", "../demo/name")
    return Path(_absolute(_expanded(value), info))


def _program(value: Any, info: ValidationInfo) -> str:
    """Return a bare name unchanged, to be searched on PATH; a text with a slash is a path."""
    if not isinstance(value, str) or not value.strip():
        raise refuse(value, "auto or the path of a program", "/opt/openmpi/bin/mpirun")
    if value.strip().lower() == "auto":
        return "auto"
    name = _expanded(value)
    return _absolute(name, info) if os.sep in name else name


def _reach(value: Any) -> str | tuple[str, ...]:
    if isinstance(value, (list, tuple)) and value and all(isinstance(v, str) for v in value):
        return tuple(value)
    if isinstance(value, str) and lower(value) in ("auto", *transports()):
        return str(lower(value))
    wanted = f"auto, {', '.join(transports())}, or a list: the words of a program instead of ssh"
    raise refuse(value, wanted, '[ssh, -p, "2222"]')


def _heatmap(value: Any, info: ValidationInfo) -> Path:
    """Return a path, or unchanged the name of an extension that makes a heatmap."""
    word = value.strip() if isinstance(value, str) else ""
    return Path(word) if word and plugins.find("vrm.heatmaps", word) is not None else _path(value, info)


# A written path must read back as the same path.
_as_text = PlainSerializer(lambda path: str(path).replace("$", "$$"), return_type=str)

Text = Annotated[str, Field(min_length=1), BeforeValidator(strip)]
FilePath = Annotated[Path, PlainValidator(_path), _as_text]
HeatmapPath = Annotated[Path, PlainValidator(_heatmap), _as_text]
Program = Annotated[str, PlainValidator(_program), _as_text]
Switch = Annotated[bool, kind("true or false", "true")]
Seconds = Annotated[
    float,
    Field(ge=0, allow_inf_nan=False),
    BeforeValidator(_time),
    kind("seconds, 0 or more, or a time as 90m or 1:30:00", "10"),
]
Duration = Annotated[
    float,
    Field(gt=0, allow_inf_nan=False),
    BeforeValidator(_time),
    kind("seconds above 0, or a time as 90m or 1:30:00", "10"),
]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False), kind("a number, 0 or more", "1")]
Factor = Annotated[float, Field(gt=0, allow_inf_nan=False), kind("a number above 0", "2.5")]
Threads = Annotated[int, Field(ge=1, le=8), kind("a number of hardware threads, from 1 to 8", "2")]
Size = Annotated[
    Literal["auto"] | Annotated[int, Field(ge=1, le=1000000)],
    BeforeValidator(lower),
    kind("auto or a whole number from 1 to 1000000", "8"),
]
Version = Annotated[
    str,
    Field(pattern=f"^{VERSION}$"),
    BeforeValidator(lambda value: str(value).strip()),
    kind("a version that this vrm reads, 1 or 1.x", "1.0"),
]
Backfilling = Annotated[
    int | str,
    BeforeValidator(_backfilling),
    kind("none (0), easy (1), conservative, list, sd, eamc, cp, module:function, or a number of reservations "
          "from 2 up", "easy"),
]
Limit = Annotated[int, Field(ge=0), kind("a whole number, 0 or more", "1")]
Share = Annotated[float, Field(ge=0, le=1), kind("a number from 0 to 1", "0.5")]
Events = Annotated[
    Literal["instant", "published"], BeforeValidator(lower), kind("instant or published", "published")]
Steps = Annotated[Literal["shared", "each"], BeforeValidator(lower), kind("shared or each", "each")]
Speed = Annotated[Literal["ideal", "worst"], BeforeValidator(lower), kind("ideal or worst", "worst")]
Walltime = Annotated[
    Literal["warn", "kill", "ignore"],
    BeforeValidator(lower),
    kind("warn, kill or ignore", "warn"),
]
Over = Annotated[
    Literal["warn", "kill", "off"], BeforeValidator(_over), kind("warn, kill or off", "warn")]
Interrupted = Annotated[
    Literal["requeue", "mark"], BeforeValidator(lower), kind("requeue or mark", "requeue")
]
Trust = Annotated[
    Literal["own", "group", "any"], BeforeValidator(lower), kind("own, group or any", "own")
]
At = Annotated[
    Literal["auto", "never"] | Annotated[float, Field(gt=0, allow_inf_nan=False)],
    BeforeValidator(_time),
    kind("auto, never, or a time from the start: seconds, 90m, 2h or 1:30:00", "02:00:00"),
]
OnStop = Annotated[
    Literal["kill", "wait", "requeue"],
    BeforeValidator(lower),
    kind("kill, wait or requeue", "requeue"),
]
Transport = Annotated[
    Literal["auto", "tcp", "site"], BeforeValidator(lower), kind("auto, tcp or site", "site")
]
CheckBindings = Annotated[
    Literal["warn", "fail", "ignore"],
    BeforeValidator(lower),
    kind("warn, fail or ignore", "warn"),
]
_LIST = '["--mca", "btl", "self,tcp"]'
Options = Annotated[
    tuple[Annotated[str, kind("text", _LIST)], ...], kind("a list", _LIST, empty=())
]
_RUNS = "[../first/logs, ../second/logs]"
Directories = Annotated[
    tuple[Annotated[FilePath, kind("a path", _RUNS)], ...],
    kind("a list of directories", _RUNS, empty=())
]
_APPS = "[ep-omp.A.x]"
Names = Annotated[
    tuple[Annotated[str, kind("the name of a program", _APPS)], ...],
    kind("a list of programs", _APPS, empty=())
]
Reach = Annotated[
    str | tuple[str, ...],
    PlainValidator(_reach),
    PlainSerializer(lambda reach: reach if isinstance(reach, str) else list(reach)),
]
_NAMES = "{OMP_NUM_THREADS: 4}"
Environment = Annotated[
    dict[
        Annotated[str, Field(pattern=r"^[^=]+$"), kind("the name of a variable", _NAMES)],
        Annotated[str, kind('text or a number ("" for an empty one)', "4")],
    ],
    kind("names with their values", _NAMES, empty={}),
]


_SOLVER = "{solver: ~/code/solver}"
Programs = Annotated[
    dict[
        Annotated[str, Field(pattern=r"^[^/\-][^/]{0,199}$"), kind("a name for a program", _SOLVER)],
        FilePath,
    ],
    kind("names with the paths of programs", _SOLVER, empty={}),
]


_TOKENS = "{vrm-example: {SiteTokens: 4}}"
Extensions = Annotated[
    dict[str, Annotated[dict[str, Any], kind("keys with their values", "{SiteTokens: 4}")]],
    kind("names of packages with their keys", _TOKENS, empty={}),
]
