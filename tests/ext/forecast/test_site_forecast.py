"""`vrm forecast` of a whole site: from files, from a real Slurm, and what cannot be asked."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from conftest import wait_until
from support.testbed import LOGIN, Testbed
from vrm import cli

LML = """<lml:lgui xmlns:lml="http://eclipse.org/ptp/lml">
<objects><object id="s" type="system"/><object id="n" type="node" name="node1"/>
<object id="a" type="job" name="first"/><object id="b" type="job" name="second"/></objects>
<information><info oid="s"><data key="system_time" value="07/12/12-15:00:00"/></info>
<info oid="a"><data key="wall" value="60"/></info></information></lml:lgui>
"""


def test_lml_through_the_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "site.xml", tmp_path / "out.xml"
    path.write_text(LML)
    assert cli.main(["forecast", "--lml", str(path), "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "2 jobs wait and 0 run on 1 nodes" in shown and "07/12/12-15:01:00" in shown
    assert '<data key="predicted_dispatchdate" value="07/12/12-15:01:00"/>' in out.read_text()
    assert cli.main(["forecast", "--lml", str(path), "--most-jobs", "1", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["jobs"]
    assert first["nodes"] == "node1" and second["start"] is None and second["reason"]


@pytest.mark.parametrize("words, said", [
    (["--lml", "missing.xml"], "missing.xml: No such file or directory"),
    (["--lml", "bad.xml"], "bad.xml:1: it is not XML"),
    (["--squeue", "bad.xml"], "--squeue and --sinfo need each other"),
    (["--slurm", "--pbs"], "which site? Give one of --site, --slurm"),
    (["--out", "x"], "which site?"),
    (["--slurm", "--out", "x"], "--out goes with --lml"),
    (["--site", "3"], "a forecast of a site takes no IDs"),
    (["--site"], "there is no squeue and no qstat here"),
    (["--pbs"], "qstat is not there: ask on a login node")])
def test_what_cannot_be_forecast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                 capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "bad.xml").write_text("<lml:lgui>")
    assert cli.main(["forecast", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.testbed
@pytest.mark.slow
def test_a_real_slurm(testbed: Testbed) -> None:
    """The second of two jobs that want all nodes starts when the first reaches its limit; the third
    goes on beside neither."""
    root = Path(__file__).resolve().parents[3]

    def asked(*words: Any) -> subprocess.CompletedProcess[str]:
        return testbed.exec(LOGIN, list(map(str, words)), env={"PYTHONPATH": str(root)})

    nodes = str(len(asked("sinfo", "-h", "-N", "-o", "%N").stdout.split()))
    jobs = [asked("sbatch", "--parsable", "-N", nodes, "-t", minutes, "--exclusive", "-o", "/dev/null",
                  "--wrap", "sleep 600").stdout.strip() for minutes in ("2", "5", "3")]
    try:
        wait_until(lambda: asked("squeue", "-h", "-j", jobs[0], "-o", "%T").stdout.strip() == "RUNNING",
                   "the first job runs")
        began = time.mktime(time.strptime(asked("squeue", "-h", "-j", jobs[0], "-o", "%S").stdout.strip(),
                                          "%Y-%m-%dT%H:%M:%S"))
        done = asked(sys.executable, "-m", "vrm.cli", "forecast", "--slurm", "--user", "all", "--json")
        assert done.returncode == 0, done.stderr
        found = {job["id"]: job for job in json.loads(done.stdout)["jobs"]}
        assert set(jobs[1:]) <= set(found) and jobs[0] not in found
        assert found[jobs[1]]["start"] == pytest.approx(began + 120, abs=1)
        assert found[jobs[2]]["start"] == pytest.approx(began + 420, abs=1)
    finally:
        asked("scancel", *jobs)
