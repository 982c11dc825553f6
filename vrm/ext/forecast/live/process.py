"""The background process of a manager that makes the forecasts. The manager's loop never waits for it.

It reads the run's files as any other reader could, and writes `forecast.json`. The manager writes its settings
to the process's standard input, and then a line whenever something has happened, with the facts that cannot be
read quickly from a file. The process ends with its manager, however that ends, because its input ends then. It
uses only what is left of one core: the lowest priority, at most one forecast per second, and at most a tenth of
the time.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import platform
import queue
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any
from collections.abc import Mapping

from vrm.config.schema import Settings, of_line
from vrm.ext.forecast import score
from vrm.ext.forecast.calibration import Calibration
from vrm.ext.forecast.files import RunFiles
from vrm.ext.forecast.forecast import Forecast, forecast
from vrm.ext.forecast.frozen import FrozenRun
from vrm.results.forecast import ManagerReport
from vrm.run.rundir import write_json
from vrm.system.errors import RunError

PAUSE = 1.0
"""Least number of seconds between two forecasts."""

SHARE = 0.1
"""Greatest fraction of the time that is used for forecasts."""

RENEW = 10.0
"""Seconds after which a forecast is made again even if nothing has happened, because jobs have run on."""

MOST = 2000
"""Greatest number of waiting jobs that are forecast, from the head of the queue on."""

MEMBERS = 50
"""Number of draws for a queue of at most ENOUGH jobs; longer queues get fewer, but at least FEWEST."""

ENOUGH, FEWEST = 400, 10


def log_of(files: RunFiles) -> score.Log:
    """Return the log of earlier forecasts of a run. Raises OSError if it cannot be read."""
    return score.Log(files.run_directory.forecasts)


def calibration_of(files: RunFiles, log: score.Log) -> Calibration:
    """Learn from the forecasts that have come true, and return the calibration."""
    log.learn(lambda job_id: _time(files.past.started, job_id),
              lambda job_id: _time(files.past.ended, job_id))
    return log.calibration


def _time(records: Mapping[int, Mapping[str, Any]], job_id: int) -> float | None:
    return records[job_id]["time"] if job_id in records else None


def made(frozen: FrozenRun, calibration: Calibration | None = None, processes: int = 1) -> Forecast:
    """Return the forecast of a run, with a few words on why each job waits. Many waiting jobs mean fewer draws.
    Work that takes long is distributed to up to `processes` processes."""
    waiting = len(frozen.waiting())
    members = max(FEWEST, min(MEMBERS, MEMBERS * ENOUGH // max(1, waiting)))
    return forecast(frozen, members, calibration, members // 2, processes)


def shown(record: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a forecast that is kept for queries, which read it each time: without draws, times
    rounded to milliseconds."""
    jobs = [{key: round(value, 3) if isinstance(value, float) else value for key, value in job.items()
             if key not in ("drawn", "likely")} for job in record["jobs"]]
    return {**record, "jobs": jobs}


class ForecastProcess:
    """Makes the forecasts of one run."""

    def __init__(self, settings: Settings) -> None:
        self.files = RunFiles(settings)
        self.path = self.files.run_directory.forecast
        self._made = -math.inf
        self._of: Any = None
        self._log: score.Log | None = None
        self.trouble = ""

    def look(self, told: ManagerReport) -> bool:
        """Make a forecast if something has happened or the last one is old; return whether one was made."""
        new = self.files.read_new() or self._of != told._replace(time=0.0)
        if not new and told.time < self._made + RENEW:
            return False
        self._of = told._replace(time=0.0)
        self._made = told.time
        if self._log is None:
            self._log = log_of(self.files)
        found = made(self.files.frozen(told, most=MOST), calibration_of(self.files, self._log))
        write_json(self.path, shown(found.record()), private=True)
        self._log.note(found)
        return True

    def serve(self, inbox: queue.Queue[ManagerReport]) -> None:
        """Call `look` for each report of the manager, forever."""
        while True:
            told = inbox.get()
            with contextlib.suppress(queue.Empty):
                while True:
                    told = inbox.get_nowait()
            begun, before = time.monotonic(), time.process_time()
            try:
                made = self.look(told)
                self.trouble = ""
            except (RunError, OSError) as error:  # e.g. before the first record, or with a full disk
                made, self.trouble = True, str(error)
            if made:
                pause = max(PAUSE, (time.process_time() - before) / SHARE)
                time.sleep(max(0.0, begun + pause - time.monotonic()))


def lower_priority() -> None:
    """Use only CPU time and disk time that nobody else wants. Call it when the modules are loaded: otherwise
    the first forecast would take a minute if all cores are busy."""
    os.nice(19)
    with contextlib.suppress(OSError):  # the kernel weighs sessions against each other first
        Path("/proc/self/autogroup").write_text("19")
    number = {"x86_64": 251, "aarch64": 30, "ppc64le": 273}.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None).syscall(number, 1, 0, 3 << 13)  # ioprio_set: this process, class idle


def listen(source: IO[str], inbox: queue.Queue[ManagerReport]) -> None:
    """Put the manager's reports into the inbox; end this process with the manager."""
    for line in source:
        inbox.put(ManagerReport.read(line))
    os._exit(0)


def main() -> None:
    """Make forecasts until standard input ends."""
    lower_priority()
    beside = ForecastProcess(of_line(sys.stdin.readline()))
    inbox: queue.Queue[ManagerReport] = queue.Queue()
    threading.Thread(target=listen, args=(sys.stdin, inbox), daemon=True).start()
    beside.serve(inbox)


if __name__ == "__main__":
    main()
