#!/usr/bin/env python3
"""What a queue of MPI jobs on two nodes each costs the centre, on real Slurm:

    python tests/benchmarks/load.py [--jobs 100] [--nodes 4] [--peers ENVIRONMENT] [--real] [--quick]    # as root, on the test cluster

The same jobs (a program that ends at once, on 2 nodes of 8 cores) are run in one batch job each: by vrm; by vrm with a step for
each job (`Hosts: {Steps: each}`); by shell loops that have as many mpiruns, or sruns, under way as fit; by GNU parallel with srun,
where it is installed; and by QCG-PilotJob and Parsl, where the virtual environment --peers has them (`pip install qcg-pilotjob
parsl`). HyperQueue is not among them: its wheel has no workers for other nodes.
--real: by vrm only, with nodes that have this machine's cores. The daemons of Open MPI 4.1 print where ranks are on made-up cores.

Prints a table: steps of the batch job, requests that slurmctld got (sdiag), files that the run left and their bytes; how often
files of the shared file system were opened on the nodes that have no batch script: all but those of the operating system; of programs
of the tool itself, most processes on such a node and most ports that they listen at; and seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import re
import select
import shutil
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

from support.testbed import LOGIN, Batch, Testbed  # noqa: E402
from vrm.live.nodes.topology import read_topology  # noqa: E402

ROOT = Path(__file__).parents[2]
LOOP = """\
export SLURM_OVERLAP=1 SLURM_TASKS_PER_NODE='8(x{nodes})' OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
seq {jobs} | xargs -P {pairs} -I JOB sh -c 'k=$((JOB % {pairs} * 2)); set -- {hosts}; shift $k
{command} /bin/true >{folder}/JOB.out 2>{folder}/JOB.err'
"""
PARALLEL = """\
seq {jobs} | parallel --no-notice -j {pairs} 'set -- {hosts}; shift $(( ({{%}} - 1) * 2 )); {command} /bin/true'\\
' >{folder}/{{}}.out 2>{folder}/{{}}.err'
"""
PARSL = """\
import sys
import parsl
from parsl.config import Config
from parsl.executors import MPIExecutor
from parsl.launchers import SimpleLauncher
from parsl.providers import LocalProvider
jobs, nodes, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
parsl.load(Config(run_dir=folder + "/runinfo", executors=[MPIExecutor(
    max_workers_per_block=nodes // 2, mpi_launcher="srun", address="127.0.0.1", provider=LocalProvider(
        nodes_per_block=nodes, init_blocks=1, max_blocks=1, launcher=SimpleLauncher()))]))
@parsl.bash_app
def job(stdout, stderr, parsl_resource_specification={}):
    return "env -u SLURM_TASKS_PER_NODE $PARSL_MPI_PREFIX /bin/true"
wanted = {"num_nodes": 2, "ranks_per_node": 8, "num_ranks": 16}
for each in [job(f"{folder}/{n}.out", f"{folder}/{n}.err", parsl_resource_specification=wanted) for n in range(jobs)]:
    each.result()
parsl.dfk().cleanup()
"""
OPEN_MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
COMMANDS = {"mpirun": "mpirun -H $1:8,$2:8 -np 16 --bind-to none",
            "srun": "env -u SLURM_TASKS_PER_NODE srun -N2 -n16 -c1 -w $1,$2 --quiet"}


def by_vrm(hosts: str, more: str = "") -> Callable[[Testbed, Batch, Path, int], int]:
    """A run of vrm with these settings of `Hosts`, and others; gives its exit status."""
    def run(testbed: Testbed, batch: Batch, folder: Path, jobs: int) -> int:
        (folder / "queue").write_text(f"true {2 * testbed.sockets * testbed.cores} 60 0\n" * jobs + "end\n")
        (folder / "vrm.yaml").write_text(
            f"Applications: {{Path: /bin, Queue: {folder}/queue}}\nAllocation: {{Policy: compact}}\n"
            f"Launcher: {{Kind: openmpi, AllowRoot: true}}\nHosts: {{{hosts}}}\n{more}Log: {folder}/log\n")
        return testbed.exec(batch.host, [sys.executable, "-m", "vrm.cli", "-c", folder / "vrm.yaml"],
                            env={**batch.env, "PYTHONPATH": str(ROOT)}, cwd=folder, timeout=3600).returncode
    return run


def by_loop(program: str) -> Callable[[Testbed, Batch, Path, int], int]:
    """A shell loop of one of COMMANDS; gives its exit status."""
    def run(testbed: Testbed, batch: Batch, folder: Path, jobs: int) -> int:
        script = LOOP.format(jobs=jobs, folder=folder, hosts=" ".join(batch.nodes), nodes=len(batch.nodes),
                             pairs=len(batch.nodes) // 2, command=COMMANDS[program])
        return testbed.exec(batch.host, ["bash", "-c", script], env=batch.env, timeout=3600).returncode
    return run


def by_parallel(testbed: Testbed, batch: Batch, folder: Path, jobs: int) -> int:
    """GNU parallel with an srun for each job; gives its exit status."""
    script = PARALLEL.format(jobs=jobs, folder=folder, hosts=" ".join(batch.nodes), pairs=len(batch.nodes) // 2,
                             command=COMMANDS["srun"])
    return testbed.exec(batch.host, ["bash", "-c", script], env=batch.env, timeout=3600).returncode


def by_qcg(peers: Path) -> Callable[[Testbed, Batch, Path, int], int]:
    """QCG-PilotJob with mpiruns, of one rank on each node: it sees the two cores of this machine. Gives its exit status."""
    def run(testbed: Testbed, batch: Batch, folder: Path, jobs: int) -> int:
        job = {"name": "j", "iteration": {"stop": jobs},
               "execution": {"exec": "/bin/true", "model": "openmpi", "stdout": f"{folder}/${{it}}.out", "stderr": f"{folder}/${{it}}.err"},
               "resources": {"numNodes": {"exact": 2}, "numCores": {"exact": 1}}}
        (folder / "jobs.json").write_text(json.dumps([{"request": "submit", "jobs": [job]},
                                                      {"request": "control", "command": "finishAfterAllTasksDone"}]))
        return testbed.exec(batch.host, [peers / "bin" / "qcg-pm-service", "--wd", folder, "--file-path", folder / "jobs.json"], cwd=folder, timeout=3600,
                            env={**batch.env, **OPEN_MPI, "PATH": f"{peers}/bin:{batch.env['PATH']}"}).returncode
    return run


def by_parsl(peers: Path) -> Callable[[Testbed, Batch, Path, int], int]:
    """Parsl with an srun for each job; gives its exit status."""
    def run(testbed: Testbed, batch: Batch, folder: Path, jobs: int) -> int:
        (folder / "script.py").write_text(PARSL)
        return testbed.exec(batch.host, [peers / "bin" / "python", folder / "script.py", jobs, len(batch.nodes), folder], cwd=folder,
                            timeout=3600, env={**batch.env, **OPEN_MPI, "PATH": f"{peers}/bin:{batch.env['PATH']}"}).returncode
    return run


class Watch(threading.Thread):
    """Looks from outside at what a tool has on its nodes, until it is told to `stop`: most processes on one without the batch
    script, and most ports."""

    def __init__(self, testbed: Testbed, batch: Batch) -> None:
        super().__init__()
        self.nodes = {node: testbed._inside[node].pid for node in batch.nodes}
        self.host = batch.host
        self.over = threading.Event()
        self.before = {node: set(self.processes(node)) for node in self.nodes}
        self.most = self.ports = 0

    def processes(self, node: str) -> list[str]:
        """Those of a node, by their numbers there; but those of MPI and of Slurm."""
        found = []
        for each in Path(f"/proc/{self.nodes[node]}/root/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                name = (each / "comm").read_text().strip()
                if not name.startswith(("slurm", "srun", "mpirun", "orted", "true", "sshd", "munged", "sleep")):
                    found.append(each.name)
        return found

    def listened(self, node: str, processes: set[str]) -> int:
        """The ports at which these processes listen."""
        proc = Path(f"/proc/{self.nodes[node]}/root/proc")
        sockets = set()
        for each in processes:
            with contextlib.suppress(OSError):  # it has ended
                for file in os.listdir(proc / each / "fd"):
                    with contextlib.suppress(OSError):
                        sockets.add(os.readlink(proc / each / "fd" / file))
        lines = [line.split() for name in ("tcp", "tcp6") for line in (proc / "1" / "net" / name).read_text().splitlines()[1:]]
        return sum(f"socket:[{words[9]}]" in sockets for words in lines if words[3] == "0A")

    def run(self) -> None:
        while not self.over.wait(0.5):
            ports = 0
            for node in self.nodes:
                own = set(self.processes(node)) - self.before[node]
                ports += self.listened(node, own)
                if node != self.host:
                    self.most = max(self.most, len(own))
            self.ports = max(self.ports, ports)

    def stop(self) -> str:
        """The columns."""
        self.over.set()
        self.join()
        return f"{self.most} | {self.ports}"


class Opens(threading.Thread):
    """Counts how often files are opened on the nodes of a batch job but its first, until it is told to `stop`; not those of
    directories that each node of a cluster has on a disk of its own, and not Slurm's."""

    LOCAL = re.compile(r"/(?:bin|boot|dev|etc|lib\w*|opt|proc|root/\.pyenv|run|sbin|sys|usr|var)(?:/|$)|$")
    ON_MOUNT, OPENED = 0x11, 0x20  # FAN_MARK_ADD of a mount, FAN_OPEN

    def __init__(self, testbed: Testbed, batch: Batch) -> None:
        super().__init__()
        libc = ctypes.CDLL(None, use_errno=True)
        self.seen = 0
        self.slurm = os.fspath(testbed.directory)
        self.over = threading.Event()
        self.queue = libc.fanotify_init(0x1 | 0x10, os.O_RDONLY | os.O_CLOEXEC)
        for node in batch.nodes:
            if node != batch.host:
                path = os.fsencode(f"/proc/{testbed._inside[node].pid}/root/")
                if self.queue < 0 or libc.fanotify_mark(self.queue, self.ON_MOUNT, ctypes.c_uint64(self.OPENED), -100, path):
                    raise OSError(ctypes.get_errno(), "fanotify")

    def run(self) -> None:
        while not self.over.is_set():
            if not select.select([self.queue], [], [], 0.2)[0]:
                continue
            data = memoryview(os.read(self.queue, 1 << 16))
            while data:
                length, _, _, _, _, file, _ = struct.unpack_from("IBBHQii", data)
                data = data[length:]
                with contextlib.suppress(OSError):
                    path = os.readlink(f"/proc/self/fd/{file}")
                    self.seen += not self.LOCAL.match(path) and not path.startswith(self.slurm)
                os.close(file)

    def stop(self) -> int:
        """How many there were."""
        self.over.set()
        self.join()
        os.close(self.queue)
        return self.seen


def steps_of(testbed: Testbed, batch: Batch) -> int:
    """How many steps a batch job has had: they are numbered."""
    return int(testbed.exec(batch.host, ["srun", "--overlap", "-N1", "-n1", "-w", batch.host, "printenv",
                                         "SLURM_STEP_ID"], env=batch.env, check=True).stdout)


def requests(testbed: Testbed) -> int:
    """The requests that slurmctld got since its counters were reset."""
    said = testbed.exec(LOGIN, ["sdiag"], check=True).stdout
    return sum(map(int, re.findall(r"^\t(?:REQUEST|MESSAGE)_\S+ +\( *\d+\) count:(\d+)", said, re.MULTILINE)))


def main() -> None:
    """Run all in turns, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--peers", type=Path, help="a virtual environment with other tools")
    parser.add_argument("--only", nargs="+", help="rows that begin so")
    parser.add_argument("--real", action="store_true", help="nodes with this machine's cores, by vrm only")
    parser.add_argument("--quick", action="store_true", help="four jobs, for a look")
    options = parser.parse_args()
    if options.quick:
        options.jobs = 4
    folder = Path(tempfile.mkdtemp(prefix="vrm-load-"))
    rows = [("vrm", by_vrm("Steps: shared")), ("vrm with an archive", by_vrm("", "Output: {Archive: true}\n")),
            ("vrm, a step for each job", by_vrm("Steps: each")), ("a loop of mpirun", by_loop("mpirun")),
            ("a loop of srun", by_loop("srun"))]
    rows += [("GNU parallel with srun", by_parallel)] * bool(shutil.which("parallel"))
    if options.peers:
        rows += [("QCG-PilotJob with mpirun", by_qcg(options.peers.absolute())), ("Parsl with srun", by_parsl(options.peers.absolute()))]
    if options.real:
        options.only = ["vrm"]
    if options.only:
        rows = [row for row in rows if row[0].startswith(tuple(options.only))]
    print("| | steps | requests to slurmctld | files left | KiB left | opened on other nodes | processes there | ports | s |\n|---|---|---|---|---|---|---|---|---|")
    try:
        sockets = read_topology().sockets
        cores = (len(sockets), len(sockets[0])) if options.real else (2, 4)
        with Testbed(options.nodes, *cores, synthetic=not options.real, directory=folder / "cluster") as testbed:
            for name, run in rows:
                place = folder / name.replace(" ", "-").replace(",", "")
                place.mkdir()
                with testbed.allocation(options.nodes, "--exclusive") as batch:
                    testbed.exec(LOGIN, ["sdiag", "-r"], check=True)
                    watch, opens = Watch(testbed, batch), Opens(testbed, batch)
                    watch.start()
                    opens.start()
                    start = time.monotonic()
                    code = run(testbed, batch, place, options.jobs)
                    seconds, asked, found, opened = time.monotonic() - start, requests(testbed), watch.stop(), opens.stop()
                    files = [os.path.join(where, each) for where, _, names in os.walk(place) for each in names]
                    size = sum(os.lstat(file).st_size for file in files) / 1024
                    row = f"{steps_of(testbed, batch)} | {asked} | {len(files)} | {size:.0f} | {opened} | {found} | {seconds:.1f} |"
                print(f"| {name}{f' (exit status {code})' * bool(code)} | {row}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
