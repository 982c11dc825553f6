"""Limits of requests: those of partitions and queues, from the output of `scontrol show partition` and `qstat
-Qf`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from vrm.ext.allocations.shapes import RequestLimits
from vrm.ext.forecast.site.outer import output_of
from vrm.ext.forecast.site.snapshot import Snapshot, SnapshotError
from vrm.model.quantities import slurm_seconds, seconds_of
from vrm.system.printing.text import printable

OPEN = ("ALL", "NONE", "N/A", "(null)", "")
"""Values of restrictions of partitions that restrict nothing."""

RESTRICTIONS = {"AllowGroups": "only groups {}", "AllowAccounts": "only accounts {}", "DenyAccounts": "no accounts {}",
                "AllowQos": "only qualities of service {}", "DenyQos": "no qualities of service {}",
                "QoS": "no more than its quality of service {} allows"}
"""What a partition takes, as text, by the names of restrictions that Slurm checks when it is asked."""

SCONTROL = ("scontrol", "show", "partition", "--oneliner")
QSTAT = ("qstat", "-Qf")


class PartitionValues(dict[str, str]):
    """The values of a partition or queue, by their names in the batch system."""

    def number(self, name: str, missing: float) -> float:
        """Return a number; `missing` if there is none or no limit."""
        text = self.get(name, "")
        return float(text) if text.isdecimal() else missing

    def seconds(self, *names: str) -> float:
        """Return a time in seconds; infinity if there is none. Raises SnapshotError if it cannot be read."""
        text = next((self[name] for name in names if self.get(name)), "UNLIMITED")
        if text.upper() in ("UNLIMITED", "INFINITE", "NONE", "N/A"):
            return math.inf
        try:
            return float(slurm_seconds(text)) if names == ("MaxTime",) else float(seconds_of(text))
        except ValueError:
            raise SnapshotError(f"limits of partitions: {names[0]}={printable(text, 40)} is not a time") from None


def ask(system: str) -> str:
    """Return the batch system's description of its partitions; "" if this user may not see it."""
    try:
        return output_of(SCONTROL if system == "slurm" else QSTAT)
    except SnapshotError:
        return ""


def read(text: str) -> dict[str, PartitionValues]:
    """Return the partitions, or queues, by name, from the output of `scontrol show partition` (with or without
    --oneliner) or of `qstat -Qf`."""
    found: dict[str, PartitionValues] = {}
    now = PartitionValues()
    for line in text.splitlines():
        queue = re.fullmatch(r"Queue:\s*(\S+)", line.strip())
        if queue:
            now = found.setdefault(queue[1], PartitionValues())
        elif " = " in line:
            name, _, value = line.strip().partition(" = ")
            now[name] = value
        else:
            for name, value in re.findall(r"(\w+)=(\S*)", line):
                if name == "PartitionName":
                    now = found.setdefault(value, PartitionValues())
                now[name] = value
    return found


def restrictions(name: str, known: Mapping[str, PartitionValues]) -> list[str]:
    """Return, as text, what a partition restricts besides nodes and times."""
    found = [text.format(value) for word, text in RESTRICTIONS.items()
             if (value := known.get(name, PartitionValues()).get(word, "")) not in OPEN]
    return [f"partition {name} takes {', '.join(found)}: the site refuses other requests"] if found else []


def bounds(site: Snapshot, partition: str, known: Mapping[str, PartitionValues]) -> RequestLimits:
    """Return the limits of requests in a partition. Raises SnapshotError if the partition does not exist or
    takes no jobs."""
    classes = {name for node in site.nodes for name in node.classes or () if "," not in name}
    name = partition or site.default or (min(classes) if len(classes) == 1 else "")
    open_to_all = any(node.classes is None for node in site.nodes)
    if not name and classes and not open_to_all:
        raise SnapshotError(f"which partition? Give --partition, one of {', '.join(sorted(classes))}")
    if name and name not in classes and name not in known and (classes or known):
        raise SnapshotError(f"there is no partition {printable(name, 60)}; there are: "
                            f"{', '.join(sorted(classes | set(known)))}")
    nodes = [node for node in site.nodes if node.up and (node.classes is None or not name or name in node.classes)]
    if not nodes:
        raise SnapshotError(f"no node of partition {name or '(default)'} is up")
    limits = known.get(name, PartitionValues())
    for word, whose in (("RootOnly", "from root"), ("ReqResv", "in a reservation")):
        if limits.get(word) == "YES":
            raise SnapshotError(f"partition {name} takes jobs only {whose} ({word}=YES): choose another one with "
                                "--partition")
    state = limits.get("State", "UP").upper()
    if state != "UP" or "False" in (limits.get("enabled"), limits.get("started")):
        raise SnapshotError(f"partition {name} takes or starts no jobs now "
                            f"({f'State={state}' if state != 'UP' else 'enabled or started is False'}): choose another "
                            "one with --partition")
    cores = min(node.cores for node in nodes)
    most = min(limits.number("MaxNodes", math.inf), limits.number("resources_max.nodect", math.inf),
               limits.number("resources_max.ncpus", math.inf) // cores, len(nodes))
    longest = min(limits.seconds("MaxTime"), limits.seconds("resources_max.walltime"), site.longest.get(name, math.inf))
    if most < 1 or longest <= 0:
        raise SnapshotError(f"partition {name} gives no whole node: its limits are {most:g} nodes and {longest:g} s")
    return RequestLimits(name, len(nodes), cores, int(most), max(1, int(limits.number("MinNodes", 1))), longest)
