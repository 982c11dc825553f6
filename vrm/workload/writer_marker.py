"""Marker files that show managers whether a program still writes to a queue file."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from vrm.system.files import read_own, write_atomically

HEARTBEAT = 20.0
"""Maximum seconds between two touches of a marker by its writer."""
_LOST = 6 * HEARTBEAT


@dataclass(frozen=True)
class WriterState:
    """The state of a queue's writer according to its marker: `state` is none, writing or ended."""

    state: str
    reason: str


class WriterMarker:
    """Marks a queue as being written: `with WriterMarker(queue) as marker:`, and `marker.beat()` with every line, at
    least every HEARTBEAT seconds.

    The marker is the file `<queue>.writer`, a JSON object: `host`, `pid`, `start` (of the process, in clock ticks
    since boot, so that a reused pid is not mistaken for it) and `ended`. The file stays after the writer has ended;
    otherwise a manager that starts later could not know it. Raises RuntimeError if another program writes this queue,
    OSError if the marker cannot be written.
    """

    def __init__(self, queue: str | Path) -> None:
        self.path = marker_path(queue)
        self.queue = queue

    def __enter__(self) -> WriterMarker:
        try:
            touched = self.path.stat().st_mtime
        except FileNotFoundError:
            touched = 0.0
        # No clock is read here: a marker from another host counts as just touched.
        other = writer_of(self.queue, touched)
        if other.state == "writing":
            raise RuntimeError(f"{self.queue} is being written already: {other.reason}; end that "
                               f"program, or remove {self.path} if it is gone")
        self._write(ended=False)
        return self

    def __exit__(self, *failure: object) -> None:
        self._write(ended=True)

    def beat(self) -> None:
        """Show managers on other hosts that this writer is alive, by touching the marker."""
        os.utime(self.path)

    def _write(self, ended: bool) -> None:
        facts = {"host": socket.gethostname(), "pid": os.getpid(),
                 "start": _process_start(os.getpid()), "ended": ended}
        write_atomically(self.path, json.dumps(facts) + "\n")


def marker_path(queue: str | Path) -> Path:
    """Return the marker file of a queue's writer."""
    return Path(f"{queue}.writer")


def writer_of(queue: str | Path, now: float) -> WriterState:
    """Return the state of the writer of a queue file; `now` in epoch seconds.

    On this host, checks the process; on another host, the marker must have been touched within the last six
    heartbeats. Without a marker, or with an invalid one, the state is none: a person may append lines by hand at any
    time, and the queue ends with an `end` line.
    """
    marker = marker_path(queue)
    try:
        touched = marker.lstat().st_mtime
        facts = json.loads(read_own(marker, 4096))
        host, pid, start, ended = (facts[key] for key in ("host", "pid", "start", "ended"))
        pid = int(pid)
    except FileNotFoundError:
        return WriterState("none", "no program has announced that it writes this queue")
    except OSError as error:
        return WriterState("none", f"{marker} is not looked at: it {error.strerror}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return WriterState("none", f"{marker} is not understood ({error}); remove it")
    who = f"process {pid} on {host}"
    if ended:
        return WriterState("ended", f"{who} has written all its lines")
    if host == socket.gethostname():
        if _process_start(pid) == start:
            return WriterState("writing", f"{who} is running")
        return WriterState("ended", f"{who} is gone")
    if now - touched <= _LOST:
        return WriterState("writing", f"{who} gave a sign {max(0.0, now - touched):.0f} s ago")
    return WriterState("ended", f"{who} has given no sign for {now - touched:.0f} s")


def _process_start(pid: int) -> int | None:
    """Return when the process started, in clock ticks since boot; None if it does not run."""
    from vrm.system.processes import read_stat  # imports psutil, which query commands need not load

    found = read_stat(pid)
    return None if found is None or found.dead else found.pid.started
