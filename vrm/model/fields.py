"""The fields of a job: one table, from which every form of a job is made.

| form | what it takes of a row |
|---|---|
| a line of a queue file | `word`, the kind's `read` and `write`, `wanted` |
| an option of `vrm submit` | `option` |
| a journal's job record, and its check | `record`, the kind's `to_record`, `of_record` and `sound` |
| the state file, `vrm queue --json` | `shown`, the kind's `plain` |
| `jobs.csv` | `column`, the kind's `plain` and `cell` |
| a run simulated again from its `jobs.csv` | `column`, the kind's `of_plain` |

A new field is one row at the end of `TABLE`, and what acts on it. It is kept as the attribute of
that name of `Job`, `Program` or `Details`; one that none has is in `Details.more`. What was written before
the field came says nothing of it, and then it has its default. Options of batch scripts and fields
of traces (SWF) get a place in the row when something reads them.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Sequence, Tuple

from vrm.model import shapes
from vrm.model.amounts import GPU, MEMORY, Amounts, amounts, memory_bytes, memory_text, said
from vrm.model.job import PLAIN, PROGRAM, Dependency, Details, Job, Program, Request
from vrm.model.ranges import MOST_JOBS, fold, member_range, numbers
from vrm.model.times import seconds_of

EXAMPLE = "ft.B.x 8 60 0"

LONGEST_TIME = 1_000_000_000
"""Seconds that an estimate or a delay may say: more than 31 years, and a table can show it."""


class FieldError(ValueError):
    """A value that a field cannot have, in words for people. `{}` in them is a text of the user,
    which a terminal must be spared: `said` puts it in."""

    def __init__(self, words: str, *texts: str) -> None:
        super().__init__(words, *texts)
        self._words, self._texts = words, texts

    def said(self, show: Callable[[str], str]) -> str:
        """The words, with the texts as `show` gives them."""
        return self._words.format(*map(show, self._texts))

    def __str__(self) -> str:
        return self.said(repr)


# ------------------------------------------------------------------------------ kinds of values


def same(value: Any) -> Any:
    """The value."""
    return value


def _once(value: Any) -> List[str]:
    return [str(value)]


def _flag_text(text: str) -> bool:
    if text not in ("0", "1", ""):
        raise FieldError("`{}` is neither 0 nor 1", text)
    return text == "1"


def _int_text(text: str) -> int:
    value = int(text)
    if not abs(value) <= 10 ** 15:
        raise FieldError("`{}` is too large", text)
    return value


@dataclass(frozen=True)
class Kind:
    """How the values of a field are written in each form, and read.

    A queue line has texts: `write` gives them, several where the kind is `repeated` (then `read`
    gives a pair for each, and the value is a mapping). A journal has a JSON value, which `sound`
    checks. The plain form, a number, a text or a flag, is that of the state file and of `jobs.csv`,
    where `cell` reads it from its text. `read` raises ValueError or FieldError for a text that is
    wrong; so does `cell`.
    """

    read: Callable[[str], Any]
    sound: shapes.Check
    write: Callable[[Any], List[str]] = _once
    repeated: bool = False
    to_record: Callable[[Any], Any] = same
    of_record: Callable[[Any], Any] = same
    plain: Callable[[Any], Any] = same
    of_plain: Callable[[Any], Any] = same
    cell: Callable[[str], Any] = same
    plain_sound: shapes.Check = shapes.line


def _whole(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise ValueError(text)
    return int(text)


def _time(text: str) -> float:
    if not 0 < seconds_of(text) <= LONGEST_TIME:
        raise ValueError(text)
    return seconds_of(text)


def _seconds(value: Any) -> bool:
    return shapes.number(value) and 0 < value <= LONGEST_TIME


def _flag(text: str) -> bool:
    return {"0": False, "1": True}[text]


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,4}", text):
        raise ValueError(text)
    return int(text)


def _integer(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,9}", text):
        raise ValueError(text)
    return int(text)


_LIKE_IDS = re.compile(r"[0-9:,-]+")


def dependencies(text: str) -> Tuple[Dependency, ...]:
    """What `after=` names: ids and ranges of them, or names of jobs, each perhaps behind `any:`."""
    found: Dict[Dependency, None] = {}
    total = 0
    for part in text.split(","):
        whatever = part.startswith("any:")
        what = part[4:] if whatever else part
        if _LIKE_IDS.fullmatch(what) or not what:
            ids = member_range(what)
            found[Dependency(ids, whatever)] = None
            total += len(ids)
        else:
            found[Dependency(range(0), whatever, _label(what))] = None
        if total > MOST_JOBS:
            raise FieldError(f"after: `{{}}` names more than {MOST_JOBS} jobs", text)
    return tuple(found)


def _after_text(value: Sequence[Dependency]) -> str:
    return ",".join(map(str, value))


def _after_of(record: Any) -> Tuple[Dependency, ...]:
    """As `after=` has it, or a pair for each job, as vrm 0.1.0 wrote it."""
    if isinstance(record, list):
        return tuple(Dependency.on(*each) for each in record)
    return dependencies(record) if record else ()


def _pair(value: Any) -> bool:
    return (type(value) is list and len(value) == 2 and shapes.count(value[0])
            and shapes.flag(value[1]))


def _after_sound(value: Any) -> bool:
    try:
        return shapes.list_of(_pair)(value) or (
            type(value) is str and all(each.ids for each in dependencies(value)))
    except ValueError:
        return False


_NAME_OF_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _variable(text: str) -> Tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not _NAME_OF_VARIABLE.fullmatch(name):
        raise ValueError(text)
    if name.startswith("VRM_"):
        raise FieldError("env: {} is one of the variables by which vrm knows its jobs; take a name "
                         "that does not begin with VRM_", name)
    return name, value


def _variables_sound(value: Any) -> bool:
    return type(value) is dict and all(
        _NAME_OF_VARIABLE.fullmatch(name) and not name.startswith("VRM_") and shapes.line(said)
        for name, said in value.items())


def _arguments(text: str) -> Tuple[str, ...]:
    words = tuple(shlex.split(text))
    if ":" in words:
        raise FieldError("args: a `:` alone would begin a second program for mpirun; write it as a "
                         "part of another argument")
    return words


def _directory(text: str) -> str:
    if not 0 < len(text) <= 4096:
        raise ValueError(text)
    return text


def _path_sound(value: Any) -> bool:
    return type(value) is str and "\0" not in value


def _label(text: str) -> str:
    if not text.isprintable() or not 0 < len(text) <= 64:
        raise ValueError(text)
    if _LIKE_IDS.fullmatch(text) or text.startswith("any:"):
        raise FieldError("name: `{}` would be taken for ids in after=; put a letter before it: "
                         "name=run{}", text, text)
    return text


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


def _word(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(text)
    return text


def name_sound(value: Any) -> bool:
    """The name of a queue, a feature, a resource or a licence."""
    return type(value) is str and bool(_NAME.fullmatch(value))


def _size_sound(value: Any) -> bool:
    return shapes.size(value) and value > 0


_OWN_FIELD = {GPU: "gpus", "gpus": "gpus", MEMORY: "mem", "mem": "mem"}


def _amounts_text(value: Amounts) -> str:
    return ",".join(f"{name}:{said(name, amount)}" for name, amount in value)


def amounts_of(text: str) -> Amounts:
    """What `per_task=ssd:1,scratch:0.5` names; one of a resource without a number."""
    found: Dict[str, float] = {}
    for part in text.split(","):
        name, colon, number = part.partition(":")
        if name in _OWN_FIELD:
            raise FieldError("`{}` has fields of its own: "
                             f"{_OWN_FIELD[name]}_per_task= and {_OWN_FIELD[name]}_per_node=", name)
        if name in found:
            raise FieldError("`{}` is named twice", name)
        if colon and not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,3})?", number):
            raise ValueError(text)
        found[_word(name)] = float(number) if colon else 1.0
        if not found[name]:
            raise ValueError(text)
    return amounts(found)


def _licences_of(text: str) -> Amounts:
    found = amounts_of(text)
    if any(amount % 1000 for _, amount in found):
        raise ValueError(text)
    return found


def _sound_as(read: Callable[[str], Any]) -> shapes.Check:
    """The check of a value that is kept as the text which `read` takes."""
    def sound(value: Any) -> bool:
        try:
            return type(value) is str and (read(value), True)[1]
        except ValueError:
            return False
    return sound


def _features_of(text: str) -> FrozenSet[str]:
    return frozenset(map(_word, text.split(",")))


def _features_text(value: FrozenSet[str]) -> str:
    return ",".join(sorted(value))


_RANGE = re.compile(r"([0-9]{1,7})(?:(-)([0-9]{1,7})?)?")


def _nodes_of(text: str) -> Tuple[int, int]:
    found = _RANGE.fullmatch(text)
    if not found:
        raise ValueError(text)
    least = int(found[1])
    most = int(found[3]) if found[3] else 0 if found[2] else least
    if least < 1 or found[3] and most < least:
        raise ValueError(text)
    return least, most


def _nodes_text(value: Tuple[int, int]) -> str:
    least, most = value
    return f"{least}" if least == most else f"{least}-{most or ''}"


def _numbers_sound(value: Any) -> bool:
    try:
        return type(value) is str and bool(numbers(value))
    except ValueError:
        return False


def check_app(app: str) -> str:
    """The name of a program inside Applications.Path, unchanged; FieldError when it leads out of
    there or could be taken for something else than a name.
    """
    inside = "it must be the name of a file that lies inside Applications.Path"
    if not app or app in (".", ".."):
        raise FieldError(f"app: `{{}}` names no file; {inside}; for example `{EXAMPLE}`", app)
    if "/" in app:
        raise FieldError(f"app: `{{}}` is a path; {inside}, without a slash", app)
    if app.startswith("-"):
        raise FieldError(f"app: `{{}}` begins with `-` and would be read as an option; {inside}",
                         app)
    if not app.isprintable() or len(app) > 200:
        raise FieldError("app: `{}` is longer than 200 characters or holds some that cannot be "
                         f"printed; {inside}", app)
    return app


def _app_sound(value: Any) -> bool:
    try:
        return type(value) is str and bool(check_app(value))
    except FieldError:
        return False


def _flag_write(value: bool) -> List[str]:
    return [str(int(value))]


APP = Kind(check_app, _app_sound)
WHOLE = Kind(_whole, shapes.positive, cell=_int_text, plain_sound=shapes.count)
INTEGER = Kind(_integer, shapes.whole, cell=_int_text, plain_sound=shapes.whole)
COUNT = Kind(_count, shapes.count, cell=_int_text, plain_sound=shapes.count)
TIME = Kind(_time, _seconds, plain_sound=shapes.number)
FLAG = Kind(_flag, shapes.flag, _flag_write, cell=_flag_text, plain_sound=shapes.flag)
LABEL = Kind(_label, shapes.line)
PATH = Kind(_directory, _path_sound, plain_sound=shapes.text)
AFTER = Kind(dependencies, _after_sound, lambda value: [_after_text(value)],
             to_record=_after_text, of_record=_after_of, plain=_after_text, of_plain=_after_of)
ARGUMENTS = Kind(_arguments, shapes.list_of(shapes.line), lambda value: [shlex.join(value)],
                 to_record=list, of_record=tuple, plain=shlex.join,
                 of_plain=lambda text: tuple(shlex.split(text)))
VARIABLES = Kind(_variable, _variables_sound,
                 lambda value: [f"{name}={text}" for name, text in value.items()], repeated=True,
                 to_record=dict)
TEXT = Kind(same, shapes.text, plain_sound=shapes.text)
INDICES = Kind(numbers, _numbers_sound, lambda value: [fold(value)], to_record=fold,
               of_record=numbers)
NAME = Kind(_word, name_sound, plain_sound=name_sound)
MEMORY_SIZE = Kind(memory_bytes, _size_sound, lambda value: [memory_text(value)],
                   plain=lambda size: memory_text(size) if size else "", of_plain=memory_bytes)
AMOUNTS = Kind(amounts_of, _sound_as(amounts_of), lambda value: [_amounts_text(value)],
               to_record=_amounts_text, of_record=amounts_of, plain=_amounts_text,
               of_plain=amounts_of)
LICENCES = Kind(_licences_of, _sound_as(_licences_of), lambda value: [_amounts_text(value)],
                to_record=_amounts_text, of_record=_licences_of, plain=_amounts_text,
                of_plain=_licences_of)
FEATURES = Kind(_features_of, _sound_as(_features_of), lambda value: [_features_text(value)],
                to_record=_features_text, of_record=_features_of, plain=_features_text,
                of_plain=_features_of)
NODES = Kind(_nodes_of, _sound_as(_nodes_of), lambda value: [_nodes_text(value)],
             to_record=_nodes_text, of_record=_nodes_of, of_plain=_nodes_of,
             plain=lambda value: "" if value == (1, 0) else _nodes_text(value))
AMOUNT = Kind(_time, _seconds, cell=float, plain_sound=shapes.number)
EXPECTED = Kind(_time, shapes.maybe(_seconds), cell=float, plain_sound=shapes.maybe(shapes.number))
INDEX = Kind(_count, shapes.maybe(shapes.count), cell=_int_text,
             plain_sound=shapes.maybe(shapes.count))


# ------------------------------------------------------------------------------------- the table


@dataclass(frozen=True)
class Option:
    """An option of `vrm submit`, `--` and the field's word: what its value is called (none: it has
    no value, and says 1) and its help."""

    value: str
    help: str


JOB, REQUEST, PAYLOAD, DETAILS, LINE = "job", "request", "payload", "details", "line"
"""Where a field is kept: in `Job`, in its `request` or `payload`, in `Details`, or nowhere but in the
line and its record."""

RESULT = "result"
"""A column of `jobs.csv` that says what became of a job, not what it was submitted with."""

OF_JOB, OF_DETAILS = (JOB, REQUEST, PAYLOAD), (DETAILS,)
"""Where it is kept that belongs to a `Job`, and to `Details`."""

SIMULATED = 1
"""The form of `jobs.csv` of vrm 0.1.0, and of simulations of jobs that have no more than it says."""


@dataclass(frozen=True)
class Field:
    """A row. Names are empty where a form has nothing of the field.

    `word` is what a queue line says before the `=`, or the name of a column there. `attribute` is
    where the value is kept (the word, unless it is said), `default` its value where nothing is
    said. `record` is the key in the journal, `always` whether it is written there even with the
    default. `shown` is the key in the state file and in JSON, `column` that in `jobs.csv`, which
    came with its form number `form`.
    """

    word: str
    kind: Kind
    wanted: str = ""
    kept: str = DETAILS
    attribute: str = ""
    default: Any = None
    record: str = ""
    always: bool = False
    shown: str = ""
    column: str = ""
    form: int = 3
    option: Option | None = None

    @property
    def at(self) -> str:
        """The name of the attribute."""
        return self.attribute or self.word

    @property
    def path(self) -> str:
        """The same, as `attrgetter` takes it for a `Job` or `Details`."""
        return f"{self.kept}.{self.at}" if self.kept in (REQUEST, PAYLOAD) else self.at

    @property
    def plain_default(self) -> Any:
        """The default as the state file and `jobs.csv` know it."""
        return None if self.default is None else self.kind.plain(self.default)


def _asked(word: str, kind: Kind, wanted: str, default: Any, option: Option, at: str = "",
           name: str = "") -> Field:
    """A row of what a job asks of the machine; `name` is that in files, if it is not the word."""
    return Field(word, kind, wanted, REQUEST, at, default, record=name or word, shown=name or word,
                 column=name or word, form=4, option=option)


TABLE: List[Field] = [
    Field("app", APP, "the name of a program", JOB, "app", record="app", always=True, shown="app",
          column="app", form=SIMULATED),
    Field("procs", WHOLE, "a whole number of ranks, 1 or more", JOB, "procs", record="procs",
          always=True, shown="procs", column="procs", form=SIMULATED),
    Field("seconds", TIME, "the estimated run time above 0, a number of seconds (at most "
          f"{LONGEST_TIME}) or as 90m, 2h, 1:30:00 or 1-12:00:00", JOB, "walltime",
          record="estimate", always=True, shown="estimate", column="walltime", form=SIMULATED),
    Field("exclusive", FLAG, "0 (may share its nodes) or 1 (may not)", JOB, "exclusive", False,
          record="exclusive", always=True, shown="exclusive", column="exclusive", form=SIMULATED),
    Field("cores", WHOLE, "the cores of each rank, a whole number, 1 or more", JOB, "cores", 1,
          record="cores", always=True, shown="cores", column="cores_per_task",
          option=Option("N", "cores of each rank (default: 1)")),
    Field("name", LABEL, "a label of at most 64 printable characters", DETAILS, "name", "",
          record="name", shown="name", column="name", form=2, option=Option("TEXT", "a label")),
    Field("after", AFTER, "the ids or the names of jobs that must have completed before, as "
          "3,5-7 or prep, or any:3 however it ends", DETAILS, "after", (), record="after",
          column="after", option=Option("IDS", "start only when these jobs have completed: 3,5-7; "
                                        "any:3 = however it ends")),
    Field("priority", INTEGER, "a whole number; the jobs of a higher one come first", JOB,
          "priority", 0, record="priority", shown="priority", column="priority",
          option=Option("N", "jobs of a higher priority start first (default: 0)")),
    Field("retries", COUNT, "how often the job is tried again when it fails, 0 or more", DETAILS,
          "retries", 0, record="retries", shown="retries", column="retries",
          option=Option("N", "run it again up to N times if it fails (default: Retries of the "
                        "configuration)")),
    Field("env", VARIABLES, "a variable as NAME=VALUE (env= may be given several times)", PAYLOAD,
          "variables", {}, record="variables",
          option=Option("NAME=VALUE", "a variable for the job; may be repeated")),
    Field("args", ARGUMENTS, "arguments, quoted as a whole: args='-n 3'", PAYLOAD, "arguments", (),
          record="arguments", shown="args", column="args", form=2,
          option=Option("'A B'", "arguments of the program in one word, instead of those after "
                        "`--`")),
    Field("dir", PATH, "the directory to run in", PAYLOAD, "directory", "", record="directory",
          shown="dir", column="dir", form=2,
          option=Option("DIR", "the directory to run in (default: the queue file's)")),
    Field("array", INDICES, f"the indices of at most {MOST_JOBS} jobs, as 0-9:2,20", LINE,
          "array", (), record="array",
          option=Option("0-9:2", "one job for each index, which it finds in VRM_ARRAY_INDEX; %%i "
                        "in the arguments is the index")),
    Field("", INDEX, "", DETAILS, "index", None, shown="index", column="index", form=2),
    Field("hold", FLAG, "1 (the job waits for `vrm release`) or 0", DETAILS, "held", False,
          record="held", column="hold",
          option=Option("", "do not start it before `vrm release`")),
    _asked("gpus_per_task", WHOLE, "a whole number of GPUs, 1 or more", 0,
           Option("N", "GPUs of each task, which no other task sees")),
    _asked("mem_per_task", MEMORY_SIZE, "memory with its unit, as 4G, 4GiB or 4000M", 0,
           Option("SIZE", "memory of each task: 4G, 4000M")),
    _asked("gpus_per_node", WHOLE, "a whole number of GPUs, 1 or more", 0,
           Option("N", "GPUs on each node of the job, for all its tasks there")),
    _asked("mem_per_node", MEMORY_SIZE, "memory with its unit, as 4G, 4GiB or 4000M", 0,
           Option("SIZE", "memory on each node of the job, besides that of its tasks: 16G")),
    _asked("per_task", AMOUNTS, "resources of the nodes as NAME:N, as ssd:1,scratch:0.5", (),
           Option("NAME:N", "other resources that each task takes on its node: ssd:1"),
           "others_per_task"),
    _asked("per_node", AMOUNTS, "resources of the nodes as NAME:N, as ssd:1,scratch:0.5", (),
           Option("NAME:N", "other resources that the job takes on each of its nodes"),
           "others_per_node"),
    _asked("licences", LICENCES, "licences of the run as NAME:N, as ansys:2", (),
           Option("NAME:N", "licences that the job takes of the run's: ansys:2")),
    _asked("features", FEATURES, "names of features, as ib,fast", frozenset(),
           Option("NAMES", "what every node of the job must offer: ib,fast")),
    _asked("nodes", NODES, "a number of nodes, as 4, or the least and the most, as 2-4 or 2-",
           (1, 0), Option("N|MIN-MAX", "on how many nodes it runs (default: as few as it fits on, in "
                          "the order of the policy)"), name="node_range"),
    _asked("tasks_per_node", WHOLE, "a whole number of ranks, 1 or more", 0,
           Option("N", "at most N ranks on a node")),
    Field("queue", NAME, "the name of a queue: letters, digits, `_`, `.` and `-`", JOB, "queue", "",
          record="queue", shown="queue", column="queue", form=4,
          option=Option("NAME", "the queue of the configuration's Queues that it goes to")),
    Field("", TEXT, "", RESULT, "devices", "", column="devices", form=4),
    Field("", EXPECTED, "", JOB, "believed", record="expected", shown="expected",
          column="expected", form=4),
    Field("", TEXT, "", RESULT, "memory_peak", "", column="memory_peak", form=4),
    Field("reservation", NAME, "the name of a reservation, which `vrm reserve` has made", DETAILS,
          "reservation", "", record="reservation", shown="reservation", column="reservation", form=4,
          option=Option("NAME", "run on the nodes of this reservation, within its time "
                        "(`vrm reserve`)")),
    Field("script", FLAG, "1 (the program is a script, which runs once, on the job's first node) or 0",
          PAYLOAD, "script", False, record="script", shown="script", column="script", form=4,
          option=Option("", "APP is a script: it is copied now, and runs once, on all cores that the job has "
                        "on its first node")),
    Field("file", PATH, "the path of a program or script", PAYLOAD, "file", "", record="file",
          shown="file", column="file", form=4,
          option=Option("PATH", "the program, where it is none of Applications (with Applications: {Any: "
                        "true}); a path in the place of APP says the same")),
    Field("", NAME, "", PAYLOAD, "copy", "", record="copy"),
    Field("", NAME, "", PAYLOAD, "front", "", record="front"),
    Field("", NAME, "", PAYLOAD, "environment", "", record="environment"),
    Field("", PATH, "", PAYLOAD, "output", "", record="output"),
    Field("", PATH, "", PAYLOAD, "errors", "", record="errors"),
    Field("", PATH, "", PAYLOAD, "input", "", record="input"),
    Field("", FLAG, "", PAYLOAD, "append", False, record="append"),
    Field("", WHOLE, "", DETAILS, "array_id", 0, record="array_id"),
    Field("", NAME, "", DETAILS, "limit", "", record="limit"),
    Field("", TEXT, "", DETAILS, "comment", "", record="comment"),
    Field("malleable", FLAG, "1 (it may run with fewer cores for each rank than it asks for, and lend some "
          "while it runs) or 0", JOB, "malleable", False, record="malleable", shown="malleable",
          column="malleable", form=4,
          option=Option("", "it may run with fewer cores for each rank than it asks for, and lend some while "
                        "it runs")),
    Field("watts", AMOUNT, "watts above 0, as 250", JOB, "watts", 0.0, record="watts", shown="watts",
          column="watts", form=4, option=Option("W", "what the job draws on all its nodes, above idle ones: for "
                                        "PowerCap")),
    Field("", AMOUNT, "", RESULT, "frequency", 0.0, column="frequency", form=4),
    Field("", AMOUNT, "", RESULT, "energy", 0.0, column="energy", form=4),
    Field("", AMOUNT, "", RESULT, "power", 0.0, column="power", form=4),
    Field("", TEXT, "", RESULT, "mates", "", column="mates", form=4),
    Field("", AMOUNT, "", RESULT, "lent", 0.0, column="lent", form=4),
    Field("", TEXT, "", DETAILS, "title", "", record="title"),
    Field("", TEXT, "", DETAILS, "warning", "", record="warning"),
    Field("", AMOUNT, "", RESULT, "borrowed", 0.0, column="borrowed", form=4),
    Field("", COUNT, "", RESULT, "changes", 0, column="changes", form=4),
]


Getter = Callable[[Any], Any]


_CLASSES: Dict[str, Any] = {JOB: Job, REQUEST: Request, PAYLOAD: Program, DETAILS: Details}


def _declared(kept: str, attribute: str) -> bool:
    return kept in _CLASSES and hasattr(_CLASSES[kept], attribute)


def getter(field: Field) -> Getter:
    """What gives the value of a field, of a `Job` or of `Details`: see OF_JOB."""
    if _declared(field.kept, field.at):
        return attrgetter(field.path)
    name, default = field.at, field.default
    return lambda details: details.more.get(name, default)


def made(values: Mapping[str, Any], job_id: int, submit: float, user: str = ""
         ) -> Tuple[Job, Details]:
    """The job of some values, which are named by the attributes that keep them. ValueError where
    what it asks for contradicts itself; else none of them is looked at here."""
    request: Dict[str, Any] = {}
    of_job: Dict[str, Any] = {}
    payload: Dict[str, Any] = {}
    details: Dict[str, Any] = {}
    more: Dict[str, Any] = {}
    for name, value in values.items():
        kept, argument = _PLACES.get(name) or _place(name)
        if kept == JOB:
            of_job[argument] = value
        elif kept == PAYLOAD:
            payload[name] = value
        elif kept == REQUEST:
            request[name] = value
        elif argument:
            details[name] = value
        elif kept == DETAILS and value:  # what is empty is not kept
            more[name] = value
    if more:
        details["more"] = more
    if request:
        of_job["request"] = Request.of_fields(of_job["procs"], of_job.get("cores", 1),
                                              of_job.get("exclusive", False), request)
    return (Job(job_id, submit=submit, user=user,
                payload=Program(**payload) if payload else PROGRAM, **of_job),
            Details(**details) if details else PLAIN)


_PLACES: Dict[str, Tuple[str, str]] = {}


def _place(name: str) -> Tuple[str, str]:
    """Where an attribute is kept, and its argument there ("": among the others of `more`)."""
    field = next(each for each in TABLE if each.at == name)
    argument = {"walltime": "estimate", "believed": "expected"}.get(name, name)
    _PLACES[name] = found = field.kept, argument if _declared(field.kept, name) else ""
    return found
