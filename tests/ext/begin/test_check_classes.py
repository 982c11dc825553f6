"""`vrm check` for nodes of classes: those of a machine file, and what the nearest class lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vrm.ext.begin.check import check


def test_check_takes_the_nodes_of_a_machine_file(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "true").symlink_to("/bin/true")
    (tmp_path / "vrm.yaml").write_text("Applications: {Programs: {true: /bin/true}}\n"
                                       "Allocation: {Policy: pack}\nLauncher: {Kind: direct}\n")
    (tmp_path / "queue").write_text("true 8 10 0\ntrue 40 10 0\n")
    (tmp_path / "m.yaml").write_text("Classes:\n- {Count: 2, Cores: 4}\n- {Name: g, Cores: 8, "
                                     "Resources: {gpu: 2}}\n")
    report = check("vrm.yaml", {}, machine="m.yaml")
    told = "\n".join(map(str, report.findings))
    assert "3 nodes of 4 or 8 cores, 1 with 2 gpu (m.yaml)" in told
    assert report.never == 1 and "queue:2" in told  # 8 ranks have one node of `direct`: that of 8 cores
    (tmp_path / "m.yaml").write_text("Classes: [{}]")
    assert not check("vrm.yaml", {}, machine="m.yaml").usable


@pytest.mark.parametrize("fields, told", [
    ("gpus_per_task=1 mem_per_task=4G", ""),
    ("gpus_per_task=4", "no node can; the nearest, gpu0 and 1 like it: a rank wants 4 of gpu, a node has at "
     "most 2"),
    ("mem_per_task=400G", "no node can; the nearest, cpu0 and 3 like it: a rank wants 400G of memory, a node "
     "has at most 64G"),
    ("per_task=sdd:1", "did you mean `ssd`?"), ("features=ibb", "no node offers ibb; did you mean `ib`?"),
    ("licences=ansis:1", "the run has none; did you mean `ansys`?"),
    ("licences=ansys:9", "the job wants 9 licence(s) of ansys, the run has 4"),
    ("gpu_per_task=1", "unknown field `gpu_per_task`; did you mean `gpus_per_task`?"),
    ("mem=1G", "unknown field `mem`; did you mean `mem_per_"), ("gpus=1", "unknown field `gpus`; did you mean `gpus_per_"),
    ("queue=any nodes=1", "")])
def test_check_names_the_nearest_class_and_what_it_lacks(tmp_path: Path, fields: str, told: str) -> None:
    (tmp_path / "vrm.yaml").write_text("Applications: {Programs: {solve: /bin/true}}\n"
                                       "Allocation: {Policy: pack}\nLauncher: {Kind: direct}\n")
    (tmp_path / "queue").write_text(f"solve 1 10 0 {fields}\n")
    (tmp_path / "m.yaml").write_text("""Classes:
  - {Name: cpu, Count: 4, Sockets: 2, Cores: 8, Memory: 64GiB, Resources: {ssd: 1}}
  - {Name: gpu, Count: 2, Sockets: 2, Cores: 8, Memory: 32GiB, Resources: {gpu: 2}, Features: [ib]}
Licences: {ansys: 4}
""")
    report = check(str(tmp_path / "vrm.yaml"), {}, machine=str(tmp_path / "m.yaml"))
    wrong = [str(finding) for finding in report.findings if finding.level == "wrong"]
    assert len(wrong) == bool(told) and told in "".join(wrong)
    assert "ansys:9" not in fields or "did you mean" not in wrong[0]
