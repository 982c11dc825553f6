"""The store of ended jobs: what is added is there once, whoever writes at the same time; what is wrong is one
message."""

from __future__ import annotations

import multiprocessing
import sqlite3
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from vrm.ext.learning.filesystems import mounted, shared
from vrm.ext.learning.learned_jobs import LearnedJob, Overlap
from vrm.ext.learning.store import VERSION, LearnedStore, StoreError, place
from vrm.ext.learning import store as store_module


def job(number: int, run: str = "r1", app: str = "a.x", **more: object) -> LearnedJob:
    given = {"input": "", "ranks": 4, "cores": 4, "nodes": "n1", "start": 10.0 * number, "end": 10.0 * number + 5,
             "walltime": 60.0, "status": "completed", **more}
    return LearnedJob(run, number, app, **given)  # type: ignore[arg-type]


def test_what_was_added_is_there(tmp_path: Path) -> None:
    jobs = [job(1, cpu=18.5, memory=1 << 30), job(2, input="-n 3", exit_code=1, status="failed", exclusive=True, steady=False)]
    with LearnedStore(tmp_path / "deep" / "er" / "s") as store:
        store.add("r1", "/runs/1", "n 4", jobs, [Overlap(1, 2, 3.5)])
    with LearnedStore(tmp_path / "deep" / "er" / "s", reading=True) as store:
        assert store.jobs() == jobs
        assert store.machines() == {"r1": "n 4"} and store.overlaps() == [("r1", 1, 2, 3.5)]
        assert store.jobs("b.x") == [] and store.jobs("a.x", "n 4") == jobs and store.jobs("a.x", "m 8") == []
    assert (tmp_path / "deep" / "er" / "s").stat().st_mode & 0o777 == 0o600


def test_the_same_jobs_may_be_added_again(tmp_path: Path) -> None:
    with LearnedStore(tmp_path / "s") as store:
        for seconds in (1.0, 2.0):
            store.add("r1", "/runs/1", "n 4", [job(1, end=10 + seconds), job(2)], [Overlap(1, 2, seconds)])
        store.add("r2", "/runs/2", "n 4", [job(1, "r2")])
        assert [(each.run, each.job) for each in store.jobs()] == [("r1", 1), ("r2", 1), ("r1", 2)]
        assert store.jobs()[0].seconds == 2.0 and store.overlaps() == [("r1", 1, 2, 2.0)]


def test_what_is_forgotten_is_gone_with_its_overlaps(tmp_path: Path) -> None:
    with LearnedStore(tmp_path / "s") as store:
        store.add("r1", "/1", "n 4", [job(1), job(2, app="b.x")], [Overlap(1, 2, 1.0), Overlap(2, 1, 1.0)])
        store.add("r2", "/2", "n 4", [job(1, "r2")])
        assert store.forget("a.x") == 2
        assert [each.app for each in store.jobs()] == ["b.x"] and store.machines() == {"r1": "n 4"}
        assert store.overlaps() == [("r1", 2, 1, 1.0)]
        assert store.forget() == 1 and store.jobs() == [] and store.machines() == {}


def _adds(path: Path, run: str) -> None:
    for number in range(20):
        with LearnedStore(path, 60.0) as store:
            store.add(run, "/", "n 4", [job(number, run)], [Overlap(number, number + 1, 1.0)])


def test_several_managers_write_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_adds, args=(tmp_path / "s", f"r{number}")) for number in range(4)]
    for each in writers:
        each.start()
    for each in writers:
        each.join(60)
        assert each.exitcode == 0
    with LearnedStore(tmp_path / "s") as store:
        assert len(store.jobs()) == 80 and len(store.overlaps()) == 80 and len(store.machines()) == 4


def test_a_locked_file_is_one_message(tmp_path: Path) -> None:
    LearnedStore(tmp_path / "s").close()
    other = sqlite3.connect(tmp_path / "s", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreError, match="another program has locked it for 0.05 s; try again, or end that program"):
        LearnedStore(tmp_path / "s", 0.05)
    other.execute("ROLLBACK")
    with LearnedStore(tmp_path / "s", 0.05) as store:
        other.execute("BEGIN IMMEDIATE")
        assert store.jobs() == []  # who reads does not wait for who is about to write
        with pytest.raises(StoreError, match="another program has locked it"):
            store.add("r1", "/", "n 4", [job(1)])
        other.execute("COMMIT")
        store.add("r1", "/", "n 4", [job(1)])
        assert len(store.jobs()) == 1
    other.close()


@pytest.mark.parametrize("where", [0, 100, 4096])
def test_a_damaged_file_is_one_message(tmp_path: Path, where: int) -> None:
    with LearnedStore(tmp_path / "s") as store:
        store.add("r1", "/", "n 4", [job(number) for number in range(300)])
    data = bytearray((tmp_path / "s").read_bytes())
    data[where:where + 2000] = b"\xff" * 2000
    (tmp_path / "s").write_bytes(data)
    with pytest.raises(StoreError, match="damaged.*move it away: vrm makes a new one, and `vrm learned import LOG`"):
        with LearnedStore(tmp_path / "s") as store:
            store.add("r1", "/", "n 4", [job(number) for number in range(300)])
            store.jobs()


def test_a_file_of_another_version_or_program_is_left_alone(tmp_path: Path) -> None:
    LearnedStore(tmp_path / "s").close()
    with sqlite3.connect(tmp_path / "s") as file:
        file.execute(f"PRAGMA user_version = {VERSION + 1}")
    with pytest.raises(StoreError, match=f"has form {VERSION + 1}, and this vrm reads form {VERSION}"):
        LearnedStore(tmp_path / "s")
    with sqlite3.connect(tmp_path / "other") as file:
        file.execute("CREATE TABLE mine (x)")
    with pytest.raises(StoreError, match="a database of another program"):
        LearnedStore(tmp_path / "other")
    with sqlite3.connect(tmp_path / "other") as file:
        assert [name for name, in file.execute("SELECT name FROM sqlite_master")] == ["mine"]


def test_a_change_that_fails_changes_nothing(tmp_path: Path) -> None:
    with LearnedStore(tmp_path / "s") as store:
        with pytest.raises(TypeError):
            store.add("r1", "/", "n 4", [job(1), None])  # type: ignore[list-item]
        assert store.jobs() == [] and store.machines() == {}
        store.add("r1", "/", "n 4", [job(1)])
        assert len(store.jobs()) == 1


def test_who_reads_makes_no_file(tmp_path: Path) -> None:
    with LearnedStore(tmp_path / "none" / "s", reading=True) as store:
        assert store.jobs() == [] and store.machines() == {} and store.overlaps() == [] and store.forget() == 0
    assert not list(tmp_path.iterdir())


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("")
    (tmp_path / "s").symlink_to(tmp_path / "target")
    with pytest.raises(StoreError, match="symbolic link"):
        LearnedStore(tmp_path / "s")


def test_a_folder_that_cannot_be_made_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"file.*not a directory.*Learning: \{Store: PATH\}"):
        LearnedStore(tmp_path / "file" / "s")


# ------------------------------------------------------------------------------ where it is


def test_where_it_is() -> None:
    assert place("off") is None and place("/x/y") == Path("/x/y")
    assert place("auto", {"XDG_DATA_HOME": "/d", "HOME": "/h"}) == Path("/d/vrm/learned.sqlite")
    for wrong in ("", "relative"):
        assert place("auto", {"XDG_DATA_HOME": wrong, "HOME": "/h"}) == Path("/h/.local/share/vrm/learned.sqlite")


TABLE = r"""21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 0:40 / /home rw shared:2 - nfs4 server:/home rw,vers=4.2
23 22 8:2 / /home/me/local\040disk rw - xfs /dev/sdb1 rw
24 21 0:41 / /lustre rw - lustre mgs:/work rw
25 21 0:42 / /cloud rw - fuse.sshfs me@there: rw
26 21 0:43 / /image ro - fuse.squashfuse image ro
"""


@pytest.mark.parametrize("path, at, kind, refused", [
    ("/var/x", "/", "ext4", False), ("/home/me/x", "/home", "nfs4", True), ("/homes/x", "/", "ext4", False),
    ("/home/me/local disk/s", "/home/me/local disk", "xfs", False), ("/lustre", "/lustre", "lustre", True),
    ("/cloud/s", "/cloud", "fuse.sshfs", True), ("/image/s", "/image", "fuse.squashfuse", False)])
def test_the_kind_of_a_file_system(path: str, at: str, kind: str, refused: bool) -> None:
    assert mounted(path, TABLE) == (at, kind) and shared(kind) is refused


def test_where_the_kernel_does_not_say_it_the_file_system_counts_as_local() -> None:
    assert mounted("/x", "") == ("", "") and not shared("")


def test_a_file_system_that_machines_share_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "mounted", lambda path: ("/home", "nfs4"))
    with pytest.raises(StoreError, match=r"machines share \(nfs4 at /home\).*name a file on a local disk"):
        LearnedStore(tmp_path / "s")
    assert not list(tmp_path.iterdir())


def test_jobs_that_are_not_there(tmp_path: Path) -> None:
    with LearnedStore(tmp_path / "s") as store:
        store.add("r1", "/1", "n 4", [job(1), job(3)])
        store.add("r2", "/2", "n 4", [job(2, "r2")])
        assert store.unknown("r1", {1, 2, 3, 4}) == {2, 4} and store.unknown("r3", [1]) == {1}


def test_the_last_jobs_are_found_without_sorting_all_also_in_an_older_store(tmp_path: Path) -> None:
    with LearnedStore(tmp_path / "s") as store:
        store.add("r1", "/runs/1", "n 4", [job(number, end=100.0 - number) for number in range(9)])
    with sqlite3.connect(tmp_path / "s") as file:
        file.execute("DROP INDEX jobs_of_run")  # as before the index was added
    with LearnedStore(tmp_path / "s", reading=True) as store:
        assert [each.job for each in store.jobs(machine="n 4", last=3)] == [2, 1, 0]
    with sqlite3.connect(tmp_path / "s") as file:
        for query, values in ((store_module._RUNS, ("n 4",)), (store_module._OF_RUN, ("r1", "", 3))):
            plan = [row[3] for row in file.execute("EXPLAIN QUERY PLAN " + query, values)]
            assert any("jobs_of_run" in step for step in plan) and not any("TEMP" in step for step in plan), plan


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from("ab"), st.integers(0, 9)), max_size=30),
       st.sampled_from(("", "n 0", "n 1")), st.sampled_from(("", "a")), st.integers(0, 12))
def test_the_last_jobs_are_those_of_a_plain_sort(jobs: list[tuple[int, str, int]], machine: str, app: str, last: int) -> None:
    with tempfile.TemporaryDirectory() as folder, LearnedStore(Path(folder) / "s") as store:
        for run in range(5):
            store.add(f"r{run}", f"/{run}", f"n {run % 2}", [job(number, f"r{run}", name, end=float(end))
                                                           for number, (of, name, end) in enumerate(jobs) if of == run])
        everything = store.jobs(app, machine)
        assert [each.end for each in everything] == sorted(each.end for each in everything)
        assert store.jobs(app, machine, last) == everything[len(everything) - min(last, len(everything)):]
