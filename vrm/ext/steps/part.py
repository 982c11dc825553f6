"""Part of a manager that gives scripts what their steps need, and records what scripts have used."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from vrm.live.launch.script_environment import AGENT, is_bound, slurm_variables
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import JobEnded, Part, ScriptPrepared
from vrm.live.manager.records.records import EndedJob
from vrm.live.runner.serving import SERVER
from vrm.model import RankSlot
from vrm.ext.steps.records import BATCH, Step, append
from vrm.ext.steps import jobfile
from vrm.ext.steps.resource_use import PROGRAM, of_job, together


_EACH = ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS", "SLURM_CPUS_PER_TASK",
         "SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE")
"""Variables that a heterogeneous job has for each component."""


class Steps(Part):
    """Writes the file of each script job (see `vrm.ext.steps.jobfile`), and when the job has ended, the script's
    line in `steps.csv`."""

    observes = (ScriptPrepared, JobEnded)

    def __init__(self, live: LiveRun) -> None:
        self.live = live
        live.scripts.measure = str(live.run_directory.programs / PROGRAM)

    def observe(self, event: object) -> None:
        """Prepare a script that is about to start, or record a job that has ended."""
        if isinstance(event, ScriptPrepared):
            event.files[event.folder / jobfile.JOB] = jobfile.text_of(self._values(event))
            event.variables.update(self._of_components(event))
            event.variables[SERVER] = "vrm.ext.steps.server"
        elif isinstance(event, JobEnded):
            self._record(event.outcome)

    def _values(self, script: ScriptPrepared) -> dict[str, list[str]]:
        """Return the values of a job's file."""
        live, job, scripts = self.live, script.booking.job, self.live.scripts
        slots, nodes = list(script.booking.placement.slots(live.cluster.nodes)), live.cluster.nodes
        on, idle = scripts.places(slots, nodes, script.alone)
        bound = is_bound(scripts.topologies, slots, nodes, scripts.emulated)
        launcher, where = scripts.launcher, dict[tuple[str, int, int], str]()
        return {"job": [str(job.id)], "slurm": [str(job.id)], "run": [scripts.run_id],
                "name": [os.path.basename(script.program)], "records": [str(live.run_directory.steps)],
                "tasks": [str(len(slots))], "cpus": [str(len(slots[0].cores))],
                "node": self._nodes(on, idle, bound, where), "bound": [str(int(bound))],
                "group": [" ".join([str(part.procs), str(part.width), *(
                    where[nodes[slot.node].name, slot.socket, core]
                    for slot in part.slots(nodes) for core in slot.cores)]) for part in script.booking.placement.parts],
                "launcher": [launcher.in_steps or "direct"], "program": [launcher.mpirun],
                "option": list(getattr(launcher, "options", ())),
                "threads": [script.env.get("OMP_NUM_THREADS", "")], "agent": [str(scripts.commands / AGENT)],
                "measure": [scripts.measure],
                "site": [f"{name}={value}" for name, value in scripts.site_variables().items()],
                "began": [f"{script.booking.start:.3f}"], "gpu": list(script.gpus)}

    def _of_components(self, script: ScriptPrepared) -> dict[str, str]:
        """Return Slurm's variables for each component of a heterogeneous job. In vrm all components have the same
        job id."""
        parts, nodes = script.booking.placement.parts, self.live.cluster.nodes
        found = {"SLURM_HET_SIZE": str(len(parts))} if parts else {}
        for number, part in enumerate(parts):
            on, _ = self.live.scripts.places(list(part.slots(nodes)), nodes, False)
            said = slurm_variables(script.booking.job.id, on, {})
            found.update((f"{name}_HET_GROUP_{number}", said[name]) for name in _EACH)
        return found

    def _nodes(self, on: Mapping[str, Sequence[RankSlot]], idle: Mapping[str, Sequence[RankSlot]], bound: bool,
               where: dict[tuple[str, int, int], str]) -> list[str]:
        """Return the lines for the nodes of a job with its cores there. `idle` are cores of the job that no task
        uses. Fills `where` with the number of each core in these lines, by its node, socket and number on the
        socket."""
        topologies, found = self.live.scripts.topologies, list[str]()
        for host, slots in on.items():
            cores: list[list[int]] = []
            sockets: list[int] = []
            names: list[tuple[str, int, int]] = []
            for slot in (*slots, *idle.get(host, ())):
                for core in slot.cores:
                    cores.append(list(topologies[host].core(slot.socket, core).cpus) if bound else [len(cores)])
                    sockets.append(slot.socket)
                    names.append((host, slot.socket, core))
            order = sorted(range(len(cores)), key=lambda at: (sockets[at], cores[at]))
            where.update((names[at], f"{len(found)}:{number}") for number, at in enumerate(order))
            machine = topologies[host].host if host in topologies else host
            found.append(jobfile.JobNode(host, machine, len(slots), [cores[at] for at in order],
                                         [sockets[at] for at in order]).text)
        return found

    def _record(self, outcome: EndedJob) -> None:
        """Write the line of an ended script after the lines of its steps."""
        live, job, booking = self.live, outcome.job, outcome.booking
        if booking is None or not job.payload.script:
            return
        nodes = (outcome.cluster or live.cluster).nodes
        slots = list(booking.placement.slots(nodes))
        folder = live.scripts.folder(live.run_directory.rankfile(job.app, job.id))
        step = Step(job.id, BATCH, BATCH, booking.start, outcome.end, outcome.state.value,
                    outcome.exit_code, 1, sum(len(slot.cores) for slot in slots),
                    " ".join({nodes[slot.node].name: None for slot in slots}),
                    *together((outcome.used, of_job(str(folder)))), booking.start)
        try:
            append(live.run_directory.steps, step)
        except OSError as error:
            live.tell("warning", f"#{job.id} {job.app}: {live.run_directory.steps} lacks its line: {error.strerror}")
