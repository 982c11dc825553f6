"""`vrm doctor`: what is there is found, what is wrong is named with its mend."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import Site

from vrm.ext.begin.diagnosis import login_shell


def test_a_site_that_is_well(site: Site) -> None:
    site.program("ok.x", "exit 0\n")
    site.lines("ok.x 1 10 0")
    done = site.run("doctor")
    assert done.returncode == 0, done.stdout
    assert "wrong" not in done.stdout
    for word in ("topology", "none; this machine alone", "GiB free", "Open MPI", "trial job",
                 "1 in", "ok.x"):
        assert word in done.stdout
    assert not site.log.exists()  # it looks and changes nothing
    deep = site.run("check", "--deep")
    assert deep.returncode == 0 and "trial job" in deep.stdout and "can run" in deep.stdout, deep.stdout
    site.config(Launcher={"Mpirun": "/no/such/mpirun"})
    assert (site.run("check", "--deep").returncode, site.run("doctor").returncode) == (2, 2)


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
@pytest.mark.parametrize("profile, level", [("PATH=/usr/bin:/bin", "ok"), ("PATH=/usr/bin:/bin; unset BASH_ENV", "note")])
def test_a_login_shell_is_tried(tmp_path: Path, profile: str, level: str) -> None:
    (tmp_path / ".bash_profile").write_text(f"{profile}\n")
    found, = login_shell({**os.environ, "HOME": str(tmp_path)})
    assert found.level == level and ("unsets BASH_ENV" in found.mend) == (level == "note"), str(found)


def test_everything_wrong_is_told_at_once(site: Site) -> None:
    site.config(Scheduling={"Algorithm": "FCFX"}, Launcher={"Mpirun": "/no/such/mpirun"},
                Log=str(site.config_file / "log"))
    done = site.run("doctor")
    assert done.returncode == 2
    wrong = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("wrong")]
    assert {"config", "mpirun", "programs", "outputs"} <= set(wrong)
    assert "vrm npb build" in done.stdout and "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["doctor", "check"])
@pytest.mark.parametrize("wrong, said", [
    ({"Scheduling": {"Algorithm": "FCFX"}}, "FCFX"), ({"Allocation": {"Policy": "compactt"}}, "compactt"),
    ({"Applications": {"Path": "bin", "Queue": "queue", "Heatmap": "no heatmap"}}, "no heatmap")])
def test_a_wrong_configuration_is_not_called_ok(command: str, wrong: dict[str, Any], said: str, site: Site) -> None:
    site.program("ok.x", "exit 0\n")
    site.lines("ok.x 1 10 0")
    site.config(**wrong)
    done = site.run(command)
    assert done.returncode == 2
    about = [line for line in done.stdout.splitlines() if " config " in line or said in line]
    assert about and all(line.startswith("wrong  config ") and said in line for line in about), done.stdout


def test_several_mpiruns_are_named(site: Site) -> None:
    """The second on PATH is not used, and it is said why."""
    other = site.root / "other"
    other.mkdir()
    (other / "mpirun").write_text("#!/bin/sh\nexit 9\n")
    (other / "mpirun").chmod(0o755)
    site.program("ok.x", "exit 0\n")
    site.env["PATH"] = f"{site.env['PATH']}{os.pathsep}{other}"
    line, = [line for line in site.run("doctor").stdout.splitlines() if line.startswith("note   mpirun")]
    assert str(other / "mpirun") in line.partition(" vrm uses ")[0]
    used = re.search(r"vrm uses (\S+/mpirun): (.*)", line)
    assert used and str(other) not in used[1]


def test_a_config_that_cannot_be_read(site: Site) -> None:
    site.config_file.write_text("Nodes: [1\n")
    done = site.run("doctor")
    assert done.returncode == 2 and str(site.config_file) in done.stdout
    assert "cluster" not in done.stdout  # nothing is said of a configuration that is not the user's


def test_an_mpirun_that_fails_is_found_by_trying(site: Site) -> None:
    wrapper = site.root / "mpirun"
    wrapper.write_text("#!/bin/sh\n[ \"$1\" = --version ] && echo 'mpirun (Open MPI) 4.1.4' && exit\n"
                       "echo 'no good today' >&2; exit 9\n")
    wrapper.chmod(0o755)
    site.config(Launcher={"Mpirun": str(wrapper)})
    site.program("ok.x", "exit 0\n")
    done = site.run("doctor")
    assert done.returncode == 2 and "exit 9: no good today" in done.stdout


def test_each_node_of_an_allocation_is_listed(site: Site) -> None:
    """Two of them answer through a stand-in for ssh."""
    ssh = site.root / "ssh"
    ssh.write_text('#!/bin/sh\n[ "$1" = n2 ] && echo "n2: No route to host" >&2 && exit 255\n'
                   'export HWLOC_SYNTHETIC="pack:2 core:4 pu:1"; eval "exec $2"\n')
    ssh.chmod(0o755)
    (site.root / "hosts").write_text("n[0-2] slots=8\n")
    site.config(Hosts={"File": str(site.root / "hosts"), "Reach": [str(ssh)]}, Nodes="auto",
                Sockets="auto", Cores="auto")
    said = site.run("doctor").stdout
    assert "ok     allocation    hostfile, 3 node(s): n[0-2], no known end" in said
    for host in ("n0", "n1"):
        assert f"ok     node          {host}: 2 socket(s) of 4+4 core(s), emulated" in said
    assert "note   node          n2 is left out: n2: No route to host" in said
    assert said.count("n2 is left out") == 1
    assert "ok     cluster       FCFS, compact on 2 nodes of 4+4 cores" in said


def test_check_gives_emulated_nodes_the_memory_that_they_will_have(site: Site) -> None:
    """They share this machine's; a described machine, of which each has as much, needs another key."""
    site.config(Nodes=2, Sockets=1, Cores=1, Emulate=True)
    site.program("a.x", "exit 0")
    site.lines("a.x 1 60")

    def memory(said: str) -> str:
        return re.search(r"2 with [0-9.]+ GiB", said).group()  # type: ignore[union-attr]
    checked, ran = site.run("check"), site.run("--once")
    assert checked.returncode == ran.returncode == 0 and memory(checked.stdout) == memory(ran.stdout)


def test_an_allocation_that_makes_no_sense(site: Site) -> None:
    done = site.run("doctor", SLURM_JOB_ID="5", SLURM_JOB_NODELIST="n[0-")
    assert done.returncode == 2
    assert "wrong  allocation    SLURM_JOB_NODELIST: `n[0-` has a bracket without" in done.stdout


def test_gpus_are_listed_and_what_is_wrong_with_stand_ins_is_named(site: Site) -> None:
    gpus = site.root / "gpus"
    gpus.mkdir()
    (gpus / "nvidia0").write_text("socket: 0\nuuid: GPU-0123\n")
    (gpus / "amd1").touch()
    said = site.run("doctor", VRM_DEVICES=str(gpus)).stdout
    assert "2 GPU(s): nvidia0 (socket 0, GPU-0123), amd1\n" in said and ", 2 gpu\n" in said
    (gpus / "card0").touch()
    for wrong, complaint in ((gpus, f"{gpus}/card0: is the name of no device; wanted is nvidia0"),
                             (gpus / "none", f"{gpus}/none: No such file or directory; name a directory")):
        for command in ("doctor", "check"):
            done = site.run(command, VRM_DEVICES=str(wrong))
            assert f"VRM_DEVICES: {complaint}" in done.stdout
            assert done.returncode and "Traceback" not in done.stderr
