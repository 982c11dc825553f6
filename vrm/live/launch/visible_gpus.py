"""Controls which GPUs the tasks of a job see: its own, each task its share of them, with any launcher.

The job's program is started by a small script (`visible.sh`), which looks up its task in a table and sets the
variables of `vrm.live.runner.devices.VARIABLES`. The script runs last, within the task: variables that a batch system
sets for its steps, or that mpirun passes on, are set before, and would be equal for all tasks of a node. AMD's
runtimes filter by two variables, one inside the other: the outer one (ROCR_VISIBLE_DEVICES) is set, and the inner ones
are removed.

| a job that | sees |
|---|---|
| requests GPUs by `gpus_per_task` | in each task its own, in the order of tasks; a launcher that starts one process for all tasks (`direct`) shows it all of them |
| requests them by `gpus_per_node` | in each task all that the job has on the node |
| requests none and does not share its nodes (`exclusive`, or under compact and spare) | what it would see without vrm: all |
| requests none and may share a node that has GPUs | none |
| runs on nodes without GPUs | what it would see without vrm |

If the user sets one of the variables for a job or in `Launcher.Environment`, that value is used for jobs that request
no GPUs. For jobs that request GPUs, vrm sets them.
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
"""Values that hide all devices where an empty value would show all of them: the index of no device."""


class VisibleGpus:
    """Makes the tables of visible GPUs. `gpus` are the GPUs of each node by its name; `chosen` are the names of the
    variables that `Launcher.Environment` sets. `whole`: the launcher starts one process for all tasks of a job.
    `granted` are the numbers of GPUs that the batch system grants on nodes; `steps` returns the variables that its own
    launcher needs for these."""

    def __init__(self, gpus: Mapping[str, Sequence[Gpu]], chosen: Sequence[str] = (),
                 whole: bool = False, granted: Mapping[str, int] = NONE,
                 steps: Callable[[Sequence[int]], dict[str, str]] = lambda gpus: {}) -> None:
        self._gpus = {host: {gpu.index: gpu for gpu in own} for host, own in gpus.items() if own}
        self._chosen = frozenset(chosen)
        self._whole = whole
        self._granted = granted
        self._steps = steps

    def variables(self, booking: Booking, nodes: Sequence[Node]) -> dict[str, str]:
        """Return the variables that the batch system's own launcher needs for a job, also below mpirun."""
        return self._steps([self._granted.get(nodes[node].name, 0)
                            for node in booking.placement.nodes]) if self._granted else {}

    def wrapped(self, booking: Booking, nodes: Sequence[Node], program: PathLike,
                arguments: Sequence[str], variables: Mapping[str, str], table: PathLike,
                whole: bool = False) -> tuple[PathLike, tuple[str, ...], dict[Path, str]]:
        """Return the program and the arguments that start a job, and the files that they need. If nothing has to be
        set, this is the program itself without files. `whole`: the job is one process, on its first node."""
        text = self._table(booking, nodes, {*self._chosen, *variables}, whole or self._whole)
        if not text:
            return program, tuple(arguments), {}
        return "/bin/sh", (SCRIPT, os.fspath(table), os.fspath(program), *arguments), {Path(table): text}

    def listed(self, booking: Booking, nodes: Sequence[Node]) -> list[str]:
        """Return the GPUs of a job as texts: node, index and socket of each, and the variable and the word that select
        it."""
        return [f"{nodes[node].name} {index} {gpu.socket} {VARIABLES[gpu.kind]} {gpu.word}"
                for node, by_name in booking.placement.devices.items() for index in by_name.get(GPU, ())
                for gpu in [self._gpus[nodes[node].name][index]]]

    def _table(self, booking: Booking, nodes: Sequence[Node], chosen: frozenset[str] | set[str],
               one_process: bool) -> str:
        """Return the table for a job; "" if nothing has to be set."""
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
        """Return the variables that show exactly these GPUs of a node."""
        settings = self._hidden([host])
        for kind, variable in VARIABLES.items():
            words = [gpu.word for gpu in gpus if gpu.kind == kind]
            if words:
                settings[variable] = ",".join(words)
        return settings

    def _hidden(self, hosts: Sequence[str]) -> dict[str, str]:
        """Return the variables that hide all GPUs of these nodes."""
        kinds = {gpu.kind for host in hosts for gpu in self._gpus.get(host, {}).values()}
        return {variable: NOTHING.get(variable, "") for kind, variable in VARIABLES.items()
                if kind in kinds}


def _line(task: str, settings: Mapping[str, str]) -> str:
    return " ".join([task, *(f"{name}={value}" for name, value in settings.items())]) + "\n"
