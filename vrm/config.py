"""YAML to checked settings: every key has a default, and every mistake in a file is told at
once, with file, line, key and the mend.

The YAML reader gives text and line numbers only; what a text means (a number, a path, a choice)
is decided by the setting it stands under. So `Nodes: "8"` and `Nodes: 8` are the same, and `no`,
`010` or `1.10` are not changed before they reach a setting that holds text.
A new setting is one line in one of the classes below.
"""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Literal,
    Mapping,
    NoReturn,
    Optional,
    Tuple,
    Type,
    TypeVar,
    Union,
    get_args,
)

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    WrapValidator,
)
from pydantic.alias_generators import to_pascal
from pydantic_core import PydanticCustomError

from vrm.model.times import seconds_of
from vrm.problems import ConfigError, Problem

# The keys that lead to a value: ("Scheduling", "Algorithm"); entries of a list count from 0.
Location = Tuple[Union[str, int], ...]

# No setting lies deeper than Launcher.Environment.NAME.
_DEPTH = 3

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class _Source:
    """Where settings were read. Takes no part in comparisons: equal settings are equal
    whichever file they came from."""

    file: str = field(default="built-in defaults", compare=False)
    directory: str = field(default="", compare=False)  # for relative paths; "" = the current one
    lines: Dict[Location, int] = field(default_factory=dict, compare=False)
    depth: int = field(default=_DEPTH, compare=False)  # levels of keys that are read

    def place(self, location: Location) -> str:
        line = self.lines.get(location)
        return self.file if line is None else f"{self.file}:{line}"


def _shown(text: str, limit: int = 60) -> str:
    """The text as it can safely go to a terminal: control characters escaped, cut to `limit`."""
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return safe if len(safe) <= limit else safe[: limit - 3] + "..."


def _found(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a group of keys"
    if isinstance(value, (list, tuple)):
        return "a list"
    return f'"{_shown(str(value))}"'


# ----------------------------------------------------------------------- the kinds of settings
# Validators run from the last one in Annotated[...] to the first.

_OURS = "setting"  # pydantic's type for the complaints that are in our words already


def _refuse(value: Any, wanted: str, example: str) -> NoReturn:
    context = {"message": f"found {_found(value)}, wanted {wanted}", "example": example}
    raise PydanticCustomError(_OURS, "{message}", context)


def _kind(wanted: str, example: str, empty: Any = None) -> WrapValidator:
    """Say in our words, with an example, what a setting takes, whatever way it is missed.

    `empty` is taken where a key stands without a value.
    """

    def check(value: Any, handler: Callable[[Any], Any]) -> Any:
        try:
            return handler(empty if value is None else value)
        except ValidationError as error:
            if any(part["type"] in (_OURS, "extra_forbidden") for part in error.errors()):
                raise  # a part inside has said what is wrong
            _refuse(value, wanted, example)

    return WrapValidator(check)


kind = _kind  # for settings in other files


def _group(example: str) -> WrapValidator:
    return _kind("a group of keys", example, empty={})


def _strip(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value


def _lower(value: Any) -> Any:
    return value.strip().lower() if isinstance(value, str) else value


def _backfilling(value: Any) -> Any:
    text = str(value).strip().lower()
    if text in ("0", "false", "no", "off", "none"):
        return "none"
    if text in ("1", "true", "yes", "on", "easy"):
        return "easy"
    return text


def _time(value: Any) -> Any:
    """Seconds of a time such as 90m or 1:30:00; other texts in lower case."""
    text = str(value).strip().lower()
    try:
        return seconds_of(text)
    except ValueError:
        return text


_VARIABLE = re.compile(r"\$(?:(\$)|(\w+)|\{([^}]*)\})")


def _expanded(text: str) -> str:
    """The text with a leading ~ and $VARIABLES filled in; `$$` stands for a dollar sign."""

    def fill(match: "re.Match[str]") -> str:
        if match.group(1):
            return "$"
        name = match.group(2) or match.group(3)
        value = os.environ.get(name, "")
        if not value:  # an empty one would turn $SCRATCH/log into /log
            context = {
                "message": f"the variable {_shown(match.group())} is not set, or empty",
                "hint": "set it before vrm starts, or write the path out",
            }
            raise PydanticCustomError(_OURS, "{message}", context)
        return value

    if text.startswith("~"):
        home = os.path.expanduser(text)
        if home.startswith("~"):
            name = _shown(text.split("/")[0])
            message = f"no home directory found for {name}"
            context = {"message": message, "hint": "write the path out"}
            raise PydanticCustomError(_OURS, "{message}", context)
        text = home
    return _VARIABLE.sub(fill, text)


def _absolute(path: Union[str, Path], info: ValidationInfo) -> str:
    base = info.context.directory if info.context else ""
    return os.path.abspath(os.path.join(base, path))


def _path(value: Any, info: ValidationInfo) -> Path:
    if isinstance(value, Path):  # a default, or given by a program: nothing to expand
        return Path(_absolute(value, info))
    if not isinstance(value, str) or not value.strip():
        _refuse(value, "a path", "../demo/name")
    return Path(_absolute(_expanded(value), info))


def _program(value: Any, info: ValidationInfo) -> str:
    """A bare name is left to PATH, anything with a slash in it is a path."""
    if not isinstance(value, str) or not value.strip():
        _refuse(value, "auto or the path of a program", "/opt/openmpi/bin/mpirun")
    if value.strip().lower() == "auto":
        return "auto"
    expanded = _expanded(value)
    return _absolute(expanded, info) if os.sep in expanded else expanded


def _reach(value: Any) -> Union[str, Tuple[str, ...]]:
    if isinstance(value, (list, tuple)) and value and all(isinstance(v, str) for v in value):
        return tuple(value)
    if isinstance(value, str) and _lower(value) in ("auto", "ssh", "srun"):
        return str(_lower(value))
    wanted = "auto, ssh, srun, or a list: the words of a program instead of ssh"
    _refuse(value, wanted, '[ssh, -p, "2222"]')


# What is written must read back as the same path.
_as_text = PlainSerializer(lambda path: str(path).replace("$", "$$"), return_type=str)

Text = Annotated[str, Field(min_length=1), BeforeValidator(_strip)]
FilePath = Annotated[Path, PlainValidator(_path), _as_text]
Program = Annotated[str, PlainValidator(_program), _as_text]
Switch = Annotated[bool, _kind("true or false", "true")]
Seconds = Annotated[
    float,
    Field(ge=0, allow_inf_nan=False),
    BeforeValidator(_time),
    _kind("seconds, 0 or more, or a time as 90m or 1:30:00", "10"),
]
Duration = Annotated[
    float,
    Field(gt=0, allow_inf_nan=False),
    BeforeValidator(_time),
    _kind("seconds above 0, or a time as 90m or 1:30:00", "10"),
]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False), _kind("a number, 0 or more", "1")]
Factor = Annotated[float, Field(gt=0, allow_inf_nan=False), _kind("a number above 0", "2.5")]
Size = Annotated[
    Union[Literal["auto"], Annotated[int, Field(ge=1, le=1_000_000)]],
    BeforeValidator(_lower),
    _kind("auto or a whole number from 1 to 1000000", "8"),
]
Version = Annotated[
    str,
    Field(pattern=r"^1(\.\d+)*$"),
    BeforeValidator(lambda value: str(value).strip()),
    _kind("a version that this vrm reads, 1 or 1.x", "1.0"),
]
Backfilling = Annotated[
    Union[
        Literal["none", "easy", "easy-kept", "conservative", "conservative-recomputed", "list"],
        Annotated[int, Field(ge=2)],
    ],
    BeforeValidator(_backfilling),
    _kind("none (0), easy (1), conservative, or a number of reservations from 2 up", "easy"),
]
Limit = Annotated[int, Field(ge=0), _kind("a whole number, 0 or more", "1")]
Walltime = Annotated[
    Literal["warn", "kill", "ignore"],
    BeforeValidator(_lower),
    _kind("warn, kill or ignore", "warn"),
]
Interrupted = Annotated[
    Literal["requeue", "mark"], BeforeValidator(_lower), _kind("requeue or mark", "requeue")
]
Trust = Annotated[
    Literal["own", "group", "any"], BeforeValidator(_lower), _kind("own, group or any", "own")
]
At = Annotated[
    Union[Literal["auto", "never"], Annotated[float, Field(gt=0, allow_inf_nan=False)]],
    BeforeValidator(_time),
    _kind("auto, never, or a time from the start: seconds, 90m, 2h or 1:30:00", "02:00:00"),
]
OnStop = Annotated[
    Literal["kill", "wait", "requeue"],
    BeforeValidator(_lower),
    _kind("kill, wait or requeue", "requeue"),
]
Transport = Annotated[
    Literal["auto", "tcp", "site"], BeforeValidator(_lower), _kind("auto, tcp or site", "site")
]
CheckBindings = Annotated[
    Literal["warn", "fail", "ignore"],
    BeforeValidator(_lower),
    _kind("warn, fail or ignore", "warn"),
]
_LIST = '["--mca", "btl", "self,tcp"]'
Options = Annotated[
    Tuple[Annotated[str, _kind("text", _LIST)], ...], _kind("a list", _LIST, empty=())
]
Reach = Annotated[
    Union[str, Tuple[str, ...]],
    PlainValidator(_reach),
    PlainSerializer(lambda reach: reach if isinstance(reach, str) else list(reach)),
]
_NAMES = "{OMP_NUM_THREADS: 4}"
Environment = Annotated[
    Dict[
        Annotated[str, Field(pattern=r"^[^=]+$"), _kind("the name of a variable", _NAMES)],
        Annotated[str, _kind('text or a number ("" for an empty one)', "4")],
    ],
    _kind("names with their values", _NAMES, empty={}),
]


_SOLVER = "{solver: ~/code/solver}"
Programs = Annotated[
    Dict[
        Annotated[str, Field(pattern=r"^[^/\-][^/]{0,199}$"), _kind("a name for a program", _SOLVER)],
        FilePath,
    ],
    _kind("names with the paths of programs", _SOLVER, empty={}),
]


# ------------------------------------------------------------------------------- the settings

_STRICT = ConfigDict(frozen=True, extra="forbid", alias_generator=to_pascal, validate_default=True)


class Applications(BaseModel):
    """The programs and the jobs that name them."""

    model_config = _STRICT
    path: FilePath = Path(".")  # the directory of the programs
    queue: FilePath = Path("queue")  # the queue file
    heatmap: Optional[FilePath] = None  # which applications run well together; None = all alike
    run_in: Optional[FilePath] = None  # where jobs run; None = the queue file's directory
    programs: Programs = Field(default_factory=dict)  # others, by the names that jobs use

    def program(self, app: str) -> Path:
        """The file that a job of this application runs."""
        return self.programs.get(app, self.path / app)


class Hosts(BaseModel):
    """The nodes of the run, and how they are reached."""

    model_config = _STRICT
    file: Optional[FilePath] = None  # the nodes; None = those of the batch job, or this machine
    reach: Reach = "auto"  # auto = srun inside Slurm, else ssh; a list stands in the place of ssh
    timeout: Duration = 10.0  # seconds in which a node must answer


class Scheduling(BaseModel):
    """Which job starts next."""

    model_config = _STRICT
    # A name, an arithmetic expression or module:function, as written.
    algorithm: Annotated[Text, _kind("text", "FCFS")] = "FCFS"
    backfilling: Backfilling = "none"  # none, easy, conservative, or the number of reservations
    interval: Seconds = 0.0  # between decisions; 0 = at every event
    starts_per_interval: Limit = 0  # heads of the queue; 0 = all that fit


class Allocation(BaseModel):
    """Where a job's ranks go."""

    model_config = _STRICT
    policy: Annotated[Text, _kind("text", "compact")] = "compact"  # a name, as written
    # Under strip, measured pairs with less combined throughput share no node; 0 = all may.
    min_throughput: Amount = 1.0


class Launcher(BaseModel):
    """How a job becomes processes."""

    model_config = _STRICT
    kind: Annotated[Text, _kind("text", "openmpi")] = "auto"  # a name, as written
    mpirun: Program = "auto"  # auto, a name to look up on PATH, or an absolute path
    allow_root: Switch = False
    transport: Transport = "auto"  # auto = shared memory and TCP without a fabric
    options: Options = ()  # further arguments for mpirun
    check_bindings: CheckBindings = "warn"
    stamp: Switch = False  # mpirun puts the time before each line of output (Open MPI)
    environment: Environment = Field(default_factory=dict)  # further variables for the jobs


class End(BaseModel):
    """When the allocation ends, and what that means for jobs."""

    model_config = _STRICT
    at: At = "auto"  # auto = what the batch system tells; never; seconds from the start
    margin: Seconds = 60.0  # before the end; nothing starts in it
    fit: Switch = True  # what would not end before by its estimate is not started


class Replay(BaseModel):
    """How a recorded queue is played."""

    model_config = _STRICT
    speed: Factor = 1.0  # 2 = the recorded delays halved


def _keys(model: Any) -> List[str]:
    return [info.alias for info in model.model_fields.values()]


class Settings(BaseModel):
    """The checked settings of one run: frozen, all paths absolute, all times in seconds.

    Settings compare equal when their values do, whichever file they were read from.
    """

    model_config = _STRICT
    version: Version = "1.0"
    applications: Annotated[Applications, _group("{Path: bin}")] = Field(default_factory=dict)
    scheduling: Annotated[Scheduling, _group("{Algorithm: FCFS}")] = Field(default_factory=dict)
    hosts: Annotated[Hosts, _group("{Timeout: 10}")] = Field(default_factory=dict)
    nodes: Size = "auto"  # auto = what the allocation or the machine has
    sockets: Size = "auto"  # per node
    cores: Size = "auto"  # per socket
    emulate: Switch = False  # a geometry larger than the machine, unbound
    allocation: Annotated[Allocation, _group("{Policy: compact}")] = Field(default_factory=dict)
    walltime: Walltime = "warn"  # for jobs that outrun their estimate
    grace: Seconds = 10.0  # between SIGTERM and SIGKILL
    end: Annotated[End, _group("{Margin: 120}")] = Field(default_factory=dict)
    interrupted: Interrupted = "requeue"  # jobs that the end of the allocation interrupts
    retries: Limit = 0  # of a job that failed or ran too long
    on_stop: OnStop = "kill"  # running jobs, when the manager is told to stop
    log: FilePath = Path("logs")  # directory of the jobs' output
    state: FilePath = Field(default_factory=lambda given: given.get("log", Path()) / "state")
    directory: FilePath = Field(default_factory=lambda given: given.get("state", Path()).parent)
    launcher: Annotated[Launcher, _group("{AllowRoot: true}")] = Field(default_factory=dict)
    trust: Trust = "own"  # whose files are obeyed
    replay: Annotated[Replay, _group("{Speed: 10}")] = Field(default_factory=dict)

    _source: _Source = PrivateAttr(default_factory=_Source)

    def model_post_init(self, context: Any) -> None:
        if context is not None:
            self._source = context

    @property
    def base(self) -> Path:
        """The directory of the configuration; without a file the current one."""
        return Path(self._source.directory or os.getcwd())

    @property
    def workplace(self) -> Path:
        """The directory in which jobs run that have none of their own."""
        return self.applications.run_in or self.applications.queue.parent

    def where(self, key: str) -> str:
        """Where a key such as `Scheduling.Algorithm` was written: `file:line`, or the file alone
        (without a file: `built-in defaults`) if the value is the default."""
        return self._source.place(tuple(key.split(".")))

    def problem(self, key: str, message: str, hint: str = "") -> Problem:
        """A problem with the value of `key`, for checks that are made elsewhere."""
        line = self._source.lines.get(tuple(key.split(".")))
        return Problem(self._source.file, line, key, message, hint)

    def check_files(self) -> List[Problem]:
        """What is wrong with the files and directories that the settings name.

        Apart from load(), because the status queries must answer without them. The queue file
        need not exist yet, and Log, State and Directory are made when they are needed.
        """
        named = [
            ("Applications.Path", self.applications.path, _must_be_directory),
            ("Applications.Queue", self.applications.queue, _may_be_file),
            ("Applications.Heatmap", self.applications.heatmap, _must_be_file),
            ("Applications.RunIn", self.applications.run_in, _must_be_directory),
            ("Hosts.File", self.hosts.file, _must_be_file),
            ("Log", self.log, _may_be_directory),
            ("State", self.state, _may_be_file),
            ("Directory", self.directory, _may_be_directory),
        ]
        if os.sep in self.launcher.mpirun:
            named.append(("Launcher.Mpirun", Path(self.launcher.mpirun), _must_be_program))
        complaints = [(key, check(path)) for key, path, check in named if path is not None]
        complaints += [
            ("State", f"{path} is the file of {key}, too, and would be replaced")
            for key, path, _ in named
            if path == self.state and key != "State"
        ]
        return [
            self.problem(key, message, "correct the path, or make what it names")
            for key, message in complaints
            if message
        ]


def dump(settings: Settings) -> Dict[str, Any]:
    """The settings as a mapping under the YAML's own key names, of plain values only.

    Written as YAML and loaded again it gives equal settings, wherever the file stands.
    """
    return settings.model_dump(mode="json", by_alias=True)


# ------------------------------------------------------------------------ files that are named


def _must_be_directory(path: Path) -> str:
    return _complaint(path, os.path.isdir, "a directory")


def _must_be_file(path: Path) -> str:
    return _complaint(path, os.path.isfile, "a file")


def _must_be_program(path: Path) -> str:
    def is_program(path: Path) -> bool:
        return os.path.isfile(path) and os.access(path, os.X_OK)

    return _complaint(path, is_program, "an executable program")


def _may_be_directory(path: Path) -> str:
    return _must_be_directory(path) if os.path.lexists(path) else ""


def _may_be_file(path: Path) -> str:
    return _must_be_file(path) if os.path.lexists(path) else ""


def _complaint(path: Path, right: Callable[[Path], bool], wanted: str) -> str:
    try:
        os.stat(path)
    except OSError as error:
        return f"{_shown(str(path), 200)}: {_reason(error)}"
    return "" if right(path) else f"{_shown(str(path), 200)} is not {wanted}"


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


# ------------------------------------------------------------------------------------ reading


def load(path: Union[str, "os.PathLike[str]", None] = None) -> Settings:
    """Read and check a configuration file; None gives the defaults.

    Relative paths inside the file are relative to its directory (for None: to the current one).
    Raises ConfigError with everything that is wrong.
    """
    if path is None:
        return _validated(Settings, {}, _Source(directory=os.getcwd()), [])
    return Document.read(path).checked(Settings)


@dataclass(frozen=True)
class Document:
    """A YAML file as mappings, lists, texts and None, with the lines of its keys: what is checked
    against a model, and what mistakes found later are told with."""

    mapping: Dict[str, Any]
    source: _Source
    problems: List[Problem]

    @classmethod
    def read(cls, path: Union[str, "os.PathLike[str]"], depth: int = _DEPTH,
             example: str = "Nodes: 8") -> "Document":
        """Read a file; groups of keys lie at most `depth` levels deep. Raises ConfigError where
        there is no YAML with keys; other mistakes are kept for `checked`."""
        file = os.fsdecode(path)
        root = _composed(_text(file), file)
        directory = os.path.dirname(os.path.abspath(file))
        source = _Source(file=file, directory=directory, depth=depth)
        problems: List[Problem] = []
        if root is None or _is_empty(root):
            return cls({}, source, problems)
        if not isinstance(root, yaml.MappingNode):
            kind = "a list" if isinstance(root, yaml.SequenceNode) else "text"
            message, line = f"found {kind}, wanted keys with values", root.start_mark.line + 1
            raise _unreadable(file, message, f"for example {example}", line)
        return cls(_plain(root, (), source, problems), source, problems)

    def checked(self, model: Type[Model]) -> Model:
        """The file's values as the model has them; ConfigError with everything that is wrong."""
        return _validated(model, self.mapping, self.source, self.problems)

    def settings(self, mapping: Dict[str, Any], places: Mapping[Location, Location]) -> Settings:
        """Settings of another mapping, some of whose keys come from this file: `places` tells
        where in the file each of those stands. Relative paths are relative to the file's
        directory. Raises ConfigError."""
        lines = {key: self.source.lines[place] for key, place in places.items()
                 if place in self.source.lines}
        return _validated(Settings, mapping, replace(self.source, lines=lines), [])

    def problem(self, location: Location, message: str, hint: str = "") -> Problem:
        """A problem with what stands at a location of the file."""
        return Problem(self.source.file, self.source.lines.get(location), _dotted(location),
                       message, hint)


def _text(file: str) -> str:
    """The file's text, or ConfigError with the reason why there is none."""
    try:
        with open(file, "rb") as stream:
            content = stream.read()
    except FileNotFoundError:
        raise _unreadable(file, "no such file", _similar_file(file)) from None
    except IsADirectoryError:
        raise _unreadable(file, "is a directory", "name a YAML file inside it") from None
    except PermissionError:
        hint = "make it readable, for example with chmod u+r"
        raise _unreadable(file, "permission denied", hint) from None
    except OSError as error:
        raise _unreadable(file, _reason(error), "check the path") from None
    except ValueError:  # a NUL character in it
        raise _unreadable(_shown(file), "no file can have this name", "check the path") from None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        hint = "save the file with the encoding UTF-8"
        raise _unreadable(file, "not UTF-8 text", hint, line) from None


def _unreadable(file: str, message: str, hint: str, line: Optional[int] = None) -> ConfigError:
    """The error where one mistake hides all others."""
    return ConfigError([Problem(file, line, "", message, hint)])


def _similar_file(file: str) -> str:
    folder, name = os.path.split(file)
    try:
        others = [other for other in os.listdir(folder or ".") if other.endswith((".yaml", ".yml"))]
    except OSError:
        return "the directory is not there either; check the path"
    close = difflib.get_close_matches(name, sorted(others), n=1, cutoff=0.5)
    return f"did you mean {os.path.join(folder, close[0])}?" if close else "check the path"


class _Reader(yaml.SafeLoader):
    """PyYAML's reader, made to accept what YAML allows: tabs between a value and its comment,
    and anywhere else where they do not indent."""

    def scan_to_next_token(self) -> None:
        super().scan_to_next_token()
        while self.peek() == "\t":
            length = 1
            while self.peek(length) in " \t":
                length += 1
            line_so_far = self.buffer[self.pointer - self.column : self.pointer]
            if not line_so_far.strip() and self.peek(length) not in "#\r\n\0":
                return  # an indenting tab: PyYAML's complaint is right
            self.forward(length)
            super().scan_to_next_token()


# PyYAML's words for a mistake; ours; the mend; whether it began where PyYAML looked back to.
_SYNTAX = [
    (r"character '\\t'", "a tab is used to indent", "indent with spaces", False),
    (
        r"character '[@`%]'",
        "a value cannot begin with this character",
        "put the value in quotes",
        False,
    ),
    (
        r"mapping values are not allowed",
        "a key and its colon are out of place",
        "indent the keys of a group alike, end every key with a colon, "
        "and put a value that contains ': ' in quotes",
        False,
    ),
    (
        r"found '(\?|-|<block mapping start>)'",
        "this line does not go with the lines above",
        "indent the keys of a group alike; a group is either keys or a list",
        False,
    ),
    (
        r"sequence entries are not allowed",
        "a value cannot begin with '- '",
        "put the value in quotes",
        False,
    ),
    (
        r"undefined alias|while scanning an alias",
        "a value that begins with * is the name of an anchor, and there is none",
        "put the value in quotes",
        False,
    ),
    (
        r"quoted scalar.*unexpected end",
        "the quote that opens here is never closed",
        "close it",
        True,
    ),
    (
        r"expected ',' or '[]}]'",
        "the bracket that opens here is never closed",
        "close it, or put the value in quotes",
        True,
    ),
    (
        r"unknown escape character",
        "double quotes give the backslash a meaning, and this one has none",
        "use single quotes",
        False,
    ),
    (r"could not find expected ':'", "a key without a colon", "write Key: value", True),
    (r"single document", "a second document begins here", "keep one, without '---'", False),
    (
        r"found '<scalar>'",
        "there is more behind the end of the value",
        "put the whole value in one pair of quotes",
        False,
    ),
    (
        r"found '[],}:]'",
        "a bracket, comma or colon is where a value should be",
        "put the value in quotes",
        False,
    ),
]


def _composed(text: str, file: str) -> Optional[yaml.Node]:
    """The YAML's tree with line marks; ConfigError with line and column where there is none."""
    try:
        return yaml.compose(text, Loader=_Reader)
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        message = f"character U+{error.character:04X} is not allowed there"
        hint = "remove it"
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        words = ": ".join(part for part in (error.context, error.problem) if part)
        message, hint = words, ""
        for pattern, ours, mend, look_back in _SYNTAX:
            if re.search(pattern, words):
                message, hint = ours, mend
                mark = error.context_mark if look_back and error.context_mark else mark
                break
        line, column = mark.line + 1, mark.column + 1
    except RecursionError:
        hint = "no setting needs more than three levels"
        raise _unreadable(file, "nested too deeply", hint) from None
    raise _unreadable(file, f"not valid YAML at column {column}: {message}", hint, line)


def _is_empty(node: yaml.Node) -> bool:
    """Whether nothing is written there. A lone ~ is not nothing: it is the home directory."""
    null = isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"
    return null and node.value != "~"


def _plain(node: yaml.Node, location: Location, source: _Source, problems: List[Problem]) -> Any:
    """The node as mappings, lists, texts and None; notes the lines of its keys in `source`."""

    def complain(node: yaml.Node, location: Location, message: str, hint: str) -> None:
        line = node.start_mark.line + 1
        problems.append(Problem(source.file, line, _dotted(location), message, hint))

    if not node.tag.startswith("tag:yaml.org,2002:"):
        complain(
            node,
            location,
            f"{_shown(node.tag)} is a tag, and none has a meaning here",
            "put the value in quotes, or remove the tag",
        )
    if isinstance(node, yaml.ScalarNode):
        if _is_empty(node):
            return None
        if _unusable(node.value):
            message = "contains a character that no path or argument can hold"
            complain(node, location, message, "remove it")
        return node.value
    if len(location) >= source.depth:
        return {} if isinstance(node, yaml.MappingNode) else []
    if isinstance(node, yaml.SequenceNode):
        entries = []
        for number, entry in enumerate(node.value):
            source.lines[location + (number,)] = entry.start_mark.line + 1
            entries.append(_plain(entry, location + (number,), source, problems))
        return entries
    mapping: Dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = key_node.value
        if not isinstance(key, str) or _unusable(key):
            complain(key_node, location, "a key must be plain text", "write Key: value")
            continue
        at = location + (key,)
        if key in mapping:
            message = f"written twice, first in line {source.lines[at]}"
            complain(key_node, at, message, "keep one of them")
            continue
        source.lines[at] = key_node.start_mark.line + 1
        mapping[key] = _plain(value_node, at, source, problems)
    return mapping


def _unusable(text: str) -> bool:
    return any(c == "\0" or "\ud800" <= c <= "\udfff" for c in text)


def _dotted(location: Location) -> str:
    return ".".join(_shown(part) for part in location if isinstance(part, str))


# ----------------------------------------------------------------------------------- checking


def _validated(model: Type[Model], mapping: Dict[str, Any], source: _Source,
               problems: List[Problem]) -> Model:
    """A model from plain values; ConfigError with `problems` and all that is found here."""
    try:
        settings = model.model_validate(mapping, context=source)
    except ValidationError as error:
        # A default that depends on a wrong value is no mistake of its own.
        for part in error.errors(include_url=False, include_input=False):
            if part["type"] != "default_factory_not_called":
                problems.append(_problem(part, source, model))
    if problems:
        raise ConfigError(sorted(problems, key=lambda problem: problem.line or 0))
    return settings


def _problem(error: Any, source: _Source, model: Type[BaseModel]) -> Problem:
    """One complaint of the validation as a problem with its line."""
    location: Location = error["loc"]
    in_key = location[-1:] == ("[key]",) and location not in source.lines
    if in_key:  # pydantic's mark for the name itself, in a mapping that takes any name
        location = location[:-1]
    context = error.get("ctx", {})
    line, key = source.lines.get(location), _dotted(location)
    if error["type"] == "missing":
        return Problem(source.file, line, key, "this key has no default", "write it")
    if error["type"] == "extra_forbidden":
        return Problem(source.file, line, key, "unknown key", _meant(location, model))
    message = context.get("message", error["msg"])
    hint = context.get("hint", "")
    if "example" in context:
        names = [part for part in location if isinstance(part, str)]
        name = names[-2] if in_key else names[-1]
        hint = f"for example {_shown(name)}: {context['example']}"
    if isinstance(location[-1], int):
        message = f"entry {location[-1] + 1}: {message}"
    return Problem(source.file, line, key, message, hint)


def _levels(model: Type[BaseModel], name: str = "") -> Iterator[Tuple[str, List[str]]]:
    """The name of every section (the top level is "") and its keys."""
    yield name, _keys(model)
    for info in model.model_fields.values():
        inner = _section(info.annotation)
        if inner is not None:
            yield from _levels(inner, info.alias or "")


def _section(annotation: Any) -> Optional[Type[BaseModel]]:
    """The model of a section, also where a list holds many."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_section, get_args(annotation))), None)


def _meant(location: Location, model: Type[BaseModel]) -> str:
    """A hint for an unknown key: the right spelling, the right place, or the keys there are."""
    wrong = str(location[-1]).lower()
    here = next((part for part in reversed(location[:-1]) if isinstance(part, str)), "")
    levels = dict(_levels(model))
    spelling = {key.lower(): key for key in levels[here]}
    if wrong in spelling:
        return f"upper and lower case matter: write {spelling[wrong]}"
    for level, keys in levels.items():
        if str(location[-1]) in keys:
            return f"it belongs under {level}" if level else "it belongs at the top level"
    close = difflib.get_close_matches(wrong, spelling, n=1, cutoff=0.7)
    if close:
        return f"did you mean {spelling[close[0]]}?"
    elsewhere = {
        key.lower(): f"{level}.{key}" if level else key
        for level, keys in levels.items()
        for key in keys
    }
    close = difflib.get_close_matches(wrong, elsewhere, n=1, cutoff=0.7)
    if close:
        return f"did you mean {elsewhere[close[0]]}?"
    return f"the keys {'of ' + here if here else 'at the top level'} are {', '.join(levels[here])}"
