"""What may import what: arrows point one way, and the rooms that decide know nothing of files,
clocks and processes."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from support.rooms import DIRECT, HOUSE, below

OUTSIDE = {"os", "time", "datetime", "subprocess", "socket", "signal", "shutil", "tempfile",
           "threading", "psutil", "yaml", "pathlib"}
"""What gives a clock, a file, an environment variable or a process."""

POLICIES = ("ext.energy", "ext.lending", "ext.planning")
"""Extensions that decide, too."""

BESIDE = {"ext/planning/planner.py", "ext/planning/part.py", "ext/lending/check.py", "ext/lending/part.py",
          "ext/lending/job_variables.py", "ext/lending/build.py", "ext/lending/vrm_lending.py", "ext/lending/commands/malleable.py",
          "ext/lending/nodes/masks.py", "ext/lending/nodes/pausing.py",
          "ext/lending/nodes/dlb.py", "ext/lending/nodes/lending.py", "ext/energy/part.py",
          "ext/energy/nodes/power.py", "ext/energy/database.py",
          "ext/energy/keys.py"}
"""Files of these that decide nothing: the process of plans, and the part of a manager that starts it; the part that
moves cores, and what programs follow by; the check of programs, and its command; the part that measures energy, and
the files and keys of what was measured; what agents do on nodes."""


def imported(room: str) -> dict[str, set[str]]:
    """The modules that each file of a room imports, vrm's with what is taken of them."""
    found = {}
    for path in sorted((HOUSE / room.replace(".", "/")).rglob("*.py")):
        names = found[str(path.relative_to(HOUSE))] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {name.name for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, path
                names |= {f"{node.module}.{name.name}" for name in node.names}
    return found


def room_of(name: str) -> str:
    """The room of a module of vrm: `live.nodes` of `vrm.live.nodes.agents.probe`."""
    parts = name.split(".")[1:]
    return ".".join(parts[:2]) if parts[0] == "live" else parts[0]


def test_the_arrows_make_no_circle() -> None:
    assert all(room not in below(room) for room in DIRECT)


def test_the_files_of_the_rooms_that_decide_import_in_no_circle() -> None:
    """Not for a type either: who reads one of them has read all below it."""
    files = {f"vrm.{path[:-3].replace('/', '.').replace('.__init__', '')}": names
             for room in ("model", "scheduling", "run", "simulation", "live.manager", *POLICIES, "ext.study.validation") for path, names in imported(room).items()}

    def file_of(name: str) -> str:
        return name if name in files else name.rpartition(".")[0]

    arrows = {file: {file_of(name) for name in names} & files.keys() - {file} for file, names in files.items()}
    assert [*TopologicalSorter(arrows).static_order()]


@pytest.mark.parametrize("room", sorted(DIRECT))
def test_a_room_imports_only_what_lies_below_it(room: str) -> None:
    allowed = {room, "__version__", *below(room)}
    wrong = [f"{path}: {name}" for path, names in imported(room).items() for name in sorted(names)
             if name.split(".")[0] == "vrm" and name != "vrm" and room_of(name) not in allowed]
    assert imported(room) and not wrong


def test_every_module_lives_in_a_room() -> None:
    rooms = {*DIRECT, "commands", ""}
    files = {str(path.relative_to(HOUSE)) for path in HOUSE.rglob("*.py")}
    files -= {path for path in files if path.startswith("ext/")}  # tests/test_extensions.py
    assert {room_of("vrm." + path[:-3].replace("/", ".")) for path in files if path.count("/") > 1} <= rooms
    assert {path.partition("/")[0] for path in files if path.count("/") == 1} <= rooms | {"live"}
    assert {path for path in files if "/" not in path} == {
        "__init__.py", "__main__.py", "api.py", "cli.py"}
    assert {path for path in files if path.startswith("live/") and path.count("/") == 1} == {
        "live/__init__.py"}


def test_a_folder_has_at_most_15_files() -> None:
    folders = [HOUSE, *(path for path in HOUSE.rglob("*") if path.is_dir() and path.name != "__pycache__")]
    assert len(folders) > 50
    assert {folder: count for folder in folders if (count := sum(map(Path.is_file, folder.iterdir()))) > 15} == {}


@pytest.mark.parametrize("room", ["model", "scheduling", *POLICIES])
def test_who_decides_has_no_clock_and_no_files(room: str) -> None:
    names = set().union(*(names for path, names in imported(room).items() if path not in BESIDE))
    assert not {name.split(".")[0] for name in names} & OUTSIDE


def test_each_public_class_has_a_name_of_its_own() -> None:
    where: dict[str, list[str]] = {}
    for path in sorted(HOUSE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, []).append(str(path.relative_to(HOUSE)))
    assert len(where) > 500
    assert {name: places for name, places in where.items() if len(places) > 1} == {}


def test_no_test_imports_another_test() -> None:
    """What tests share is in tests/support."""
    tests = {path.stem for path in Path(__file__).parent.rglob("test_*.py")}
    assert len(tests) > 200
    for path in Path(__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = ([name.name for name in node.names] if isinstance(node, ast.Import) else
                     [node.module or ""] if isinstance(node, ast.ImportFrom) else [])
            assert not {part for name in names for part in name.split(".")} & tests, path


def test_each_part_of_a_manager_and_each_placement_has_a_test_file_of_its_own() -> None:
    """Named as the module, or after its extension where that is `part`."""
    tests = {path.name: path.relative_to(Path(__file__).parent).parts for path in Path(__file__).parent.rglob("test_*.py")}
    found = set()
    for path in HOUSE.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and {base.id for base in node.bases if isinstance(base, ast.Name)} & {"Part"}:
                parts = path.relative_to(HOUSE).parts
                found.add((parts[1] if parts[0] == "ext" else "manager", path.stem))
    assert len(found) > 20
    for place, module in found:
        name = f"test_{place}_part.py" if module == "part" else f"test_{module}.py"
        assert place in tests[name], name
    assert {f"test_{name}.py" for name in ("compact", "spare", "strip", "pack")} <= tests.keys()
