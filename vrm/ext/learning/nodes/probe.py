"""Measures how fast a node computes and copies memory with all of its cores at once, in two seconds. One file,
standard library only, Python 3.6 or newer: agents (`agent.py`) load it on their nodes. It runs itself there in
a separate process, so that the agent can answer meanwhile.

Each worker is bound to a core, and all begin at the same time: a limit on the CPU time of the node, a lowered
frequency, or other programs reduce the sum. The figures are those of this program only: use them to compare
nodes.
"""

import json
import os
import select
import subprocess
import sys
import tempfile
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional  # noqa: F401

ROUNDS, PART = 3, 0.3
"""Number of measurements of each figure (the median counts), and the seconds of one measurement."""

AHEAD = 0.3
"""Seconds in which all workers start."""

BLOCK = 32 << 20
"""Number of bytes that are copied at once, more than caches hold."""

PATIENCE = 60.0
"""Seconds within which a probe must end."""

LOOK = 0.1
"""Seconds between two checks whether it has ended."""

LOOP, SUM = 10000, 333283335000
"""The computation, the sum of the squares below LOOP, and its result."""


RUNNING = []  # type: List[subprocess.Popen[bytes]]
"""Running probes."""


class Probe:
    """A probe in a separate process. `due`: when to check it next."""

    marks = [b"VRM_PROBE=none"]  # matches no process: a probe does not look at jobs

    def __init__(self, request: "Dict[str, Any]", now: float) -> None:
        self.number = request["number"]
        self.until = now + PATIENCE
        self.due = now + LOOK
        self.text = b""
        self.process = None  # type: Optional[subprocess.Popen[bytes]]
        self.fault = ""
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", os.path.abspath(__file__), json.dumps(request.get("cpus", []))],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            RUNNING.append(self.process)
        except OSError as error:
            self.fault = "it cannot start a program: {}".format(error.strerror)

    def see(self, process: "Any", environment: "List[bytes]") -> None:
        """Ignore the process: a probe does not look at jobs."""

    def looked(self, now: float) -> bool:
        """Return whether the probe has ended."""
        self.due = now + LOOK
        process = self.process
        if process is None:
            return True
        assert process.stdout is not None
        while select.select([process.stdout], [], [], 0)[0]:
            data = os.read(process.stdout.fileno(), 4096)
            if not data:
                break
            self.text += data
        if process.poll() is None:
            if now < self.until:
                return False
            process.kill()
            process.wait()
            self.fault = "its probe has not ended within {:g} s".format(PATIENCE)
        process.stdout.close()
        RUNNING.remove(process)
        return True

    def answer(self) -> "Dict[str, Any]":
        """Return what was measured."""
        said = {"compute": 0.0, "memory": 0.0, "workers": 0, "fault": self.fault}  # type: Dict[str, Any]
        try:
            said.update(json.loads(self.text.decode()) if not self.fault else {})
        except ValueError:
            said["fault"] = "its probe has ended without a result"
        said["number"] = self.number
        return said


def take(request: "Dict[str, Any]", now: float) -> Probe:
    """Start a probe for an order of the manager."""
    return Probe(request, now)


def close() -> None:
    """End the probes, because the agent ends."""
    for process in RUNNING:
        process.kill()


def measure(cpus: "List[int]") -> "Dict[str, Any]":
    """Return loops per second, bytes copied per second, and what is wrong with the node, from one worker on
    each CPU; without CPUs, from one worker that is not bound."""
    begin = time.time() + AHEAD
    workers = []
    block = min(BLOCK, _available() // (4 * max(1, len(cpus))))
    for cpu in cpus or [-1]:
        reader, writer = os.pipe()
        if not os.fork():
            code = 1
            try:
                os.close(reader)
                if cpu >= 0:
                    os.sched_setaffinity(0, [cpu])
                os.write(writer, json.dumps(_work(begin, max(block, 1 << 16))).encode())
                code = 0
            finally:
                os._exit(code)
        os.close(writer)
        workers.append(reader)
    compute, memory, faults = 0.0, 0.0, [_disk()]
    for reader in workers:
        with open(reader, "rb") as pipe:
            text = pipe.read()
        os.wait()
        try:
            found = json.loads(text.decode())
            compute, memory = compute + found[0], memory + found[1]
            faults.append(found[2])
        except ValueError:
            faults.append("a worker of its probe was killed")
    return {"compute": compute, "memory": memory, "workers": len(workers), "fault": next(filter(None, faults), "")}


def _work(begin: float, block: int) -> "List[Any]":
    """Return what one worker measures."""
    source, target = bytearray(os.urandom(4096)) * (block // 4096), bytearray(block // 4096 * 4096)
    compute, memory = [], []
    wrong = ""
    time.sleep(max(0.0, begin - time.time()))
    for _ in range(ROUNDS):
        start, loops = time.monotonic(), 0
        while time.monotonic() < start + PART:
            if sum([number * number for number in range(LOOP)]) != SUM:
                wrong = "it computes wrong sums"
            loops += 1
        compute.append(loops / (time.monotonic() - start))
        start, copied = time.monotonic(), 0
        while time.monotonic() < start + PART:
            target[:] = source
            copied += len(source)
        memory.append(copied / (time.monotonic() - start))
    if target != source:
        wrong = "its memory does not keep what was written"
    return [sorted(compute)[ROUNDS // 2], sorted(memory)[ROUNDS // 2], wrong]


def _available() -> int:
    """Return the bytes of memory that are available now."""
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return 1024 * int(line.split()[1])
    except OSError:
        pass
    return 1 << 30


def _disk() -> str:
    """Return what is wrong with the directory for temporary files."""
    try:
        with tempfile.TemporaryFile() as file:
            file.write(b"x" * (1 << 20))
            file.flush()
    except OSError as error:
        return "temporary files: {}".format((error.strerror or str(error)).lower())
    return ""


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(json.loads(sys.argv[1]))))
