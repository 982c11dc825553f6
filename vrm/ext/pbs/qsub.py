"""`qsub`: submits a script. Options on the command line override those in the script's `#PBS` lines."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass, field
from typing import Any
from collections.abc import Callable, Mapping, Sequence

from vrm.ext.pbs import resources
from vrm.ext.slurm.calls.answers import Answer, Call, FileNeeded, CallRefused, Reply, HelpAnswer
from vrm.ext.slurm.blocking import ShellAnswer
from vrm.ext.slurm.calls.handler import SubmittedJob, RequestHandler, submitted
from vrm.ext.slurm.calls.jobs import JobView
from vrm.ext.slurm.sbatch import EndAnswer, named
from vrm.ext.slurm.calls.shell import SCRIPT
from vrm.model.job import ANY, FAIL, OK, START, Dependency

LETTERS = "a:A:c:C:e:fGhIj:J:k:l:m:M:N:o:p:P:q:r:R:S:u:v:VW:XzZ"
USAGE = ("qsub [-N name] [-l resources] [-o path] [-e path] [-j oe] [-J X-Y[:Z]] [-W depend=...] [-h] [-v variables] "
         "[-V] [-q queue] [-p priority] [-a time] [-r y|n] [-S path] [-z] [script [arguments] | -- program arguments]")

REFUSED = {"X": "vrm passes on no X11",
           "G": "vrm shows no windows", "f": "vrm submits jobs only to its own queue"}
IGNORED = "AcmMPRukZ"
"""Options without effect: accounts, mail, checkpoints."""

PREFIX = "#PBS"
SHELL = "/bin/sh"
KINDS = {"after": START, "afterok": OK, "afternotok": FAIL, "afterany": ANY}
MOST = 10_000
"""Maximum number of jobs of an array."""


@dataclass
class QsubRequest:
    """The values of the options; later options override earlier ones."""

    single: dict[str, str] = field(default_factory=dict)
    resources: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str | None] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)

    def take(self, options: Sequence[tuple[str, str]]) -> None:
        """Add options. Raises CallRefused for options that vrm cannot follow."""
        for letter, value in options:
            if letter in REFUSED:
                raise CallRefused(f"qsub: -{letter}: {REFUSED[letter]}", resources.USAGE)
            if letter == "l":
                try:
                    resources.resources(value, self.resources)
                except ValueError as error:
                    raise wrong("l", value, f"`{error}` is not of the form resource=value") from error
            elif letter == "v":
                for part in _listed(value):
                    name, equals, said = part.partition("=")
                    self.variables[name] = said if equals else None
            elif letter == "W":
                for part in re.split(r",(?=\w+=)", value):
                    name, _, said = part.partition("=")
                    self.attributes[name] = said
            else:
                self.single[letter] = value


def wrong(letter: str, value: str, why: str) -> CallRefused:
    """Return the error for an invalid option value."""
    return CallRefused(f"qsub: illegal -{letter} value: {value}: {why}", resources.USAGE)


def _listed(text: str) -> list[str]:
    """Split a list at commas; parts may be quoted."""
    splitter = shlex.shlex(text, posix=True)
    splitter.whitespace, splitter.whitespace_split, splitter.commenters = ",", True, ""
    try:
        return list(splitter)
    except ValueError as error:
        raise wrong("v", text, str(error)) from error


def qsub(call: Call, handler: RequestHandler) -> Reply:
    """Submit a script and print its id."""
    typed, rest = resources.options("qsub", LETTERS, USAGE, call.arguments)
    typed_values = dict(typed)
    arguments = rest[1:]
    if "I" in typed_values:
        if rest or "J" in typed_values:
            raise CallRefused("qsub: -I is a shell with a job: no script, command or array goes with it",
                              resources.USAGE)
        text, name, path = os.fsencode(f"#!{SHELL}\n{SCRIPT}\n"), "STDIN", ""
        typed += [("o", os.devnull), ("e", os.devnull)]
    elif rest and "--" in call.arguments and call.arguments[call.arguments.index("--") + 1:] == rest:
        text, name, arguments = os.fsencode(f"#!{SHELL}\nexec {shlex.join(rest)}\n"), "STDIN", []
        path = ""
    else:
        path = os.path.join(call.cwd, rest[0]) if rest and rest[0] != "-" else ""
        if path in call.missing:
            raise CallRefused(f"qsub: script file: {rest[0] if rest else '-'}: {call.missing[path]}", resources.ILLEGAL)
        if path not in call.sent:
            return FileNeeded(path)
        text, name = call.sent[path], os.path.basename(path) or "STDIN"
    wish = QsubRequest()
    lines = directives(text, typed_values.get("C", call.env.get("PBS_DPREFIX", PREFIX)))
    for number, found in lines:
        try:
            options, more = resources.options("qsub", LETTERS, USAGE, found)
        except HelpAnswer:
            options, more = [], found
        if more:
            raise CallRefused(f"qsub: line {number} of the script: `{more[0]}` is not an option", resources.USAGE)
        wish.take(options)
    wish.take(typed)
    asked, joined = made(wish, call, handler, text, name, path, arguments)
    ids = submitted(handler, asked, "qsub")
    if "I" in typed_values:
        return InteractiveAnswer(call.env, handler, ids[0], "qsub", True)
    said = resources.whole(ids[0]) if joined else f"{ids[0]}.{resources.SERVER}"
    out = "" if "z" in wish.single else f"{said}\n"
    return EndAnswer(handler, ids, out) if wish.attributes.get("block") in ("true", "True", "1") else Answer(out)


class InteractiveAnswer(ShellAnswer):
    """Waits until a job has started; then its client runs a shell with the job."""

    granted = f"qsub: job %d.{resources.SERVER} ready\n\n"
    closing = f"\nqsub: job %d.{resources.SERVER} completed"

    def _say(self, job: JobView) -> None:
        if not self._asked:
            self._asked = True
            self._text[2] += f"qsub: waiting for job {self.id}.{resources.SERVER} to start\n".encode()


def directives(text: bytes, prefix: str) -> list[tuple[int, list[str]]]:
    """Return the options in the lines of a script that begin with the prefix, up to the first command, with their
    line numbers. Raises CallRefused for lines that cannot be read."""
    found: list[tuple[int, list[str]]] = []
    if not prefix:
        return found
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.decode(errors="replace").strip()
        if line.startswith(prefix):
            rest = line[len(prefix):]
            if rest.strip() and rest[0] not in " \t-":
                continue
            try:
                each = shlex.split(rest, comments=True)
            except ValueError as error:
                raise CallRefused(f"qsub: line {number} of the script: {error}", resources.USAGE) from error
            found.append((number, each))
        elif line and not line.startswith(("#", ":")):
            break
    return found


def made(wish: QsubRequest, call: Call, handler: RequestHandler, text: bytes, name: str, path: str,
         arguments: Sequence[str]
         ) -> tuple[SubmittedJob, bool]:
    """Return the job that is requested, and whether it is an array. Raises CallRefused for requests that vrm cannot
    fulfil."""
    single, site = wish.single, handler.site
    try:
        values = resources.request(wish.resources)
        limit = (resources.walltime(wish.resources["walltime"]) if "walltime" in wish.resources else
                 min(site.default_time, max(1.0, site.closing - handler.now)))
    except resources.ResourceError as error:
        raise CallRefused(f"qsub: {error}", error.code) from error
    except ValueError as error:
        raise wrong("l", ",".join(f"{key}={value}" for key, value in wish.resources.items()), str(error)) from error
    called = single.get("N", name)
    values.update({} if "N" in single else named(name), **_fields(single, handler))
    indices, width = array(single["J"]) if "J" in single else ((), 0)
    if not text.startswith(b"#!") or "S" in single:
        shell = single.get("S", SHELL).partition("@")[0].partition(",")[0]
        text = f"#!{shell}\n".encode() + text
    values.update(
        script=True, front="pbs", walltime=limit, directory=call.env.get("HOME", "") or call.cwd,
        held="h" in single, arguments=tuple(arguments), variables=variables(call, called, wish, values),
        **outputs(single, called[:15] if "N" not in single else called, call.cwd, bool(indices)))
    if path:
        values["file"] = path
    if "depend" in wish.attributes:
        values["after"] = dependencies(wish.attributes["depend"], handler)
    environment = dict(call.env) if "V" in single else chosen(call.env)
    return SubmittedJob(values, text, environment, indices, width, flexible="walltime" not in wish.resources,
                 command=call.token), bool(indices)


def _fields(single: Mapping[str, str], handler: RequestHandler) -> dict[str, Any]:
    """Return the fields of a job that options set."""
    found: dict[str, Any] = {}
    for letter, (read, why) in _FIELDS.items():
        try:
            found.update(read(single[letter], handler) if letter in single else {})
        except CallRefused:
            raise
        except (KeyError, ValueError) as error:
            raise wrong(letter, single[letter], why) from error
    return found


def _matched(pattern: str, text: str) -> str:
    if not re.fullmatch(pattern, text):
        raise ValueError(text)
    return text


def _queue(text: str, handler: RequestHandler) -> dict[str, str]:
    """Return the field for the queue; none if the run has no queues. Raises CallRefused for an unknown queue."""
    queue, known = text.partition("@")[0], handler.site.queues
    if known and queue not in known:
        raise CallRefused(f"qsub: Unknown queue {queue}; there are {', '.join(known)}", resources.NO_QUEUE)
    return {"queue": queue} if known else {}


_FIELDS: Mapping[str, tuple[Callable[[str, RequestHandler], Mapping[str, Any]], str]] = {
    "N": (lambda text, _: named(_matched(r"\S{1,230}", text)), "a name has no blanks, and at most 230 characters"),
    "q": (_queue, ""),
    "p": (lambda text, _: {"priority": int(_matched(r"[+-]?0*(10[01][0-9]|102[0-4]|[0-9]{1,3})", text))},
          "a whole number from -1024 to 1023"),
    "r": (lambda text, _: {"requeue": {"y": "yes", "n": "no"}[text]}, "y or n"),
    "a": (lambda text, handler: {"begin": max(0.0, resources.moment(text, handler.now) - handler.now)},
          "a time as 1530, 241530 (the day), 12241530, or 202612241530.00")}
"""For each option the function that reads its value as fields of a job, and a description of valid values."""

KEPT = ("HOME", "LANG", "LOGNAME", "PATH", "MAIL", "SHELL", "USER", "TZ", "LC_ALL", "LC_CTYPE")


def chosen(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the submitting shell that a job gets without -V."""
    return {name: env[name] for name in KEPT if name in env}


def variables(call: Call, name: str, wish: QsubRequest, values: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of this job: those of -v, and PBS's variables about the submission. The others are set
    when the job starts: see `vrm.live.launch.script`."""
    found = {f"PBS_O_{key}": call.env[key] for key in ("HOME", "LANG", "LOGNAME", "PATH", "MAIL", "SHELL", "TZ")
             if key in call.env}
    found.update({key: call.env.get(key, "") if value is None else value for key, value in wish.variables.items()
                  if re.fullmatch(r"[A-Za-z_]\w*", key) and not key.startswith("VRM_")})
    found.update(PBS_O_WORKDIR=call.cwd, PBS_O_HOST=os.uname().nodename, PBS_JOBNAME=name,
                 PBS_O_SYSTEM="Linux", PBS_O_QUEUE=values.get("queue", resources.SERVER))
    return found


def outputs(single: Mapping[str, str], name: str, cwd: str, array: bool) -> dict[str, Any]:
    """Return the fields for the output files, in the form of vrm.live.manager.job_environment."""
    number = "%A.%a" if array else "%j"
    join = single.get("j", "n")
    if join not in ("oe", "eo", "n"):
        raise wrong("j", join, "oe, eo or n")

    def file(letter: str, mark: str) -> str:
        path = single.get(letter, "")
        path = path.rpartition(":")[2] if re.match(r"[\w.-]+:", path) else path
        own = f"{name.replace('%', '%%')}.{mark}{number}"
        if not path:
            return os.path.join(cwd, own)
        whole = os.path.join(cwd, os.path.expanduser(path))
        for said, meant in (("^array_index^", "%a"), ("$PBS_JOBID", "%j.vrm")):
            whole = whole.replace("%", "%%").replace(said, meant) if said in whole else whole
        return os.path.join(whole, own) if path.endswith("/") or os.path.isdir(whole) else whole

    out, err = file("o", "o"), file("e", "e")
    if join == "oe":
        err = out
    elif join == "eo":
        out = err
    return {"output": out, "errors": err}


def array(text: str) -> tuple[Sequence[int], int]:
    """Return the indices of `0-9:2%3`, and how many jobs may run at a time (0: all). Raises CallRefused."""
    found = re.fullmatch(r"([0-9]{1,9})-([0-9]{1,9})(?::([0-9]{1,9}))?(?:%([0-9]{1,9}))?", text)
    if not found or int(found[2]) <= int(found[1]) or (found[3] and not int(found[3])):
        raise wrong("J", text, "X-Y or X-Y:Z with X below Y")
    indices = range(int(found[1]), int(found[2]) + 1, int(found[3] or 1))
    if len(indices) > MOST:
        raise wrong("J", text, f"more than {MOST} jobs")
    return indices, int(found[4] or 0)


def dependencies(text: str, handler: RequestHandler) -> tuple[Dependency, ...]:
    """Return the dependencies of `afterok:12.vrm:13`. Raises CallRefused for kinds that vrm does not have, and for
    unknown ids."""
    found: dict[Dependency, None] = {}
    for part in text.split(","):
        kind, *ids = part.split(":")
        if kind not in KINDS:
            raise wrong("W", f"depend={text}", f"vrm knows {', '.join(KINDS)}, not {kind}")
        if not ids:
            raise wrong("W", f"depend={text}", "an id is missing")
        for each in ids:
            for job in resources.find(handler, "qsub", each).jobs:
                found[Dependency.on(job.id, KINDS[kind])] = None
    return tuple(found)


