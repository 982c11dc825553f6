"""Writes `jobs.csv` in the format of Batsim and evalys."""

from __future__ import annotations

from typing import TextIO
from collections.abc import Sequence

from vrm.model import bits
from vrm.model.booking import Booking
from vrm.model.node import Node
from vrm.model.placement import CoreLayout
from vrm.model.sharing.core_share import cores_of
from vrm.model.quantities import seconds_text


class EvalysWriter:
    """Writes `jobs.csv` in the format that Batsim writes and evalys reads (JobSet). The processors are the cores of
    the machine, numbered from 0 over all nodes, as an interval set such as `0-3 8`."""

    COLUMNS = ("job_id", "workload_name", "profile", "submission_time",
               "requested_number_of_resources", "requested_time", "success", "final_state",
               "starting_time", "execution_time", "finish_time", "waiting_time",
               "turnaround_time", "stretch", "allocated_resources", "consumed_energy", "metadata")

    def __init__(self, out: TextIO, nodes: Sequence[Node], workload: str) -> None:
        self._out = out
        self._nodes = nodes
        self._workload = workload.replace(",", " ")
        self._layout = CoreLayout(nodes)
        self._lines = [",".join(self.COLUMNS) + "\n"]

    def write(self, booking: Booking, end: float, status: str) -> None:
        """Add a job that ran until `end` (seconds) with this final status. Writes to the file every 500 lines."""
        job, start = booking.job, booking.start
        run, turnaround = end - start, end - job.submit
        stretch = turnaround / run if run > 0 else ""
        state = ("COMPLETED_SUCCESSFULLY" if status == "completed"
                 else "COMPLETED_WALLTIME_REACHED" if status == "timeout" else "COMPLETED_FAILED")
        cores = " ".join(str(first) if stop - first == 1 else f"{first}-{stop - 1}"
                         for first, stop in bits.runs(cores_of(booking.placement, self._nodes, self._layout)))
        app = job.app.replace(",", " ")
        self._lines.append(
            f"{job.id},{self._workload},{app},{seconds_text(job.submit)},{job.procs},"
            f"{seconds_text(job.walltime)},{int(status == 'completed')},{state},"
            f"{seconds_text(start)},{seconds_text(run)},{seconds_text(end)},"
            f"{seconds_text(start - job.submit)},{seconds_text(turnaround)},{stretch},{cores},,\n")
        if len(self._lines) >= 500:
            self.flush()

    def flush(self) -> None:
        """Write all pending lines to the file."""
        self._out.write("".join(self._lines))
        self._lines.clear()
        self._out.flush()
