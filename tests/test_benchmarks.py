"""The command lines of tests/benchmarks work: each runs once with its smallest sizes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.testbed import missing

BENCHMARKS = Path(__file__).parent / "benchmarks"
OTHERS = {"plain_loop", "clients"}
"""They have no --quick: one takes a trace, the other an environment with the clients (tests/clients runs it)."""

pytestmark = [pytest.mark.system, pytest.mark.slow]


def run(name: str, *words: str) -> str:
    """What a benchmark prints; it has to succeed."""
    env = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
           "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run([sys.executable, BENCHMARKS / f"{name}.py", *words], env=env, text=True,
                          capture_output=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


CASES = [
    ("advice", [r"(?m)^2 +\d+\.\d +\d+\.\d +\d+\.\d$"]),
    pytest.param("shim", [r"\| +gcc \| +1 \| +\d+\.\d \| +\d+\.\d \| +\d+\.\d \| +-?\d+\.\d \| +-?\d+\.\d{4} \|"],
                 marks=pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")),
    ("arrays", [r"\| +this +\| +-?\d+\.\d+ "]),
    ("restart", [r"\| +this, later +\| +\d+\.\d+ +\| +\d+ +\|"]),
    ("questions", [r"\| +this +\| +\d+\.\d+ "]),
    pytest.param("commands", [r"vrm +\d+\.\d jobs/s", r"Slurm +\d+\.\d jobs/s", r"rate of vrm to Slurm's: \d",
                              r"time of squeue to Slurm's: \d"],
                 marks=[pytest.mark.testbed, pytest.mark.skipif(bool(missing()), reason=missing() or "")]),
    ("forecast", [r"(?m)^likely +160 .* compact +\d+\.\d+$", r"(?m)^4 draws +20 .* strip +\d+\.\d+ +\d+\.\d+$"]),
    pytest.param("manager", [r"vrm, first start to last end +\| +\d+\.\d+ +\| +\d+ +\|",
                             r"from the end of an mpirun .* median \d+\.\d+ ms",
                             r"strip +\| +WFP3 +\| +\d+\.\d+ +\| +\d+\.\d+ +\|",
                             r"an idle manager uses \d+\.\d+ % of a core"],
                 marks=[pytest.mark.mpi, pytest.mark.skipif(
                     not shutil.which("mpirun"), reason="no mpirun on PATH")]),
    pytest.param("steps", [r"\| +auto +\|( +-?\d+\.\d+ +\|){7}"], marks=[pytest.mark.mpi, pytest.mark.skipif(
        not shutil.which("mpirun"), reason="no mpirun on PATH")]),
    pytest.param("urgent", [r"command to start +\| +\d+\.\d+ +\| +\d+\.\d+ +\|", r"end to continuing +\| +\d"], marks=[
        pytest.mark.mpi, pytest.mark.skipif(not shutil.which("mpirun"), reason="no mpirun on PATH")]),
    pytest.param("npb", [r"ep\.S \| +\d+\.\d+ \| +\d+\.\d+ \|"],
                 marks=[pytest.mark.mpi, pytest.mark.skipif(
                     not all(map(shutil.which, ("mpirun", "mpicc", "gfortran", "make"))),
                     reason="needs mpirun, mpicc, gfortran, make")]),
    ("ratios", [r"1,152 nodes easy, to the plain loop +\d+\.\d+",
                r"strip, with memory to without +\d+\.\d+"]),
    ("nodes", [r"\| +8 \| +\d+\.\d \|"]),
    pytest.param("load", [r"\| vrm \| 1 \| \d+ \| \d+ \|", r"\| vrm, a step for each job \| 5 \|",
                          r"\| a loop of mpirun \| 4 \|", r"\| a loop of srun \| 4 \|"],
                 marks=[pytest.mark.testbed, pytest.mark.skipif(bool(missing()), reason=missing() or "")]),
    ("probe", [r"\| +2 \| +\d+\.\d+ \|"]),
    ("simulation", [r"(?m)^synth100k EASY +500 +\d", r"(?m)^strip, speeds +500 +\d",
                    r"with --out \d+\.\d+ times the seconds"]),
    pytest.param("soak", [r"jobs completed +20 of 20", r"markers left +0",
                          r"processes left on the nodes +0"],
                 marks=[pytest.mark.testbed, pytest.mark.skipif(
                     bool(missing()), reason=missing() or "")]),
    ("decisions", [r"\| +WFP3 pack \| +\d+ \| +\d+\.\d+ \|( +\d+\.\d+ \|){3} +\d+ \|"]),
    ("state", [r"conservative +\d+\.\d+ +\d+\.\d+ +\d+\.\d+"]),
    ("lending", [r"Lublin, 64 nodes +300 +\d+\.\d+ +\d+\.\d+ +\d+\.\d+ +[1-9]\d*"]),
    ("spawn", [r"spawner, all at once \| +\d+\.\d+ \|", r"private memory of a supervisor"]),
]


@pytest.mark.parametrize("name, found", CASES)
def test_it_runs_and_prints_its_table(name: str, found: list[str]) -> None:
    text = run(name, "--quick")
    for pattern in found:
        assert re.search(pattern, text), text


def test_the_plain_loop_and_the_simulator_make_the_same_schedule(tmp_path: Path) -> None:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        from simulation import synthetic
    finally:
        sys.path.remove(str(BENCHMARKS))
    trace = tmp_path / "small.swf"
    synthetic(trace, 300, 32, 1, load=1.2, largest=16)
    for how in ("none", "easy"):
        plain = json.loads(run("plain_loop", str(trace), how))
        done = subprocess.run([sys.executable, "-m", "vrm.cli", "simulate", trace, "--backfill", how,
                               "--json"], capture_output=True, text=True, check=True)
        simulated = json.loads(done.stdout)
        assert plain == {name: pytest.approx(simulated[name]) if name == "average_wait"
                         else simulated[name] for name in plain}


def test_every_benchmark_is_here() -> None:
    names = {getattr(case, "values", case)[0] for case in CASES}
    assert names | OTHERS == {path.stem for path in BENCHMARKS.glob("*.py")}
