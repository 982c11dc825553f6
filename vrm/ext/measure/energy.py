"""Measures the energy of a program on this node, for the database of programs: its energy with the kernel's
counters (RAPL, powercap) or `perf`, its cycles and memory transactions per instruction with `perf` if available.
Also reads from Slurm's accounting the energy of a job that has run."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from collections.abc import Sequence

from vrm.ext.energy.nodes import power
from vrm.ext.measure.bench import MeasureError
from vrm.model.measured.energy import MeasuredProgram

_EVENTS = ("cycles", "instructions", "cache-misses")
_ENERGY = ("power/energy-pkg/", "power/energy-ram/")


@dataclass(frozen=True)
class MeasuredEnergy:
    """A measurement, and the sources of its values as text."""

    measured: MeasuredProgram
    sources: tuple[str, ...]


def measure(argv: Sequence[str], watts: float = 0.0, frequency: float = 0.0, limit: float = 3600.0
            ) -> MeasuredEnergy:
    """Run a program on this node to its end, and measure it. `watts` is its power if it cannot be measured here;
    `frequency` (GHz) is only stored. Raises MeasureError if the program fails, exceeds `limit` seconds, or its
    energy is unknown."""
    if not shutil.which(argv[0]):
        raise MeasureError(f"{argv[0]}: no such file, or it is not a program")
    counters, refused = _counters()
    events = usable_events()
    energy_events = [] if counters or watts else [event for event in _ENERGY if event in events]
    if not counters and not watts and not energy_events:
        raise MeasureError(f"the energy of this node cannot be read ({refused}; perf "
                           f"{'has no event for it' if shutil.which('perf') else 'is not installed'}); give "
                           "the power that your site's meter shows (--watts W), or take a job from Slurm's "
                           "accounting (vrm energy add --slurm JOBID)")
    counted = [event for event in _EVENTS if event in events] + energy_events
    with tempfile.TemporaryDirectory(prefix="vrm-energy-") as folder:
        report = Path(folder) / "perf"
        command = [*argv]
        if counted:
            command = ["perf", "stat", "-x", ",", "-o", str(report),
                       *(["-a"] if energy_events else []), "-e", ",".join(counted), "--", *argv]
        begun = time.monotonic()
        try:
            code = subprocess.run(command, timeout=limit, stdin=subprocess.DEVNULL).returncode
        except subprocess.TimeoutExpired:
            raise MeasureError(f"{argv[0]} ran longer than {limit:g} s and was ended; give it more "
                               "(--limit SECONDS)") from None
        except OSError as error:
            raise MeasureError(f"{argv[0]}: {error.strerror}") from None
        seconds = time.monotonic() - begun
        said = parse_perf_counts(report.read_text()) if report.exists() else {}
    if code:
        raise MeasureError(f"{argv[0]} ended with {code}: nothing is written")
    sources: list[str] = []
    if watts:
        sources.append("power as given")
    elif counters:
        watts = power.joules(counters, power.counters()) / seconds
        sources.append(f"energy of {len(counters)} zone(s) of powercap")
    else:
        watts = sum(said.get(event, 0.0) for event in energy_events) / seconds
        sources.append("energy by perf")
    if not watts > 0:
        raise MeasureError(f"the counters show no energy in {seconds:.1f} s: nothing is written")
    instructions = said.get("instructions", 0.0)
    cpi = said.get("cycles", 0.0) / instructions if instructions else 0.0
    tpi = 1000 * said.get("cache-misses", 0.0) / instructions if instructions else 0.0
    sources.append("cycles and cache misses by perf" if cpi else
                   "no cycles: perf cannot count here, so other frequencies cannot be predicted")
    return MeasuredEnergy(MeasuredProgram(seconds, watts, cpi, tpi, frequency), tuple(sources))


def _counters() -> tuple[dict[str, tuple[int, int]], str]:
    try:
        return power.counters(), ""
    except power.PowerError as error:
        return {}, str(error)


def usable_events() -> tuple[str, ...]:
    """Return the events that perf can count for this user on this node."""
    perf = shutil.which("perf")
    if perf is None:
        return ()
    found = []
    for event in (*_EVENTS, *_ENERGY):
        wide = ["-a"] if event in _ENERGY else []
        try:
            tried = subprocess.run([perf, "stat", "-x", ",", *wide, "-e", event, "--", "true"],
                                   capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            return ()
        if tried.returncode == 0 and event in parse_perf_counts(tried.stderr):
            found.append(event)
    return tuple(found)


def parse_perf_counts(text: str) -> dict[str, float]:
    """Return the counts of `perf stat -x,` by event; events that were not counted are left out."""
    found = {}
    for line in text.splitlines():
        words = line.split(",")
        if len(words) > 2 and re.fullmatch(r"[0-9]+([.][0-9]+)?", words[0]):
            found[words[2].partition(":u")[0]] = float(words[0])
    return found


def slurm_seconds(job: str) -> MeasuredEnergy:
    """Return from Slurm's accounting the seconds of a job or step that has run, and its mean watts per node. Raises
    MeasureError."""
    command = ["sacct", "-n", "-P", "-X" if "." not in job else "-P", "-j", job, "-o",
               "ElapsedRaw,ConsumedEnergyRaw,NNodes"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MeasureError(f"sacct cannot be run: {error}") from None
    line = next(iter(said.stdout.splitlines()), "")
    words = line.split("|")
    try:
        seconds, joules, nodes = float(words[0]), float(words[1] or 0), int(words[2])
    except (ValueError, IndexError):
        raise MeasureError(f"sacct has no record of {job}: "
                           f"{(said.stderr or said.stdout).strip()[:200] or 'there is no such job'}") from None
    if seconds <= 0 or joules <= 0 or nodes < 1:
        raise MeasureError(f"Slurm's accounting has no energy of {job}: the site does not gather it "
                           "(AcctGatherEnergyType)")
    return MeasuredEnergy(MeasuredProgram(seconds, joules / seconds / nodes), (f"Slurm's accounting of {job}",))
