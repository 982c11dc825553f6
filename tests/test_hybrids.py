"""The benchmarks with threads in each rank: they build with gcc and clang, and give the published results
with any number of threads, and while it changes."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import mpirun_environment
from vrm.live.launch.openmpi import OpenMPI, find_mpirun
from vrm.ext.lending.check import Trial, check
from vrm.live.nodes.topology import read_topology
from vrm.model import RankSlot

pytestmark = [pytest.mark.mpi, pytest.mark.system, pytest.mark.slow]

NPB = Path(__file__).parent.parent / "npb"


def module() -> Any:
    """npb/build.py, which is not a part of a package."""
    spec = importlib.util.spec_from_file_location("build_of_hybrids", NPB / "build.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found
    spec.loader.exec_module(found)
    return found


BUILD = module()


@pytest.fixture(scope="module", params=["gcc", "clang"])
def hybrids(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of them in class S, by one compiler."""
    folder: Path = tmp_path_factory.mktemp(request.param)
    if not shutil.which("mpicc") or not shutil.which(request.param):
        pytest.skip(f"no mpicc with {request.param}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMPI_CC", request.param)
        patch.setenv("MPICH_CC", request.param)
        results = BUILD.build(BUILD.HYBRIDS, ["S"], out=folder) + BUILD.build(["mg-omp"], ["W"], out=folder)
    if any("omp" in result.message for result in results):
        pytest.skip(f"{request.param} has no OpenMP: {results[0].message}")
    assert not any(result.message for result in results)
    return folder


def run(words: list[str], **env: str) -> str:
    done = subprocess.run([*map(str, words)], env={**mpirun_environment(), **env}, capture_output=True,
                          text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_they_verify_with_ranks_and_threads(hybrids: Path, tmp_path: Path) -> None:
    mpirun = shutil.which("mpirun")
    field = str(tmp_path / "field")
    for app in BUILD.HYBRIDS:
        said = run([mpirun, "--oversubscribe", "--bind-to", "none", "-n", "2", str(hybrids / f"{app}.S.x")],
                   OMP_NUM_THREADS="3", OMP_WAIT_POLICY="passive")
        assert re.search(r"Verification +: +SUCCESSFUL|Verification += +SUCCESSFUL", said), said
    insitu = [mpirun, "--oversubscribe", "-n", "2", str(hybrids / "insitu-omp.S.x")]
    run([*insitu, "write", field], OMP_NUM_THREADS="1")
    assert os.path.getsize(field) == 8 * 256 * 256
    assert "SUCCESSFUL" in run([*insitu, "analyse", field], OMP_NUM_THREADS="2")
    done = subprocess.run([*insitu, "analyse"], env=mpirun_environment(), capture_output=True, text=True,
                          timeout=120)
    assert done.returncode and "arguments: nothing, or `write FILE`, or `analyse FILE`" in done.stderr


@pytest.mark.parametrize("app", ["ep-omp.S", "cg-omp.S", "mg-omp.W", "stream-omp.S", "insitu-omp.S"])
def test_they_verify_under_a_hundred_random_changes(hybrids: Path, app: str,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    if "clang" in hybrids.name and app.partition("-")[0] not in ("ep", "mg"):
        pytest.skip("two of them show the other runtime")
    monkeypatch.setenv("XDG_CACHE_HOME", str(hybrids / "cache"))
    machine = read_topology()
    mpirun, version = find_mpirun("auto", mpirun_environment())
    launcher = OpenMPI(mpirun, version, mpirun_environment(), {machine.host: machine})
    variables: dict[str, str] = {"OMP_NUM_THREADS": "4", "OMP_WAIT_POLICY": "passive"}
    cores = tuple(range(min(2, machine.node.sockets[0])))
    verdict = check(Trial(launcher, hybrids / f"{app}.x", (), [RankSlot(0, 0, 0, cores)], [machine.node],
                          variables, changes=100))
    assert verdict.kind == "malleable", verdict.reason
    assert verdict.reason.startswith("correct after 100 changes") and sum(
        ran.followed for ran in verdict.changed) >= 5
    assert all(ran.verification == "SUCCESSFUL" for ran in [*verdict.rigid, *verdict.changed])
