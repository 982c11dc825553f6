"""Reads the energy of a node and sets its frequencies, as far as this user may. One file, the standard library only,
Python 3.6 or newer: agents use it for the order `power`.

The energy is that of the kernel's powercap zones (RAPL): the packages, and memory if it is counted separately. The
frequencies are those of cpufreq, and are set only if this user may write its files: the governor becomes `userspace`.
The earlier values are kept in a file of the node. They are restored at the end of a job, at the end of the agent, or
by the next agent of this user if the agent was killed.

A directory can be used instead of the root of the node's file system for all of this (`VRM_POWER`).
"""

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would take 10 % of the agent's start
    from typing import Any, Dict, Iterable, List, Optional, Tuple

    Counters = Dict[str, Tuple[int, int]]

ZONES = "sys/class/powercap"
CPUS = "sys/devices/system/cpu"


class PowerError(Exception):
    """Something cannot be read or set; the text says what and why."""


def root() -> str:
    """Return the root of the node's files."""
    return os.environ.get("VRM_POWER") or "/"


def _read(*path: str) -> str:
    with open(os.path.join(*path)) as file:
        return file.read().strip()


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def counters(top: "Optional[str]" = None) -> "Counters":
    """Return the energy counters of the node by zone: microjoules, and the value at which each starts again at 0.
    Raises PowerError if there is none, or this user may not read them."""
    folder = os.path.join(top or root(), ZONES)
    try:
        zones = sorted(os.listdir(folder))
    except OSError:
        zones = []
    found = {}
    for zone in zones:
        try:
            name = _read(folder, zone, "name")
            if name.startswith("package") or name == "dram":
                found[zone] = (int(_read(folder, zone, "energy_uj")),
                               int(_read(folder, zone, "max_energy_range_uj")))
        except PermissionError:
            raise PowerError("{}: permission denied: only root may read the energy of this node".format(
                os.path.join(folder, zone, "energy_uj"))) from None
        except (OSError, ValueError):
            continue
    if not found:
        raise PowerError(f"{folder}: no energy counter (RAPL) is there")
    return found


def joules(before: "Counters", after: "Counters") -> float:
    """Return the energy (joules) between two readings; a counter may have started again once in between."""
    total = 0
    for zone, (begin, most) in before.items():
        end = after.get(zone, (begin, most))[0]
        total += end - begin if end >= begin else end + most - begin
    return total / 1e6


# -------------------------------------------------------------------------------- frequencies


def _folder(cpu: int) -> str:
    return os.path.join(root(), CPUS, f"cpu{cpu}", "cpufreq")


def frequencies(cpu: int) -> "Tuple[float, float]":
    """Return the lowest and the highest frequency of a CPU in GHz; raises PowerError if the kernel does not report
    them."""
    try:
        return (int(_read(_folder(cpu), "cpuinfo_min_freq")) / 1e6,
                int(_read(_folder(cpu), "cpuinfo_max_freq")) / 1e6)
    except (OSError, ValueError):
        raise PowerError(f"{_folder(cpu)}: the kernel does not say which frequencies there are") from None


def settable(cpu: int) -> str:
    """Return why this user cannot set the frequency of a CPU; "" if that is possible."""
    folder = _folder(cpu)
    try:
        governors = _read(folder, "scaling_available_governors").split()
    except OSError:
        return f"{folder}: no governor can be chosen"
    if "userspace" not in governors:
        return f"{folder}: there is no governor userspace"
    for name in ("scaling_governor", "scaling_setspeed"):
        if not os.access(os.path.join(folder, name), os.W_OK):
            return f"{os.path.join(folder, name)}: not this user's to write"
    return ""


def _write(folder: str, name: str, text: str) -> None:
    with open(os.path.join(folder, name), "w") as file:
        file.write(text)


class CpuFrequencies:
    """The frequencies that this process has set, and the values before that. While any frequency is set, the latter
    are kept in the file `kept` of this node. `holders` are the owners (jobs) of CPUs."""

    def __init__(self, kept: str) -> None:
        self.kept = kept
        self.before = {}  # type: Dict[str, Tuple[str, str]]
        self.holders = {}  # type: Dict[str, str]

    @classmethod
    def of_node(cls) -> "CpuFrequencies":
        """Return the object of this user on this node, after restoring what a killed process had set."""
        folder = os.environ.get("XDG_RUNTIME_DIR") or "/tmp"
        self = cls(os.path.join(folder, f"vrm-frequencies-{os.getuid()}"))
        self.take_up()
        return self

    def take_up(self) -> None:
        """Restore what a killed process had set; the file of a living process is left alone."""
        try:
            if os.lstat(self.kept).st_uid != os.getuid():
                return
            record = json.loads(_read(self.kept))
            if record["pid"] != os.getpid() and os.path.exists("/proc/{}/stat".format(record["pid"])) \
                    and _began(record["pid"]) == record["began"]:
                return
            self.before = {str(cpu): (str(one), str(two)) for cpu, (one, two) in record["before"].items()}
        except (OSError, ValueError, KeyError, TypeError):
            return
        self.restore(None)

    def set(self, holder: str, cpus: "Iterable[int]", ghz: float) -> str:
        """Set CPUs to a frequency for a holder. Return why that is not possible ("": it is); then none is set."""
        chosen = [int(cpu) for cpu in cpus]
        for cpu in chosen:
            trouble = settable(cpu)
            if trouble:
                return trouble
            low, high = frequencies(cpu)
            if not low - 1e-6 <= ghz <= high + 1e-6:
                return f"{ghz} GHz is not between {low} and {high} GHz"
        try:
            for cpu in chosen:
                folder = _folder(cpu)
                self.before.setdefault(str(cpu), (_read(folder, "scaling_governor"),
                                                  _read(folder, "scaling_setspeed")))
                self.holders[str(cpu)] = holder
            self._keep()  # before the first change
            for cpu in chosen:
                _write(_folder(cpu), "scaling_governor", "userspace")
                _write(_folder(cpu), "scaling_setspeed", str(round(ghz * 1e6)))
        except OSError as error:
            self.restore(holder)
            return "{}: {}".format(error.filename or "cpufreq", _reason(error))
        return ""

    def restore(self, holder: "Optional[str]") -> None:
        """Restore the earlier values on the CPUs of a holder; None: on all."""
        for cpu, (governor, speed) in list(self.before.items()):
            if holder is not None and self.holders.get(cpu) != holder:
                continue
            try:
                if governor == "userspace" and speed.isdigit():
                    _write(_folder(int(cpu)), "scaling_setspeed", speed)
                _write(_folder(int(cpu)), "scaling_governor", governor)
            except OSError:
                pass  # the CPU is offline: it has no frequency to put back
            del self.before[cpu]
            self.holders.pop(cpu, None)
        self._keep()

    def _keep(self) -> None:
        if not self.before:
            try:
                os.unlink(self.kept)
            except OSError:
                pass
            return
        new = f"{self.kept}.{os.getpid()}"
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600)
        with os.fdopen(handle, "w") as file:
            json.dump({"pid": os.getpid(), "began": _began(os.getpid()), "before": self.before}, file)
        os.rename(new, self.kept)


def _began(pid: int) -> str:
    """Return when a process began, in the kernel's clock ticks; this distinguishes it from a later process with the
    same number."""
    try:
        return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


class NodePower:
    """The state of an agent on the energy and frequencies of jobs on its node."""

    def __init__(self) -> None:
        self.frequencies = CpuFrequencies.of_node()
        self.begun = {}  # type: Dict[str, Counters]

    def take(self, request: "Dict[str, Any]") -> "Dict[str, Any]":
        """Return the answer to `{"ask": "power", "run": R, "job": J, "begin": true, "cpus": [0, 1], "frequency":
        1.8}`, and to the request with `begin` false at the job's end: the joules of the node since the begin (null:
        unknown), and why the frequency could not be set. With `begin` null it only restores what a killed agent had
        set, as the first request always does."""
        job = "{}/{}".format(request["run"], request["job"])
        energy, error = None, ""
        try:
            now = counters()
        except PowerError:
            now = {}
        if request["begin"] is None:
            pass
        elif request["begin"]:
            self.begun[job] = now
            if request.get("frequency"):
                try:
                    error = self.frequencies.set(job, request["cpus"], float(request["frequency"]))
                except (PowerError, OSError) as trouble:
                    error = str(trouble)
        else:
            before = self.begun.pop(job, {})
            if before and now:
                energy = joules(before, now)
            self.frequencies.restore(job)
        return {"number": request["number"], "energy": energy, "error": error}

    def close(self) -> None:
        """Restore all frequencies at the end of the agent."""
        self.frequencies.restore(None)


_METERS: "List[NodePower]" = []


def take(request: "Dict[str, Any]", _: float) -> "Dict[str, Any]":
    """Return the answer to a request."""
    if not _METERS:
        _METERS.append(NodePower())
    return _METERS[0].take(request)


def close() -> None:
    """Restore all frequencies at the end of the agent."""
    for meter in _METERS:
        meter.close()
