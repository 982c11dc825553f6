"""Returns the model of a workload, by its file or name."""

from __future__ import annotations

from vrm.config.machine import read_machine
from vrm.ext.generate import eurora_year
from vrm.ext.generate.campaign_model import Model, fit
from vrm.model.amounts import MEMORY
from vrm.simulation.inputs import WorkloadError, open_workload
from vrm.workload.submission import Submission
from vrm.workload.swf import Selection

YEAR = "eurora-year"
"""The name of the model in `vrm.ext.generate.eurora_year`."""


def model_of(workload: str, machine: str | None = None) -> tuple[Model, list[Submission]]:
    """Return the model of a workload, and its jobs (empty for a named model). If a `machine` file is given, memory and
    the resources in it are included. Raises WorkloadError, ConfigError and others of `ERRORS`."""
    if workload == YEAR:
        return eurora_year.model(), []
    names: frozenset[str] = frozenset()
    if machine is not None:
        names = frozenset(name for node in read_machine(machine).nodes for name in node.resources)
    source = open_workload(workload, Selection(memory=MEMORY in names, resources=names, keep_estimates=True))
    jobs = list(source)
    if not jobs:
        raise WorkloadError(f"{workload}: no job of it ran, so no model can be fitted")
    return fit(jobs, source.unix_start), jobs
