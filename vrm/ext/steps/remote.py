"""Runs the tasks of a step on other nodes than the script's without an MPI launcher (`Launcher: {Kind: direct}`,
`--mpi=none`): on each node one process, a part of the step, starts them as an srun on that node would.

Its instructions are in a file, `STEP.part` in the directory of the job's steps. The program `agent` of the job (see
`vrm.live.launch.script_environment`) connects to the node. The process receives signals through its standard input, one
byte each; the end of the input means the end of srun, and ends the tasks."""

from __future__ import annotations

import marshal
import os
import sys

from vrm.ext.steps import main
from vrm.ext.steps.cores import StepCores, Task
from vrm.ext.steps.guard import Guard
from vrm.ext.steps.options import SrunOptions, differs_by_task
from vrm.ext.steps.programs import quoted
from vrm.ext.steps.tasks import Process, RunningStep
from vrm.system import job_variables

_ROOT = os.path.abspath(f"{__file__}/../../../..")


def start(srun: main.StepRunner, claim: StepCores, running: RunningStep, output: int, errors: int) -> None:
    """Start the processes that start the tasks on other nodes; tasks write to the open files `output` and `errors`."""
    job, here = srun.job, srun.job.here(os.environ)
    mask = os.umask(0)
    os.umask(mask)
    handle = os.open(f"{job.directory}/{claim.number}.part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        marshal.dump((srun.options.given, srun.options.words, dict(os.environ), os.getcwd(), mask,
                      [(task.node, task.cores, task.gpus) for task in claim.tasks]), file)
    code = f"import sys; sys.path.insert(0, {_ROOT!r}); from vrm.ext.steps import remote; remote.run()"
    for at in dict.fromkeys(task.node for task in claim.tasks if task.node != here):
        name = job.nodes[at].name
        words = (sys.executable, "-I", "-S", "-c", code, job.directory, str(claim.number), name)
        source, control = os.pipe()
        running.start(-1 - at, Process([job.one("agent"), name, "exec " + " ".join(map(quoted, words))],
                                       {**os.environ, job_variables.STEP: srun.env[job_variables.STEP]}, None, (source,
                                                                                                                output,
                                                                                                                errors),
                                       control=control))
        os.close(source)


def run() -> None:
    """Run the part of a step on this node and exit without cleanup. Arguments: `DIRECTORY STEP NODE`."""
    directory, number, node = sys.argv[1:4]
    control = os.dup(0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    with open(f"{directory}/{number}.part", "rb") as file:
        given, words, env, cwd, mask, tasks = marshal.load(file)
    os.environ.clear()
    os.environ.update({**env, job_variables.NODE: node})
    os.umask(mask)
    os.chdir(cwd)
    claim = StepCores("", int(number), [Task(*each) for each in tasks], nowhere)
    main.run(lambda: main.carry_out(_here(SrunOptions(given, words)), lambda srun: _part(srun, claim, control)))


def _here(options: SrunOptions) -> SrunOptions:
    """Return the options for this node: output without a file for each task goes to srun's own output."""
    out, both = differs_by_task(options.get("output")), "error" not in options
    if not (out if both else differs_by_task(options.get("error"))):
        options.given["error"] = "all"
    if not out:
        options.given["output"] = "all"
    return options


def _part(srun: main.StepRunner, claim: StepCores, control: int) -> int:
    """Run the tasks on this node; return the largest of their exit statuses."""
    srun.part = True
    srun.placed(claim)
    guard = Guard(f"{job_variables.STEP}={srun.env[job_variables.STEP]}", lambda: None)
    running = RunningStep(guard, True, False, srun.kill, control=control)
    srun.start(claim, running)
    running.wait()
    if not running.cancelled:
        srun.print_failed_tasks(running, claim)
    guard.close()
    return max(running.codes.values(), default=1)
