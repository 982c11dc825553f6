"""Nodes and cores that LSF and Grid Engine grant, from their variables and files."""

from __future__ import annotations

from pathlib import Path

import pytest

from vrm.live.batch.allocation import Allocation, find_allocation
from vrm.live.batch.base import AllocationError


def test_lsf(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("n1\nn1\nn0\nn0\nn0\n")
    expected = Allocation("lsf", ("n1", "n0"), {"n1": 2, "n0": 3}, "8")
    for more in ({"LSB_DJOB_HOSTFILE": str(tmp_path / "hosts"), "LSB_HOSTS": "no"},
                 {"LSB_MCPU_HOSTS": "n1 2 n0 3"}, {"LSB_HOSTS": "n1 n1 n0 n0 n0"}):
        assert find_allocation({"LSB_JOBID": "8", **more}) == expected


@pytest.mark.parametrize("env, message", [
    ({"LSB_JOBID": "8"}, "LSB_HOSTS: names no host"),
    ({"LSB_MCPU_HOSTS": "n1 2 n0"}, "LSB_MCPU_HOSTS: `n1 2 n0` is not a list of hosts, each with"),
    ({"LSB_MCPU_HOSTS": "n1 two"}, "LSB_MCPU_HOSTS"),
    ({"LSB_DJOB_HOSTFILE": "/no/such/file"}, "LSB_DJOB_HOSTFILE: /no/such/file: No such file"),
])
def test_lsf_said_wrongly(env: dict[str, str], message: str) -> None:
    with pytest.raises(AllocationError, match=message):
        find_allocation(env)


def test_grid_engine(tmp_path: Path) -> None:
    (tmp_path / "pe").write_text("n1 4 all.q@n1 UNDEFINED\nn0 2 all.q@n0 0,0:0,1\n"
                                 "n1 1 long.q@n1 <NULL>\n")
    env = {"PE_HOSTFILE": str(tmp_path / "pe"), "JOB_ID": "3"}
    assert find_allocation(env) == Allocation("gridengine", ("n1", "n0"), {"n1": 5, "n0": 2}, "3")
    (tmp_path / "pe").write_text("n1 4 all.q@n1 UNDEFINED\nn0 four\n")
    with pytest.raises(AllocationError, match="PE_HOSTFILE: .*/pe:2: `n0 four` is not a host"):
        find_allocation(env)
