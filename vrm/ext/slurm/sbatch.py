"""`sbatch`: submits a script. Its options become the fields of a job."""

from __future__ import annotations

import math
import os
import re
import shlex
from functools import lru_cache, partial
from itertools import zip_longest
from typing import Any
from collections.abc import Callable, Mapping, Sequence

from vrm.ext.slurm.forms import nodelists, times, state_names
from vrm.ext.slurm.calls.answers import Answer, Call, FileNeeded, CallRefused, Reply, HelpAnswer, DeferredAnswer
from vrm.ext.slurm.calls.handler import SubmittedJob, RequestHandler, submitted
from vrm.ext.slurm.dependencies import dependencies
from vrm.ext.slurm.forms.options import Options
from vrm.ext.slurm.requests import demand, read, together
from vrm.ext.steps.options import known
from vrm.model import JobState
from vrm.model.forms.field_types import LONGEST_TIME, FieldError, check_app
from vrm.model.quantities import MOST_JOBS, SLURM_MEMORY, fold, memory_bytes, numbers, slurm_seconds

OPTIONS = Options("sbatch", known("sbatch"), "[options] [SCRIPT [ARGUMENTS]]")

NOTHING: Mapping[str, str] = {}

LARGEST = 4 << 20
"""Maximum size of a script in bytes."""

_VARIABLES = {"SBATCH_ACCOUNT": "account", "SBATCH_JOB_NAME": "job-name",
              "SBATCH_TIMELIMIT": "time", "SBATCH_PARTITION": "partition",
              "SBATCH_EXPORT": "export", "SBATCH_OUTPUT": "output", "SBATCH_ERROR": "error",
              "SBATCH_ARRAY_INX": "array", "SBATCH_EXCLUSIVE": "exclusive", "SBATCH_CONSTRAINT": "constraint",
              "SBATCH_RESERVATION": "reservation", "SBATCH_WAIT": "wait", "SBATCH_OPEN_MODE": "open-mode",
              "SBATCH_GRES": "gres", "SBATCH_GPUS": "gpus", "SBATCH_MEM_PER_NODE": "mem",
              "SBATCH_MEM_PER_CPU": "mem-per-cpu", "SBATCH_SIGNAL": "signal"}
"""Environment variables that set options. They override options in the script; the command line overrides them."""


def sbatch(call: Call, handler: RequestHandler) -> Reply:
    """Submit a script and print its id."""
    typed, rest = components(OPTIONS, call.arguments)
    given = next((each for each in typed if "wrap" in each), typed[0])
    if "wrap" in given:
        if rest:
            raise OPTIONS.error(f"--wrap has the commands already; leave out the script {rest[0]}")
        text, name, path = b"#!/bin/sh\n" + os.fsencode(given["wrap"]) + b"\n", "wrap", ""
    else:
        path = os.path.join(call.cwd, rest[0]) if rest else ""
        if path in call.missing:
            raise OPTIONS.error(f"Unable to open file {rest[0] if rest else 'standard input'}: {call.missing[path]}")
        if path not in call.sent:
            return FileNeeded(path)
        text, name = call.sent[path], os.path.basename(path) if rest else "sbatch"
    directives = _script_options(text, path or "the script")
    variables = {key: call.env[variable] for variable, key in _VARIABLES.items() if call.env.get(variable)}
    options: list[Mapping[str, str]] = []
    for said, more in zip_longest(directives, typed, fillvalue=NOTHING):
        found = nodelists.read({**said, **(NOTHING if options else variables), **more}, OPTIONS, call)
        if isinstance(found, FileNeeded):
            return found
        options.append(found)
    chosen = options[0]
    asked = ask(chosen, OPTIONS, call, handler, name, script=text, arguments=rest[1:], path=path, others=options[1:])
    if "test-only" in chosen:
        return foreseen(handler, asked)
    ids = submitted(handler, asked, "sbatch: error: Batch job submission failed")
    out = "" if "quiet" in chosen else f"{ids[0]}\n" if "parsable" in chosen else f"Submitted batch job {ids[0]}\n"
    if "wait" in chosen:
        return EndAnswer(handler, ids, out)
    return Answer(out)


def components(options: Options, arguments: Sequence[str]) -> tuple[list[Mapping[str, str]], list[str]]:
    """Split the arguments at `:`; return the options of each component, and the words that follow the last options."""
    found: list[Mapping[str, str]] = []
    rest = [":", *arguments]
    while rest[:1] == [":"]:
        given, rest = options.parse(rest[1:], mixed=False)
        found.append(given)
    return found, rest


def foreseen(handler: RequestHandler, asked: SubmittedJob) -> Answer:
    """Return the text that says when and where the job would start if it were submitted now."""
    try:
        found = handler.foresee(asked)
    except CallRefused as refused:
        return Answer(err=f"allocation failure: {refused}\n", code=1)
    start = times.moment(found.start, {}, "")
    return Answer(err=f"sbatch: Job {found.id} to start at {start} using {found.cpus} processors on nodes "
                      f"{state_names.node_list(found.nodes)} in partition "
                      f"{state_names.partition(found, handler.site)}\n")


class EndAnswer(DeferredAnswer):
    """Waits until jobs have ended; the exit status is the largest of theirs."""

    def __init__(self, handler: RequestHandler, ids: Sequence[int], out: str) -> None:
        self._handler, self._ids = handler, list(ids)
        self._out = os.fsencode(out)
        self._code = 0

    def take(self) -> tuple[bytes, bytes]:
        """Return the line with the id, once."""
        out, self._out = self._out, b""
        return out, b""

    def poll(self) -> Answer | None:
        """Return the exit status when all jobs have ended, and none is one that the next manager runs again."""
        while self._ids:
            found = self._handler.jobs(self._ids[-1:])
            if self._handler.unfinished(self._ids[-1:]) or (found and found[0].ending):
                return None
            self._ids.pop()
            for job in found:
                code = job.code if job.code is not None else int(job.state is not JobState.COMPLETED)
                self._code = max(self._code, code)
        return Answer(code=self._code)


# ------------------------------------------------------------------------------- the script


_UNREADABLE: tuple[tuple[Callable[[bytes], bool], str], ...] = (
    (lambda text: not text.strip(), "is empty; a script begins with #! and the path of its interpreter"),
    (lambda text: len(text) > LARGEST, f"is longer than {LARGEST} bytes"),
    (lambda text: not text.startswith(b"#!"), "is not a batch script: its first line must begin with #!, followed by "
     "the path of who reads it,\nfor instance #!/bin/sh"),
    (lambda text: b"\r\n" in text, "has DOS line ends (\\r\\n), with which no script runs; remove them (dos2unix)"),
    (lambda text: b"\0" in text, "is not a script: it has bytes that are zero"))
"""Tests for texts that are not scripts, each with the error text."""


@lru_cache(maxsize=16)  # users submit equal scripts again and again
def _script_options(text: bytes, path: str) -> Sequence[Mapping[str, str]]:
    """Return the options in the `#SBATCH` lines of a script, for each component (`#SBATCH hetjob` separates
    components). Raises CallRefused if the text is not a script."""
    for wrong, why in _UNREADABLE:
        if wrong(text):
            raise OPTIONS.error(f"{path} {why}")
    found: list[dict[str, str]] = [{}]
    for number, line in enumerate(text.split(b"\n"), 1):
        if line.startswith(b"#SBATCH") and line[7:8] in (b" ", b"\t", b""):
            if line[7:].partition(b"#")[0].strip() in (b"hetjob", b"packjob"):
                found.append({})
                continue
            found[-1].update(_line_options(os.fsdecode(line[7:]), f"{path}:{number}"))
        elif line.strip() and not line.lstrip().startswith(b"#"):
            break
    found[0].pop("wrap", None)
    return found


def _line_options(said: str, place: str) -> Mapping[str, str]:
    """Return the options in one `#SBATCH` line."""
    try:
        values, rest = OPTIONS.parse(shlex.split(said, comments=True))
    except ValueError as error:
        raise OPTIONS.error(f"{place}: {said.strip()[:200]}: {error}") from error
    except HelpAnswer as told:
        raise OPTIONS.error(f"{place}: `{said.strip()}` is not valid in a script") from told
    if rest:
        raise OPTIONS.error(f"{place}: `{rest[0]}` is not an option")
    return values


# ------------------------------------------------------------------------------- requests


def ask(chosen: Mapping[str, str], options: Options, call: Call, handler: RequestHandler, name: str, **more: Any
        ) -> SubmittedJob:
    """Return the job that the options describe (see `_ask`). With several partitions, the partition is chosen in
    which the job would start first."""
    queues = [each for each in chosen.get("partition", "").split(",") if each in handler.site.queues]
    asked = [_ask({**chosen, "partition": each}, options, call, handler, name, **more)
             for each in (queues if len(queues) > 1 else ())]
    return min(asked, key=lambda each: _start(handler, each)) if asked else _ask(
        chosen, options, call, handler, name, **more)


def _start(handler: RequestHandler, asked: SubmittedJob) -> float:
    """Return when a job would start if it were submitted now (epoch seconds); infinity if that is not known."""
    try:
        return handler.foresee(asked).start
    except CallRefused:
        return math.inf


def _ask(chosen: Mapping[str, str], options: Options, call: Call, handler: RequestHandler, name: str, *,
        script: bytes = b"", arguments: Sequence[str] = (), path: str = "", output: bool = True,
        others: Sequence[Mapping[str, str]] = ()) -> SubmittedJob:
    """Return the job that the options describe. `output`: the output goes to a file of the user's choice. `others`:
    the options of the further components of a heterogeneous job."""
    chosen, *others = _drop_thread_options([{**chosen, **_job_options([chosen, *others], options)}, *others], handler)
    values = {**demand(chosen, options), **named(chosen.get("job-name", name))}
    if others:
        values.update(together(values, [demand(each, options) for each in others]))
    indices, width = read(options, chosen, "array", _array, _NO_ARRAY)
    for option, (key, how) in FIELDS.items():
        found = read(options, chosen, option, partial(how, handler), None)
        if found is not None:
            values[key] = found
    values.update(directory=os.path.normpath(os.path.join(call.cwd, chosen.get("chdir", ""))),
                  script=True, file=path, front="slurm", arguments=tuple(arguments))
    if output:
        values.update(_files(chosen, options, bool(indices)))
    after, own, single = dependencies(chosen.get("dependency", ""), options, handler,
                                      values.get("title", values["app"]), indices)
    values.update({"after": after} if after else {}, **({"singleton": fold(single)} if single else {}))
    limit = read(options, chosen, "time", lambda text: slurm_seconds(text) if text else 0.0, 0.0)
    if "deadline" in chosen:
        _check_deadline(chosen, limit, values["deadline"], options)
    values["variables"] = _option_variables(chosen)
    walltime, flexible = _walltime(limit, values.get("queue", ""), handler)
    notes = ([f"its limit of {chosen['time']} is cut to {times.elapsed(walltime)}: the allocation ends then"]
             if flexible and chosen.get("time") else [])
    return SubmittedJob({**values, "walltime": walltime}, script, exported(chosen.get("export", "ALL"), call.env),
                 indices, width, flexible, notes, own, call.token)


def _option_variables(chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Slurm sets in a job only if an option is given. Memory is in MiB."""
    cores, tasks = (chosen.get(name, "") for name in ("cpus-per-task", "ntasks-per-node"))
    memory = {name: memory_bytes(chosen.get(name) or "0", SLURM_MEMORY) >> 20 for name in ("mem", "mem-per-cpu")}
    found = {"SLURM_CPUS_PER_TASK": cores, "SRUN_CPUS_PER_TASK": cores, "SLURM_NTASKS_PER_NODE": tasks,
             "SLURM_MEM_PER_NODE": str(memory["mem"] or ""), "SLURM_MEM_PER_CPU": str(memory["mem-per-cpu"] or ""),
             "SLURM_JOB_ACCOUNT": printable(chosen.get("account", ""))}
    return {key: value for key, value in found.items() if value}


def _drop_thread_options(components: Sequence[Mapping[str, str]], handler: RequestHandler) -> list[Mapping[str, str]]:
    """Return the options without requests for hardware threads if no node has cores with several threads."""
    threads = ("hint", "threads-per-core")
    if not any(name in given for given in components for name in threads) or any(
            node.threads > 1 for node in handler.nodes()):
        return list(components)
    return [{name: value for name, value in given.items() if name not in threads} for given in components]


def _job_options(components: Sequence[Mapping[str, str]], options: Options) -> dict[str, str]:
    """Return the options that apply to the whole job. Raises CallRefused if two components differ."""
    found: dict[str, str] = {}
    for given in components:
        for name in (*FIELDS, "array", "time", "dependency", "output", "error", "input", "chdir", "job-name"):
            if name in given and found.setdefault(name, given[name]) != given[name]:
                raise options.error(f"--{name} is of all components, and two of them say different things")
    return found


def printable(text: str) -> str:
    """Return the text with a space in place of each unprintable character."""
    return "".join(each if each.isprintable() else " " for each in text)


def named(name: str) -> dict[str, Any]:
    """Return the fields for a job's name: its program's name, and its title if that differs."""
    shown = printable(name)
    app = shown.replace("/", "_").lstrip("-")[:200]
    app = app if app.strip(". ") else f"job{app.strip()}"
    check_app(app)
    return {"app": app} if app == shown else {"app": app, "title": shown[:1024]}


def _later(handler: RequestHandler, text: str) -> float:
    """Return the seconds until this moment (0 if it is past). Raises FieldError if it is too far."""
    seconds = times.begin(text, handler.now) - handler.now
    if seconds > LONGEST_TIME:
        raise FieldError(f"that is more than {LONGEST_TIME // 31_536_000} years from now")
    return max(0.0, seconds)


def _queue(handler: RequestHandler, text: str) -> str | None:
    """Return the first of these partitions that is a queue; None if the site has no queues."""
    queues = handler.site.queues
    known = [each for each in text.split(",") if each in queues]
    if queues and not known:
        raise FieldError(f"invalid partition specified: {{}}; vrm's queues are {', '.join(queues)}", text)
    return known[0] if known else None


def _invalid_dependency(handler: RequestHandler, text: str) -> None:
    if text != "yes":
        raise FieldError("vrm cancels a job whose dependency can never come true")


def _integer(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,9}", text):
        raise ValueError(text)
    return int(text)


def _files(chosen: Mapping[str, str], options: Options, array: bool) -> dict[str, str]:
    """Return the fields for output, errors and input; by default output goes to the job's directory."""
    mode = chosen.get("open-mode", "truncate")
    if mode not in ("append", "truncate"):
        raise options.error(f"Invalid value `{mode}` for --open-mode; it is append or truncate")
    found = {"output": chosen.get("output") or ("slurm-%A_%a.out" if array else "slurm-%j.out")}
    if chosen.get("error"):
        found["errors"] = chosen["error"]
    if chosen.get("input") and chosen["input"] != "none":
        found["input"] = chosen["input"]
    for name, path in found.items():
        if "\0" in path or len(path) > 4096:
            raise options.error(f"Invalid value for --{name}")
        found[name] = "/dev/null" if path == "none" else path
    return found


_NO_ARRAY: tuple[tuple[int, ...], int] = ((), 0)


def _array(text: str) -> tuple[tuple[int, ...], int]:
    """Return the indices of an array, and how many of its jobs may run at a time (0: any number)."""
    listed, percent, width = text.partition("%")
    if percent and not re.fullmatch(r"[0-9]{1,6}", width):
        raise ValueError(text)
    found = tuple(sorted(numbers(listed)))
    if len(found) > MOST_JOBS or found[-1] > 9999:
        raise FieldError("{}: indices are at most 9999", text)
    return found, int(width or 0)


def _walltime(said: float, queue: str, handler: RequestHandler) -> tuple[float, bool]:
    """Return the time limit (seconds) of a job in this queue, and whether it may be cut at the end of the
    allocation. It may not if the user has set a limit that fits before that end."""
    site = handler.site
    left = site.closing - handler.now
    if not 0 < said < math.inf:
        usual = state_names.default_time(queue or state_names.default_partition(site), site)
        return (min(usual, max(1.0, left)) if not said else min(max(1.0, left), 86400.0 * 365)), True
    if said > left:
        return max(1.0, left), True
    return min(said, 1e9), False


def _check_deadline(chosen: Mapping[str, str], limit: float, until: float, options: Options) -> None:
    """Raise CallRefused if the job cannot end by its deadline."""
    if not 0 < limit < math.inf:
        raise options.error("--deadline: say how long the job may run, with --time")
    if limit > until:
        raise options.error(f"--deadline: a job of {chosen['time']} cannot end by {chosen['deadline']}")


_SIGNAL = re.compile(r"(?:([RB]):)?([A-Z0-9+]+)(?:@([0-9]{1,5}))?")


def _signal(text: str) -> str:
    """Check the value of --signal and return it with defaults: `B:10@60`."""
    found = _SIGNAL.fullmatch(text.upper())
    if not found:
        raise ValueError(text)
    signal_number(found[2])
    return f"{'B:' if found[1] == 'B' else ''}{signal_number(found[2])}@{found[3] or 60}"


FIELDS: Mapping[str, tuple[str, Callable[[RequestHandler, str], Any]]] = {
    "exclusive": ("exclusive", lambda _, text: text != "0" or None),
    "nice": ("priority", lambda _, text: -_integer(text or "100")),
    "priority": ("priority", lambda _, text: None if text.upper() == "TOP" else _integer(text)),
    "partition": ("queue", _queue),
    "reservation": ("reservation", lambda _, text: text),
    "hold": ("held", lambda *_: True),
    "open-mode": ("append", lambda _, text: text == "append" or None),
    "comment": ("comment", lambda _, text: printable(text) or None),
    "signal": ("warning", lambda _, text: _signal(text)),
    "begin": ("begin", _later),
    "deadline": ("deadline", _later),
    "kill-on-invalid-dep": ("", _invalid_dependency),
    "requeue": ("requeue", lambda _, text: text)}
"""For each option the field of a job that it sets, and the function that reads its value; the value None sets
nothing."""


def signal_number(text: str) -> int:
    """Return the number of a signal given by number or name. Raises ValueError for others."""
    import signal
    if text.isdigit():
        return int(signal.Signals(int(text)))
    try:
        return int(signal.Signals[f"SIG{text.upper().removeprefix('SIG')}"])
    except KeyError:
        raise ValueError(text) from None


def exported(said: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the submitter that a job gets according to --export: all, the named ones, or the
    minimum that a shell needs."""
    found: dict[str, str] = {}
    parts = [part for part in re.split(r",(?=[A-Za-z_][A-Za-z0-9_]*(?:=|,|$)|ALL|NONE|NIL|$)", said) if part]
    if any(part in ("ALL", "all") for part in parts):
        found.update(env)
    else:
        found.update({name: env[name] for name in ("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "VRM_DIRECTORY")
                      if name in env})
    for part in parts:
        name, equals, value = part.partition("=")
        if equals:
            found[name] = value.strip("\"'") if value[:1] in "\"'" else value
        elif name in env:
            found[name] = env[name]
    return found


__all__ = ["OPTIONS", "EndAnswer", "ask", "exported", "named", "sbatch", "signal_number"]
