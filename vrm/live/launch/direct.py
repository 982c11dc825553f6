"""Starts programs without MPI on one node, directly and bound by the kernel.

For ensembles of serial or threaded tasks. A job is one process; its number of cores is ranks times cores per rank:
`solve 1 60 0 cores=8` and `solve 8 60 0` both give it eight cores of a node.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from vrm.live.launch.base import (LAUNCHERS, SYNTHETIC_CHECK, Launch, Launcher, LaunchError, PathLike, LauncherConfiguration, slot_cpus,
                                  synthetic)
from vrm.live.launch.environment import environment, tagged, thread_settings
from vrm.live.nodes.runner_commands import is_local
from vrm.live.nodes.bindings import BindingCheck
from vrm.live.nodes.topology import Topology
from vrm.model import Node, RankSlot


@LAUNCHERS.register("direct")
class DirectLauncher(Launcher):
    """Launcher for jobs that are one process each.

    `env` is the environment of all jobs, `user` the part of it that the configuration sets, `topologies` are the
    machines by node name. An `emulated` cluster runs on this machine, unbound.
    """

    kind = "direct"
    several_nodes = False
    relayed = True
    version_text = "programs are started directly, without MPI"

    def __init__(self, env: Mapping[str, str], user: Mapping[str, str],
                 topologies: Mapping[str, Topology], emulated: bool = False) -> None:
        self.env = dict(env)
        self.user = dict(user)
        self.topologies = dict(topologies)
        self.emulated = emulated
        self.run_id = ""
        self._hosts: dict[str, str] = {}  # by node name: the host where its programs start, "" for this one

    @classmethod
    def detect(cls, settings: LauncherConfiguration, emulated: bool, topologies: Mapping[str, Topology],
               base: Mapping[str, str]) -> DirectLauncher:
        """Create the launcher; raises LaunchError for options, since there is no mpirun that would read them."""
        if settings.options:
            raise LaunchError("Launcher.Options are arguments for mpirun, and Launcher.Kind: "
                              "direct starts none; remove them")
        return cls(environment(base, settings.environment), settings.environment, topologies,
                   emulated)

    def command(self, job_id: int, app: PathLike, slots: Sequence[RankSlot],
                nodes: Sequence[Node], rankfile: PathLike, arguments: Sequence[str] = (),
                variables: Mapping[str, str] | None = None) -> Launch:
        """Return how to start the application, bound to the cores of all slots, with one thread for each core.

        On another node than this one the relay starts it. Raises LaunchError for a job on several nodes.
        """
        names = list({nodes[slot.node].name: None for slot in slots})
        if len(names) > 1:
            raise LaunchError(f"job {job_id} would span {len(names)} nodes ({', '.join(names)}), "
                              "and Launcher.Kind: direct starts one process on one node; write "
                              "nodes=1 in its line, ask for fewer ranks, or set the Kind of an MPI")
        cpus: list[int] = []
        if not self.emulated and not synthetic(self.topologies, slots, nodes):
            cpus = sorted(cpu for slot in slots
                          for cpu in slot_cpus(self.topologies, slot, nodes[slot.node]))
        threads = sum(len(slot.cores) for slot in slots)
        own = variables or {}
        env = tagged({**self.env, **own}, self.run_id, job_id)
        env.update(thread_settings(env, {**self.user, **own}, threads, bound=bool(cpus)))
        program = (os.fspath(app), *arguments)
        host = self._hosts.get(names[0])
        if host is None:
            host = self._hosts[names[0]] = "" if self.emulated or is_local(names[0], self.env) else names[0]
        return Launch(program, env, {}, tuple(cpus) or None, host)

    def check_bindings(self, errors: PathLike, output: PathLike, slots: Sequence[RankSlot],
                       nodes: Sequence[Node] = ()) -> BindingCheck:
        """Return ok: a program that started is bound, since the kernel had accepted the binding before."""
        if self.emulated:
            return BindingCheck("unbound")
        return SYNTHETIC_CHECK if synthetic(self.topologies, slots, nodes) else BindingCheck("ok")

    def exit_code(self, code: int, output: PathLike, errors: PathLike) -> int:
        """Return the program's own exit code."""
        return code
