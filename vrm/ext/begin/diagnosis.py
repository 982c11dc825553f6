"""`vrm doctor`: reports what is found on this machine, what is wrong, and how to fix it.

It only looks, and runs mpirun once in the way a job would be started; it changes nothing.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from collections.abc import Mapping, Sequence

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

from vrm.config.policies import make_scheduler
from vrm.config.problems import ConfigError, Problem
from vrm.config.schema import NO_CONFIG, Settings, load
from vrm.live.batch.allocation import Allocation, find_allocation
from vrm.live.batch.base import AllocationError
from vrm.live.launch.base import LaunchError, make_launcher
from vrm.live.launch.environment import own_programs
from vrm.ext.begin.quota import cpu_quota
from vrm.live.runner import agent
from vrm.live.nodes.agents import probe
from vrm.live.nodes.geometry import cluster_geometry
from vrm.live.nodes.topology import Gpu, NodeFacts, Topology, TopologyError, node_facts, read_topology
from vrm.live.site.classes import declared
from vrm.live.site.gpu_orders import agent_gpu_orders, stand_ins
from vrm.live.site.programs import application_fault
from vrm.live.site.setup import describe, distrusted
from vrm.model import Cluster, Node
from vrm.run.rundir import RunDirectory
from vrm.scheduling import make_policy
from vrm.system import bash_env
from vrm.system.files import write_new
from vrm.system.printing.text import printable_lines

TRIAL_SECONDS = 30.0


@dataclass(frozen=True)
class Finding:
    """The result of one check; `level` is ok, note or wrong, `mend` says how to fix it."""

    level: str
    what: str
    text: str
    mend: str = ""

    @property
    def wrong(self) -> bool:
        """True if this prevents jobs from running."""
        return self.level == "wrong"

    def __str__(self) -> str:
        line = f"{self.level:<5}  {self.what:<13} {self.text}"
        return printable_lines(line + (f"\n{'':20} -> {self.mend}" if self.mend else ""))


def faulty(findings: list[Finding], problems: Sequence[Problem]) -> list[Finding]:
    """Return the findings with these problems of the configuration, which was `ok` until now."""
    return [*(each for each in findings if (each.level, each.what) != ("ok", "config")),
            *(Finding("wrong", "config", str(problem)) for problem in problems)]


def examine(config: str | None) -> list[Finding]:
    """Check everything that a run needs, in the order in which it needs it."""
    findings = [Finding("ok", "python", f"{platform.python_version()} on Linux "
                                        f"{platform.release()}")]
    try:
        settings = load(config)
    except ConfigError as error:  # all other checks depend on it
        return faulty(findings, error.problems)
    findings.append(Finding("ok", "config", config or NO_CONFIG))
    problems = settings.check_files() or distrusted(settings)
    if problems:
        findings = faulty(findings, problems)
    findings = _machine(settings, findings)
    findings += _mpirun(settings)
    findings += login_shell(os.environ)
    findings += _programs(settings)
    findings += _files(settings)
    return findings


def _machine(settings: Settings, findings: list[Finding]) -> list[Finding]:
    """Return the findings with those of the nodes added, and whether the configuration fits them."""
    try:
        topology = read_topology()
    except TopologyError as error:
        return [*findings, Finding("wrong", "topology", str(error), "name Nodes, Sockets and Cores")]
    findings = [*findings, Finding("ok", "topology", _shape(topology))]
    quota = cpu_quota()
    if quota is not None and quota < topology.cores:
        findings.append(Finding(
            "note", "CPU quota", f"this container may use {quota:g} CPUs' time of "
            f"{topology.cores} cores; ranks on all cores will be slowed down",
            f"set Cores so that all cores together are {int(quota) or 1}"))
    try:
        allocation = find_allocation(os.environ, settings.hosts.file)
    except AllocationError as error:
        return [*findings, Finding("wrong", "allocation", str(error))]
    findings.append(Finding("ok", "allocation", _owned(allocation)))
    try:
        found, failed = ask_nodes(allocation, settings)
    except TopologyError as error:
        return [*findings, Finding("wrong", "node", str(error))]
    for host in allocation.hosts:
        findings += _node(host, found.get(host), failed.get(host, ""))
    try:
        wished = cluster_geometry(allocation.hosts, found, settings.nodes, settings.sockets,
                                  settings.cores, settings.emulate, allocation.cores, failed,
                                  {host: share.memory for host, share in allocation.shares.items()},
                                  stand_ins(os.environ), threads=settings.threads)
    except TopologyError as error:
        return [*findings, Finding("wrong", "cluster", str(error))]
    said = {f"{host} is left out: {reason}" for host, reason in failed.items()}
    nodes, told = declared(settings, wished.nodes)
    findings += [Finding("note", "cluster", warning) for warning in (*wished.warnings, *told)
                 if warning not in said]
    try:
        make_scheduler(settings, Cluster(nodes, settings.licences))
    except ConfigError as error:
        return faulty(findings, error.problems)
    return [*findings, Finding("note" if wished.emulated else "ok", "cluster",
                               describe(settings, nodes, wished.emulated))]


def _owned(allocation: Allocation) -> str:
    """Return as text where the nodes come from, and for how long."""
    if allocation.kind == "machine":
        return "none; this machine alone"
    names = NodeSet.fromlist(allocation.hosts, resolver=RESOLVER_NOGROUP)
    job = f" job {allocation.job}" if allocation.job else ""
    text = f"{allocation.kind}{job}, {len(allocation.hosts)} node(s): {names}"
    if allocation.end is None:
        return f"{text}, no known end"
    left = max(0.0, allocation.end - time.time())
    return (f"{text}, until {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(allocation.end))} "
            f"(in {timedelta(seconds=round(left))})")


def ask_nodes(allocation: Allocation, settings: Settings
              ) -> tuple[dict[str, NodeFacts], dict[str, str]]:
    """Return the facts of the nodes of an allocation that answer, and the reasons of the others; for this machine
    alone no agent is started."""
    wanted = agent_gpu_orders(allocation, os.environ, claim=False)
    if allocation.kind == "machine":
        said = node_facts(agent.facts("", wanted[allocation.hosts[0]]), allocation.hosts[0])
        return {allocation.hosts[0]: said}, {}
    reach = settings.hosts.reach
    command = () if isinstance(reach, str) else reach
    return probe(allocation.hosts, reach if isinstance(reach, str) else "auto", os.environ,
                 settings.hosts.timeout, command, wanted)


def _node(host: str, facts: NodeFacts | None, reason: str) -> list[Finding]:
    if facts is None:
        return [Finding("note", "node", f"{host} is left out: {reason}",
                        "see whether it answers by hand; Hosts.Reach says how it is asked")]
    sockets = facts.topology.node.sockets
    parts = [f"{len(sockets)} socket(s) of {'+'.join(map(str, sockets))} core(s)"
             + ", emulated (HWLOC_SYNTHETIC)" * facts.topology.synthetic,
             f"{facts.available / 2**30:.0f} of {facts.memory / 2**30:.0f} GiB free"
             + f", limited to {facts.limit / 2**30:.1f} GiB" * bool(facts.limit)]
    parts += [_gpus(facts)] * bool(facts.gpus)
    lacking = [Finding("note", "GPUs", f"{host}: {facts.lacking}",
                       "see what the batch system gives this job, and which other programs run there")
               ] if facts.lacking else []
    return [Finding("ok", "node", f"{host}: {', '.join(parts)}"), *lacking]


def _gpus(facts: NodeFacts) -> str:
    """Return a text such as `2 GPU(s): nvidia0 (socket 0, GPU-0123), nvidia1`."""
    def of(gpu: Gpu) -> str:
        more = [f"socket {gpu.socket}"] * (gpu.socket >= 0) + [gpu.uuid] * bool(gpu.uuid)
        return gpu.name + (f" ({', '.join(more)})" if more else "")

    return f"{len(facts.gpus)} GPU(s): {', '.join(map(of, facts.gpus))}"


def _shape(topology: Topology) -> str:
    sockets = topology.node.sockets
    cpus = len(os.sched_getaffinity(0))
    return (f"{len(sockets)} socket(s) of {'+'.join(map(str, sockets))} usable core(s); this "
            f"process may use {cpus} of {os.cpu_count()} CPUs")


def _mpirun(settings: Settings) -> list[Finding]:
    try:
        launcher = make_launcher(settings.launcher)
    except LaunchError as error:
        return [Finding("wrong", "mpirun", str(error))]
    found = ", ".join(filter(None, (launcher.mpirun, launcher.version_text)))
    findings = [Finding("ok", "mpirun", found), *_other_mpis(settings, launcher.mpirun)]
    with tempfile.TemporaryDirectory(prefix="vrm-doctor-") as folder:
        node = read_topology().node
        cluster = Cluster([Node(node.name, node.sockets[:1])])
        from vrm.model import Job
        placement = make_policy("compact", cluster).place(Job(0, "true", 1, 1.0), cluster)
        assert placement, "the node is empty"
        launch = launcher.command(0, Path(shutil.which("true") or "/bin/true"),
                                  list(placement.slots(cluster.nodes)), cluster.nodes,
                                  Path(folder) / "true.0.rf")
        for path, text in launch.files.items():
            write_new(path, text)
        start, bound = time.monotonic(), launch.affinity
        try:
            done = subprocess.run(launch.argv, env=dict(launch.env), cwd=folder, check=False,
                                  stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  timeout=TRIAL_SECONDS, preexec_fn=None if not bound
                                  else lambda: os.sched_setaffinity(0, bound))
        except subprocess.TimeoutExpired:
            return [*findings, Finding("wrong", "trial job", "one rank of `true` did not end "
                                       f"within {TRIAL_SECONDS:g} s: {' '.join(launch.argv)}",
                                       "start this command by hand and see where it waits")]
        except OSError as error:
            return [*findings, Finding("wrong", "trial job", f"{launch.argv[0]}: {error}")]
    took = 1000 * (time.monotonic() - start)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip(" -")]
        return [*findings, Finding("wrong", "trial job",
                                   f"exit {done.returncode}: {' '.join(lines[:3])}")]
    return [*findings, Finding("ok", "trial job", f"one rank of `true` took {took:.0f} ms")]


def _other_mpis(settings: Settings, used: str) -> list[Finding]:
    """Return a note on other mpiruns that are found, and why vrm uses this one."""
    name = os.path.basename(used)
    folders = [*filter(None, os.environ.get("PATH", os.defpath).split(os.pathsep)), own_programs()]
    found = {os.path.realpath(path): path for path in (shutil.which(name, path=each) for each in reversed(folders))
             if path}
    found.pop(os.path.realpath(used), None)
    if not found:
        return []
    why = (f"Launcher.Mpirun: {settings.launcher.mpirun}" if settings.launcher.mpirun != "auto" else
           "it is the first usable one on PATH; that of vrm's own Python comes last")
    return [Finding("note", name, f"there is also {', '.join(reversed(found.values()))}. vrm uses {used}: {why}",
                    "programs need the MPI that they were built with; `Launcher: {Mpirun: PATH}` chooses another one")]


def login_shell(env: Mapping[str, str]) -> list[Finding]:
    """Check that scripts that begin with `#!/bin/bash -l` find vrm's commands after this user's profiles."""
    bash = shutil.which("bash")
    if not bash:
        return []
    with tempfile.TemporaryDirectory(prefix="vrm-doctor-") as name:
        folder = Path(name)
        (folder / "srun").touch(0o700)
        (folder / bash_env.FILE).write_text(bash_env.text([folder]), encoding="utf-8")
        path = os.pathsep.join((name, env.get("PATH", os.defpath)))
        try:
            done = subprocess.run([bash, "-l", "-c", "command -v srun"], stdin=subprocess.DEVNULL, capture_output=True,
                                  text=True, timeout=TRIAL_SECONDS, check=False, cwd=name,
                                  env={**env, "PATH": path, **bash_env.variables(folder, env)})
            found = done.stdout.split()[-1:]
        except subprocess.TimeoutExpired:
            return [Finding("note", "login shell", f"`bash -l` did not end within {TRIAL_SECONDS:g} s",
                            "scripts that begin with #!/bin/bash -l wait, too: see what your profile does")]
    if found == [str(folder / "srun")]:
        return [Finding("ok", "login shell", "`bash -l` finds vrm's srun")]
    return [Finding("note", "login shell", f"`bash -l` finds {'no srun' if not found else found[0]} instead of vrm's",
                    "see which of your profiles sets PATH or unsets BASH_ENV; or leave out -l in scripts")]


def _programs(settings: Settings) -> list[Finding]:
    path = settings.applications.path
    found = shutil.which("mpicc")
    compiler = Finding("ok", "mpicc", found) if found else Finding(
        "note", "mpicc", "none on PATH; only needed to build programs")
    try:
        names = sorted(entry.name for entry in os.scandir(path) if entry.is_file())
    except OSError as error:
        return [compiler, Finding("wrong", "programs", f"{path}: {error.strerror}",
                                  "set Applications.Path to the directory of your programs, or "
                                  "build the bundled ones: vrm npb build")]
    usable = [name for name in names if not application_fault(path, name)]
    if not usable:
        return [compiler, Finding("wrong", "programs", f"no executable file in {path}",
                                  "build the bundled ones: vrm npb build")]
    shown = ", ".join(usable[:6]) + (f" and {len(usable) - 6} more" if len(usable) > 6 else "")
    return [compiler, Finding("ok", "programs", f"{len(usable)} in {path}: {shown}")]


def _files(settings: Settings) -> list[Finding]:
    queue = settings.applications.queue
    findings = [Finding("ok", "queue file", str(queue)) if queue.exists() else Finding(
        "note", "queue file", f"{queue} is not there yet; a manager waits for it")]
    run = RunDirectory.of(settings)
    if run.directory.exists() and run.manager_runs():
        return [*findings, Finding("note", "manager", f"one runs on {run.directory}")]
    for name, place in (("outputs", run.log), ("run files", run.directory)):
        findings.append(_writable(name, place))
    left = sorted(run.pids.glob("[0-9]*")) if run.pids.exists() else []
    if left:
        findings.append(Finding("note", "markers", f"{len(left)} job(s) of a manager that died "
                                                   f"are marked as running in {run.pids}",
                                "start vrm with the same config: it follows them to their end"))
    return findings


def _writable(name: str, place: Path) -> Finding:
    """Check that files can be created in `place`, or in the nearest parent folder that exists."""
    nearest = place
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        return Finding("wrong", name, f"cannot write in {nearest}",
                       "set Log, State or Directory to a place you may write to")
    free = shutil.disk_usage(nearest).free / 2**30
    return Finding("ok" if free > 1 else "note", name, f"{place} ({free:.0f} GiB free)")
