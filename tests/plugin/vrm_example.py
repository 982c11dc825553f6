"""One thing of each kind that a package can add to vrm; pyproject.toml declares them."""

from vrm.ext.slurm.calls.answers import Answer
from vrm.ext.slurm.calls.names import Dialect
from vrm.commands.parsing import command
from vrm.live.batch.base import BatchSystem
from vrm.live.launch.direct import Direct
from vrm.live.manager.part import Part
from vrm.scheduling import combine
from vrm.workload.rows import Asked, Rows


def widest(job, now, nodes):
    """Who wants most ranks comes first."""
    return job.procs


class ShortOnly:
    """Behind the head, jobs of at most a minute start."""

    def schedule(self, step):
        waits = False
        for job in step.waiting:
            if (not waits or job.expected <= 60) and step.fits(job):
                yield job
            else:
                waits = True


def even(job, view, node):
    """Nodes of even numbers."""
    return node % 2 == 0


def last(job, view, node):
    """The last node first."""
    return -node


def spare_one(job, view, node):
    """All cores of a node but the first."""
    return range(1, view.nodes[node].cores)


last_nodes = combine("empty", last, "all", name="last-nodes")


class Half:
    """Jobs take half of what their users say."""

    def expected(self, job):
        return job.walltime / 2


class Marked(Direct):
    """Starts programs as `direct` does, with MARKED=yes in their environment."""

    kind = "marked"

    def command(self, *arguments, **named):
        launch = super().command(*arguments, **named)
        launch.env["MARKED"] = "yes"
        return launch


class Witness(Part):
    """Writes into the run's directory how many jobs have completed."""

    def __init__(self, live):
        self.live = live

    def end(self):
        completed = self.live.state.counts["completed"]
        (self.live.run_directory.directory / "witness").write_text(f"{completed} completed")


class ExampleBatch(BatchSystem):
    """A batch system that says in EXAMPLE_HOSTS which nodes a job has, as `n1:4,n2:4`."""

    name = "example"
    title = "the example's batch system"
    signs = ("EXAMPLE_HOSTS",)
    ids = ("EXAMPLE_JOB",)

    def hosts(self, env):
        pairs = (pair.partition(":") for pair in env["EXAMPLE_HOSTS"].split(","))
        return {name: int(cores) for name, _, cores in pairs}


class Pipes(Rows):
    """A job a line: id|submission|run time|limit|cores, below a line `jobs|1`."""

    @staticmethod
    def tells(line):
        return line.strip() == "jobs|1"

    def asked(self):
        for number, line in self.lines():
            if number > 1:
                job, submit, run, limit, cores = map(float, line.split("|"))
                yield Asked(int(job), submit, run, limit, cores=int(cores))


def add_greet(commands, shared):
    """Add `vrm greet NAME`."""
    parser = command(commands, "greet", greet, "say hello", [], "vrm greet you")
    parser.add_argument("name")


def greet(arguments):
    print(f"hello {arguments.name}")
    return 0


def counting():
    """The commands of a batch system that has one, `jcount`."""
    return Dialect({"jcount": "vrm_example:jcount"}, reading=frozenset(("jcount",)))


def jcount(call, counter):
    """How many jobs there are."""
    return Answer(f"{len(counter.jobs())} jobs\n")
