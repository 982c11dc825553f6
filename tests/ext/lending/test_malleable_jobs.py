"""Jobs that may lend cores: with what they are started, what is said where their threads cannot follow, and
what is left of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import Site, wait_until
from vrm.ext.lending.nodes import lending

SHOW = """
echo "preload ${LD_PRELOAD-none} lending ${VRM_LENDING-none} yield ${OMPI_MCA_mpi_yield_when_idle-none}"
"""


def said(site: Site, app: str, job: int) -> str:
    return (site.log / f"{app}.{job}.o").read_text()


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
def test_malleable_jobs_get_what_they_follow_by(site: Site) -> None:
    site.env["XDG_CACHE_HOME"] = str(site.root / "cache")
    site.config(Applications={"Path": str(site.bin), "Queue": str(site.queue), "Malleable": ["named"]},
                Launcher={"Kind": "direct"})
    for name in ("show", "named"):
        site.program(name, SHOW)
    site.program("makes", 'mkdir -m 700 "$VRM_LENDING"; : > "$VRM_LENDING/12345"; echo "$VRM_LENDING"')
    (site.root / "a.c").write_text("int main(void) { return 0; }\n")
    static = subprocess.run(["gcc", "-static", "a.c", "-o", site.bin / "static"], cwd=site.root,
                            capture_output=True).returncode == 0
    site.lines("show 1 60", "show 1 60 malleable=1", "named 1 60", "named 1 60 malleable=0",
               "show 1 60 malleable=1 env=LD_PRELOAD=/own.so", "makes 1 60 malleable=1",
               *["static 1 60 malleable=1"] * 2 * static)
    done = site.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(site.statuses().values()) == {"completed"}
    nothing = "preload none lending none"
    assert nothing in said(site, "show", 0) and nothing in said(site, "named", 3)
    library, = (site.root / "cache" / "vrm").iterdir()
    for app, job in (("show", 1), ("named", 2)):
        words = said(site, app, job).split()
        assert words[1] == str(library) and words[5] == "1"
        assert words[3].startswith(f"/dev/shm/vrm-lending.{os.geteuid()}.") and words[3].endswith(f".{job}")
    assert f"preload {library}:/own.so " in said(site, "show", 4)
    rows = site.rows()
    assert [rows[job].malleable for job in range(5)] == [False, True, True, False, True]
    place = said(site, "makes", 5).strip()
    assert place.startswith(lending.PLACE) and not Path(place).exists()
    if static:
        output = done.stdout + done.stderr
        assert output.count("static is malleable, and its number of threads stays as it is: it is linked "
                            "statically") == 1


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
def test_a_broken_compiler_costs_the_threads_not_the_job(site: Site) -> None:
    compiler = site.root / "cc"
    compiler.write_text("#!/bin/sh\necho 'cc: error: no licence'\nexit 1\n")
    compiler.chmod(0o755)
    site.env.update(CC=str(compiler), XDG_CACHE_HOME=str(site.root / "cache"))
    site.config(Launcher={"Kind": "direct"})
    site.program("show", SHOW)
    site.lines("show 1 60 malleable=1", "show 1 60 malleable=1")
    done = site.run()
    assert set(site.statuses().values()) == {"completed"}
    assert (done.stdout + done.stderr).count("cannot build the shim: cc: error: no licence") == 1
    assert "preload none lending /dev/shm/" in said(site, "show", 1)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
def test_a_killed_job_leaves_no_file(site: Site) -> None:
    site.env["XDG_CACHE_HOME"] = str(site.root / "cache")
    source = Path(__file__).parent.parent / "lending" / "patterns.c"
    if subprocess.run(["gcc", "-fopenmp", source, "-o", site.bin / "patterns"], capture_output=True).returncode:
        pytest.skip("no gcc with OpenMP")
    site.config(Launcher={"Kind": "direct"})
    site.program("where", 'echo "$VRM_LENDING"; exec "$(dirname "$0")/patterns" asks')
    site.lines("where 1 60 malleable=1", end=False)
    manager = site.start()
    place = wait_until(lambda: said(site, "where", 0).split("\n")[0] if (site.log / "where.0.o").exists() else "",
                       "the job has said its folder")
    wait_until(lambda: os.path.isdir(place) and [name for name in os.listdir(place) if name.isdigit()],
               "it has made its file")
    site.run("cancel", "0")
    wait_until(lambda: site.statuses() == {0: "cancelled"}, "the job is ended")
    wait_until(lambda: not os.path.exists(place), "its folder has gone")
    site.run("stop")
    site.finish(manager)
