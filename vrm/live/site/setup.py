"""Turns settings into what a live run needs: cluster, scheduler, launcher.

Everything that can be checked before the first job is checked here, and all problems are reported at once.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from collections.abc import Callable, Mapping, Sequence

from vrm.config.policies import make_scheduler
from vrm.config.problems import ConfigError, Problem
from vrm.config.schema import Settings
from vrm.live.batch.adoption import Adoption
from vrm.live.batch.allocation import attach_command, batch_job, batch_system, end_of, find_allocation
from vrm.live.batch.base import AllocationError, around
from vrm.live.launch.base import Launcher, LaunchError, make_launcher
from vrm.live.launch.script import ScriptLauncher
from vrm.live.launch.visible_gpus import VisibleGpus
from vrm.live.runner import agent
from vrm.live.nodes.agents import Agents
from vrm.live.nodes.runner_commands import is_local
from vrm.live.nodes.geometry import Geometry, cluster_geometry
from vrm.live.nodes.node_watch import NodeWatch
from vrm.live.nodes.topology import TopologyError, node_facts
from vrm.live.site.classes import declared, described
from vrm.live.site.gpu_orders import gpus_of_node, agent_gpu_orders, stand_ins
from vrm.live.site.capacity import NodesOf, CapacityCheck, WholeNodes
from vrm.live.relay.process import RelayProcess
from vrm.live.spawn.spawner import Spawner
from vrm.model import Cluster, Node
from vrm.model.rules import Rules
from vrm.results.names import policy_name
from vrm.scheduling import Scheduler, make_policy
from vrm.scheduling.orderings.queue_limits import in_queues
from vrm.scheduling.placement.node_orders import AUTO
from vrm.system.errors import RunError
from vrm.system.trust import distrust


@dataclass(frozen=True)
class Site:
    """The cluster of a live run, its scheduler, and the launchers of its jobs.

    `allocation` names the batch job ("": none); `end` queries when it ends (epoch seconds, None for never). `watch`
    watches the nodes, `spawner` starts jobs (None: the run makes its own), `relay` starts programs on other nodes that
    the launcher does not start. `warnings`: configured or granted resources that are used differently than expected.
    `began`: when the nodes were started, by this machine's monotonic clock. `room` judges which jobs the nodes can run,
    `adoption` adds jobs to the batch job, `visible` shows a job's GPUs to its tasks. `scripts` launches the jobs that
    are scripts.
    """

    cluster: Cluster
    emulated: bool
    scheduler: Scheduler
    launcher: Launcher
    room: CapacityCheck
    allocation: str = ""
    end: Callable[[], float | None] | None = None
    watch: NodeWatch | None = None
    relay: RelayProcess | None = None
    warnings: tuple[str, ...] = ()
    adoption: Adoption = field(default_factory=lambda: Adoption(()))
    visible: VisibleGpus = field(default_factory=lambda: VisibleGpus({}))
    scripts: ScriptLauncher = field(default_factory=lambda: ScriptLauncher({}, {}, {}))
    began: Mapping[str, float] = field(default_factory=dict)
    spawner: Spawner | None = None


def describe(settings: Settings, nodes: Sequence[Node], emulated: bool) -> str:
    """Return one line about the run: its scheduling rules and its nodes."""
    shapes = {"+".join(str(cores // node.threads) for cores in node.sockets) for node in nodes}
    shape = f"{len(nodes)} node{'s' * (len(nodes) > 1)} of {' or '.join(sorted(shapes))} cores"
    if nodes[0].threads > 1:
        shape += f" with {nodes[0].threads} threads each"
    warning = ", EMULATED: ranks run oversubscribed and unbound on this machine"
    rules = settings.rules
    order = f" ({rules.node_order})" if rules.node_order != AUTO else ""
    every = f", deciding every {rules.interval:g} s" if rules.interval else ""
    return (f"{policy_name(rules.algorithm, rules.backfill)}{every}, "
            f"{rules.policy}{order} on {shape}{described(nodes)}{warning * emulated}")


def make_room(settings: Settings, cluster: Cluster, scheduler: Scheduler,
              granted: Sequence[Node] = (), whole: WholeNodes | None = None) -> CapacityCheck:
    """Return the judge of whether jobs can run on the cluster, or could run on the `granted` nodes."""
    return CapacityCheck(scheduler, cluster.nodes, judges(settings, settings.rules, scheduler), granted, whole)


def whole_nodes(settings: Settings, shape: Geometry, env: Mapping[str, str]) -> WholeNodes | None:
    """Return the nodes of the surrounding batch job with all their cores, if it has only some of these; otherwise
    None."""
    batch = around(env)
    if batch is None or not shape.whole:
        return None
    return WholeNodes(tuple(declared(settings, shape.whole)[0]), sum(node.cores for node in shape.nodes), batch)


def judges(settings: Settings, rules: Rules, scheduler: Scheduler
           ) -> Callable[[Sequence[Node]], NodesOf]:
    """Return a function that makes, for other nodes than the scheduler's, the judge of jobs by these rules."""
    heatmap = scheduler.policy.heatmap

    def on(nodes: Sequence[Node]) -> NodesOf:
        policy = make_policy(rules.policy, Cluster(nodes, settings.licences), heatmap, rules.node_order)
        return in_queues(policy, rules.queues).nodes
    return on


def distrusted(settings: Settings) -> list[Problem]:
    """Return problems about files named in the settings that other users own or may write (see `vrm.system.trust`)."""
    named = {"Applications.Path": settings.applications.path,
             "Applications.Queue": settings.applications.queue,
             "Applications.Heatmap": settings.applications.heatmap,
             "Scheduling.Calibrated": settings.scheduling.calibrated,
             "Hosts.File": settings.hosts.file,
             "Launcher.Mpirun": settings.launcher.mpirun}
    reasons = {key: distrust(path, settings.trust) for key, path in named.items()
               if path is not None and os.sep in str(path)}
    return [settings.problem(key, reason) for key, reason in reasons.items() if reason]


def prepare(settings: Settings, env: Mapping[str, str] | None = None, watch: bool = True
            ) -> Site:
    """Prepare everything that a live run needs, for the nodes that the environment (`env`, by default this process's)
    or the configuration names. With `watch` the agents on the nodes keep running, so that the manager can watch the
    nodes.

    Raises ConfigError, or RunError if the machine or the allocation lacks something.
    """
    problems = settings.check_files() or distrusted(settings)
    if problems:
        raise ConfigError(problems)
    env = os.environ if env is None else env
    try:
        allocation = find_allocation(env, settings.hosts.file)
    except AllocationError as error:
        raise RunError(str(error)) from error
    here = next((host for host in allocation.hosts if is_local(host, env)), "")
    reach = settings.hosts.reach
    attach = attach_command(env)
    # Numbers of cores on the nodes, if the batch system granted them without naming the cores.
    granted = allocation.cores if batch_system(env) == allocation.kind and watch else {}
    single = (here,) == allocation.hosts  # then this process itself holds the claims
    wanted = agent_gpu_orders(allocation, env, watch)
    agents = Agents(allocation.hosts, env=env, timeout=settings.hosts.timeout, attach=attach,
                    granted={} if single else granted, wanted={} if single else wanted,
                    **({"reach": reach} if isinstance(reach, str) else {"command": reach}))
    try:
        if single:
            found = {here: node_facts(agent.facts(str(granted.get(here, "")), wanted.get(here, {})), here)}
            failed: Mapping[str, str] = {}
        else:
            found, failed = agents.settle()
        wished = cluster_geometry(allocation.hosts, found, settings.nodes, settings.sockets,
                                  settings.cores, settings.emulate, allocation.cores, failed,
                                  {host: share.memory for host, share in allocation.shares.items()},
                                  stand_ins(env), gpus={host: share.gpus or 0 for host, share
                                                        in allocation.shares.items()}, threads=settings.threads)
        agents.drop(set(allocation.hosts) - {node.name for node in wished.nodes})
        nodes, told = declared(settings, wished.nodes)
        cluster = Cluster(nodes, settings.licences)
        scheduler = make_scheduler(settings, cluster)
        launcher = make_launcher(settings.launcher, emulated=wished.emulated,
                                 topologies=wished.topologies or None, base=env)
    except (TopologyError, LaunchError) as error:
        agents.close()
        raise RunError(str(error)) from error
    except BaseException:
        agents.close()
        raise
    scripts = ScriptLauncher.detect(settings.launcher, wished.emulated, wished.topologies, env)
    scripts.launcher = launcher
    if not wished.emulated:
        scripts.ways = {host: ((shutil.which(words[0], path=env.get("PATH")) or words[0], *words[1:]), shell)
                        for host, (words, shell) in agents.reached().items()}
    watched = watch and not wished.emulated
    if not watched:
        agents.close()
    watcher = NodeWatch(agents if watched else None, cluster, wished.topologies,
                        launcher.rank_variables, here, wished.gpus)
    room = make_room(settings, cluster, scheduler, declared(settings, wished.granted)[0],
                     whole_nodes(settings, wished, env))
    batch = around(env)
    visible = VisibleGpus(
        {node.name: gpus_of_node(node, wished.gpus) for node in nodes},
        list(settings.launcher.environment), not launcher.rank_variables,
        {host: share.gpus for host, share in allocation.shares.items() if share.gpus},
        batch.step_gpus if batch else lambda gpus: {})
    return Site(cluster, wished.emulated, scheduler, launcher, room,
                batch_job(env, allocation.runs),
                (lambda: end_of(allocation, env)) if allocation.job else None, watcher,
                agents.relay if not wished.emulated else None, (*wished.warnings, *told), Adoption(attach, env), visible,
                scripts, {host: facts.began for host, facts in found.items()})
