"""Many runs: all cells, restart of what is missing, failures; and the synthetic workloads."""

from __future__ import annotations

import concurrent.futures
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import mpirun_environment

from vrm.live.launch.openmpi import find_mpirun
from vrm.ext.study.experiment import matrix as matrices
from vrm.ext.study.experiment.matrix import Matrix, MatrixError
from vrm.ext.generate.lublin import Lublin

POLICIES = [{"algorithm": "FCFS", "backfill": "none"}, {"algorithm": "FCFS", "backfill": "easy"},
            {"algorithm": "(q / t)**3 * n", "backfill": 2}]


def test_every_policy_on_every_workload_and_restart(tmp_path: Path) -> None:
    trace = tmp_path / "t.swf"
    trace.write_text("; MaxProcs: 4\n1 0 -1 10 2 -1 -1 2 20 -1 1 1 -1 -1 -1 -1 -1 -1\n")
    many = Matrix([str(trace), "lublin:32:40"], POLICIES, seeds=[1, 2])
    found = many.run(tmp_path / "out", workers=2)
    assert len(found) == 3 + 3 * 2
    assert [one["jobs"] for one in found] == [1] * 3 + [40] * 6
    assert len({one["start_hash"] for one in found[3:]}) > 1
    files = sorted((tmp_path / "out").iterdir())
    before = [path.read_bytes() for path in files]
    assert len(files) == 9
    files[4].unlink()
    files[0].write_text(json.dumps({"kept": True}))
    with concurrent.futures.ThreadPoolExecutor() as pool:  # any executor will do
        again = many.run(tmp_path / "out", executor=pool)
    assert {"kept": True} in again
    assert files[4].read_bytes() == before[4]


def test_only_what_is_missing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = Matrix(["lublin:16:5"], POLICIES)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        many.run(tmp_path, pool)
        monkeypatch.setattr(matrices, "run_cell", None)
        assert len(many.run(tmp_path, pool)) == 3


MATRIX = """
import sys
from vrm.ext.study.experiment.matrix import Matrix, mpi_executor
many = Matrix(["lublin:16:30"], [{"backfill": "none"}, {"backfill": "easy"}], seeds=(0, 1))
if __name__ == "__main__":
    if sys.argv[1] == "mpi":
        with mpi_executor() as engine:
            many.run(sys.argv[2], engine)
    else:
        from distributed import Client, LocalCluster
        with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None,
                          host="127.0.0.1") as workers, Client(workers) as engine:
            many.run(sys.argv[2], engine)
"""


@pytest.mark.parametrize("engine", ["mpi", "dask"])
@pytest.mark.slow
def test_engines_for_many_machines_leave_the_same_files(tmp_path: Path, engine: str) -> None:
    pytest.importorskip("mpi4py" if engine == "mpi" else "distributed")
    program = tmp_path / "many.py"
    program.write_text(MATRIX)
    argv = [sys.executable, str(program), engine, str(tmp_path / "out")]
    if engine == "mpi":
        mpirun = find_mpirun()[0]
        argv = [mpirun, "-n", "2", "--oversubscribe", sys.executable, "-m", "mpi4py.futures",
                *argv[1:]]
    done = subprocess.run(argv, env=mpirun_environment(), capture_output=True, text=True,
                          timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    Matrix(["lublin:16:30"], [{"backfill": "none"}, {"backfill": "easy"}], seeds=(0, 1)).run(
        tmp_path / "here", workers=1)
    files = {path.name: path.read_bytes() for path in (tmp_path / "here").iterdir()}
    assert len(files) == 4
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}


def test_failures_are_told_after_the_others_have_run(tmp_path: Path) -> None:
    many = Matrix(["lublin:16:5", "lublin:x"], POLICIES[:1])
    with concurrent.futures.ThreadPoolExecutor() as pool:
        with pytest.raises(MatrixError, match="1 of 2 runs failed.*lublin:PROCESSORS:JOBS"):
            many.run(tmp_path, pool)
    assert len(list(tmp_path.iterdir())) == 1


def test_synthetic_workloads_are_those_of_the_model() -> None:
    """Shares and means near those of the archive's sample of the model for 256 processors:
    serial 0.249, powers of two 0.861, mean size 22.1, mean run time 4863 s."""
    jobs = list(Lublin(256).jobs(20000, seed=1))
    sizes = [one.job.procs for one in jobs]
    assert min(sizes) == 1 and max(sizes) == 256
    assert abs(sizes.count(1) / len(sizes) - 0.249) < 0.015
    assert abs(sum(size & (size - 1) == 0 for size in sizes) / len(sizes) - 0.861) < 0.02
    assert abs(sum(sizes) / len(sizes) - 22.1) < 1.5
    assert abs(sum(one.run for one in jobs) / len(jobs) - 4863) < 500
    submits = [one.job.submit for one in jobs]
    assert submits == sorted(submits)
    assert all(one.run <= one.job.estimate <= math.ceil(5 * one.run) for one in jobs)
    noon = sum(9 <= submit % 86400 / 3600 < 17 for submit in submits)
    night = sum(submit % 86400 / 3600 < 8 for submit in submits)
    assert noon > 3 * night


def test_a_seed_gives_the_same_workload() -> None:
    assert list(Lublin(64).jobs(50, 7)) == list(Lublin(64).jobs(50, 7))
    assert list(Lublin(64).jobs(50, 7)) != list(Lublin(64).jobs(50, 8))
    with pytest.raises(ValueError, match="2 processors or more"):
        Lublin(1)


def test_nodes_that_differ(tmp_path: Path) -> None:
    machine = tmp_path / "my.yaml"
    machine.write_text("Classes:\n- {Count: 3, Cores: 4}\n- {Name: gpu, Cores: 8, Resources: {gpu: 2}}\n")
    found = Matrix(["lublin:16:40"], [{"node_order": "first-fit"}, {"node_order": "weighted"}], seeds=(1,),
                   common={"machine": str(machine), "policy": "pack"}).run(tmp_path / "out", workers=1)
    assert [one["completed"] for one in found] == [40, 40]
