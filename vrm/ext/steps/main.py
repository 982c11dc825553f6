"""`srun` in a script job."""

from __future__ import annotations

import _signal
import os
import resource
import sys
import time
from itertools import groupby

from vrm.ext.steps.records import Step, append
from vrm.ext.steps import jobfile
from vrm.ext.steps.cores import StepCores, StepAllocator, Task, NotEnoughCores, StepRequest, cpus_of, requested
from vrm.ext.steps.guard import Guard
from vrm.ext.steps.jobfile import StepJob
from vrm.ext.steps.options import (SrunOptions, UsageError, binding, differs_by_task, exported, parse,
                                   pattern, refuse, wide)
from vrm.ext.steps.programs import (CONTAINERS, OUTER, command, container_command, devices, environment,
                                    links_mpi, wrapper)
from vrm.ext.steps.tasks import Process, RunningStep, feed
from vrm.ext.steps.resource_use import of_step, together
from vrm.system import job_variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn
    from collections.abc import Callable, Sequence

VERSION = "slurm 22.05.8"

USAGE = "Usage: srun [OPTIONS...] PROGRAM [ARGUMENTS...]   (docs/reference/steps.md of vrm says which options)"

_NO_PMI = ("none", "")


def main(arguments: list[str]) -> int:
    """Run a step; return the exit status of srun."""
    try:
        options = parse(arguments)
        if "version" in options or "help" in options:
            sys.stdout.write((VERSION if "version" in options else USAGE) + "\n")
            return 0
        said = dict(os.environ)
        if "SLURM_HET_SIZE" in said:  # it describes the cores of the first component only
            said.pop("SRUN_CPUS_PER_TASK", None)
        for part in (options, *options.others):
            part.complete(said)
        refuse(options)
        if options.get("jobid") and not _own(options.get("jobid")):
            _run_outer_srun(arguments)
    except (UsageError, OSError, ValueError) as error:
        _say(f"error: {error}")
        return 1
    return carry_out(options, lambda srun: srun.run())


def _own(job_id: str) -> bool:
    """Return whether this is the id of the job in which srun runs."""
    env = os.environ
    return job_id in (jobfile.read(env[job_variables.FOLDER]).slurm,
                      f"{env.get('SLURM_ARRAY_JOB_ID')}_{env.get('SLURM_ARRAY_TASK_ID')}")


def _run_outer_srun(arguments: list[str]) -> None:
    """Continue as an srun outside of jobs, which asks the manager for the other job."""
    env = {name: value for name, value in os.environ.items() if name not in (job_variables.FOLDER, job_variables.NODE)}
    program = os.path.join(os.path.dirname(jobfile.read(os.environ[job_variables.FOLDER]).one("measure")), "srun")
    os.execve(program, [program, *arguments], env)


def carry_out(options: SrunOptions, work: Callable[[StepRunner], int]) -> int:
    """Do the work for the step that these options describe; return its exit status, or that of the error."""
    try:
        return work(StepRunner(jobfile.read(os.environ[job_variables.FOLDER]), options))
    except _CannotExecute as error:
        _say(f"error: {error}")
        return error.code
    except UsageError as error:
        _say(f"error: {error}")
    except ValueError as error:
        _say(f"error: {error}")
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _say(f"error: {where}{error.strerror}")
    return 1


class StepRunner:
    """One step; or, if `part` is true, the tasks of the step on this node."""

    part = False

    def __init__(self, job: StepJob, options: SrunOptions) -> None:
        self.job, self.options = job, options
        self.quiet = "quiet" in options
        if not options.words:
            raise UsageError("No command given to execute.")
        self.cwd = os.path.abspath(options.get("chdir") or os.getcwd())
        if not os.path.isdir(self.cwd):
            raise UsageError(f"couldn't chdir to `{self.cwd}': No such directory")
        self.env = exported(options.given.get("export"), os.environ)
        self.limit = options.seconds()
        env = os.environ
        self.outside = (env.get("VRM_RUN"), env.get("VRM_JOB_ID")) != (job.one("run"), str(job.id))
        parts = [(requested(job, each, group, self.outside, self._warn), each.words)
                 for at, each in enumerate((options, *options.others))
                 for group in job.components(each.get("het-group") or each.get("pack-group"), at)]
        wishes = [wish for wish, _ in parts]
        self.wish = wishes[0] if len(wishes) == 1 else StepRequest(
            sum(wish.tasks for wish in wishes), wishes[0].cpus, parts=wishes)
        self.title = options.get("job-name") or os.path.basename(options.words[0])
        several = options.given.pop("multi-prog", None) is not None
        if any("container-image" in each for each in (options, *options.others)):
            options.words = self._contained(several or len(wishes) > 1)
        elif several:
            options.words = self._programs(options.words[0])
        elif len(wishes) > 1:
            options.words = self._several(parts)
        self.program = self._program(options.words[0])
        self.kill = "kill-on-bad-exit" in options and options.get("kill-on-bad-exit") != "0"
        self.started, self.by_launcher = 0.0, False

    def _warn(self, text: str) -> None:
        if not self.quiet:
            _say(f"Warning: {text}")

    def _several(self, parts: Sequence[tuple[StepRequest, list[str]]]) -> list[str]:
        """Return the command of the tasks of all parts."""
        from vrm.ext.steps import multiprog
        own = os.environ.get("OMP_NUM_THREADS") == self.job.one("threads")
        return multiprog.several([(wish.tasks, [self._program(said[0]), *said[1:]], {
            "SLURM_CPUS_PER_TASK": str(wish.cpus), **({"OMP_NUM_THREADS": str(wish.cpus)} if own else {})})
            for wish, said in parts])

    def _programs(self, name: str) -> list[str]:
        """Return the command of all tasks according to the file of --multi-prog."""
        from vrm.ext.steps import multiprog
        with open(os.path.join(self.cwd, name), encoding="utf-8", errors="surrogateescape") as file:
            return multiprog.words(name, file.read(), self.wish.tasks)

    def _contained(self, several: bool) -> list[str]:
        """Return the command that starts the program in a container."""
        if several:
            raise UsageError("--container-image is for a step of one program")
        found: dict[str, str] = {}
        for name in CONTAINERS:
            try:
                found[name] = self._program(name)
            except _CannotExecute:
                pass
        words, files = container_command(self.options.words, self.options, found, self.job.directory)
        self.options.given.pop("container-image")  # the command for other nodes contains it already
        for path, text in files.items():
            with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(text)
        return words

    def _program(self, word: str) -> str:
        """Return the path of the program, searched as a shell does. Raises _CannotExecute."""
        if "/" in word:
            places = [os.path.join(self.cwd, word)]
        else:
            places = [os.path.join(folder or ".", word)
                      for folder in self.env.get("PATH", os.defpath).split(os.pathsep)]
        for place in places:
            if os.path.isfile(place) and os.access(place, os.X_OK):
                return os.path.abspath(place)
        if any(map(os.path.isdir, places)) or any(map(os.path.exists, places)):
            raise _CannotExecute(f"execve(): {word}: Permission denied", 13)
        raise _CannotExecute(f"execve(): {word}: No such file or directory", 2)

    def run(self) -> int:
        """Run the step; return the exit status of srun."""
        claim = self._claim()
        if claim is None:
            return 1
        self.placed(claim)
        self.started = time.time()
        self.by_launcher = by_launcher = self._by_launcher(claim.tasks)
        guard = Guard(f"{job_variables.STEP}={self.env[job_variables.STEP]}", lambda: self._record(claim, "cancelled",
                                                                                                   137))
        running = RunningStep(guard, "pty" not in self.options, by_launcher,
                          self.kill, self.limit)
        if self.outside:
            running.marker = f"{os.path.dirname(self.job.one('records'))}/pids/{self.job.id}"
            if "pty" not in self.options:  # end tasks that have process groups of their own together with the job
                self.env.update(VRM_RUN=self.job.one("run"), VRM_JOB_ID=str(self.job.id))
        if by_launcher:
            self._launch(claim, running)
        else:
            self.start(claim, running)
        running.wait()
        code = self._status(running, claim, by_launcher)
        guard.close()
        claim.release()
        return code

    def placed(self, claim: StepCores) -> None:
        """Set the number of the step and the CPUs of each task."""
        bind = self.options.get("cpu-bind")
        self.cpus = cpus_of(self.job, claim.tasks, wide(bind), binding(bind)[1])
        self.step = f"{self.job.id}.{claim.number}"
        self.env[job_variables.STEP] = f"{self.job.one('run')}:{self.step}"

    def _claim(self) -> StepCores | None:
        """Wait for the cores of this step and return them; None if the job never has enough."""
        claims, overlap = StepAllocator(self.job), "overlap" in self.options
        try:
            claim = claims.take(self.wish, overlap)
            if claim is None:
                if not self.quiet:
                    _say(f"Job {self.job.slurm} step creation temporarily disabled, retrying "
                         "(Requested nodes are busy)")
                claim = claims.wait(self.wish, overlap)
                if not self.quiet:
                    _say(f"Step created for job {self.job.slurm}")
            return claim
        except NotEnoughCores:
            wish, job = self.wish, self.job
            _say(f"error: Unable to create step for job {job.slurm}: More processors requested than permitted: "
                 f"{wish}; the job has " + ", ".join(
                     f"{len(node.cores)} on {node.name}" + f" and {len(node.gpus)} GPUs" * any(wish.gpus or ())
                     for node in job.nodes))
            return None

    def _away(self, tasks: list[Task]) -> bool:
        """Return whether some tasks are on other nodes than this process."""
        here = self.job.here(os.environ)
        return self.job.bound and any(task.node != here for task in tasks)

    def _by_launcher(self, tasks: list[Task]) -> bool:
        """Return whether the MPI launcher starts the tasks."""
        kind, away = self.options.get("mpi"), self._away(tasks)
        if kind == "list":
            raise UsageError("MPI programs are started by the launcher of the run; leave out --mpi=list")
        if "pty" in self.options and (away or (len(tasks) > 1 and self.job.launcher != "direct")):
            raise UsageError("--pty is for one task on the node of the script")
        if self.job.launcher == "direct" or kind == "none" or "pty" in self.options:
            return False
        return away or len(tasks) > 1 or kind not in _NO_PMI or links_mpi(self.program)

    # Variables and files of tasks.

    def _common(self, claim: StepCores) -> dict[str, str]:
        """Return the variables that all tasks of the step have."""
        job, wish = self.job, self.wish
        counts: dict[int, int] = {}
        for task in claim.tasks:
            counts[task.node] = counts.get(task.node, 0) + 1
        names = ",".join(job.nodes[at].name for at in counts)
        number, total, nodes = str(claim.number), str(len(claim.tasks)), str(len(counts))
        each = _folded(list(counts.values()))
        found = {"SLURM_STEPID": number, "SLURM_STEP_NUM_TASKS": total, "SLURM_STEP_NUM_NODES": nodes,
                 "SLURM_STEP_NODELIST": names, "SLURM_STEP_TASKS_PER_NODE": each, "SLURM_NTASKS": total,
                 "SLURM_NPROCS": total, "SLURM_NNODES": nodes, "SLURM_TASKS_PER_NODE": each,
                 "SLURM_CPUS_PER_TASK": str(wish.cpus), "SLURM_DISTRIBUTION": "cyclic" if wish.cyclic else "block",
                 "SLURM_UMASK": f"{_umask():04o}", "SLURM_JOB_NAME": self.options.get("job-name") or
                 os.environ.get("SLURM_JOB_NAME", job.one("name"))}
        # Open MPI 4.1 assumes that a program with this variable was started by the site's srun, and refuses to run
        # it if mpirun has not started it.
        if job.launcher != "openmpi4":
            found["SLURM_STEP_ID"] = number
        if os.environ.get("OMP_NUM_THREADS") == job.one("threads"):
            found["OMP_NUM_THREADS"] = str(wish.cpus)
        return found

    def _values(self, claim: StepCores, rank: int) -> dict[str, str]:
        """Return the values of the `%` letters in file names for a task."""
        task, env = claim.tasks[rank], os.environ
        nodes = list(dict.fromkeys(each.node for each in claim.tasks))
        job_id = self.job.slurm
        return {"j": job_id, "J": f"{job_id}.{claim.number}", "s": str(claim.number), "t": str(rank),
                "n": str(nodes.index(task.node)), "N": self.job.nodes[task.node].name,
                "x": self.options.get("job-name") or env.get("SLURM_JOB_NAME", self.job.one("name")),
                "u": env.get("USER", str(os.getuid())), "A": env.get("SLURM_ARRAY_JOB_ID", job_id),
                "a": env.get("SLURM_ARRAY_TASK_ID", "4294967294")}

    def _names(self) -> tuple[str, str]:
        """Return the names of the files for output and errors; "" means those of srun itself."""
        out, err = self.options.get("output"), self.options.get("error")
        out = "" if out.lower() == "all" else os.devnull if out.lower() == "none" else out
        err = "" if err.lower() == "all" else os.devnull if err.lower() == "none" else err
        if out and "error" not in self.options:
            err = out
        return out, err

    def _path(self, name: str, values: dict[str, str]) -> str:
        return os.path.join(self.cwd, pattern(name, values))

    def _open(self, name: str, values: dict[str, str]) -> int:
        path = self._path(name, values)
        append_to = self.options.get("open-mode", "t")[:1] == "a"
        try:
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND
                           | (0 if append_to else os.O_TRUNC), 0o666)
        except OSError as error:
            raise UsageError(f"Could not open stdout file {path}: {error.strerror}") from None

    def _shared_files(self, claim: StepCores) -> tuple[int, int, int]:
        """Return the standard input, output and error files that all tasks of the step share."""
        values = self._values(claim, 0)
        out, err = self._names()
        files = [0, 1, 2]
        if out and not differs_by_task(out):
            files[1] = self._open(out, values)
        if err and not differs_by_task(err):
            files[2] = files[1] if err == out else self._open(err, values)
        given = self.options.get("input", "all")
        if given.lower() == "none":
            files[0] = os.open(os.devnull, os.O_RDONLY)
        elif given.lower() != "all" and not given.isdigit() and not differs_by_task(given):
            path = self._path(given, values)
            try:
                files[0] = os.open(path, os.O_RDONLY)
            except OSError as error:
                raise UsageError(f"Could not open stdin file {path}: {error.strerror}") from None
        return files[0], files[1], files[2]

    # Tasks started by this process.

    def start(self, claim: StepCores, running: RunningStep) -> None:
        """Start the tasks."""
        shared, common = self._shared_files(claim), self._common(claim)
        out, err = self._names()
        tasks = claim.tasks
        width = len(str(len(tasks) - 1))
        inputs = self._inputs(shared[0], len(tasks), running)
        cwd, here, away = os.getcwd(), self.job.here(os.environ), self._away(tasks)
        if away and not self.part:
            from vrm.ext.steps import remote
            remote.start(self, claim, running, shared[1], shared[2])
        os.chdir(self.cwd)
        for rank, task in enumerate(tasks):
            if away and task.node != here:
                continue
            values = self._values(claim, rank)
            files = [inputs[rank], shared[1], shared[2]]
            if out and differs_by_task(out):
                files[1] = self._open(out, values)
            if err and differs_by_task(err):
                files[2] = files[1] if err == out else self._open(err, values)
            label = b""
            if "label" in self.options:
                from vrm.ext.steps.label import prefix
                label = prefix(str(rank), width)
            running.start(rank, Process(
                [self.program, *self.options.words[1:]], self._of_task(tasks, rank, common, values["n"]),
                self.cpus[rank] if self.job.bound else None,
                (files[0], files[1], files[2]), label))
        os.chdir(cwd)
        for source in set(inputs) - {0}:
            os.close(source)

    def _inputs(self, shared: int, tasks: int, running: RunningStep) -> list[int]:
        """Return an open file for the standard input of each task."""
        given = self.options.get("input", "all").lower()
        if given.isdigit():
            return [0 if rank == int(given) else os.open(os.devnull, os.O_RDONLY) for rank in range(tasks)]
        if given != "all" or tasks == 1:
            return [shared] * tasks
        if os.isatty(0):
            return [os.open(os.devnull, os.O_RDONLY)] * tasks
        pipes = [os.pipe() for _ in range(tasks)]
        for _, target in pipes:
            os.set_inheritable(target, False)
        running.feeder = feed([target for _, target in pipes])
        return [source for source, _ in pipes]

    def _of_task(self, tasks: list[Task], rank: int, common: dict[str, str], number: str) -> dict[str, str]:
        """Return the variables of a task; `number` is the number of its node in the step."""
        task, node = tasks[rank], self.job.nodes[tasks[rank].node]
        same = [at for at, each in enumerate(tasks) if each.node == task.node]
        env = {**self.env, **common, **devices(self.job, task),
               "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(same.index(rank)), "SLURM_NODEID": number,
               "SLURMD_NODENAME": node.name, job_variables.NODE: node.name,
               "SLURM_CPUS_ON_NODE": str(len({core for at in same for core in tasks[at].cores})),
               "SLURM_GTIDS": ",".join(map(str, same))}
        for name in OUTER if node.gpus else ():
            env.pop(name, None)
        return env

    # Tasks started by the MPI launcher.

    def _launch(self, claim: StepCores, running: RunningStep) -> None:
        """Start the launcher, which starts the tasks."""
        options, job, tasks = self.options, self.job, claim.tasks
        if options.get("kill-on-bad-exit", "1") == "0" and len(tasks) > 1 and job.launcher != "srun":
            raise UsageError("the launcher of MPI programs ends all tasks when one fails; leave out "
                             "--kill-on-bad-exit=0, or say --mpi=none for programs without MPI")
        shared = self._shared_files(claim)
        out, err = self._names()
        outputs = [(self._path(out, values) if out and differs_by_task(out) else "",
                    self._path(err, values) if err and differs_by_task(err) else "")
                   for values in (self._values(claim, rank) for rank in range(len(tasks)))]
        common = {**{name: value for name, value in self.env.items()
                     if (job.bound and len({task.node for task in tasks}) > 1) or job.launcher == "srun"
                     or name not in os.environ or name.startswith(("SLURM", "VRM_", "SRUN_"))},
                  **self._common(claim)}
        for name in ("PWD", "OLDPWD", "_", "SHLVL"):
            common.pop(name, None)
        script = f"{job.directory}/{claim.number}.sh"
        with open(script, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(wrapper(job, tasks, common, self.cwd, self.cpus, outputs,
                               len(str(len(tasks) - 1)) if "label" in options else 0, claim.number))
        words, files = command(job, self.step, tasks, script, [self.program, *options.words[1:]],
                               self.kill)
        for path, text in files.items():
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        found = environment(job, self.env, f"{script}.hosts")
        running.start(0, Process(words, found, None, shared))

    # End of the step.

    def _status(self, running: RunningStep, claim: StepCores, by_launcher: bool) -> int:
        """Report and record how the step ended; return the exit status of srun."""
        code = max(running.codes.values(), default=1)
        state = "completed" if code == 0 else "failed"
        if running.timed_out:
            state, code = "timeout", 143 if by_launcher else code or 143
            _say(f"error: *** STEP {self.job.slurm}.{claim.number} CANCELLED DUE TO TIME LIMIT ***")
        elif running.cancelled:
            ended = 128 + running.killed_by
            state, code = "cancelled", ended if by_launcher else code or ended
        elif code and not by_launcher:
            self.print_failed_tasks(running, claim)
        self._record(claim, state, code)
        return code

    def print_failed_tasks(self, running: RunningStep, claim: StepCores) -> None:
        """Print which tasks failed, as srun does."""
        for rank in running.ended:
            code = running.codes[rank]
            if code and rank >= 0:  # other nodes print it themselves
                what = (_signal.strsignal(code - 128) if 128 < code < 128 + _signal.NSIG else None)
                _say(f"error: {self.job.nodes[claim.tasks[rank].node].name}: task {rank}: "
                     + (what or f"Exited with exit code {code}"))

    def _record(self, claim: StepCores, state: str, code: int) -> None:
        """Write the line of `steps.csv`."""
        job, tasks = self.job, claim.tasks
        step = Step(job.id, str(claim.number), self.title, self.started, time.time(), state, code, len(tasks),
            len({(task.node, core) for task in tasks for core in task.cores}),
            " ".join(dict.fromkeys(job.nodes[task.node].name for task in tasks)), *self._used(claim),
            float(job.one("began")) if job.one("began") else None)
        try:
            append(job.one("records"), step)
        except OSError as error:
            _say(f"error: {job.one('records')} lacks the line of step {self.step}: {error.strerror}")

    def _used(self, claim: StepCores) -> tuple[float, float, int]:
        """Return what the tasks and their launcher have used."""
        own = resource.getrusage(resource.RUSAGE_CHILDREN)
        here = own.ru_utime, own.ru_stime, own.ru_maxrss * 1024
        site = self.by_launcher and self.job.launcher == "srun"
        there = of_step(self.job.directory, claim.number) if site or self._away(claim.tasks) else None
        return here if there is None else there if site else together((here, there))


class _CannotExecute(UsageError):
    """The program cannot be run; `code` is the error number, which is the exit status of srun."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def _folded(counts: list[int]) -> str:
    """Return the tasks of each node in Slurm's form, `4(x2),2`. It does not use `vrm.model.quantities`, which would
    slow down the start of each srun."""
    runs = ((count, len(list(same))) for count, same in groupby(counts))
    return ",".join(str(count) + f"(x{nodes})" * (nodes > 1) for count, nodes in runs)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _say(text: str) -> None:
    sys.stderr.write(f"srun: {text}\n")
    sys.stderr.flush()


def run(work: Callable[[], int] = lambda: main(sys.argv[1:])) -> NoReturn:
    """Run srun, or another function in its place, and exit without cleanup."""
    code = 1
    try:
        code = work()
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = 130
    except Exception:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    finally:
        os._exit(code)
