"""What programs on other nodes have used: lines in files, which steps and the manager put together."""

from __future__ import annotations

import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from vrm.ext.slurm.calls.build import link
from vrm.ext.steps import resource_use
from vrm.ext.steps.resource_use import PROGRAM, of_job, of_step
from vrm.ext.building.compiling import COMPILERS


def test_lines_of_a_step_and_of_its_job(tmp_path: Path) -> None:
    place = str(tmp_path)
    for folder in (place, f"{place}/gone"):  # with its job
        assert of_step(folder, 1) is None and of_job(folder) == (0.0, 0.0, 0)
    for name, text in {"1.n0.7": "1.5 0.25 1000\n", "1.n1.8": "2.0 0.5 2000\n", "11.n1.9": "4.0 0.5 500\n",
                       "batch.n1.5": "8.0 1.0 3000\n"}.items():
        (tmp_path / f"used.{name}").write_text(text)
    assert of_step(place, 1) == (3.5, 0.75, 2000 * 1024)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["used.11.n1.9", "used.batch.n1.5", "used.steps"]
    assert of_step(place, 11) == (4.0, 0.5, 500 * 1024)
    assert of_job(place) == (15.5, 2.25, 3000 * 1024)  # those of the steps, and of the script's own mpirun


def test_a_step_waits_for_lines_that_are_to_come_but_not_for_lost_nodes(tmp_path: Path,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    late, lost = tmp_path / "used.2.n1.7", tmp_path / "used.3.n1.7"
    late.touch()
    lost.touch()
    timer = threading.Timer(0.05, late.write_text, ["1.0 0.5 10\n"])
    timer.start()
    assert of_step(str(tmp_path), 2) == (1.0, 0.5, 10240)
    timer.join()
    monkeypatch.setattr(resource_use, "PATIENCE", 0.02)
    assert of_step(str(tmp_path), 3) == (0.0, 0.0, 0)
    (tmp_path / "used.4.n1.7").write_text("torn")
    assert of_step(str(tmp_path), 4) == (0.0, 0.0, 0) and not late.exists()


@pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="needs a C compiler")
def test_the_program_notes_what_its_program_has_used_and_ends_as_it_does(tmp_path: Path) -> None:
    link(tmp_path, ["srun"])
    noted = tmp_path / "used.5.n1.7"

    def run(*words: str) -> int:
        return subprocess.run([str(tmp_path / PROGRAM), str(noted), *words], timeout=30, check=False,
                              stderr=subprocess.DEVNULL).returncode
    # The signals of its group are for the program alone.
    assert run("sh", "-c", "trap : TERM; kill -TERM $PPID $$; i=0; while [ $i -lt 40000 ]; do i=$((i + 1)); done; exit 3") == 3
    user, system, largest = of_step(str(tmp_path), 5) or (0.0, 0.0, 0)
    assert 0 < user + system < 20 and 100 << 10 < largest < 100 << 20
    assert run("sh", "-c", "kill -SEGV $$") == -11
    ignored = subprocess.run(["sh", "-c", "trap '' CHLD; exec \"$@\"", "sh", str(tmp_path / PROGRAM), str(noted), "sh", "-c",
                              "exit 4"], timeout=30, check=False)
    assert ignored.returncode == 4
    assert (run(str(tmp_path / "none")), run("/")) == (127, 126)
