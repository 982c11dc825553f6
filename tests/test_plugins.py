"""Packages that add to vrm: `tests/plugin` is installed in an environment of its own, with one of each kind; and
docs/how-to/extending.md is done word for word."""

from __future__ import annotations

import csv
import json
import os
import re
import socket
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from conftest import mpirun_environment, wait_until

ROOT = Path(__file__).resolve().parents[1]
PLUGIN = ROOT / "tests" / "plugin"

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("plugins")]  # their environments are made once


class Environment:
    """A virtual environment in which this checkout's vrm is, and packages can be installed."""

    def __init__(self, place: Path) -> None:
        venv.create(place / "env")
        self.place, self.bin = place, place / "env" / "bin"
        library = next((place / "env" / "lib").glob("python*/site-packages"))
        paths = dict.fromkeys([str(ROOT), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
        (library / "dependencies.pth").write_text("".join(f"{path}\n" for path in paths))
        (self.bin / "vrm").write_text(f"#!{self.bin}/python\nimport sys\nfrom vrm.cli import main\nsys.exit(main())\n")
        (self.bin / "vrm").chmod(0o755)
        (self.bin / "pip").write_text(f"#!/bin/sh\nexec {sys.executable} -m pip --python {self.bin}/python \"$@\"\n")
        (self.bin / "pip").chmod(0o755)
        self.library = library

    def shell(self, script: str, cwd: Path, status: int = 0, **more: str) -> str:
        """What a script prints on both outputs."""
        env = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}", "PIP_NO_BUILD_ISOLATION": "0",
               "PIP_NO_DEPS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", **more}
        done = subprocess.run(["bash", "-ec", script], cwd=cwd, env=env, stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=240, check=False)
        assert done.returncode == status, done.stdout
        return done.stdout

    def vrm(self, words: str, cwd: Path, status: int = 0, **more: str) -> str:
        """What `vrm` prints."""
        return self.shell(f"vrm {words}", cwd, status, **more)

    def declare(self, package: str, text: str, module: str = "", version: str = "2.0") -> None:
        """Put a package there, as pip leaves it: a module, and what it declares."""
        about = self.library / f"{package.replace('-', '_')}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        (about / "entry_points.txt").write_text(text)
        if module:
            (self.library / f"{package.replace('-', '_')}.py").write_text(module)


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with vrm and vrm-example."""
    pytest.importorskip("pip", reason="no pip in this environment")
    there = Environment(tmp_path_factory.mktemp("plugins"))
    source = there.place / "source"
    source.mkdir()
    for name in ("pyproject.toml", "vrm_example.py"):
        (source / name).write_text((PLUGIN / name).read_text())
    there.shell("pip install ./source", there.place)
    return there


def test_all_that_it_adds_is_listed(example: Environment, tmp_path: Path) -> None:
    found = [record for record in json.loads(example.vrm("plugins --json", tmp_path)) if record["package"] != "vrm"]
    assert {(record["kind"], record["name"], record["object"]) for record in found} == {
        ("ordering", "widest", "vrm_example:widest"), ("backfilling", "short-only", "vrm_example:ShortOnly"),
        ("placement policy", "last-nodes", "vrm_example:last_nodes"), ("eligibility of nodes", "even", "vrm_example:even"),
        ("node order", "last", "vrm_example:last"), ("share of a node", "spare-one", "vrm_example:spare_one"),
        ("estimator", "half", "vrm_example:Half"), ("launcher", "marked", "vrm_example:Marked"),
        ("batch system", "example", "vrm_example:ExampleBatch"), ("transport to nodes", "beside", "vrm_example:beside"),
        ("engine of simulations", "watchful", "vrm_example:watchful"),
        ("workload format", "pipes", "vrm_example:Pipes"),
        ("workload that is drawn", "alike", "vrm_example:Alike"),
        ("part of the manager", "witness", "vrm_example:Witness"), ("command", "greet", "vrm_example:add_greet"),
        ("commands of a batch system", "counting", "vrm_example:counting"),
        ("job field", "site_tokens", "vrm_example:site_tokens"),
        ("configuration key", "SiteTokens", "vrm_example:read_site_tokens"),
        ("constraint on starts", "SiteTokens", "vrm_example:SiteTokens"),
        ("column of jobs.csv", "token_hours", "vrm_example:token_hours"),
        ("objective of advice", "last-wait", "vrm_example:LastWait")}
    assert {(record["package"], record["version"], record["trouble"]) for record in found} == {("vrm-example", "1.0", "")}
    assert "widest  from vrm-example 1.0 (vrm_example:widest)" in example.vrm("plugins", tmp_path)


def test_a_command_of_it_is_one_of_vrm(example: Environment, tmp_path: Path) -> None:
    assert example.vrm("greet you", tmp_path) == "hello you\n"
    overview = example.vrm("help", tmp_path)
    assert "From installed packages:\n  greet       say hello\n" in overview
    assert "vrm greet you" in example.vrm("help greet", tmp_path)
    assert "did you mean greet?" in example.vrm("gret", tmp_path, 2)


def rows(path: Path) -> list[dict[str, str]]:
    """The rows of a jobs.csv."""
    with open(path, newline="") as file:
        return sorted(csv.DictReader(file), key=lambda row: int(row["id"]))


def simulated(there: Environment, tmp_path: Path, options: str) -> list[str]:
    """The starts of four jobs on two nodes of four cores, with their nodes; "" for a job that is refused."""
    (tmp_path / "queue").write_text("a 6 100 0\nb 6 100 0\nc 2 60 0\nd 8 100 0\nend\n")
    there.vrm("simulate queue --nodes 2 --sockets 1 --cores 4 --algorithm FCFS --backfill none --policy pack "
              f"{options} --out out", tmp_path)
    return [f"{row['start']} {row['nodes']}".strip() for row in rows(tmp_path / "out" / "jobs.csv")]


BOTH = "n[0-1]"


@pytest.mark.parametrize("options, starts", [
    ("", [f"0 {BOTH}", f"100 {BOTH}", "100 n1", f"200 {BOTH}"]),
    ("--algorithm widest", [f"100 {BOTH}", f"200 {BOTH}", "200 n1", f"0 {BOTH}"]),
    ("--backfill short-only", [f"0 {BOTH}", f"100 {BOTH}", "0 n1", f"200 {BOTH}"]),
    ("--policy last-nodes", [f"0 {BOTH}", f"100 {BOTH}", "200 n1", f"260 {BOTH}"]),
    ("--policy 'even x number x all'", ["", "", "0 n0", ""]),
    ("--policy 'empty x last x half'", ["", "", "0 n1", ""]),
    ("--policy 'open x first-fit x spare-one'", [f"0 {BOTH}", f"100 {BOTH}", "200 n0", ""]),
    ("--node-order last", [f"0 {BOTH}", f"100 {BOTH}", "100 n0", f"200 {BOTH}"]),
])
def test_its_policies_decide(example: Environment, tmp_path: Path, options: str, starts: list[str]) -> None:
    assert simulated(example, tmp_path, options) == starts


def test_its_estimator_is_asked(example: Environment, tmp_path: Path) -> None:
    (tmp_path / "queue").write_text("a 6 100 0\nb 6 100 0\nc 2 120 0\nend\n")
    for options, start in (("", "100"), ("--estimates half", "0")):  # of half, 60 s, the dispatcher says yes
        example.vrm("simulate queue --nodes 2 --sockets 1 --cores 4 --algorithm FCFS --backfill short-only --policy pack "
                    f"{options} --out out", tmp_path)
        assert rows(tmp_path / "out" / "jobs.csv")[2]["start"] == start


def test_its_form_of_workloads_is_read(example: Environment, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("jobs|1\n7|0|100|200|4\n8|10|50|60|2\n")
    example.vrm("simulate log --nodes 1 --sockets 1 --cores 4 --algorithm FCFS --out out", tmp_path)
    assert [(row["id"], row["procs"], row["start"], row["end"]) for row in rows(tmp_path / "out" / "jobs.csv")] == [
        ("7", "4", "0", "100"), ("8", "2", "100", "150")]


def test_its_workload_is_drawn(example: Environment, tmp_path: Path) -> None:
    example.vrm("simulate alike:6 --out out", tmp_path)
    assert [(row["id"], row["start"]) for row in rows(tmp_path / "out" / "jobs.csv")] == [
        ("1", "1"), ("2", "2"), ("3", "3"), ("4", "4"), ("5", "61"), ("6", "62")]
    assert "vrm simulate: aliek:6: no such file or directory; name a trace" in example.vrm("simulate aliek:6", tmp_path, 2)
    assert "vrm-example 1.0 (vrm_example:Alike) failed: ValueError: invalid literal" in example.vrm(
        "simulate alike:many", tmp_path, 2)


def test_its_launcher_batch_system_transport_and_part_serve_a_live_run(example: Environment, tmp_path: Path) -> None:
    program = tmp_path / "apps" / "tell"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho marked $MARKED\n")
    program.chmod(0o755)
    (tmp_path / "queue").write_text("tell 1 60 0\ntell 1 60 0\nend\n")
    (tmp_path / "vrm.yaml").write_text("Applications: {Path: apps, Queue: queue}\nLauncher: {Kind: marked}\nLog: logs\n"
                                       "Scheduling: {Algorithm: widest, Backfilling: short-only}\nHosts: {Reach: beside}\n")
    around = {"EXAMPLE_HOSTS": f"{socket.gethostname()}:1,other:1", "EXAMPLE_JOB": "7"}
    said = example.vrm("run", tmp_path, **around)
    assert "2 completed" in said and "on 2 nodes of 1 cores" in said, said  # which the batch system has granted
    assert {row["nodes"] for row in rows(tmp_path / "logs" / "jobs.csv")} == {socket.gethostname(), "other"}
    assert (tmp_path / "logs" / "tell.0.o").read_text() == "marked yes\n"
    assert (tmp_path / "logs" / "witness").read_text() == "2 completed"


def test_a_command_of_its_batch_system_is_answered_by_the_manager(example: Environment, tmp_path: Path) -> None:
    """As the program behind a run finds it, and as `vrm slurm` types it."""
    (tmp_path / "ask").write_text("#!/bin/sh\njcount\nvrm slurm jcount\n")
    (tmp_path / "ask").chmod(0o755)
    (tmp_path / "queue").write_text("ask 1 60 0 hold=1\n" * 2)
    (tmp_path / "vrm.yaml").write_text("Applications: {Path: ., Queue: queue}\nLauncher: {Kind: direct}\nLog: logs\n")
    assert example.vrm("run -- sh -c './ask; vrm cancel all'", tmp_path, 0).count("2 jobs\n") == 2


# ---------------------------------------------------------------------- fields, keys, constraints and columns

TOKENS = "a 1 100 0 site_tokens=3\nb 1 100 0 site_tokens=2\nc 1 50 0 site_tokens=1\nd 1 50 0\nend\n"
KEY = "Extensions: {vrm-example: {SiteTokens: 4}}\n"


@pytest.mark.parametrize("how, starts", [
    ("none", ["0", "100", "100", "100"]), ("easy", ["0", "100", "0", "0"]), ("conservative", ["0", "100", "0", "0"]),
    ("2", ["0", "100", "0", "0"]), ("3-kept", ["0", "100", "0", "0"]), ("list", ["0", "100", "0", "0"])])
def test_its_constraint_holds_jobs_under_all_backfillings(example: Environment, tmp_path: Path, how: str,
                                                          starts: list[str]) -> None:
    (tmp_path / "queue").write_text(TOKENS)
    (tmp_path / "vrm.yaml").write_text(KEY)
    options = f"--nodes 2 --sockets 1 --cores 4 --algorithm FCFS --backfill {how} --policy pack"
    example.vrm(f"simulate queue -c vrm.yaml {options} --out out", tmp_path)
    found = rows(tmp_path / "out" / "jobs.csv")
    assert [row["start"] for row in found] == starts
    assert [(row["site_tokens"], row["token_hours"]) for row in found] == [
        ("3", "0.083"), ("2", "0.056"), ("1", "0.014"), ("", "")]
    # The jobs of that run have their tokens again; without the key nobody counts them.
    example.vrm(f"simulate out/jobs.csv -c vrm.yaml {options} --out again", tmp_path)
    assert [row["start"] for row in rows(tmp_path / "again" / "jobs.csv")] == starts
    example.vrm(f"simulate queue {options} --out free", tmp_path)
    assert [row["start"] for row in rows(tmp_path / "free" / "jobs.csv")] == ["0"] * 4


def test_what_is_wrong_with_its_field_and_its_key_is_said_with_the_place(example: Environment, tmp_path: Path) -> None:
    machine = "--nodes 1 --sockets 1 --cores 4"

    def said(queue: str, config: str, status: int = 2) -> str:
        (tmp_path / "queue").write_text(queue)
        (tmp_path / "vrm.yaml").write_text(config)
        return example.vrm(f"simulate queue -c vrm.yaml {machine} --out out", tmp_path, status)
    assert "queue:1: site_tokens: found `x`, wanted a whole number of tokens, 0 or more" in said(
        "a 1 100 0 site_tokens=x\n", KEY)
    assert "unknown field `site_token`" in said("a 1 100 0 site_token=1\n", KEY)
    said("a 1 100 0 site_tokens=9\n", KEY, 0)
    assert rows(tmp_path / "out" / "jobs.csv")[0]["reason"] == "it takes 9 site_tokens, there are 4"
    for config, complaint in (
            ("{vrm-example: {SiteTokens: four}}", "vrm-example.SiteTokens: expected a whole number of tokens, got `four`"),
            ("{vrm-example: {SiteToken: 4}}", "vrm-example.SiteToken: vrm-example has no such key; did you mean SiteTokens?"),
            ("{vrm-other: {SiteTokens: 4}}", "vrm-other.SiteTokens: the package vrm-other, which adds it, is not"),
            ("4", "found \"4\", wanted names of packages with their keys")):
        assert re.match(f"vrm.yaml:2: Extensions[.:] ?{re.escape(complaint)}", said(TOKENS, f"\nExtensions: {config}\n"))


def test_its_field_key_and_event_are_documented_and_its_objective_is_asked(example: Environment, tmp_path: Path) -> None:
    assert "--site-tokens N" in example.vrm("help submit --all", tmp_path)
    assert "    # How many tokens the site has: a whole number.\n    SiteTokens:\n" in example.vrm("help config", tmp_path)
    assert "one of wait, makespan, slowdown, longest, fits, energy, last-wait" in example.vrm(
        "advise lublin:4:9 --nodes 4 --objective other", tmp_path, 2)
    assert "wait of the last job" in example.vrm("advise lublin:4:9 --nodes 4 --objective last-wait", tmp_path)


LIVE = """Applications: {Path: ., Queue: queue}
Launcher: {Kind: direct}
Log: logs
Nodes: 1
Sockets: 1
Cores: 8
Emulate: true
Extensions: {vrm-example: {SiteTokens: 4}}
"""


class Managed:
    """A manager with the package, which `with` ends."""

    def __init__(self, there: Environment, place: Path) -> None:
        self.there, self.place = there, place

    def __enter__(self) -> subprocess.Popen[str]:
        words = [str(self.there.bin / "python"), str(self.there.bin / "vrm"), "run", "--here", "--wait"]
        self.process = subprocess.Popen(words, cwd=self.place, env=mpirun_environment(), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return self.process

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()


def queued(there: Environment, place: Path) -> dict[int, tuple[str, dict[str, int]]]:
    """The state and the fields of extensions of each job that `vrm queue --json` has."""
    if not (place / "logs" / "state").exists():
        return {}
    found = json.loads(there.vrm("queue --json", place))
    return {job["id"]: (job["state"], job["more"]) for job in found["jobs"]}


def test_a_live_run_keeps_its_field_and_its_events_over_a_kill(example: Environment, tmp_path: Path) -> None:
    (tmp_path / "hold").write_text("#!/bin/sh\nfor i in $(seq 600); do [ -e go ] && exit; sleep 0.1; done\n")
    (tmp_path / "hold").chmod(0o755)
    (tmp_path / "vrm.yaml").write_text(LIVE)
    (tmp_path / "queue").write_text("hold 1 600 0 site_tokens=3\nhold 1 600 0 site_tokens=2\n")
    wanted = {job: (state, {"site_tokens": tokens})
              for job, state, tokens in ((0, "running", 3), (1, "queued", 2), (2, "running", 1))}
    journal = tmp_path / "logs" / "journal"
    with Managed(example, tmp_path) as manager:
        wait_until(lambda: 0 in queued(example, tmp_path), "job 0 runs")
        assert "job 2" in example.vrm("submit hold 1 600 --site-tokens 1", tmp_path)
        assert "site_tokens: found `x`, wanted a whole number" in example.vrm(
            "submit hold 1 600 --site-tokens x", tmp_path, 2)
        wait_until(lambda: queued(example, tmp_path) == wanted, "job 2 runs before job 1")
        assert "takes 2 site_tokens, 0 are left" in example.vrm("queue", tmp_path)
        assert "Takes 2 site_tokens" in example.vrm("explain 1", tmp_path)
        manager.kill()
        manager.wait()
    # A vrm without the package refuses the run, and changes nothing.
    before = journal.read_bytes()
    bare = [sys.executable, "-m", "vrm.cli", "run", "--here"]
    for config, complaint in ((LIVE, "vrm.yaml:8: Extensions.vrm-example.SiteTokens: the package vrm-example, which adds it"),
                              (LIVE.replace(KEY, ""), "of the package vrm-example, which is not installed here; install it")):
        (tmp_path / "vrm.yaml").write_text(config)
        done = subprocess.run(bare, cwd=tmp_path, env=mpirun_environment(), capture_output=True, text=True, timeout=60,
                              check=False)
        assert done.returncode == 2 and complaint in done.stderr and "damaged" not in done.stderr, done.stderr
    assert journal.read_bytes() == before
    (tmp_path / "vrm.yaml").write_text(LIVE)
    with Managed(example, tmp_path) as manager:
        wait_until(lambda: (tmp_path / "logs" / "managers").read_text() == "2", "the part knows of the manager before")
        wait_until(lambda: queued(example, tmp_path) == wanted, "the jobs have their tokens")
        (tmp_path / "go").touch()
        with open(tmp_path / "queue", "a") as queue:
            queue.write("end\n")
        said, _ = manager.communicate(timeout=60)
    assert "3 completed" in said, said
    found = rows(tmp_path / "logs" / "jobs.csv")
    assert [row["site_tokens"] for row in found] == ["3", "2", "1"] and float(found[0]["token_hours"]) > 0
    assert float(found[1]["start"]) >= min(float(found[0]["end"]), float(found[2]["end"]))


def test_a_session_gives_jobs_its_field(example: Environment, tmp_path: Path) -> None:
    (tmp_path / "nap").write_text("#!/bin/sh\ntrue\n")
    (tmp_path / "nap").chmod(0o755)
    (tmp_path / "vrm.yaml").write_text(LIVE)
    (tmp_path / "queue").write_text("")
    (tmp_path / "give.py").write_text("from vrm.api import Session\nwith Session('vrm.yaml') as session:\n"
                                      "    print(session.submit('nap', 1, 60, site_tokens=2).result())\n")
    example.shell("python give.py", tmp_path)
    assert [row["site_tokens"] for row in rows(tmp_path / "logs" / "jobs.csv")] == ["2"]


# ---------------------------------------------------------------------- what can be wrong with packages


def entry(group: str, name: str, path: str) -> str:
    """What a package declares."""
    return f"[vrm.{group}]\n{name} = {path}\n"


ORDERING = "def first(job, now, nodes):\n    return -job.id\n"


FIELDS = """from vrm.model.constraint import Constraint

def none():
    return None

def fails(text):
    return 1 / 0

def odd(text):
    return text

class Odd(Constraint):
    def __init__(self, value, cluster):
        self.value = value

    def allows(self, job, placement, begin, end):
        return 1 / 0 if self.value == "allows" else True

def broken(row):
    return row.nothing_of_this_name
"""


READERS = """
from vrm.workload.rows import Rows

class Odd(Rows):
    @staticmethod
    def tells(line):
        if line == "odd|tells":
            raise RuntimeError("no file of mine")
        return line.startswith("odd|")

    def asked(self):
        for number, line in self.lines():
            yield int(line) if number > 1 else 5

def drawn(text, rules):
    if text == "odd:number":
        return 5
    return iter([5] if text == "odd:items" else map(int, ["x"]))
"""


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with packages of which each has something wrong."""
    there = Environment(tmp_path_factory.mktemp("wrong"))
    there.declare("missing", entry("orderings", "gone", "missing:gone"), ORDERING)
    there.declare("raises", entry("orderings", "early", "raises:first") + entry("commands", "shout", "raises:shout"),
                  "raise OSError('no data here')\n")
    there.declare("one", entry("orderings", "first", "one:first"), ORDERING)
    there.declare("two", entry("orderings", "First", "two:first"), ORDERING)
    there.declare("same", entry("orderings", "FCFS", "same:first") + entry("commands", "queue", "same:first"), ORDERING)
    there.declare("fails", entry("commands", "fails", "fails:first"), ORDERING)
    there.declare("part", entry("parts", "idle", "part:first"), ORDERING.replace("job, now, nodes", "job").replace(
        "-job.id", "job"))
    there.declare("breaks", entry("parts", "breaks", "breaks:Breaks"),
                  "from vrm.live.manager.part import Part\n\n\nclass Breaks(Part):\n    def __init__(self, live):\n        "
                  "self.turns = 0\n\n    def tidy(self, now):\n        self.turns += 1\n        1 / (2 - self.turns)\n")
    there.declare("fields", entry("fields", "priority", "fields:none") + entry("fields", "colour", "fields:none")
                  .replace("[vrm.fields]\n", "") + entry("keys", "Fails", "fields:fails") + entry("keys", "Odd", "fields:odd")
                  .replace("[vrm.keys]\n", "") + entry("constraints", "Odd", "fields:Odd")
                  + entry("columns", "broken", "fields:broken") + entry("objectives", "bare", "fields:none"), FIELDS)
    there.declare("readers", entry("formats", "odd", "readers:Odd") + entry("workloads", "odd", "readers:drawn"), READERS)
    there.declare("value", entry("orderings", "number", "value:NUMBER"), "NUMBER = 3\n")
    return there


@pytest.mark.parametrize("name, complaint", [
    ("gone", "missing 2.0 (missing:gone) failed: AttributeError: module 'missing' has no attribute 'gone'; update or "
             "uninstall missing"),
    ("early", "raises 2.0 (raises:first) failed: OSError: no data here; update or uninstall raises"),
    ("first", "the ordering `first` is in two packages, two 2.0 (two:first) and one 2.0 (one:first); uninstall one of them"),
    ("number", "value 2.0 (value:NUMBER) is not callable; update or uninstall value"),
    ("gnoe", "unknown ordering `gnoe`; did you mean gone? (or module:function for your own); or an expression of "),
])
def test_what_cannot_be_used_is_told_in_one_line(wrong: Environment, tmp_path: Path, name: str, complaint: str) -> None:
    said = wrong.vrm(f"simulate lublin:8:3 --algorithm {name}", tmp_path, 2)
    assert said.startswith(f"vrm simulate: {complaint}") and said.count("\n") == 1, said


def test_the_rest_works_beside_it(wrong: Environment, tmp_path: Path) -> None:
    assert "jobs/s" in wrong.vrm("simulate lublin:8:3 --algorithm FCFS", tmp_path)  # vrm's own
    said = wrong.vrm("help", tmp_path)
    assert said.count("vrm: ") == 3 and "vrm runs your own queue" in said
    troubles = {record["name"]: record["trouble"]
                for record in json.loads(wrong.vrm("plugins --json 2>/dev/null", tmp_path, 1)) if record["package"] != "vrm"}
    # What shows only when it is called:
    assert {name for name, trouble in troubles.items() if not trouble} == {
        "fails", "idle", "breaks", "colour", "Fails", "Odd", "broken", "bare", "odd"}
    assert "vrm has one of that name" in troubles["priority"]
    (tmp_path / "nap").write_text("#!/bin/sh\nsleep 1\n")
    (tmp_path / "nap").chmod(0o755)
    (tmp_path / "queue").write_text("nap 1 60 0\nend\n")
    (tmp_path / "vrm.yaml").write_text("Applications: {Path: ., Queue: queue}\nLauncher: {Kind: direct}\nLog: logs\n")
    said = wrong.vrm("run", tmp_path)
    assert "vrm: part 2.0 (part:first) failed: TypeError: it does not return a vrm.live.manager.part.Part; update or" in said
    assert said.count("breaks:Breaks is left out from here on: its `tidy` raised ZeroDivisionError: division by zero") == 1
    assert "1 completed" in said, said


@pytest.mark.parametrize("workload, complaint", [
    ("tells", "readers 2.0 (readers:Odd) failed: RuntimeError: no file of mine; update or uninstall readers"),
    ("rows", "readers 2.0 (readers:Odd) failed: AttributeError: 'int' object has no attribute 'submit'; update or"),
    ("odd:number", "readers 2.0 (readers:drawn) failed: TypeError: 'int' object is not iterable; update or"),
    ("odd:fails", "readers 2.0 (readers:drawn) failed: ValueError: invalid literal for int() with base 10: 'x'; update or"),
    ("odd:items", "the workload has 5, expected a vrm.simulation.Submission; "),
])
def test_a_reader_of_workloads_that_fails_is_one_line(wrong: Environment, tmp_path: Path, workload: str,
                                                      complaint: str) -> None:
    for name in ("tells", "rows"):
        (tmp_path / name).write_text(f"odd|{name}\n7\n")
    said = wrong.vrm(f"simulate {workload} --nodes 2", tmp_path, 2)
    assert said.startswith(f"vrm simulate: {complaint}") and said.count("\n") == 1, said


@pytest.mark.parametrize("config, options, complaint", [
    ("Extensions: {fields: {Fails: 1}}", "", "vrm.yaml:1: Extensions.fields.Fails: fields 2.0 (fields:fails) failed: "
     "ZeroDivisionError: division by zero; update or uninstall fields\n"),
    ("Extensions: {fields: {Odd: allows}}", "", "`Odd` failed at "),
    ("Scheduling: {Objective: none}", "", "vrm.yaml:1: Scheduling.Objective: found \"none\", wanted wait, makespan, "),
])
def test_a_key_or_constraint_that_fails_is_one_line(wrong: Environment, tmp_path: Path, config: str, options: str,
                                                    complaint: str) -> None:
    (tmp_path / "vrm.yaml").write_text(f"{config}\n")
    said = wrong.vrm(f"simulate lublin:8:3 -c vrm.yaml {options}", tmp_path, 2)
    assert complaint in said and "Traceback" not in said and said.count("\n") == 1, said


def test_a_field_or_column_that_fails_is_one_line_and_the_rest_works(wrong: Environment, tmp_path: Path) -> None:
    (tmp_path / "queue").write_text("a 1 60 0 name=x\nb 1 60 0 colour=blue\nend\n")
    said = wrong.vrm("simulate queue --nodes 1 --sockets 1 --cores 4 --out out", tmp_path)
    assert said.count("vrm: fields 2.0 (fields:none) failed: TypeError: it gives no vrm.model.forms.fields.Field whose word") == 1
    assert said.count("vrm: fields 2.0 (fields:broken) failed: AttributeError: ") == 1, said
    found = rows(tmp_path / "out" / "jobs.csv")
    assert [(row["name"], row["status"], row["broken"]) for row in found] == [("x", "completed", ""), ("", "refused", "")]
    assert "queue:2: fields 2.0 (fields:none) failed: TypeError" in found[1]["reason"]


def test_what_others_may_write_is_not_loaded(tmp_path: Path) -> None:
    there = Environment(tmp_path)
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    (open_to_all / "widely.py").write_text(ORDERING)
    (open_to_all / "spaces").mkdir()  # without an __init__.py
    (open_to_all / "spaces" / "mine.py").write_text(ORDERING)
    open_to_all.chmod(0o777)
    there.declare("spaces", entry("orderings", "spacious", "spaces.mine:first"))
    (there.library / "open.pth").write_text(f"{open_to_all}\n")
    there.declare("widely", entry("orderings", "widely", "widely:first"))
    said = there.vrm("simulate lublin:8:3 --algorithm widely", tmp_path, 2)
    assert "widely 2.0 (widely:first): " in said and "install the package elsewhere" in said, said
    said = there.vrm("simulate lublin:8:3 --algorithm spacious", tmp_path, 2)
    assert "spaces 2.0 (spaces.mine:first): " in said and "install the package elsewhere" in said, said
    open_to_all.chmod(0o755)
    for name in ("widely", "spacious"):
        assert "jobs/s" in there.vrm(f"simulate lublin:8:3 --algorithm {name}", tmp_path)


def test_the_page_can_be_followed_word_for_word(tmp_path: Path) -> None:
    pytest.importorskip("pip", reason="no pip in this environment")
    page = (ROOT / "docs" / "how-to" / "extending.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    said = Environment(tmp_path / "there").shell("\n".join(blocks), tmp_path)
    assert "widest  from my-policies 0.1" in said and "hello" in said, said
