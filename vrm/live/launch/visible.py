"""Which GPUs the tasks of a job see: its own, each task its share of them, whatever the launcher.

The job's program is started by a small script (`visible.sh`), which looks up its task in a table
and sets the variables of `vrm.live.runner.devices.VARIABLES`. It runs last, within the task: what a batch
system sets for its steps, or mpirun passes on, is set before, and would be for all tasks of a node
alike. AMD's runtimes filter by two variables, one inside the other: the outer one
(ROCR_VISIBLE_DEVICES) is set, and the inner ones are removed.

| a job that | sees |
|---|---|
| asks for GPUs by `gpus_per_task` | in each task its own, in the order of tasks; a launcher that starts one process for all tasks (`direct`) shows it all of them |
| asks by `gpus_per_node` | in each task all that it has on the node |
| asks for none and has its nodes for itself (`exclusive`, or under compact and spare) | what it would without vrm: all |
| asks for none and may share a node that has GPUs | none |
| runs on nodes without GPUs | what it would without vrm |

Whoever sets one of the variables for a job or in `Launcher.Environment` decides for jobs that ask for
none. For those that ask, vrm does.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import MappingProxyType
from collections.abc import Callable, Mapping, Sequence

from vrm.live.launch.base import PathLike
from vrm.live.runner.devices import VARIABLES
from vrm.live.nodes.topology import Gpu
from vrm.model import Booking, Node
from vrm.model.amounts import GPU
from vrm.model.sharing.devices import of_task

SCRIPT = str(Path(__file__).with_name("visible.sh"))

NONE: Mapping[str, int] = MappingProxyType({})

NOTHING = {"ZE_AFFINITY_MASK": "4095"}
"""What hides all devices where an empty value would show them all: the index of none."""


class Visible:
    """The GPUs of the nodes, `gpus` by the node's name, and what the user says of them: `chosen` are the
    names of the variables of `Launcher.Environment`. `whole`: the launcher starts one process for all
    tasks of a job. `granted` are the numbers that the batch system grants on nodes, and `steps` what it
    wants to hear of them from its own launcher."""

    def __init__(self, gpus: Mapping[str, Sequence[Gpu]], chosen: Sequence[str] = (),
                 whole: bool = False, granted: Mapping[str, int] = NONE,
                 steps: Callable[[Sequence[int]], dict[str, str]] = lambda gpus: {}) -> None:
        self._gpus = {host: {gpu.index: gpu for gpu in own} for host, own in gpus.items() if own}
        self._chosen = frozenset(chosen)
        self._whole = whole
        self._granted = granted
        self._steps = steps

    def variables(self, booking: Booking, nodes: Sequence[Node]) -> dict[str, str]:
        """What the batch system's own launcher wants to hear for a job, also below mpirun."""
        return self._steps([self._granted.get(nodes[node].name, 0)
                            for node in booking.placement.nodes]) if self._granted else {}

    def wrapped(self, booking: Booking, nodes: Sequence[Node], program: PathLike,
                arguments: Sequence[str], variables: Mapping[str, str], table: PathLike,
                whole: bool = False) -> tuple[PathLike, tuple[str, ...], dict[Path, str]]:
        """The program and the arguments with which a job is started, and the files which that needs: the
        program itself and none, where nothing is to be set. `whole`: the job is one process, on its
        first node."""
        text = self._table(booking, nodes, {*self._chosen, *variables}, whole or self._whole)
        if not text:
            return program, tuple(arguments), {}
        return "/bin/sh", (SCRIPT, os.fspath(table), os.fspath(program), *arguments), {Path(table): text}

    def listed(self, booking: Booking, nodes: Sequence[Node]) -> list[str]:
        """The GPUs of a job, each as its node, index and socket there, and the variable and the word that show it."""
        return [f"{nodes[node].name} {index} {gpu.socket} {VARIABLES[gpu.kind]} {gpu.word}"
                for node, by_name in booking.placement.devices.items() for index in by_name.get(GPU, ())
                for gpu in [self._gpus[nodes[node].name][index]]]

    def _table(self, booking: Booking, nodes: Sequence[Node], chosen: frozenset[str] | set[str],
               one_process: bool) -> str:
        """The table for a job; empty where nothing is to be set."""
        placement, request = booking.placement, booking.job.request
        asked = request.parts or (request,)
        used = [nodes[node].name for node in placement.nodes]
        if not any(host in self._gpus for host in used):
            return ""
        if not any(name == GPU for each in asked for name, _ in (*each.per_task, *each.per_node)):
            alone = request.exclusive or placement.alone
            return "" if alone or chosen & set(VARIABLES.values()) else _line("*", self._hidden(used))
        lines: list[str] = []
        whole: dict[str, list[Gpu]] = {}
        task = 0
        for each, place in zip(asked, placement.parts or (placement,)):
            for node, tasks in place.ranks_by_node(nodes):
                host = nodes[node].name
                own = place.devices.get(node, {}).get(GPU, ())
                whole.setdefault(host, []).extend(self._gpus[host][index] for index in own)
                for at in range(tasks):
                    mine = of_task(each, GPU, own, at, tasks)
                    lines.append(_line(str(task), self._settings(host, [self._gpus[host][index] for index in mine])))
                    task += 1
        if one_process:
            return _line("*", self._settings(*next(iter(whole.items()))))
        return "".join(lines)

    def _settings(self, host: str, gpus: Sequence[Gpu]) -> dict[str, str]:
        """What shows these GPUs of a node and no others."""
        settings = self._hidden([host])
        for kind, variable in VARIABLES.items():
            words = [gpu.word for gpu in gpus if gpu.kind == kind]
            if words:
                settings[variable] = ",".join(words)
        return settings

    def _hidden(self, hosts: Sequence[str]) -> dict[str, str]:
        """What shows no GPU of these nodes."""
        kinds = {gpu.kind for host in hosts for gpu in self._gpus.get(host, {}).values()}
        return {variable: NOTHING.get(variable, "") for kind, variable in VARIABLES.items()
                if kind in kinds}


def _line(task: str, settings: Mapping[str, str]) -> str:
    return " ".join([task, *(f"{name}={value}" for name, value in settings.items())]) + "\n"
