"""`vrm wait` and `vrm submit --wait`: they end when the jobs have ended, with their exit status."""

from __future__ import annotations

import signal

import pytest
from conftest import Site, wait_until

from vrm.cli import main
from vrm.run import command_files


@pytest.fixture
def manager(site: Site) -> Site:
    """A site with a running manager, and a program that ends with the status in its file, when that is there."""
    site.config(Nodes=1, Sockets=1, Cores=2, Emulate=True, Launcher={"Kind": "direct"},
                Allocation={"Policy": "pack"})
    site.program("work", 'until [ -s "$1" ]; do sleep 0.02; done; exit "$(cat "$1")"')
    site.lines(f"work 1 60 0 args={site.root}/0", f"work 1 60 0 args={site.root}/1", end=False)
    site.start("run")
    wait_until(lambda: site.running() == ["0", "1"], "two jobs run")
    return site


def let(site: Site, job: int, status: int) -> None:
    """Let a job end."""
    (site.root / "new").write_text(str(status))
    (site.root / "new").rename(site.root / str(job))


def test_it_waits_for_those_named_and_has_their_status(manager: Site) -> None:
    both, first, again = manager.start("wait"), manager.start("wait", "0"), manager.start("wait", "0-1")
    let(manager, 0, 0)
    assert manager.finish(first) == "job 0 (work): completed\n" and first.returncode == 0
    assert both.poll() is None and again.poll() is None
    let(manager, 1, 7)
    for process in (both, again):
        said = manager.finish(process)
        assert process.returncode == 7
        assert said.splitlines()[-1] == "1 of 2 jobs completed" and said.startswith("job 1 (work): failed"), said
    over = manager.run("wait", "all")  # they have ended before
    assert over.returncode == 7 and over.stdout == said
    unknown = manager.run("wait", "0", "5")
    assert unknown.returncode == 2 and "there is no job 5; `vrm queue --all` shows all jobs" in unknown.stderr
    for word in ("1-x", "failed"):
        wrong = manager.run("wait", word)
        assert wrong.returncode == 2 and f"`{word}` is not an id" in wrong.stderr and "range such as 3-7" in wrong.stderr


def test_a_job_that_was_put_back_is_waited_for(manager: Site) -> None:
    let(manager, 0, 3)
    assert manager.run("wait", "0").returncode == 3
    (manager.root / "0").unlink()
    assert manager.run("requeue", "0").returncode == 0
    waiting = manager.start("wait", "0")
    let(manager, 0, 0)
    assert manager.finish(waiting) == "job 0 (work): completed\n" and waiting.returncode == 0


def test_submit_waits_for_what_it_brings(manager: Site) -> None:
    one = manager.start("submit", "work", "1", "60", "--wait", "--", f"{manager.root}/2")
    wait_until(lambda: "job 2" in manager.said(one), "it is taken")
    several = manager.start("submit", "work", "1", "60", "--wait", "--array", "0-2", "--", f"{manager.root}/2")
    wait_until(lambda: "3-5" in manager.said(several), "they are taken")
    cancelled = manager.start("submit", "work", "1", "60", "--wait", "--hold", "--", f"{manager.root}/2")
    wait_until(lambda: "job 6" in manager.said(cancelled), "it is taken")
    assert manager.run("cancel", "6").returncode == 0
    assert "job 6 (work): cancelled" in manager.finish(cancelled) and cancelled.returncode == 1
    for job, status in ((0, 0), (1, 0), (2, 4)):
        let(manager, job, status)
    assert manager.finish(one).splitlines()[-1].startswith("job 2 (work): failed") and one.returncode == 4
    assert manager.finish(several).endswith("0 of 3 jobs completed\n") and several.returncode == 4
    wrong = manager.run("submit", "work", "1", "--wait", "--test-only")
    assert wrong.returncode == 2 and "leave out --wait" in wrong.stderr


def test_it_waits_while_the_next_manager_may_come(manager: Site, monkeypatch: pytest.MonkeyPatch,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    waiting = manager.start("wait")
    manager.started[0].send_signal(signal.SIGKILL)
    manager.started[0].wait()
    second = manager.start("run")
    let(manager, 0, 0)
    wait_until(lambda: manager.statuses() == {0: "completed"}, "it goes on")
    second.send_signal(signal.SIGKILL)
    second.wait()
    monkeypatch.setattr(command_files, "NEXT", 0.1)
    assert main(["-c", str(manager.config_file), "wait"]) == 2
    assert "job 1 has not ended, but no manager runs; `vrm run` continues the run" in capsys.readouterr().err
    manager.start("run")
    let(manager, 1, 0)
    assert manager.finish(waiting) == "2 of 2 jobs completed\n" and waiting.returncode == 0
