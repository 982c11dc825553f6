"""The process beside a manager that makes the forecasts: the manager's loop never waits for it.

It reads the run's files as anybody could, and writes `forecast.json`. On its standard input the manager
gives its settings, and then a line whenever something has happened: what is in no file that is
quickly read. The process ends with its manager, however that ends: there is nothing to read any more
then. It takes what is left of one core: the least of priorities, no more than once a second, and no
more than a tenth of the time.
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
from vrm.ext.forecast.frozen import Frozen
from vrm.results.forecast import ManagerReport
from vrm.run.rundir import write_json
from vrm.system.errors import RunError

PAUSE = 1.0
"""Seconds between two forecasts at least."""

SHARE = 0.1
"""Of the time that is taken for forecasts, at most."""

RENEW = 10.0
"""Seconds after which a forecast is made again though nothing has happened: jobs run on."""

MOST = 2000
"""Waiting jobs that are forecast, from the head of the queue on."""

MEMBERS = 50
"""Draws, of a queue of no more than ENOUGH jobs; of longer ones fewer, and not below FEWEST."""

ENOUGH, FEWEST = 400, 10


def log_of(files: RunFiles) -> score.Log:
    """The forecasts that were made of a run before. OSError when they cannot be read."""
    return score.Log(files.run_directory.forecasts)


def calibration_of(files: RunFiles, log: score.Log) -> Calibration:
    """What is learnt from those that have come true by now."""
    log.learn(lambda job_id: _time(files.past.started, job_id),
              lambda job_id: _time(files.past.ended, job_id))
    return log.calibration


def _time(records: Mapping[int, Mapping[str, Any]], job_id: int) -> float | None:
    return records[job_id]["time"] if job_id in records else None


def made(frozen: Frozen, calibration: Calibration | None = None, processes: int = 1) -> Forecast:
    """The forecast of a run, from fewer draws where many jobs wait, with a few words on each. Up to
    `processes` share what takes long."""
    waiting = len(frozen.waiting())
    members = max(FEWEST, min(MEMBERS, MEMBERS * ENOUGH // max(1, waiting)))
    return forecast(frozen, members, calibration, members // 2, processes)


def shown(record: dict[str, Any]) -> dict[str, Any]:
    """What of a forecast is kept for queries, which read it each time: no draws, whole milliseconds."""
    jobs = [{key: round(value, 3) if isinstance(value, float) else value for key, value in job.items()
             if key not in ("drawn", "likely")} for job in record["jobs"]]
    return {**record, "jobs": jobs}


class Beside:
    """Makes the forecasts of one run."""

    def __init__(self, settings: Settings) -> None:
        self.files = RunFiles(settings)
        self.path = self.files.run_directory.forecast
        self._made = -math.inf
        self._of: Any = None
        self._log: score.Log | None = None
        self.trouble = ""

    def look(self, told: ManagerReport) -> bool:
        """Make a forecast if something has happened, or the last one is old; whether one was made."""
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
        """Do so whenever the manager tells something, for ever."""
        while True:
            told = inbox.get()
            with contextlib.suppress(queue.Empty):
                while True:
                    told = inbox.get_nowait()
            begun, before = time.monotonic(), time.process_time()
            try:
                made = self.look(told)
                self.trouble = ""
            except (RunError, OSError) as error:  # as before the first record, or with a full disk
                made, self.trouble = True, str(error)
            if made:
                pause = max(PAUSE, (time.process_time() - before) / SHARE)
                time.sleep(max(0.0, begun + pause - time.monotonic()))


def yield_to_others() -> None:
    """Take no time and no disk that anybody else wants, once all is loaded: else it would take a
    minute until the first forecast where all cores are busy."""
    os.nice(19)
    with contextlib.suppress(OSError):  # sessions are weighed one against the other first
        Path("/proc/self/autogroup").write_text("19")
    number = {"x86_64": 251, "aarch64": 30, "ppc64le": 273}.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None).syscall(number, 1, 0, 3 << 13)  # ioprio_set: this process, idle


def listen(source: IO[str], inbox: queue.Queue[ManagerReport]) -> None:
    """Take what the manager tells, and end with it."""
    for line in source:
        inbox.put(ManagerReport.read(line))
    os._exit(0)


def main() -> None:
    """Forecast until standard input ends."""
    yield_to_others()
    beside = Beside(of_line(sys.stdin.readline()))
    inbox: queue.Queue[ManagerReport] = queue.Queue()
    threading.Thread(target=listen, args=(sys.stdin, inbox), daemon=True).start()
    beside.serve(inbox)


if __name__ == "__main__":
    main()
