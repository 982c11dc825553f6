"""What nodes have besides cores, and who holds it, in `vrm -i state`, as JSON, and in `vrm top`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vrm.report import node_resources
from vrm.report.tables import state_json, state_table
from vrm.ext.top.cells import ASCII, plain_text
from vrm.ext.top.top import render
from vrm.results.job_columns import HEADER
from vrm.results.jobs import JobRow
from vrm.results.state import parsed

NOW = 1_795_000_000.0


def job(number: int, app: str, nodes: list[str], devices: str = "") -> dict[str, Any]:
    return {"id": number, "app": app, "procs": 1, "state": "running", "submit": NOW - 20, "estimate": 60,
            "exclusive": False, "start": NOW - 10, "expected_end": NOW + 50, "nodes": nodes,
            "binding": "ok", **({"devices": devices} if devices else {})}


def snapshot(**more: Any) -> dict[str, Any]:
    """Two nodes with GPUs, of which one gives only two of its four, and two without."""
    return {
        "format": 2, "time": NOW - 1, "emulated": False,
        "manager": {"host": "n0", "pid": 7, "start": NOW - 60, "phase": "running"},
        "scheduling": {"algorithm": "FCFS", "backfilling": "easy", "policy": "pack"},
        "allocation": {"end": None},
        "nodes": [
            {"name": "n0", "up": True, "sockets": [[0, None], [1, None]],
             "resources": {"memory": [46, 62], "gpu": [0, 2]}, "devices": {"gpu": [0, 1]}},
            {"name": "n1", "up": True, "sockets": [[0, None], [None, None]],
             "resources": {"memory": [46, 62], "gpu": [1, 2]}, "devices": {"gpu": [2, 3]}},
            {"name": "n2", "up": True, "sockets": [[None, None], [None, None]],
             "resources": {"memory": [62, 62], "ssd": [1, 2]}, "features": ["ib"]},
            {"name": "n3", "up": False, "sockets": [[None, None], [None, None]],
             "resources": {"memory": [62, 62]}}],
        "jobs": [job(0, "train.x", ["n0", "n1"], "n0:gpu/1;n1:gpu/3"), job(1, "solve.x", ["n0"], "n0:gpu/0")],
        "ended": {"completed": 0}, "licences": {"ansys": [3, 4]}, **more}


def test_the_table_names_the_job_on_each_gpu() -> None:
    lines = [line.rstrip() for line in state_table(snapshot(), NOW).splitlines()]
    table = lines[lines.index("") + 1:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table if "|" in line]
    assert cells == [
        ["Node", "Memory", "Ssd", "GPU 0", "GPU 1", "Features"],
        ["n0", "46/62 GiB", "", "#1 solve.x", "#0 train.x", ""],
        ["n1", "46/62 GiB", "", "2: .", "3: #0 train.x", ""],
        ["n2", "62/62 GiB", "1/2", "", "", "ib"],
        ["n3", "62/62 GiB", "", "", "", ""]]
    assert lines[-1] == "Licences free: ansys 3 of 4"


def test_where_nobody_asks_for_more_than_cores_there_is_no_such_table() -> None:
    plain = snapshot(licences={}, jobs=[])
    for node in plain["nodes"]:
        node.update(resources={"memory": [62, 62]}, features=[], devices={})
    assert "GiB" not in state_table(plain, NOW)
    plain["nodes"][0]["resources"] = {"memory": [30, 62]}
    assert "30/62 GiB" in state_table(plain, NOW)


def test_neighbours_that_are_alike_share_a_line_in_a_large_cluster() -> None:
    node = {"up": True, "sockets": [[None]], "resources": {"memory": [62, 62], "gpu": [1, 1]}}
    many = snapshot(jobs=[], licences={}, nodes=[{"name": f"n{i}", **node} for i in range(300)])
    assert state_table(many, NOW).count("62/62 GiB") == 1 and "n0-n299" in state_table(many, NOW)


def test_the_same_as_json() -> None:
    found = state_json(snapshot(), NOW)
    assert json.loads(json.dumps(found)) == found
    assert found["licences"] == {"ansys": [3, 4]}
    assert found["nodes"][0]["gpus"] == [{"index": 0, "job": 1}, {"index": 1, "job": 0}]
    assert found["nodes"][1]["gpus"] == [{"index": 2, "job": None}, {"index": 3, "job": 0}]
    assert found["nodes"][2]["resources"] == {"memory": [62, 62], "ssd": [1, 2]}
    assert found["nodes"][2]["features"] == ["ib"] and "gpus" not in found["nodes"][2]


def test_top_shows_gpus_behind_the_cores() -> None:
    text = plain_text(render(snapshot(), [], (100, 24), NOW, glyphs=ASCII))
    assert "n0 a.|b.|GPU ba" in text and "n1 a.|..|GPU .a" in text, text
    assert "n2 ..|.." in text and "GPU .." not in text


@pytest.mark.parametrize("text, wanted", [
    ("", {}), ("n0:gpu/0", {"n0": {"gpu": (0,)}}),
    ("n0:gpu/0,2;n1:gpu/1+mic/0", {"n0": {"gpu": (0, 2)}, "n1": {"gpu": (1,), "mic": (0,)}}),
    ("nonsense", {}), ("n0:gpu/x", {}), (";;", {})])
def test_texts_of_devices(text: str, wanted: dict[str, Any]) -> None:
    assert node_resources.parse_devices(text) == wanted


@pytest.mark.parametrize("key, value", [
    ("resources", {"gpu": [1]}), ("resources", {"gpu": "2"}), ("resources", [1, 2]),
    ("devices", {"gpu": ["a"]}), ("features", "ib")])
def test_a_state_file_with_nonsense_is_none(key: str, value: Any) -> None:
    wrong = snapshot()
    wrong["nodes"][0][key] = value
    with pytest.raises(ValueError):
        parsed(json.dumps(wrong).encode())


def test_timelines_have_a_line_for_each_gpu(tmp_path: Path) -> None:
    from vrm.ext.study.report.study_files import read_study
    from vrm.ext.study.report.study_timelines import _places
    pytest.importorskip("matplotlib")
    (tmp_path / "jobs.csv").write_text(HEADER + "".join(
        JobRow(number, "a", 1, 0, start, end, 60, "completed", nodes="n0", cores=cores,
               devices=devices).line
        for number, start, end, cores, devices in [
            (0, 0, 9, "n0:0/0-1", "n0:gpu/1"), (1, 0, 5, "n1:0/0", ""), (2, 9, 12, "n1:0/1", "n1:gpu/0,1")]))
    run = read_study([str(tmp_path)]).runs[0]
    bars, names, lines = _places(run, run.jobs)
    assert lines == 8  # two nodes of two cores and two GPUs
    assert [(row.id, line, count) for row, line, count in bars] == [
        (0, 0, 2), (0, 3, 1), (1, 4, 1), (2, 5, 1), (2, 6, 2)]
    alone = read_study([str(tmp_path)]).runs[0]
    _, names, _ = _places(alone, [row for row in alone.jobs if row.id == 0])
    assert [name for _, name in names] == ["core 0", "core 1", "GPU 0", "GPU 1"]


def test_timelines_name_the_programs_of_coupled_jobs(tmp_path: Path) -> None:
    """Each has the cores of its ranks, which are listed one program after the other."""
    from vrm.ext.study.report.study_files import read_study
    from vrm.ext.study.report.study_timelines import _parts, _places, timelines
    pytest.importorskip("matplotlib")
    (tmp_path / "jobs.csv").write_text(HEADER + "".join(
        JobRow(number, app, procs, 0, start, 9, 60, "completed", nodes="n0", cores=cores, coupled=coupled).line
        for number, app, procs, start, cores, coupled in [
            (0, "climate", 5, 0, "n0:0/0-3;n1:0/0-2", "ocean.x 3 : atmos.x 2 cores=2"), (1, "solo", 1, 2, "n1:0/3", "")]))
    study = read_study([str(tmp_path)])
    run = study.runs[0]
    bars, _, _ = _places(run, list(_parts(run)))
    assert [(row.id, row.app, line, count) for row, line, count in bars] == [
        (0, "ocean.x", 0, 3), (0, "atmos.x", 3, 1), (0, "atmos.x", 4, 3), (1, "solo", 7, 1)]
    assert study.kinds == ["atmos", "ocean", "solo"]
    picture, = timelines(study)
    written = [text.get_text() for text in picture.figure.axes[0].texts]
    assert {"0 ocean", "0 atmos", "1 solo"} <= {*written}


def test_timelines_show_who_had_a_lent_core_when(tmp_path: Path) -> None:
    from vrm.ext.study.report.node_density import density
    from vrm.ext.study.report.study_files import read_study
    from vrm.ext.study.report.study_timelines import _held, _parts, _places, _stretches
    from vrm.results.summary import Moments
    pytest.importorskip("matplotlib")
    (tmp_path / "jobs.csv").write_text(HEADER + "".join(
        JobRow(number, "a", 1, 0, start, end, 60, "completed", nodes="n0", cores=cores).line
        for number, start, end, cores in [(0, 0, 9, "n0:0/0-1"), (1, 2, 5, "n0:0/1"), (2, 9, 12, "n0:0/0")]))
    (tmp_path / "shares.csv").write_text(
        "job,from,to,node,cores\n1,2,5,n0,0/1\n0,0,2,n0,0/0-1\n0,2,6,n0,0/0\n0,6,9,n0,0/0-1\n")
    run = read_study([str(tmp_path)]).runs[0]
    bars, _, _ = _places(run, list(_parts(run)))
    drawn = sorted((line, count, *each[:2], row.id) for row, line, count in bars for each in
                   _stretches(run, row))
    cores = {core: sorted((begin, end, job) for line, count, begin, end, job in drawn
                          if line <= core < line + count) for core in (0, 1)}
    assert cores[1] == [(0, 2, 0), (2, 5, 1), (6, 9, 0)]
    for found in cores.values():
        assert all(one[1] <= two[0] for one, two in zip(found, found[1:])), "one job at a time"
    assert sum(end - begin for begin, end, _ in cores[0]) == 12

    held = _held(run)
    moments = Moments.of(run.table.ran, held[:3])
    assert dict(zip(moments.times.tolist(), moments.busy.tolist())) == {0: 2, 2: 2, 5: 1, 6: 2, 9: 1, 12: 0}
    assert moments.queued.tolist() == [2, 1, 1, 1, 0, 0], "one waits from 0 to 2 s, one from 0 to 9 s"
    found = density(held.places, held.begins, held.ends, 2, 0, 12)
    assert found is not None and found.shares.mean() * 24 == pytest.approx(2 * 12 - 1 - 3), "each core once"
