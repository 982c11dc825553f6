"""Files that were changed at random: no traceback, no hang, and nothing believed that is not so.

Each test mutates a good file some hundred times; `VRM_TEST_RANDOM=1` does it 10,000 times, with
other mutations every time. A failure names the seed, which `VRM_TEST_SEED` repeats.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
import re
import signal
from pathlib import Path
from typing import Any
from collections.abc import Callable, Iterator, Sequence

import pytest

from conftest import Site, wait_until
from vrm.cli import main
from vrm.live.manager.records.records import Records
from vrm.model import Booking, Cluster, Dependency, Job
from vrm.model.job import Details, Program
from vrm.model.forms.placement_formats import to_record
from vrm.results.jobs import JobRow, JobWriter
from vrm.results.placement_text import PlacementText
from vrm.run.journal import codec
from vrm.run.journal import files as journals
from vrm.run.journal.history import RunHistory, replay
from vrm.run.rundir import RunDirectory
from vrm.scheduling import make_policy
from vrm.system.errors import RunError

LONG = bool(os.environ.get("VRM_TEST_RANDOM"))
SEED = int(os.environ.get("VRM_TEST_SEED") or (random.randrange(1 << 30) if LONG else 1))
OLD = Path(__file__).parent / "data" / "0.1.0"
LIMIT = 20.0
"""Seconds within which any file has been read."""


class Hang(BaseException):
    """Something takes too long; no handler of errors catches it."""


@contextlib.contextmanager
def trial(number: int, data: bytes) -> Iterator[None]:
    """One mutation: what goes wrong with it is told with its seed and the file's content."""
    def hang(*_: Any) -> None:
        raise Hang(f"more than {LIMIT:g} s")
    before = signal.signal(signal.SIGALRM, hang)
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    try:
        yield
    except (Exception, Hang) as error:
        raise AssertionError(f"VRM_TEST_SEED={SEED}, mutation {number}: {error!r} with "
                             f"{data[:3000]!r}") from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def times(few: int) -> range:
    """So many mutations, or 10,000 in a long test."""
    return range(10_000 if LONG else few)


# ------------------------------------------------------------------------------- mutations

DEEP: Any = []
for _ in range(50):
    DEEP = [DEEP]
ODD: list[Any] = [None, True, False, -1, 0, 1, 3, 99, 2 ** 31, 10 ** 12, 10 ** 30, 1e308, 1e-9, -0.5, "",
                  "x", "0-99999", "../../bin/sh", "\x1b[31m", "\ud800", "a" * 3000, "running", "any:1",
                  [], {}, [[]], [1], {"id": 1}, [None], DEEP, "queued", "n0", "1e999", "inf"]


def flipped(choose: random.Random, data: bytes) -> bytes:
    """The bytes with one to three random changes."""
    for _ in range(choose.randint(1, 3)):
        at = choose.randrange(len(data) + 1)
        kind = choose.randrange(9)
        lines = data.split(b"\n")
        line, other = choose.randrange(len(lines)), choose.randrange(len(lines))
        if kind == 0 and data:
            at = min(at, len(data) - 1)
            data = data[:at] + bytes([data[at] ^ 1 << choose.randrange(8)]) + data[at + 1:]
        elif kind == 1:
            data = data[:at] + bytes(choose.choice([1, 1, 40])) + data[at + 1:]
        elif kind == 2:
            data = data[:at] + choose.randbytes(choose.randint(1, 8)) + data[at:]
        elif kind == 3:
            data = data[:at] + data[at + choose.randint(1, 30):]
        elif kind == 4:
            data = data[:at]
        elif kind == 5:
            data = b"\n".join(lines[:line] + lines[line + 1:])
        elif kind == 6:
            data = b"\n".join(lines[:line] + [lines[other]] + lines[line:])
        elif kind == 7:
            lines[line], lines[other] = lines[other], lines[line]
            data = b"\n".join(lines)
        else:
            digits = [found.start() for found in re.finditer(rb"[0-9]", data)]
            if digits:
                at = choose.choice(digits)
                data = data[:at] + str(choose.randrange(10)).encode() + data[at + 1:]
    return data or b"\n"


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container of a JSON value with a key of it."""
    found: list[tuple[Any, Any]] = []
    keys: Sequence[Any] = (list(value) if isinstance(value, dict) else
                           range(len(value)) if isinstance(value, list) else ())
    for key in keys:
        found += [(value, key), *places(value[key])]
    return found


def changed(choose: random.Random, value: Any) -> Any:
    """The JSON value with one or two of its parts replaced, removed or doubled."""
    value = json.loads(json.dumps(value))
    for _ in range(choose.randint(1, 2)):
        found = places(value)
        if not found:
            break
        holder, key = choose.choice(found)
        kind = choose.randrange(4)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, list):
            holder.append(holder[key])
        else:
            holder[key] = copy.deepcopy(choose.choice(ODD))
    return value


def mutations(count: range, data: bytes, json_lines: bool = False) -> Iterator[tuple[int, bytes]]:
    """Mutations of a file, half of them as JSON where it is that: of the whole, or of a line."""
    for number in count:
        choose = random.Random(SEED * 1_000_003 + number)
        if number % 2 and json_lines:
            lines = data.splitlines()
            at = choose.randrange(len(lines))
            lines[at] = json.dumps(changed(choose, json.loads(lines[at])),
                                   separators=(",", ":")).encode()
            yield number, b"\n".join(lines) + b"\n"
        else:
            yield number, flipped(choose, data)


# ---------------------------------------------------------------------------- the journal


def good_journal(path: Path) -> bytes:
    """A journal with every event, on four nodes."""
    cluster = Cluster.regular(4, 2, 4)
    journal = journals.Journal(path)

    def add(event: str, **values: Any) -> None:
        journal.append(event, **values)
        journal.sync()

    nodes = codec.nodes_record(cluster.nodes)
    add("run", format=2, run="abc123", time=1.0, pid=5, nodes=nodes, host="h", boot="b",
        home={"path": "/x", "inode": 7}, allocation="slurm 1")
    details = [Details(), Details(retries=2), Details((Dependency.on(0),), held=True, name="x"),
               Details()]
    payloads = [Program(), Program(("-n", "%i"), {"A": "b c"}), Program(), Program(directory="/tmp")]
    jobs = [Job(number, f"{name}.x", procs, 60.0, 2.0 + number, exclusive, priority=number,
                payload=payloads[number])
            for number, (name, procs, exclusive) in enumerate(
                [("a", 3, False), ("b", 8, True), ("c", 1, False), ("d", 5, False)])]
    for job, more in zip(jobs, details):
        add("job", **codec.job_record(job, more), position=[5, 10 * job.id, job.id, "ab"])
    add("job", **codec.job_record(Job(4, "e.x", 1, 9.0, 3.0), Details(), (0, 2, 4)))
    shared = Cluster(cluster.nodes)  # of the jobs whose cores are taken one by one
    policy, packed = make_policy("strip", cluster), make_policy("pack", shared)
    for job in (jobs[0], jobs[1], jobs[3]):
        own, on = (packed, shared) if job.id == 3 else (policy, cluster)
        placement = own.place(job, on)
        on.book(job, placement, 4.0)
        add("start", id=job.id, time=4.0, backfilled=False,
            placement=to_record(placement))
    add("end", id=0, time=9.0, state="completed", reason="", exit_code=0, ran=[4.1, 8.9])
    add("intent", id=1, reason="requeue", command="c1")
    add("again", id=1, time=9.5, reason="requeued", retry=True, command="c1")
    add("release", id=2)
    add("hold", id=5)
    add("end", id=4, time=9.6, state="refused", reason="no", exit_code=None, ran=None)
    add("run", format=2, run="abc123", time=11.0, pid=6, nodes=nodes, host="h", boot="b",
        allocation="")
    add("start", id=6, time=12.0, backfilled=True,
        placement=to_record(packed.place(Job(6, "e.x", 1, 9.0), shared)))
    add("back", id=6)
    add("input", position=[5, 99, 9, "ab"], ended=True)
    journal.close()
    return path.read_bytes()


def recorder(run: RunDirectory, cluster: Cluster) -> Records:
    """What writes the lines of jobs that ended, without a launcher."""
    return Records(run, cluster, None, None, "ignore", lambda kind, text: None,  # type: ignore
                   lambda path: None)


def take_up(past: RunHistory, run: RunDirectory) -> None:
    """What a manager does with a past: the lines of jobs that ended, the book, the placements."""
    cluster = Cluster.regular(4, 2, 4)
    run.jobs.unlink(missing_ok=True)
    records = recorder(run, cluster)
    records.open(past)
    for outcome in records.pending:
        assert records._row(outcome, "", None).line.endswith("\n")
    records.close()
    for job, start in past.running:
        before = codec.cluster_of(past.run_of.get(job.id, {}), cluster)
        placement = codec.placement_of(start["placement"], before)
        list(placement.slots(before.nodes))
        PlacementText(before.nodes).cores(placement)
        codec.moved(placement, before, cluster)
        Booking(job, placement, start["time"], start["time"] + job.estimate)
    past.state.book.thaw()


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path / "run", tmp_path / "run", tmp_path / "run" / "state")
    run.create()
    return run


def test_a_journal(run: RunDirectory) -> None:
    """Any change is found, or is what a crash leaves: records lost at the end, a torn line."""
    data = good_journal(run.journal)
    records = journals.read(run.journal)
    take_up(replay(records), run)
    found = 0
    for number, mutated in mutations(times(600), data, json_lines=True):
        run.journal.write_bytes(mutated)
        with trial(number, mutated):
            try:
                now = journals.read(run.journal)
                past = replay(now, run.journal)
            except journals.JournalError as error:
                assert str(error).startswith(f"{run.journal}:")
                found += 1
                continue
            assert now == records[:len(now)]
            torn = mutated[sum(map(len, data.splitlines(keepends=True)[:len(now)])):]
            assert torn.count(b"\n") <= (b"\0" in torn)  # the last record, which no later one says to be on disk
            take_up(past, run)
    assert found > len(times(600)) // 2


@pytest.mark.parametrize("source", ["0.1.0", "plain"])
@pytest.mark.slow
def test_a_journal_without_checksums(run: RunDirectory, source: str) -> None:
    """Of vrm 0.1.0: not each change can be found, but what is believed makes sense."""
    if source == "plain":
        data = re.sub(rb',"(?:sum|SUM)":"[0-9a-f]{8}"}', b"}", good_journal(run.journal))
        data = data.replace(b'"format":2,', b"")
    else:
        data = (OLD / "journal").read_bytes()
    for number, mutated in mutations(times(400), data, json_lines=True):
        run.journal.write_bytes(mutated)
        with trial(number, mutated):
            try:
                past = replay(journals.read(run.journal), run.journal)
            except journals.JournalError:
                continue
            take_up(past, run)


# --------------------------------------------------------------------------- the commands


def test_commands(site: Site) -> None:
    """A running manager takes, answers or puts aside each, and goes on."""
    site.config(Launcher={"Kind": "direct"})
    site.program("ok.x", "exit 0\n")
    site.lines(*["ok.x 1 9 0 hold=1"] * 3, end=False)
    manager = site.start("--wait")
    wait_until(site.state, "the manager runs")
    commands, replies = site.log / "commands", site.log / "replies"
    good = [{"do": "submit", "line": "ok.x 1 9 0 hold=1 after=0 env=A=b name=x"},
            {"do": "cancel", "ids": ["7-9", 4]}, {"do": "hold", "ids": ["all"]},
            {"do": "release", "id": 9}, {"do": "requeue", "ids": [1, 2]}]
    for number in times(300):
        choose = random.Random(SEED * 1_000_003 + number)
        data = json.dumps(changed(choose, choose.choice(good))).encode()
        if number % 2:
            data = flipped(choose, json.dumps(choose.choice(good)).encode())
        new = commands / f".{number}"
        new.write_bytes(data)
        new.chmod(0o600)
        new.rename(commands / f"{number:06d}")
        if number % 100 == 99:
            wait_until(lambda: not os.listdir(commands) or manager.poll() is not None,
                       f"VRM_TEST_SEED={SEED}: all are taken by mutation {number}")
            assert manager.poll() is None, f"VRM_TEST_SEED={SEED}: {site.said(manager)[-3000:]}"
            for reply in replies.iterdir():
                assert isinstance(json.loads(reply.read_bytes())["ok"], bool)
                reply.unlink()
    assert site.run("cancel", "all").returncode in (0, 1)
    assert site.run("stop", "--now").returncode == 0
    said = site.finish(manager)
    assert "Traceback" not in said and not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", said)
    past = replay(journals.read(site.log / "journal"))
    assert set(past.ended) >= set(site.statuses())


# ------------------------------------------------------- states, tables of jobs, configurations


def asked(capsys: Any, number: int, data: bytes, *words: str) -> None:
    """vrm with these words, in this process: it answers, or says in few lines why not; without
    anything that a terminal would obey."""
    with trial(number, data):
        try:
            status = main([*words])
        except SystemExit as error:
            status = error.code
        printed = capsys.readouterr()
        assert status in (0, 1, 2), status
        assert status != 2 or 0 < len(printed.err.strip().splitlines() or
                                      printed.out.splitlines()) < 60, printed
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", printed.out + printed.err), printed


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """The directory of a run that has ended, as vrm leaves it, and its configuration beside it."""
    log = tmp_path / "log"
    log.mkdir(mode=0o700)
    queue = {"id": 3, "app": "b.x", "procs": 2, "submit": 2.0, "estimate": 9.0, "exclusive": False,
             "priority": 0, "state": "queued", "held": False, "late": False, "lacks": "",
             "after": "1,any:2", "why": "it waits for others", "name": "x", "args": "-n 3"}
    group = {**queue, "ids": "4-9:2", "indices": "0-2", "expected_start": 20.0, "after": ""}
    del group["id"]
    running = {**queue, "id": 1, "state": "running", "start": 5.0, "expected_end": 14.0,
               "nodes": ["n0"], "binding": "ok", "index": 3, "dir": "/tmp"}
    (log / "state").write_text(json.dumps({
        "format": 2, "time": 10.0,
        "manager": {"host": "h", "pid": 5, "start": 1.0, "phase": "running"},
        "scheduling": {"algorithm": "WFP3", "backfilling": "easy", "policy": "strip",
                       "interval": 5.0, "starts_per_interval": 2},
        "allocation": {"end": 90.0}, "emulated": False,
        "nodes": [{"name": f"n{number}", "up": number != 1,
                   "sockets": [[1, None], [None, None]]} for number in range(3)],
        "jobs": [running, queue, group], "ended": {"completed": 3, "failed": 1}}))
    with JobWriter(log / "jobs.csv") as writer:
        for number in range(6):
            writer.write(JobRow(
                number, "a.x", 2, 10.0 + number, 12.0 + number, 20.5 + number, 9.0,
                "completed" if number else "failed", exit_code=int(not number), app_time=8.0,
                nodes="n[0-1]", cores="n0:0/0-1;n1:1/0", binding="ok", reason="" if number else
                "exit 1"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ok.x").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "ok.x").chmod(0o755)
    (tmp_path / "queue").write_text("ok.x 1 9 0\nend\n")
    config = tmp_path / "vrm.yaml"
    config.write_text(f"""\
Applications: {{Path: {tmp_path}/bin, Queue: {tmp_path}/queue}}
Scheduling:
  Algorithm: FCFS
  Backfilling: easy
  Interval: 0
Nodes: 1
Sockets: 1
Cores: 1
Allocation: {{Policy: compact}}
Walltime: warn
Grace: 10
End: {{At: never, Margin: 120}}
Retries: 0
Log: {log}
Launcher:
  Kind: direct
  Options: []
  Environment: {{A: 1}}
Trust: own
Replay: {{Speed: 1.0}}
""")
    return log


def each(few: int, file: Path, asks: Callable[[random.Random], list[str]], capsys: Any,
         is_json: bool = False) -> None:
    """Ask after each mutation of a file."""
    data = file.read_bytes()
    for number, mutated in mutations(times(few), data, json_lines=is_json):
        file.write_bytes(mutated)
        asked(capsys, number, mutated, *asks(random.Random(number)))
    file.write_bytes(data)


@pytest.mark.slow
def test_states(left: Path, capsys: Any) -> None:
    config = str(left.parent / "vrm.yaml")
    ways = [["-c", config, "-i", "queue"], ["-c", config, "-i", "state"],
            ["-c", config, "-i", "queue", "--json"], ["-c", config, "-i", "state", "--json"],
            ["top", "-c", config], ["compare", str(left)],
            ["validate", "--known", "actual", str(left)]]
    for way in ways[:-1]:
        assert main(way) == 0
    capsys.readouterr()
    each(250, left / "state", lambda choose: choose.choice(ways), capsys, is_json=True)


@pytest.mark.slow
def test_tables_of_jobs(left: Path, capsys: Any, run: RunDirectory) -> None:
    ways = [["compare", str(left)], ["compare", str(left), "--json"], ["report", str(left)],
            ["report", str(left), "--format", "csv"],
            ["validate", "--known", "actual", str(left)],
            ["-c", str(left.parent / "vrm.yaml"), "-i", "queue"],
            ["top", "-c", str(left.parent / "vrm.yaml")]]
    for way in ways:
        assert main(way) in (0, 2)
    capsys.readouterr()
    jobs = left / "jobs.csv"
    rows = [line.split(",") for line in jobs.read_text().splitlines()]
    odd = ["", "inf", "nan", "-1", "1e400", "x\x1b[31m", "9" * 40, '"', "\\u001b", "n[0-", "n0:0/9-1",
           "n0:0/0-99999999", "n[1-999999]", "\x9b", "0/0", "\udcff", "1_0"]

    def ask(choose: random.Random) -> list[str]:
        if choose.random() < 0.5:  # a cell
            cells = [list(row) for row in rows]
            for _ in range(choose.randint(1, 3)):
                row = choose.choice(cells)
                row[choose.randrange(len(row))] = choose.choice(odd)
            jobs.write_text("".join(",".join(row) + "\n" for row in cells),
                            encoding="utf-8", errors="surrogateescape")
        with contextlib.suppress(RunError):  # the manager that goes on with it
            run.jobs.write_bytes(jobs.read_bytes())
            records = recorder(run, Cluster.regular(1, 1, 1))
            records.open(RunHistory())
            records.close()
        return choose.choice(ways)
    each(250, jobs, ask, capsys)


@pytest.mark.slow
def test_configurations(left: Path, capsys: Any, monkeypatch: Any) -> None:
    config = left.parent / "vrm.yaml"
    for name in list(os.environ):
        if name.startswith(("SLURM_", "PBS_", "VRM_")) and not name.startswith("VRM_TEST"):
            monkeypatch.delenv(name)
    ways = [["check", "-c", str(config)], ["doctor", "-c", str(config)],
            ["-c", str(config), "-i", "queue"]]
    for way in ways:
        assert main(way) == 0
    capsys.readouterr()
    lines = config.read_text().splitlines()
    odd = ["", "auto", "-1", "0", "9999999999999", "1e99", ".inf", ".nan", "[]", "{}", "[1, 2]", "os:system",
           "true", "~", "*x", "&x 1", "!!python/object:os.system", "'\\e[31m'", '"\\e[31m"', "1000000",
           "json:JSONDecoder", "2026-01-01", "0x10", "|", "? a", "{a: {b: {c: d}}}", "/", "..",
           "999999", "easy", "pack", "spare", "strip", "SJF", "any", "group", "kill"]

    def ask(choose: random.Random) -> list[str]:
        if choose.random() < 0.7:
            now = list(lines)
            for _ in range(choose.randint(1, 2)):
                at = choose.randrange(len(now))
                head, colon, _ = now[at].partition(": ")
                now[at] = f"{head}{colon}{choose.choice(odd)}"
            config.write_text("\n".join(now) + "\n")
        return choose.choice(ways)
    each(200, config, ask, capsys)


def test_mutations_are_what_they_are_called() -> None:
    """The same seed, the same mutation; and all of them change something, most of the time."""
    data = (OLD / "journal").read_bytes()
    found: dict[int, bytes] = dict(mutations(range(100), data, json_lines=True))
    assert found == dict(mutations(range(100), data, json_lines=True))
    assert sum(mutated != data for mutated in found.values()) > 90
