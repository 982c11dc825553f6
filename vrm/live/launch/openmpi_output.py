"""Reads what mpirun of Open MPI prints: bindings of ranks, lost nodes, time stamps. `vrm.live.launch.openmpi` has the
table of versions."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vrm.live.launch.base import TAIL, PathLike, tail
from vrm.live.nodes.topology import parse_cpu_list

Binding = frozenset[tuple[str, int]] | None
"""The binding of a rank that mpirun reported: pairs of a numbering and a number in it; None for `not bound`.

The numberings: `core`, logical; `cpu`, of the operating system; `5`, one of these two, as the table of versions says;
`pu`, logical numbers of hardware threads.
"""

_BINDING = re.compile(r"""
    \[[^\[\]\s]+:\d+\][ ](?:
        MCW[ ]rank[ ](?P<old>\d+)[ ](?:is[ ]not[ ]bound
            |bound[ ]to[ ](?P<sockets>socket[ ]\d+\[core[ ][^:\n]*):[ ]\[)
        |Rank[ ](?P<new>\d+)[ ](?:is[ ]not[ ]bound
            |bound[ ]to[ ](?P<packages>(?:[ ]?package\[\d+\]\[(?:core|hwt):L?[\d,-]+\])+)\s*\n))
    """, re.VERBOSE)
_OLD_PART = re.compile(r"core (\d+)\[hwt ([\d,-]+)\]")
_NEW_PART = re.compile(r"\[(core|hwt):L?([\d,-]+)\]")


def parse_bindings(text: str, threads: int = 1) -> dict[int, Binding]:
    """Return the bindings reported in the text, by rank; other text before, between and after them is ignored.
    `threads` above 1: the bindings are to hardware threads, `threads` of them per core.

    The first report of a rank counts; a line that was cut off is ignored.
    """
    found: dict[int, Binding] = {}
    for match in _BINDING.finditer(text):
        binding = _binding(match, threads)
        if binding is None or binding:
            found.setdefault(int(match["old"] or match["new"]), binding)
    return found


_MAPPED = re.compile(r"""
    Process[ ]rank:[ ](?P<old>\d+)[ ]Bound:[ ](?:(?P<sockets>socket[ ][^:\n]*):[ ]?\[)?
    |Data[ ]for[ ]proc:[ ]\[[^\[\]\s]+,(?P<new>\d+)\]\n(?:.*\n){2}
     [ \t]*Binding:[ ](?P<packages>(?:[ ]?package\[\d+\]\[(?:core|hwt):L?[\d,-]+\])+)?
    """, re.VERBOSE)


def parse_map(text: str, threads: int = 1) -> dict[int, Binding]:
    """Return the bindings by rank in the map of a job that mpirun displays before it starts."""
    found: dict[int, Binding] = {}
    for match in _MAPPED.finditer(text):
        found.setdefault(int(match["old"] or match["new"]), _binding(match, threads))
    return found


def _binding(match: re.Match[str], threads: int) -> Binding:
    if threads > 1 and (match["sockets"] or match["packages"]):
        return frozenset(("pu", number) for number in _of_threads(match, threads))
    if match["sockets"]:
        return frozenset(("core", int(core)) for core, _ in _OLD_PART.findall(match["sockets"]))
    if match["packages"]:
        return frozenset(("5" if kind == "core" else "cpu", number)
                         for kind, numbers in _NEW_PART.findall(match["packages"])
                         for number in _numbers(numbers))
    return None


def _of_threads(match: re.Match[str], threads: int) -> Iterator[int]:
    """Yield the logical numbers of the hardware threads to which a rank is bound."""
    for core, numbers in _OLD_PART.findall(match["sockets"] or ""):
        yield from (int(core) * threads + number for number in _numbers(numbers))
    for kind, numbers in _NEW_PART.findall(match["packages"] or ""):
        for number in _numbers(numbers):
            yield from [number] if kind == "hwt" else range(number * threads, (number + 1) * threads)


def _numbers(text: str) -> frozenset[int]:
    try:
        return parse_cpu_list(text)
    except ValueError:  # garbled: then the rank counts as not reported
        return frozenset()


UNNAMED = "a node that mpirun does not name"

_LOST = re.compile(r"""
    ^(?:ORTE|PRTE)[ ]has[ ]lost[ ]communication[ ]with[ ]a[ ]remote[ ]daemon
        (?:(?:.*\n){1,5}?[ ]*Remote[ ]daemon:.*[ ]on[ ]node[ ](?P<lost>\S+))?
    |^A[ ]daemon[ ]failed[ ]to[ ]report[ ]back[ ]after[ ]being[ ]spawned
        (?:(?:.*\n){1,9}?[ ]*Remote[ ]host:[ ]+(?P<silent>\S+))?
    |^(?:ssh:[ ]connect[ ]to[ ]host[ ](?P<away>\S+)[ ]port.*\n(?:-+\n)?)?
        \S+[ ]was[ ]unable[ ]to[ ]reliably[ ]start[ ]one[ ]or[ ]more[ ]daemons
    |^An?[ ](?:ORTE|PRTE)[ ]daemon[ ]has[ ]unexpectedly[ ]failed[ ]after[ ]launch
    |^srun[ ]returned[ ]non-zero[ ]exit[ ]status[ ]\(\d+\)[ ]from[ ]launching
    """, re.VERBOSE | re.MULTILINE)


def lost_nodes(errors: PathLike, output: PathLike | None = None, size: int = TAIL
               ) -> tuple[str, ...]:
    """Return the nodes that mpirun reports as lost, or as unreachable at the start: in a job's error file, and in its
    output file (where version 5 reports the latter). Only the last `size` bytes of each are read.

    A job with a lost node has failed, whatever the exit status: 4.1 returns 205 for a lost node, but 5 returns 0.
    Ranks may still run there. The result is a reason for messages, not a proof that these nodes are down: if Slurm
    cannot start a daemon on one node it ends the others, and mpirun names one of those, or, if none had reported yet,
    only says that srun failed.
    """
    text = "\n".join(tail(path, size) for path in (errors, output) if path is not None)
    return tuple(dict.fromkeys(match[match.lastgroup] if match.lastgroup else UNNAMED
                               for match in _LOST.finditer(text)))


NO_SERVER = re.compile(r"(?:.*\n){0,4}?(The PMIx server's listener thread failed to start)")
"""Message of an mpirun that ends before it has read what to start; before it come a rule and lines of its log."""

_PREFIX = re.compile(
    r"(?P<bracket>\[)?(?:[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})(?(bracket)\])"
    r"(?:\[[^\[\]]*\])?<std(?:out|err|diag)>:(?(bracket) ?)")


def strip_prefix(line: str) -> str:
    """Return a line of a job's output without the time stamp that mpirun put before it.

    `Sat Nov 21 12:39:08 2026<stdout>:text` in 4.1, `[Sat Nov 21 12:39:08 2026]<stdout>: text` in 5.
    """
    match = _PREFIX.match(line)
    return line[match.end():] if match else line
