"""Flux around vrm: what `flux` prints is as Flux 0.88 printed it. The real one is in tests/live/spawn/test_transports.py, where
VRM_TEST_FLUX names it."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from vrm.ext.sites import flux
from vrm.live.batch.allocation import Allocation, batch_job, find_allocation
from vrm.live.batch.base import AllocationError, BatchJob, NodeShare
from vrm.live.nodes.runner_commands import command_line, group_line
from vrm.system.transports.base import choose

R = ('{"version": 1, "execution": {"R_lite": [{"rank": "0-1", "children": {"core": "0-3,6", "gpu": "0,2"}}, '
     '{"rank": "4", "children": {"core": "7"}}], "starttime": 1795783576.355722, "expiration": 1795783876.355722, '
     '"nodelist": ["n[0-1],m7"]}}')


@pytest.fixture
def around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The environment of an instance whose `flux` prints what stands in the file R."""
    (tmp_path / "R").write_text(R)
    program = tmp_path / "flux"
    program.write_text(f'#!/bin/sh\ncase "$*" in\n"resource R") cat {shlex.quote(str(tmp_path))}/R;;\n'
                       '"getattr hostlist") echo "n[0-1],m[5-7]";;\n*) exit 1;;\nesac\n')
    program.chmod(0o755)
    for name, value in {"PATH": f"{tmp_path}:{os.environ['PATH']}", "FLUX_URI": "local:///run/flux-x/local-0",
                        "FLUX_ENCLOSING_ID": "\u0192ovxGQ7"}.items():
        monkeypatch.setenv(name, value)
    for name in ("SLURM_JOB_ID", "SLURM_JOBID"):
        monkeypatch.delenv(name, raising=False)
    flux._ranks.cache_clear()
    yield dict(os.environ)
    flux._ranks.cache_clear()


def test_nodes_cores_gpus_and_end_are_those_of_the_resource_set(around: dict[str, str]) -> None:
    gpus = NodeShare(gpus=2, indices=(0, 2))
    assert find_allocation(around) == Allocation(
        "flux", ("n0", "n1", "m7"), {"n0": 5, "n1": 5, "m7": 1}, "fovxGQ7", 1795783876.355722,
        shares={"n0": gpus, "n1": gpus, "m7": NodeShare(gpus=0, indices=())})
    assert batch_job(around) == "flux fovxGQ7"


def test_an_instance_without_an_end(around: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "R").write_text(R.replace("1795783876.355722", "0.0"))
    assert find_allocation(around).end is None


@pytest.mark.parametrize("text", ["", "no JSON", "[]", "{}", json.dumps({"execution": {"nodelist": ["n0"], "R_lite": [
    {"rank": "0-1", "children": {"core": "0"}}]}}), R.replace("n[0-1],m7", "n[0-"), R.replace('"nodelist"', '"nodes"')])
def test_what_is_no_resource_set_is_refused(around: dict[str, str], tmp_path: Path, text: str) -> None:
    (tmp_path / "R").write_text(text)
    assert flux.parse_resources(text) == ((), BatchJob())
    with pytest.raises(AllocationError, match="`flux resource R` names no node of this Flux instance"):
        find_allocation(around)


def test_one_flux_exec_starts_all_runners(around: dict[str, str]) -> None:
    assert choose("auto", around) == "flux"
    assert choose("auto", {**around, "PATH": "/no/such"}) == "ssh"
    line = group_line(["n1", "m7", "m5"], "flux", 10.0)
    assert line[:6] == ("stdbuf", "-oL", "flux", "exec", "--quiet", "-r") and line[6] == "1-2,4"
    assert line[7:10] == ("/bin/sh", "-c", flux._NAMED) and "$VRM_FLUX_NODE" in line
    assert command_line("m7", "flux", 10.0)[5:7] == ("-r", "4")
    assert command_line("other", "flux", 10.0)[5:7] == ("-r", "5"), "a rank that is not there"
