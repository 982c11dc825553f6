"""`vrm explain` on a real run."""

from __future__ import annotations

import re
import json
import signal
import subprocess
import sys

from conftest import Site, wait_until


def test_a_run_is_explained_with_and_without_its_manager(site: Site) -> None:
    site.config(Nodes=2, Sockets=1, Cores=2, Emulate=True,
                Scheduling={"Backfilling": "easy"})
    site.program("waits.x", "while [ ! -e \"$0.go\" ]; do sleep 0.02; done\n")
    site.lines("waits.x 2 1000 0", "waits.x 4 600 0", "waits.x 2 3600 0", "waits.x 1 60 0 0 after=1",
               "waits.x 9 60 0")
    manager = site.start()
    wait_until(lambda: site.running() and "refused" in site.said(manager), "a job runs")

    def explained(*words: str, status: int = 0) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run([sys.executable, "-m", "vrm.cli", "-c", str(site.config_file), "explain",
                               *words], env=site.env, text=True, capture_output=True, timeout=60)
        assert done.returncode == status, done.stdout + done.stderr
        return done

    def look() -> None:
        text = " ".join(explained("1-3").stdout.split())
        assert "#1 waits.x on 4 ranks waits since" in text
        assert "Needs 2 empty nodes, 1 empty; #0 waits.x holds" in text
        assert "If #0 was not there, it would start now" in text
        assert "It would fit now, but could delay #1 waits.x" in text
        assert re.search(r"an estimate of at most 1\dm\w* would start it at once", text)  # less, the later it is asked
        assert "It depends on #1, which should have ended by" in text
        first, = json.loads(explained("1", "--json").stdout)
        assert first["id"] == 1 and first["reasons"][0]["jobs"] == [0]
        rows = [line.split() for line in explained().stdout.splitlines()]
        assert [row[0] for row in rows] == ["ID", "1", "2", "3"]
        assert {row["id"] for row in json.loads(explained("--json").stdout)} == {1, 2, 3}
        assert "#0 waits.x runs" in explained("0", "1").stdout
        assert "there is no job 77" in explained("77", status=2).stderr
        assert "#4 waits.x has ended as refused: 9 ranks do not fit" in explained("4", status=2).stderr
        assert "`x` is no id" in explained("x", status=2).stderr

    look()
    manager.send_signal(signal.SIGKILL)
    manager.wait()
    look()
    (site.bin / "waits.x.go").touch()
    site.run("--once")
    assert sorted(site.statuses().values()) == ["completed"] * 4 + ["refused"]
    assert explained().stdout == "no job waits\n"
