"""The machine's clock is set while a run goes on: what runs and waits keeps its times."""

from __future__ import annotations

import time
import pytest

from conftest import Site, wait_until
from vrm.live.manager.liverun import Clock
from vrm.live.manager.takeover.recovery import ManagerPlace

HERE = ManagerPlace("n0", "boot", "")


def test_the_clock_before_is_taken_up_where_this_one_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    record = {"time": clock(), "tick": time.monotonic(), "host": "n0", "boot": "boot"}
    assert not clock.ahead and not clock.news() and clock.resume_from(record, HERE) == 0.0
    truth, shift = time.time, 3600.0
    monkeypatch.setattr(time, "time", lambda: truth() + shift)
    assert clock.ahead == pytest.approx(3600, abs=0.5) and "it is 3600 s ahead" in clock.news() and not clock.news()
    other = Clock()
    for elsewhere in (ManagerPlace("n1", "boot", ""), ManagerPlace("n0", "later", "")):
        assert other.resume_from(record, elsewhere) == 0.0
    assert other.resume_from({**record, "tick": None}, HERE) == 0.0 and not other.ahead  # of an older vrm
    assert other.resume_from(record, HERE) == pytest.approx(-3600, abs=0.5)
    assert other() == pytest.approx(clock(), abs=0.5)
    shift = 0.0
    assert "right again" in clock.news() and not clock.news() and not clock.ahead


@pytest.mark.slow
def test_the_next_manager_keeps_walltimes_and_waits(site: Site) -> None:
    """With the new clock a job would have run for an hour, or for less than nothing, and one that begins later would
    begin an hour late."""
    site.config(Walltime="kill", Launcher={"Kind": "direct"}, Nodes=2, Emulate=True)
    site.program("w", 'while [ ! -e "$0.go" ]; do sleep 0.02; done\n')
    site.lines("w 1 60", "w 1 30 begin=1")
    manager, env = site.start(), {"PYTHONPATH": str(site.root)}
    wait_until(lambda: site.running() == ["0"], "a job runs")
    for shift in (3600, -3600):
        manager.kill()
        manager.wait()
        (site.root / "sitecustomize.py").write_text(
            f"import time\ntruth = time.time\ntime.time = lambda: truth() + {shift}\n")
        manager = site.start(**env)  # type: ignore[arg-type]
        wait_until(lambda: site.running() == ["0", "1"], "the other job begins when it should")
        wait_until(lambda: round((site.state() or {}).get("ahead", 0)) == shift, "the state has been written")
    shown = site.run("queue", **env).stdout  # type: ignore[arg-type]
    assert "died" not in shown and "00:00:" in shown.split("| 0 ")[1].splitlines()[0], shown
    (site.bin / "w.go").touch()
    said = site.finish(manager)
    assert "the machine's clock was set" in said and "ran longer" not in said
    assert all(row.status == "completed" and 0 < row.end - row.start < 30 and 0 <= row.start - row.submit < 30
               for row in site.rows().values()), said
