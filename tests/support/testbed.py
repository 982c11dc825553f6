"""A small cluster on this machine, for tests: nodes are namespaces with their own host name,
network, processes and mounts, each with sshd and slurmd; the node `login` runs slurmctld.

All nodes see this machine's files (but have their own `/run`, `/dev/shm` and TMPDIR) and share
its real cores; HWLOC_SYNTHETIC shows S sockets of C cores on each to Open MPI's mapper. In a test:

    def test_it(testbed):                            # shared by the session, 8 nodes of 2 x 4
        done = testbed.exec("login", ["mpirun", "-H", "n0:1,n1:1", "hostname"])

    with Testbed(nodes=2, slurm=False) as testbed: ...   # an own one

By hand, as root (`--name`, or VRM_TESTBED in the environment, distinguishes several clusters):

    python tests/support/testbed.py up 8 [--sockets 2] [--cores 4] [--no-slurm] [--real] [--name NAME]
    python tests/support/testbed.py exec NODE COMMAND ...    # on n0, n1, ... or login
    python tests/support/testbed.py kill|cut|join|restart NODE
    python tests/support/testbed.py down

Nothing is left when it ends, even by SIGKILL: the kernel ends a node with its first process, and
that with the process that started it. No interface or address of the machine is used.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import (Any)
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

LOGIN = "login"
LIMIT = 60.0
"""Seconds within which the cluster must start."""

FIRST_ACCOUNT = 64001
"""User id of the first account of a cluster; the machine has no such user."""

PROGRAMS = {"unshare": "util-linux", "setpriv": "util-linux", "mount": "mount",
            "ip": "iproute2", "ss": "iproute2", "ssh": "openssh-client",
            "ssh-keygen": "openssh-client", "sshd": "openssh-server", "mpirun": "openmpi-bin"}
SLURM_PROGRAMS = {"munged": "munge", "slurmd": "slurm-wlm", "slurmctld": "slurm-wlm",
                  "sinfo": "slurm-wlm"}
ACCOUNTING_PROGRAMS = {"slurmdbd": "slurmdbd", "mariadbd": "mariadb-server", "mariadb-admin": "mariadb-client"}
"""Required programs, and the Debian packages that contain them."""

PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))

SSH_CONFIG = """\
Host *
  IdentityFile {dir}/id
  IdentitiesOnly yes
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  PreferredAuthentications publickey
  KexAlgorithms curve25519-sha256
  Ciphers aes128-gcm@openssh.com
  AddressFamily inet
  LogLevel ERROR
"""

SSHD_CONFIG = """\
HostKey {dir}/hostkey
AuthorizedKeysFile {dir}/id.pub
PermitRootLogin yes
StrictModes no
UsePAM no
UseDNS no
PidFile /run/sshd.pid
MaxStartups 500
MaxSessions 500
Subsystem sftp internal-sftp
SetEnv {variables}
"""

SLURM_CONF = """\
ClusterName=testbed
SlurmctldHost=login
SlurmUser=root
AuthType=auth/munge
StateSaveLocation={dir}/slurmctld
SlurmdSpoolDir=/run/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={dir}/slurmctld.log
SlurmdLogFile={dir}/%h.slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin={task}
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
SlurmdTimeout=20
InactiveLimit=0
KillWait=1
MinJobAge=60
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0
NodeName=n[0-{last}] Sockets={sockets} CoresPerSocket={cores} ThreadsPerCore=1 RealMemory=2000
PartitionName=compute Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""

ACCOUNTING_CONF = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=login
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=0
MessageTimeout=60
"""

SLURMDBD_CONF = """\
AuthType=auth/munge
DbdHost=login
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
PidFile=/run/slurmdbd.pid
LogFile={dir}/slurmdbd.log
CommitDelay=0
"""

# Slurm's accounting, in an own database, which is made at the first start. $1: the cluster's directory.
ACCOUNTING = """\
set -e
dir=$1
mkdir -p /run/mysqld
if [ ! -d "$dir/mysql" ]; then
  mariadb-install-db --no-defaults --user=root --datadir="$dir/mysql" --auth-root-authentication-method=normal \\
    --skip-test-db >"$dir/mysql.log" 2>&1
fi
mariadbd --no-defaults --user=root --datadir="$dir/mysql" --socket=/run/mysqld/mysqld.sock --skip-networking \\
  --pid-file=/run/mysqld/pid --skip-log-bin --skip-grant-tables --innodb-flush-log-at-trx-commit=0 --innodb-buffer-pool-size=32M \\
  --innodb-log-file-size=16M >>"$dir/mysql.log" 2>&1 &
until mariadb-admin --no-defaults --socket=/run/mysqld/mysqld.sock ping >/dev/null 2>&1; do sleep 0.05; done
slurmdbd
until sacctmgr -i -Q add cluster testbed >>"$dir/sacctmgr.log" 2>&1 || sacctmgr -n list cluster | grep -q testbed
do sleep 0.05; done
"""

# The first process of a node. It prints `ready` when its network can be added, and `up` when its
# daemons run; then it waits for orphaned processes, as the first process of a machine must.
NODE = """\
set -e
name=$1 address=$2 dir=$3 home=$4 slurm=$5
hostname "$name"
mount --bind "$dir/hosts" /etc/hosts
mount --bind "$dir/passwd" /etc/passwd
mount --bind "$dir/ssh_config" /etc/ssh/ssh_config
[ ! -d "$home/.ssh" ] || mount -t tmpfs -o mode=700 tmpfs "$home/.ssh"
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mkdir -p /run/sshd /run/munge /run/slurmd /run/lock /run/tmp
chmod 1777 /run/tmp
echo ready
read -r go
ip -batch - <<END
link set lo up
address add $address/16 dev eth0
link set eth0 up
END
"$(command -v sshd)" -f "$dir/sshd_config" -E "$dir/$name.sshd.log"
if [ -n "$slurm" ]; then
  [ ! -d /etc/slurm ] || mount --bind "$dir/etc" /etc/slurm  # for who has lost SLURM_CONF
  cp "$dir/munge.key" /run/munge/key
  munged --force --key-file /run/munge/key --seed-file /run/munge/seed \\
    --pid-file /run/munge/pid --log-file "$dir/$name.munged.log" --num-threads 2
  if [ "$name" = login ]; then
    if [ -e "$dir/accounting.sh" ]; then sh "$dir/accounting.sh" "$dir"; fi
    slurmctld
  else slurmd
  fi
fi
echo up
exec </dev/null >/dev/null
sleep infinity &
wait
"""


SWITCH = """\
set -e
ip link add name switch type bridge
ip link set switch up
echo ready
exec sleep infinity </dev/null >/dev/null
"""


class TestbedError(Exception):
    """The cluster does not start; the text has the messages of its daemons."""


def missing(slurm: bool = True, accounting: bool = False) -> str:
    """Return why there can be no testbed here; "" if there can."""
    if sys.platform != "linux":
        return "the testbed needs Linux"
    if os.geteuid() != 0:
        return "the testbed needs root"
    wanted = {**PROGRAMS, **(SLURM_PROGRAMS if slurm else {}), **(ACCOUNTING_PROGRAMS if accounting else {})}
    packages = sorted({package for program, package in wanted.items()
                       if not shutil.which(program, path=PATH)})
    if packages:
        return f"the testbed needs the packages {' '.join(packages)}"
    tried = subprocess.run(
        ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c",
         "mount -t tmpfs tmpfs /run && ip link add name br0 type bridge && "
         "ip link add name eth0 type veth"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        check=False, timeout=LIMIT, env={"PATH": PATH})
    return (f"the testbed needs namespaces, bridges and veths: {tried.stderr.strip()}"
            if tried.returncode else "")


class Namespaces:
    """The namespaces of a process, to start programs in: a node, or the switch, which has only a network."""

    KINDS = {"net": 0x40000000, "uts": 0x04000000, "mnt": 0x00020000, "pid": 0x20000000}

    def __init__(self, pid: int, kinds: Sequence[str] = ("net", "uts", "mnt", "pid")) -> None:
        self.pid = pid
        self.files = {kind: os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
                      for kind in kinds}

    def close(self) -> None:
        """Close the files of the namespaces."""
        for file in self.files.values():
            os.close(file)
        self.files = {}

    def popen(self, argv: Sequence[str], cwd: str, **arguments: Any) -> subprocess.Popen[Any]:
        """Start a program in the namespaces as a child of this process, which gets the program's exit status."""
        def enter() -> None:
            for kind, file in self.files.items():
                if kind != "pid":
                    _setns(file, self.KINDS[kind])
            os.chdir(cwd)

        if "pid" not in self.files:
            return subprocess.Popen(argv, preexec_fn=enter, **arguments)
        own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _setns(self.files["pid"], self.KINDS["pid"])  # for the children from now on
            try:
                return subprocess.Popen(argv, preexec_fn=enter, **arguments)
            finally:
                _setns(own, self.KINDS["pid"])
        finally:
            os.close(own)


_libc = ctypes.CDLL(None, use_errno=True)


def _setns(file: int, kind: int) -> None:
    if _libc.setns(file, kind):
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


@dataclass(frozen=True)
class Batch:
    """A running batch job: its id, the environment inside it, and its nodes."""

    job: str
    env: Mapping[str, str]
    nodes: tuple[str, ...]

    @property
    def host(self) -> str:
        """The node where the batch script runs."""
        return self.nodes[0]


class Testbed:
    """The cluster: `nodes` nodes n0, n1, ... of `sockets` sockets of `cores` cores, and `login`.

    With `synthetic`, hwloc shows these cores (HWLOC_SYNTHETIC) and Slurm binds nothing; otherwise
    programs see the machine's own cores, which must be as many, and Slurm binds to them.
    Slurm allocates `gpus` GPUs per node, which are represented by files. `accounts` are ordinary users with
    homes in the cluster's directory (which they must be able to reach) and the same ssh key.
    With `accounting`, Slurm keeps records of jobs, which sacct shows (ACCOUNTING_PROGRAMS).
    `env` is the environment of a user on all nodes. Use the class as a context manager, in the main
    thread: a node ends with the thread that started it.
    """

    __test__ = False  # not a test, for pytest

    def __init__(self, nodes: int = 4, sockets: int = 2, cores: int = 4, slurm: bool = True,
                 synthetic: bool = True, directory: Path | None = None, gpus: int = 0,
                 accounts: Sequence[str] = (), accounting: bool = False) -> None:
        self.nodes = tuple(f"n{i}" for i in range(nodes))
        self.sockets = sockets
        self.cores = cores
        self.slurm = slurm
        self.synthetic = synthetic
        self.directory = directory
        self.gpus = gpus
        self.accounting = accounting
        self.accounts = {name: FIRST_ACCOUNT + number for number, name in enumerate(accounts)}
        self.env: dict[str, str] = {}
        self._switch: Namespaces | None = None
        self._inside: dict[str, Namespaces] = {}
        self._holders: dict[str, subprocess.Popen[str]] = {}
        self._started: dict[str, list[subprocess.Popen[Any]]] = {}

    def __enter__(self) -> Testbed:
        try:
            self._write_files()
            self._start_switch()
            self._start((LOGIN, *self.nodes))
            if self.slurm:
                self.wait_for_slurm(self.nodes)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # Use.

    def home_of(self, account: str) -> Path:
        """The home directory of an account."""
        return Path(f"{self.directory}/home", account)

    def popen(self, node: str, argv: Sequence[object], env: Mapping[str, str] | None = None,
              cwd: object = "/", **arguments: Any) -> subprocess.Popen[Any]:
        """Start a program on a node (or `login`), as a child of this process: signals and the
        exit status are the program's own. `env` is added to the user's environment there."""
        started = self._inside[node].popen(
            [str(word) for word in argv], str(cwd), env={**self.env, **(env or {})},
            **{"stdin": subprocess.DEVNULL, **arguments})
        running = [p for p in self._started.get(node, ()) if p.poll() is None]
        self._started[node] = [*running, started]
        return started

    def exec(self, node: str, argv: Sequence[object], env: Mapping[str, str] | None = None,
             cwd: object = "/", timeout: float = LIMIT, check: bool = False
             ) -> subprocess.CompletedProcess[str]:
        """Run a program on a node (or `login`) to its end; return its exit status, output and errors
        as text. Raises subprocess.TimeoutExpired after killing it, and with `check` TestbedError if it fails."""
        process = self.popen(node, argv, env, cwd, text=True, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE)
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        done = subprocess.CompletedProcess(process.args, process.returncode, output, errors)
        if check and done.returncode:
            raise TestbedError(f"{' '.join(map(str, argv))} on {node}: exit status "
                               f"{done.returncode}: {errors or output}")
        return done

    def kill(self, node: str) -> None:
        """Power a node off: it disappears from the network without closing its connections."""
        self._switch_ip([f"link del {node}"])
        self._end(node)

    def cut(self, node: str) -> None:
        """Disconnect a node from the network; its processes continue."""
        self._switch_ip([f"link set {node} down"])

    def join(self, node: str) -> None:
        """Reconnect a node to the network."""
        self._switch_ip([f"link set {node} up"])

    def restart(self, node: str) -> None:
        """Restart a node, which may be running, disconnected or powered off."""
        self.kill(node) if node in self._inside else None
        self._start([node])
        if self.slurm and node != LOGIN:
            self.wait_for_slurm([node])

    def alive(self, node: str) -> bool:
        """Return whether a node is powered on."""
        return node in self._inside

    def pids(self, node: str) -> dict[int, str]:
        """Return the processes on a node: command lines by process id on the node."""
        found = {}
        for entry in Path(f"/proc/{self._inside[node].pid}/root/proc").glob("[0-9]*"):
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:  # it has ended meanwhile
                continue
            found[int(entry.name)] = line.strip()
        return found

    @contextmanager
    def allocation(self, nodes: int, *options: str) -> Iterator[Batch]:
        """Run a batch job of this many nodes, with one task on all cores of each node; end it afterwards.
        A program that is started on its host with its environment is inside the job."""
        where, script = self.directory, (
            '#!/bin/sh\nenv -0 >"$1.new" && mv "$1.new" "$1.$SLURM_JOB_ID"\nexec sleep infinity\n')
        Path(f"{where}/batch").write_text(script)
        job = self.exec(LOGIN, [
            "sbatch", "--parsable", "-N", nodes, "--ntasks-per-node=1", "-c",
            self.sockets * self.cores, "--no-kill", "-o", f"{where}/batch.log", *options,
            f"{where}/batch", f"{where}/batch"], check=True).stdout.strip()
        try:
            file = Path(f"{where}/batch.{job}")
            self._until(file.exists, "the batch job to start")
            env = dict(pair.split("=", 1) for pair in file.read_text().split("\0") if pair)
            hosts = self.exec(LOGIN, ["scontrol", "show", "hostnames", env["SLURM_JOB_NODELIST"]])
            yield Batch(job, env, tuple(hosts.stdout.split()))
        finally:
            self.exec(LOGIN, ["scancel", job])
            self._until(lambda: not self.exec(LOGIN, ["squeue", "-h", "-j", job]).stdout.strip(),
                        "the batch job to end")

    def wait_for_slurm(self, nodes: Iterable[str]) -> None:
        """Wait until Slurm could start jobs on these nodes (they may be busy)."""
        wanted = ",".join(nodes)

        def there() -> bool:
            done = self.exec(LOGIN, ["sinfo", "-h", "-N", "-n", wanted, "-o", "%n %T"])
            states = dict(line.split() for line in done.stdout.splitlines())
            for name in states:
                if "down" in states[name]:
                    self.exec(LOGIN, ["scontrol", "update", f"NodeName={name}", "State=RESUME"])
            return set(states.values()) <= {"idle", "mixed", "allocated"} and bool(states)

        self._until(there, f"Slurm to have {wanted}")

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + LIMIT
        while True:
            asked = time.monotonic()
            if condition():
                return
            now = time.monotonic()
            if now > end:
                raise TestbedError(f"waited in vain for {what}:\n{self._logs()}")
            time.sleep(max(0.02, 2 * (now - asked)))  # do not load the machine with queries

    # Starting and ending.

    def _write_files(self) -> None:
        if self.directory is None:
            self.directory = Path(tempfile.mkdtemp(prefix="vrm-testbed."))
        where = self.directory
        where.mkdir(mode=0o700, exist_ok=True)
        if self.accounts:
            where.chmod(0o711)
            self.home_of("").mkdir(mode=0o755)
        for name, uid in self.accounts.items():
            self.home_of(name).mkdir(mode=0o700)
            os.chown(self.home_of(name), uid, uid)
        (where / "slurmctld").mkdir()
        user = pwd.getpwuid(0)
        self.home = user.pw_dir
        shown = {"PATH": PATH, "TMPDIR": "/run/tmp"}
        if self.slurm:
            shown["SLURM_CONF"] = f"{where}/slurm.conf"
        if self.synthetic:
            shown["HWLOC_SYNTHETIC"] = f"pack:{self.sockets} core:{self.cores} pu:1"
        self.env = {**shown, "HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name,
                    "SHELL": "/bin/sh", "LC_ALL": "C.UTF-8", "PYTHONUNBUFFERED": "1",
                    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                    # Keep what is learned from tests apart from the user's data and from tests whose jobs fail on purpose.
                    "XDG_DATA_HOME": f"{where}/data"}
        texts = {
            "hosts": "127.0.0.1 localhost\n" + "".join(
                f"{self._address(node)} {node}\n" for node in (LOGIN, *self.nodes)),
            "passwd": re.sub(r"(?m)^(root:.*:).*$", r"\1/bin/sh",  # so that logins behave the same everywhere
                             Path("/etc/passwd").read_text()) + "".join(
                f"{name}:x:{uid}:{uid}::{self.home_of(name)}:/bin/sh\n"
                for name, uid in self.accounts.items()),
            "node.sh": NODE,
            "switch.sh": SWITCH,
            "ssh_config": SSH_CONFIG.format(dir=where),
            "sshd_config": SSHD_CONFIG.format(dir=where, variables=" ".join(
                f'"{name}={value}"' for name, value in shown.items())),
            "slurm.conf": SLURM_CONF.format(
                dir=where, last=len(self.nodes) - 1, sockets=self.sockets, cores=self.cores,
                task="task/none" if self.synthetic else "task/affinity"),
        }
        if self.gpus:
            texts["gres.conf"] = f"NodeName=n[0-{len(self.nodes) - 1}] Name=gpu File={where}/nvidia[0-{self.gpus - 1}]\n"
            texts["slurm.conf"] = texts["slurm.conf"].replace(
                "NodeName=", "GresTypes=gpu\nNodeName=").replace(
                " Sockets=", f" Gres=gpu:{self.gpus} Sockets=")
            for number in range(self.gpus):
                (where / f"nvidia{number}").touch()
        if self.accounting:
            texts["slurm.conf"] += ACCOUNTING_CONF
            texts["accounting.sh"] = ACCOUNTING
            texts["slurmdbd.conf"] = SLURMDBD_CONF.format(dir=where)
        for name, text in texts.items():
            (where / name).write_text(text)
            if name == "slurmdbd.conf":  # slurmdbd reads no other
                (where / name).chmod(0o600)
        if self.slurm:
            (where / "etc").mkdir()
            for name in sorted({"slurm.conf", "slurmdbd.conf", "gres.conf"} & texts.keys()):
                (where / "etc" / name).symlink_to(where / name)
        (where / "munge.key").touch(0o600)
        (where / "munge.key").write_bytes(os.urandom(1024))
        for name in ("id", "hostkey"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f",
                            str(where / name)], check=True, stdin=subprocess.DEVNULL)

    def _number(self, node: str) -> tuple[int, int]:
        return divmod(65000 if node == LOGIN else int(node[1:]) + 1, 256)

    def _address(self, node: str) -> str:
        return "10.77.%d.%d" % self._number(node)

    def _hardware(self, node: str) -> str:
        """Return the hardware address of a node; the same after a restart, because other nodes remember it."""
        return "02:00:0a:4d:%02x:%02x" % self._number(node)

    def _hold(self, name: str, how: Sequence[str], script: str, *words: str) -> None:
        """Start the first process of a namespace; it dies with this thread."""
        argv = ["setpriv", "--pdeathsig", "KILL", "unshare", *how, "--fork",
                "--kill-child=SIGKILL", "sh", f"{self.directory}/{script}", name, *words]
        env = {"PATH": PATH, "LC_ALL": "C", "SLURM_CONF": f"{self.directory}/slurm.conf"}
        with open(f"{self.directory}/{name}.log", "w") as log:
            self._holders[name] = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env=env, cwd="/", start_new_session=True)

    def _heard(self, name: str, wanted: str) -> None:
        """Wait until a namespace's first process prints the line `wanted`; raises TestbedError if it prints another."""
        line = self._holders[name].stdout.readline().strip()  # type: ignore[union-attr]
        if line != wanted:
            raise TestbedError(f"{name} does not start:\n{self._logs()}")

    def _start_switch(self) -> None:
        self._hold("switch", ["--net"], "switch.sh")
        self._heard("switch", "ready")
        self._switch = Namespaces(_child(self._holders["switch"].pid), ["net"])

    def _switch_ip(self, commands: Sequence[str]) -> None:
        """Run commands of ip(8) in the network of the switch."""
        assert self._switch is not None
        process = self._switch.popen(
            ["ip", "-batch", "-"], "/", text=True, env={"PATH": PATH},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said, _ = process.communicate("\n".join(commands) + "\n", timeout=LIMIT)
        if process.returncode:
            raise TestbedError(f"ip {'; '.join(commands)}: {said}")

    def _start(self, names: Sequence[str]) -> None:
        """Start nodes in parallel, the daemons of the login node before the others."""
        for name in names:
            self._hold(name, ["--net", "--uts", "--mount", "--pid", "--mount-proc"], "node.sh",
                       self._address(name), str(self.directory), self.home,
                       "slurm" * self.slurm)
        for name in names:
            self._heard(name, "ready")
            self._inside[name] = Namespaces(_child(self._holders[name].pid))
        self._switch_ip([command for name in names for command in (
            f"link add name {name} type veth peer name eth0 address {self._hardware(name)} "
            f"netns {self._inside[name].pid}",
            f"link set {name} master switch up")])
        for group in ([LOGIN] * (LOGIN in names), [name for name in names if name != LOGIN]):
            for name in group:
                holder = self._holders[name]
                holder.stdin.write("go\n")  # type: ignore[union-attr]
                holder.stdin.flush()  # type: ignore[union-attr]
            for name in group:
                self._heard(name, "up")

    def _end(self, name: str) -> None:
        """Kill a node and wait until all of its processes are gone."""
        inside = self._inside.pop(name, None)
        holder = self._holders.pop(name, None)
        if holder is None:
            return
        if inside is not None:
            os.kill(inside.pid, signal.SIGKILL)
            inside.close()
        else:
            holder.kill()
        # The kernel removes a node only after the last child that was started in it is reaped.
        for process in self._started.pop(name, ()):
            process.wait(LIMIT)
        holder.wait(LIMIT)
        for pipe in (holder.stdin, holder.stdout):
            if pipe:
                pipe.close()

    def close(self) -> None:
        """End everything and remove all files; may be called twice."""
        for name in list(self._holders):
            if name != "switch":
                self._end(name)
        if self._switch is not None:
            os.kill(self._switch.pid, signal.SIGKILL)
            self._switch.close()
            self._switch = None
        self._end("switch")
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _logs(self) -> str:
        """Return the last lines of the logs of all daemons."""
        texts = []
        for path in sorted(Path(str(self.directory)).glob("*.log")):
            lines = path.read_text(errors="replace").splitlines()[-5:]
            texts += [f"{path.name}: {line}" for line in lines]
        return "\n".join(texts)


def _child(pid: int) -> int:
    """Return the only child of a process, from the kernel's list."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


# ------------------------------------------------------------------------------------ by hand

def _place(name: str) -> Path:
    return Path(tempfile.gettempdir(), f"vrm-testbed.{name}")


def _up(arguments: argparse.Namespace) -> str:
    """Start a cluster in a background process, and wait until it is up; return an error, or ""."""
    reason = missing(slurm=not arguments.no_slurm)
    if reason:
        return reason
    where = _place(arguments.name)
    if where.exists():
        return f"{where} is there: `down` first, or give another --name"
    read, write = os.pipe()
    if os.fork():
        os.close(write)
        with os.fdopen(read) as pipe:
            return pipe.read()
    os.setsid()
    os.close(read)
    try:
        with Testbed(arguments.nodes, arguments.sockets, arguments.cores,
                     not arguments.no_slurm, not arguments.real, where) as testbed:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(str(where / "control"))
                server.listen()
                for stream in (0, 1, 2):
                    os.dup2(os.open(os.devnull, os.O_RDWR), stream)
                os.close(write)
                _serve(testbed, server)
    except (TestbedError, OSError, subprocess.SubprocessError) as error:
        os.write(write, str(error).encode())
    os._exit(0)


def _serve(testbed: Testbed, server: socket.socket) -> None:
    """Serve requests, one connection after the other, until `down`."""
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, lambda *_: sys.exit(0))
    while True:
        connection, _ = server.accept()
        with connection, connection.makefile("rw") as file:
            command, *words = json.loads(file.readline())
            answer: Any = ""
            try:
                if command == "down":
                    testbed.close()
                elif command == "node":
                    inside = testbed._inside[words[0]]
                    answer = {"pid": inside.pid, "env": testbed.env}
                else:
                    getattr(testbed, command)(words[0])
            except (TestbedError, KeyError, OSError) as error:
                answer = f"{command} {' '.join(words)}: {error}"
            file.write(json.dumps(answer) + "\n")
            file.flush()
        if command == "down":
            return


def _ask(name: str, *request: str) -> Any:
    """Return the answer of the background process of the cluster."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(_place(name) / "control"))
        with client.makefile("rw") as file:
            file.write(json.dumps(request) + "\n")
            file.flush()
            return json.loads(file.readline())


def main(argv: Sequence[str]) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--name", default=os.environ.get("VRM_TESTBED", "hand"))
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up")
    up.add_argument("nodes", type=int, nargs="?", default=4)
    up.add_argument("--sockets", type=int, default=2)
    up.add_argument("--cores", type=int, default=4)
    up.add_argument("--no-slurm", action="store_true")
    up.add_argument("--real", action="store_true", help="show the machine's own cores")
    up.add_argument("--name", default=argparse.SUPPRESS)
    run = commands.add_parser("exec")
    run.add_argument("node")
    run.add_argument("words", nargs=argparse.REMAINDER)
    for name in ("kill", "cut", "join", "restart"):
        commands.add_parser(name).add_argument("node")
    commands.add_parser("down")
    arguments = parser.parse_args(argv)
    try:
        if arguments.command == "up":
            answer: Any = _up(arguments)
        elif arguments.command == "exec":
            answer = _ask(arguments.name, "node", arguments.node)
            if isinstance(answer, dict):
                process = Namespaces(answer["pid"]).popen(
                    arguments.words, os.getcwd(), env=answer["env"])
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # the program gets its own
                signal.signal(signal.SIGTERM, lambda *_: process.terminate())
                status = process.wait()
                return status if status >= 0 else 128 - status
        else:
            answer = _ask(arguments.name, arguments.command,
                          *([arguments.node] if arguments.command != "down" else []))
    except (FileNotFoundError, ConnectionRefusedError) as error:
        if arguments.command == "down":
            shutil.rmtree(_place(arguments.name), ignore_errors=True)  # its holder was killed
            return 0
        answer = f"no testbed {arguments.name}: {error}"
    if answer:
        print(f"testbed: {answer}", file=sys.stderr)
    return 1 if answer else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
