"""A pool: its state, its journal, and what it asks of batch systems."""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from conftest import permissions_obeyed
from vrm.ext.allocations.pool import batch
from vrm.ext.allocations.pool.batch import CommandOutput, ended_in_pbs, ended_in_slurm
from vrm.ext.allocations.pool.journal import PoolError, PoolJournal
from vrm.ext.allocations.pool.lines import adding, lines_of, with_after
from vrm.ext.allocations.pool.planning import enough
from vrm.ext.allocations.pool.job_states import PoolJobStates, fate, ids_of, of_run
from vrm.ext.allocations.pool.state import WITHDRAWN, PoolState, PoolDemand, surplus, taking
from vrm.run.state import State

JOIN = [{"do": "join", "name": name, "job": name} for name in ("a", "b")]
ADD = {"do": "add", "lines": ["x 1 9", "y 1 9", "z 1 9"]}


# ----------------------------------------------------------------------------------- the state


def test_a_job_is_held_once_and_comes_back() -> None:
    state = PoolState([ADD, *JOIN, taking("a", [0, 1]), taking("b", [1, 2]), taking("c", [2]), taking("b", [2])])
    assert state.holder == {0: "a", 1: "a", 2: "b"} and not state.free  # the second and the third change nothing
    state.apply({"do": "back", "name": "b", "jobs": [1, 2]})
    assert list(state.free) == [2] and state.holder == {0: "a", 1: "a"}
    state.apply({"do": "end", "name": "a", "done": {"0": "failed", "2": "completed"}})
    assert list(state.free) == [1, 2] and state.done == {0: "failed"} and not state.is_live("a")
    for entry in (taking("a", [1]), {"do": "end", "name": "a", "done": {"1": "completed"}}):
        state.apply(entry)  # it has ended
    assert list(state.free) == [1, 2] and state.done == {0: "failed"}
    state.apply({"do": "stop", "now": False})
    state.apply(taking("b", [1]))
    assert not state.holder
    state.apply({"do": "start", "options": {"max_allocations": 2}})
    state.apply(taking("b", [1]))
    assert state.held_by("b") == [1] and [each.name for each in state.holders(but="a")] == ["b"]


def test_requests_count_until_their_allocations_have_ended() -> None:
    state = PoolState({"do": "ask", "number": number, "nodes": 2, "seconds": 60.0} for number in range(4))
    assert state.living() == 0  # no batch job yet: whoever asked may have died
    for number, job in enumerate("789"):
        state.apply({"do": "asked", "number": number, "job": job})
    state.apply({"do": "over", "number": 0, "why": "it ended before vrm had begun in it"})
    state.apply({"do": "join", "name": "slurm-8", "job": "8"})
    assert [each.job for each in state.pending()] == ["9"] and state.living() == 2
    state.apply({"do": "end", "name": "slurm-8", "done": {}})
    assert state.living() == 1 and state.successor("slurm-8") is None
    state.apply({"do": "join", "name": "slurm-8-again-1", "job": "8"})
    again = state.successor("slurm-8")
    assert again is not None and again.name == "slurm-8-again-1"


def test_an_allocation_whose_request_was_taken_back_does_not_begin_and_one_that_has_begun_is_not_taken_back() -> None:
    state = PoolState([ADD, *({"do": "ask", "number": number, "nodes": 1, "seconds": 60.0} for number in range(2)),
                       {"do": "asked", "number": 0, "job": "a"}, {"do": "asked", "number": 1, "job": "b"}])
    over = {"do": "over", "number": 0, "why": WITHDRAWN}
    for entry in (over, *JOIN, {**over, "number": 1}, taking("a", [0]), taking("b", [1])):
        state.apply(entry)
    assert not state.is_live("a") and not state.may_join("a") and state.holder == {1: "b"}
    assert state.may_join("b") and not state.requests[1].over


class Manager:
    """A manager as the state of a pool requires it: it may be interrupted and killed between any two of its steps.
    `log` is shared; `alive` is what the batch system says, `records` the journals of the runs."""

    def __init__(self, name: str, world: World) -> None:
        self.name, self.world = name, world
        self.state, self.read = PoolState(), 0
        self.steps = self.life()

    def look(self) -> None:
        for entry in self.world.log[self.read:]:
            self.state.apply(entry)
        self.read = len(self.world.log)

    def append(self, entry: dict[str, Any]) -> bool:
        """Written if nobody has written since the last look."""
        if len(self.world.log) != self.read:
            return False
        self.world.log.append(entry)
        self.look()
        return True

    def life(self) -> Any:
        world = self.world
        while not self.state.is_live(self.name):
            self.look()
            yield
            if not self.state.may_join(self.name):
                break
            self.append({"do": "join", "name": self.name, "job": self.name})
        if not self.state.is_live(self.name):
            world.alive.discard(self.name)
            return
        while True:
            self.look()
            yield
            for other in [each.name for each in self.state.holders(but=self.name)]:
                if other not in world.alive and self.state.is_live(other):  # the batch system says that it has ended
                    done = {str(job): world.how[job] for job in world.records[other]}
                    yield
                    self.append({"do": "end", "name": other, "done": done})
                    yield
            self.look()
            found = surplus(self.state, world.enough(self.state))
            if found:  # fewer are enough for what waits
                yield
                if self.append({"do": "over", "number": found[-1].number, "why": WITHDRAWN}):
                    world.cancelled.append(found[-1].job)
            self.look()
            jobs = world.draw.sample([*self.state.free], min(len(self.state.free), world.draw.randint(1, 3)))
            yield
            if jobs and not self.append(taking(self.name, jobs)):
                continue
            for job in self.state.held_by(self.name):
                if job in world.records[self.name]:
                    continue
                assert not [other for other in world.running.get(job, ()) if other in world.alive], "it runs twice at once"
                assert not any(job in done for done in world.records.values()), "it runs again though it has ended"
                assert world.may_run(job), "it runs before those that it waits for have ended as wanted"
                world.running.setdefault(job, []).append(self.name)
                for _ in range(world.draw.randint(1, 12)):
                    yield
                world.records[self.name].append(job)
                world.running[job].remove(self.name)
                yield
                if job in self.state.waited:  # others wait for it
                    while self.state.is_live(self.name) and not self.append(
                            {"do": "done", "name": self.name, "done": {str(job): world.how[job]}}):
                        self.look()
                        yield
            if not jobs and not self.state.holders(but=self.name):
                break
            if world.draw.random() < 0.1:
                break
        while not self.append({"do": "end", "name": self.name,
                               "done": {str(job): world.how[job] for job in world.records[self.name]}}):
            self.look()
            yield
        world.alive.discard(self.name)


class World:
    """Several managers, whose steps come in any order."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.jobs = self.draw.randint(1, 12)
        self.how = [self.draw.choice(("completed", "completed", "completed", "failed")) for _ in range(self.jobs)]
        self.after = {job: [(self.draw.choice(("", "", "any", "fail")), other) for other in range(job) if self.draw.random() < 0.2]
                      for job in range(self.jobs)}
        self.log: list[dict[str, Any]] = [{"do": "add", "lines": ["x 1 9"] * self.jobs, "after": {
            str(job): [[*each] for each in after] for job, after in self.after.items()}}]
        self.alive: set[str] = set()
        self.records: dict[str, list[int]] = {}
        self.running: dict[int, list[str]] = {}
        self.queued: list[str] = []  # batch jobs that have not begun
        self.cancelled: list[str] = []  # those that are being cancelled
        self.asked = 0

    def may_run(self, job: int) -> bool:
        """Whether all that a job waits for has ended as wanted."""
        ended = {each for record in self.records.values() for each in record}
        return all(self.fate(other) == "cancelled" or other in ended for _, other in self.after[job]) and (
            self.fate(job) != "cancelled")

    def fate(self, job: int) -> str:
        """How a job ends in the end."""
        met = {"": lambda how: how == "completed", "any": lambda how: True, "fail": lambda how: how != "completed"}
        return self.how[job] if all(met[kind](self.fate(other)) for kind, other in self.after[job]) else "cancelled"

    def enough(self, state: PoolState) -> Any:
        """What a plan made anew needs: some nodes, or fewer requests, for what waits; none if nothing waits."""
        nodes = self.draw.randint(1, 4) if state.free else 0
        return lambda state, waiting: sum(each.nodes for each in waiting) >= nodes

    def ask(self) -> None:
        """Somebody asks for an allocation."""
        self.log += [{"do": "ask", "number": self.asked, "nodes": self.draw.randint(1, 3), "seconds": 60.0},
                     {"do": "asked", "number": self.asked, "job": f"m{self.asked}"}]
        self.queued.append(f"m{self.asked}")
        self.asked += 1

    def cancel(self, job: str) -> None:
        """The batch system ends a job that waits, or one that runs by now: no process of it is left."""
        assert not PoolState(self.log).is_live(job), "an allocation that works is cancelled"
        if job in self.queued:
            self.queued.remove(job)
        self.alive.discard(job)

    def run(self) -> PoolState:
        """Until all jobs have ended: where no manager is left another one begins."""
        managers: list[Manager] = []
        kills = self.draw.randint(0, 6)
        begins = self.draw.choice((0.02, 0.1))
        runs = [job for job in range(self.jobs) if self.fate(job) != "cancelled"]
        while len(done := [job for record in self.records.values() for job in record]) < len(runs):
            assert len(managers) < 60, "they do not come to an end"
            if self.cancelled and self.draw.random() < 0.05:
                self.cancel(self.cancelled.pop())
            live = [each for each in managers if each.name in self.alive]
            if not (live or self.queued) or (len(live) + len(self.queued) < 5 and self.draw.random() < 0.1):
                self.ask()
                continue
            if self.queued and (not live or self.draw.random() < begins):
                managers.append(Manager(self.queued.pop(self.draw.randrange(len(self.queued))), self))
                self.alive.add(managers[-1].name)
                self.records[managers[-1].name] = []
                continue
            one = self.draw.choice(live)
            if kills and self.draw.random() < 0.03:
                kills -= 1
                self.alive.discard(one.name)  # and its processes with it, before the batch system says so
                continue
            for _ in range(self.draw.randint(1, 4)):
                if next(one.steps, self) is self:
                    break
        assert Counter(done) == dict.fromkeys(runs, 1)
        return PoolState(self.log)


@pytest.mark.parametrize("seed", range(400))
def test_each_job_ends_once_whatever_dies_and_in_whatever_order(seed: int) -> None:
    world = World(seed)
    state = world.run()
    assert not state.free.keys() & state.done.keys() and not state.holder.keys() & state.done.keys()
    assert len(state.free) + len(state.later) + len(state.holder) + len(state.done) == world.jobs
    assert all(world.fate(job) == how for job, how in state.done.items())


def test_the_oldest_requests_that_are_enough_are_kept() -> None:
    state = PoolState(entry for number, nodes in enumerate((2, 4, 1)) for entry in (
        {"do": "ask", "number": number, "nodes": nodes, "seconds": 90.0}, {"do": "asked", "number": number, "job": f"j{number}"}))

    state.apply({"do": "add", "lines": ["x 1 9"] * 4})

    def kept(*wish: float) -> list[int]:
        state.apply({"do": "wish", **dict(zip(PoolDemand._fields, wish))})
        return [each.number for each in state.pending() if each not in surplus(state, enough)]
    assert surplus(state, enough) == [] and kept(3, 9, 90.0, 36) == [0, 1, 2]
    assert kept(2, 9, 90.0, 36) == [0, 1]  # fewer
    assert kept(3, 1, 60.0, 36) == [0]  # smaller: two nodes for 90 s are as much
    assert kept(3, 1, 90.0, 36) == [0, 1]
    assert kept(3, 9, 90.0, 72) == [0, 1]  # half of the work waits that they were for
    assert kept(3, 9, 90.0, 18) == [0, 1, 2]
    state.apply({"do": "add", "lines": ["x 1 31"]})
    assert kept(1, 1, 9.0, 36) == [0, 1, 2]  # none has the time for it
    state.apply({"do": "ask", "number": 3, "nodes": 1, "seconds": 91.0})
    state.apply({"do": "asked", "number": 3, "job": "j3"})
    state.apply({"do": "ask", "number": 4, "nodes": 1, "seconds": 91.0})
    state.apply({"do": "asked", "number": 4, "job": "j4"})
    assert kept(1, 1, 9.0, 36) == [0, 1, 2, 3]
    for entry in ({"do": "join", "name": "a", "job": "j0"}, taking("a", [*state.free])):
        state.apply(entry)
    assert kept(1, 1, 60.0, 36) == [] and enough(state, [*state.pending()], [0]) and not enough(state, [], [0])


def _begins_anyway(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PoolState, "may_join", lambda self, job: True)


def _cancelled_before_it_is_written(patch: pytest.MonkeyPatch) -> None:
    real = Manager.append

    def append(self: Manager, entry: dict[str, Any]) -> bool:
        return real(self, entry) or entry.get("why") == WITHDRAWN
    patch.setattr(Manager, "append", append)


@pytest.mark.parametrize("fault", [_begins_anyway, _cancelled_before_it_is_written])
def test_the_interleavings_find_a_fault_in_taking_back(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError, match="an allocation that works is cancelled"):
        for seed in range(400):
            World(seed).run()


# ---------------------------------------------------------------------------------- the journal


def test_entries_have_one_order_for_all_that_write(tmp_path: Path) -> None:
    """Eight at once take twenty jobs each, one by one: nobody gets one that another has."""
    first = PoolJournal(tmp_path / "pool")
    assert not first.exists()
    first.create()
    first.decide(lambda state: {"do": "add", "lines": ["x 1 9"] * 160})
    names = [f"m{number}" for number in range(8)]

    def work(name: str) -> None:
        pool = PoolJournal(tmp_path / "pool")
        pool.decide(lambda state: {"do": "join", "name": name, "job": name})
        for _ in range(20):
            pool.decide(lambda state: taking(name, [next(iter(state.free))]))

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    state = first.look()
    assert first.exists() and Counter(state.holder.values()) == dict.fromkeys(names, 20) and not state.free
    assert len(list((tmp_path / "pool" / "entries").iterdir())) == 1 + 8 + 160 == first.read
    assert [path.name for path in (tmp_path / "pool").iterdir()] == ["entries"]  # no file is left over


def test_a_link_whose_answer_was_lost_is_known_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = PoolJournal(tmp_path)
    pool.create()
    real = os.link

    def lost(source: Any, target: Any) -> None:
        real(source, target)
        raise FileExistsError(17, "File exists", str(target))  # as NFS repeats a request
    monkeypatch.setattr(os, "link", lost)
    assert pool.append(ADD) and pool.read == 1 and len(pool.state.lines) == 3
    other = PoolJournal(tmp_path)
    assert not other.append(ADD) and len(other.look().lines) == 3


def test_a_journal_that_cannot_be_written_or_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = PoolJournal(tmp_path / "pool")
    pool.create()
    pool.append(ADD)
    with permissions_obeyed():
        (tmp_path / "pool").chmod(0o500)
        with pytest.raises(PoolError, match="Permission denied; the pool is not changed until that works again"):
            pool.append(ADD)
        (tmp_path / "pool").chmod(0o700)

    def full(handle: int) -> None:
        raise OSError(122, "Disk quota exceeded")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(PoolError, match="Disk quota exceeded"):
            pool.append(ADD)
    assert pool.read == 1 and pool.append(ADD) and [path.name for path in (tmp_path / "pool").iterdir()] == ["entries"]
    (tmp_path / "pool" / "entries" / "00000002").write_text("[]")
    with pytest.raises(PoolError, match="00000002 is not an entry of a pool: the pool is damaged"):
        pool.look()
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(PoolError, match="Not a directory"):
        PoolJournal(file).create()


# ------------------------------------------------------------------------------- batch systems


@pytest.mark.parametrize("said, ended", [
    (CommandOutput(0, "JobId=7 JobName=vrm JobState=RUNNING Reason=None", ""), False),
    (CommandOutput(0, "JobId=7 JobState=COMPLETING", ""), False),
    (CommandOutput(0, "JobId=7 JobState=PENDING", ""), False),
    (CommandOutput(0, "JobId=7 JobState=CANCELLED Reason=None", ""), True),
    (CommandOutput(0, "JobId=7 JobState=TIMEOUT", ""), True),
    (CommandOutput(0, "JobId=7 JobState=NODE_FAIL", ""), False),  # the node may go on, out of Slurm's reach
    (CommandOutput(1, "", "slurm_load_jobs error: Invalid job id specified"), True),
    (CommandOutput(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"), None),
    (CommandOutput(None, "", "scontrol: No such file or directory"), None)])
def test_what_slurm_says_of_a_job(said: CommandOutput, ended: bool | None) -> None:
    assert ended_in_slurm(said) is ended


@pytest.mark.parametrize("said, ended", [
    (CommandOutput(0, "Job Id: 7.s\n    Job_Name = vrm\n    job_state = R\n", ""), False),
    (CommandOutput(0, "Job Id: 7.s\n    job_state = E\n", ""), False),
    (CommandOutput(0, "Job Id: 7.s\n    job_state = F\n", ""), True),
    (CommandOutput(153, "", "qstat: Unknown Job Id 7.s"), True),
    (CommandOutput(111, "", "Connection refused"), None)])
def test_what_pbs_says_of_a_job(said: CommandOutput, ended: bool | None) -> None:
    assert ended_in_pbs(said) is ended


def test_a_batch_system_that_does_not_answer_or_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not batch.BatchAnswers("lsf").ended("7") and not batch.BatchAnswers("slurm").ended("")
    assert batch.run(["/bin/sleep", "60"], 0.1) == CommandOutput(None, "", "/bin/sleep has not answered within 0.1 s")
    assert batch.run(["/nowhere/x"]).status is None
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_CONF", "/x")
    assert batch.run(["/bin/sh", "-c", "echo $SLURM_JOB_ID $SLURM_CONF"]).output == "/x\n"


# -------------------------------------------------------------------------------------- the jobs


def test_lines_may_run_from_anywhere_and_arrays_are_jobs(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    queue.write_text("# a comment\n./run.x 4 60 1\nwork 1 9 dir=case args='-o x' array=2-4:2\nft.B.x 2")
    assert [line.text for line in lines_of(queue)] == [
        f"run.x 4 60 1 file={tmp_path}/run.x",
        f"work 1 9 0 dir={tmp_path}/case args='-o x' array=2",
        f"work 1 9 0 dir={tmp_path}/case args='-o x' array=4", "ft.B.x 2 3600 0"]


def test_what_lines_wait_for_has_the_numbers_of_jobs_in_the_pool(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    queue.write_text("a 1 9 name=prep array=1-2\nb 1 9 after=prep\nc 1 9 after=any:0,fail:2\n")
    entry = adding(PoolState(), lines_of(queue))
    assert entry["lines"] == ["a 1 9 0 name=prep array=1", "a 1 9 0 name=prep array=2", "b 1 9 0", "c 1 9 0"]
    assert entry["after"] == {"2": [["", 0, 1]], "3": [["any", 0], ["fail", 2]]}
    state = PoolState([entry])
    queue.write_text("d 1 9 after=prep,3\n")
    assert adding(state, lines_of(queue)) == {"do": "add", "lines": ["d 1 9 0"], "after": {"4": [["", 0, 1], ["", 3]]}}
    assert [*with_after(state, [0, 1, 2, 3])] == [
        "a 1 9 0 name=prep array=1", "a 1 9 0 name=prep array=2", "b 1 9 0 after=0,1", "c 1 9 0 after=any:0,fail:2"]
    assert [*with_after(state, [1, 2])] == ["a 1 9 0 name=prep array=2", "b 1 9 0 after=0"]
    for text, said in (("e 1 9 after=4", "queue:1: it waits for job 4, and the pool has no such job before it"),
                       ("e 1 9 after=gone", "queue:1: it waits for job `gone`, but no earlier job has this name")):
        queue.write_text(text)
        with pytest.raises(PoolError, match=said):
            adding(state, lines_of(queue))


def test_a_job_waits_until_those_before_it_have_ended_as_wanted() -> None:
    """0 completes, 1 fails: what waits for the end of 1 may run, what waits for its success never, nor what waits for
    that one."""
    state = PoolState([{"do": "add", "lines": ["x 1 9"] * 7, "after": {
        "2": [["", 0]], "3": [["any", 1]], "4": [["", 0, 1]], "5": [["", 4]], "6": [["fail", 1], ["any", 4]]}}, *JOIN])
    assert [*state.free] == [0, 1] and [*state.later] == [2, 3, 4, 5, 6]
    for entry in (taking("a", [0, 1, 2]), taking("a", [0, 1]), taking("b", [2])):
        state.apply(entry)  # who waits is not taken
    assert state.holder == {0: "a", 1: "a"}
    state.apply({"do": "done", "name": "b", "done": {"0": "completed"}})  # it has not that job
    state.apply({"do": "done", "name": "a", "done": {"0": "completed"}})
    assert [*state.free] == [2] and state.holder == {1: "a"} and state.done == {0: "completed"}
    state.apply(taking("b", [2]))
    state.apply({"do": "end", "name": "a", "done": {"0": "failed", "1": "timeout"}})
    assert [*state.free] == [3, 6] and not state.later and state.unmet == {4, 5}
    assert state.done == {0: "completed", 1: "timeout", 4: "cancelled", 5: "cancelled"}
    assert state.allocations["a"].done == {0: "completed", 1: "timeout"}
    state.apply({"do": "done", "name": "a", "done": {"2": "completed"}})  # it has ended
    state.apply({"do": "add", "lines": ["x 1 9"] * 2, "after": {"7": [["", 0]], "8": [["", 5]]}})
    assert state.holder == {2: "b"} and [*state.free] == [3, 6, 7] and state.unmet == {4, 5, 8}
    state.apply({"do": "end", "name": "b", "done": {}})
    assert [*state.free] == [2, 3, 6, 7]


@pytest.mark.parametrize("line, said", [
    ("x 1 9\ny 1 9 after=start:0", "queue:2: `after=start:` is for the jobs of one run"),
    ("x 1 9 begin=2h", "`begin` is a time at which a pool may have no allocation"),
    ("x 1 9 0 3", "a delay"), ("x one 9", "queue:1: "), ("# nothing", "it has no jobs"),
    ("x 1 9 each=*.in", "`each` cannot be dealt")])
def test_lines_that_no_pool_takes(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "a.in").touch()
    (tmp_path / "queue").write_text(f"{line}\n")
    with pytest.raises(PoolError, match=said):
        lines_of(tmp_path / "queue")
    with pytest.raises(PoolError, match="gone is not there"):
        lines_of(tmp_path / "gone")


def test_an_id_that_nobody_got_is_anothers(tmp_path: Path) -> None:
    """A manager died between saying which id a job was to have and entering it."""
    assert ids_of([{"job": 5, "id": 0}, {"job": 6, "id": 1}, {"job": 9, "id": 1}]) == {5: 0, 9: 1}
    from vrm.run.journal.history import RunHistory
    assert fate(RunHistory().state, {5: 0}) == PoolJobStates({}, set())
    assert isinstance(RunHistory().state, State)
    with pytest.raises(PoolError, match="journal: No such file"):
        of_run(tmp_path)
    (tmp_path / "journal").write_text("{}\nwhat?\n")
    with pytest.raises(PoolError, match="journal:1: "):
        of_run(tmp_path)
