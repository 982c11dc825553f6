"""One thing of each kind that a package can add to vrm; pyproject.toml declares them."""

from vrm.ext.slurm.calls.answers import Answer
from vrm.ext.slurm.calls.names import Dialect
from vrm.commands.parsing import command
from vrm.live.batch.base import BatchSystem
from vrm.live.launch.direct import DirectLauncher
from vrm.live.manager.part import Part
from vrm.model.constraint import CountedConstraint
from vrm.model.forms.fields import Field, Option
from vrm.model.job import Job
from vrm.model.forms.field_types import COUNT
from vrm.model.forms.json_checks import count
from vrm.scheduling import combine
from vrm.system.transports.base import Transport
from vrm.workload.rows import RowRequest, Rows
from vrm.workload.submission import Submission


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


class Marked(DirectLauncher):
    """Starts programs as `direct` does, with MARKED=yes in their environment."""

    kind = "marked"

    def command(self, *arguments, **named):
        launch = super().command(*arguments, **named)
        launch.env["MARKED"] = "yes"
        return launch


class Witness(Part):
    """Counts the managers of a run, and writes into the run's directory how many jobs have completed."""

    events = {"came": {"number": count}}

    def __init__(self, live):
        self.live, self.managers = live, 0

    def happened(self, event, values):
        self.managers = values["number"]

    def begin(self, selector):
        self.live.record(self, "came", number=self.managers + 1)
        (self.live.run_directory.directory / "managers").write_text(f"{self.managers + 1}")

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


def beside():
    """A transport to nodes that are all this machine."""
    return Transport("beside", lambda host, timeout: ("env", f"BESIDE={host}"))


def watchful(simulation, progress):
    """An engine that takes no simulation; each has what it would have to know."""
    assert "lost nodes" in simulation.besides and simulation.scheduler.policy.name


class Pipes(Rows):
    """A job a line: id|submission|run time|limit|cores, below a line `jobs|1`."""

    @staticmethod
    def tells(line):
        return line.strip() == "jobs|1"

    def asked(self):
        for number, line in self.lines():
            if number > 1:
                job, submit, run, limit, cores = map(float, line.split("|"))
                yield RowRequest(int(job), submit, run, limit, cores=int(cores))


class Alike:
    """`alike:JOBS`: jobs of one core and a minute, one each second, for a machine of four cores."""

    header, unix_start, processors = {}, None, 4

    def __init__(self, text, rules):
        self.jobs, self.taken, self.dirt = int(text.partition(":")[2]), 0, {}

    def __iter__(self):
        for number in range(1, self.jobs + 1):
            self.taken = number
            yield Submission(Job(number, "alike", 1, 60.0, float(number)), 60.0)


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


def site_tokens():
    """Tokens of the site that a job holds while it runs."""
    return Field("site_tokens", COUNT, "a whole number of tokens, 0 or more", default=0,
                 option=Option("N", "tokens of the site that the job holds while it runs"))


def read_site_tokens(text):
    """How many tokens the site has: a whole number."""
    if not str(text).isdigit():
        raise ValueError(f"expected a whole number of tokens, got `{text}`; for example SiteTokens: 4")
    return int(text)


class SiteTokens(CountedConstraint):
    """Jobs hold the tokens of their field site_tokens while they run; there are as many as the key SiteTokens says."""

    name = "site_tokens"

    def __init__(self, total, cluster):
        super().__init__(total)

    def amount(self, job):
        return job.more.get("site_tokens", 0)


def token_hours(row):
    """For how long a job has held tokens, in tokens times hours."""
    tokens = row.added("site_tokens", 0)
    return None if row.start is None or not tokens else tokens * (row.end - row.start) / 3600


class LastWait:
    """How long the last job to start waits."""

    words = "wait of the last job"
    unit = "s"

    def value(self, served):
        return max((job.start - job.submit for job in sorted(served, key=lambda job: job.start)[-1:]), default=0.0)
