"""GPUs of a node, on made-up trees of /dev, /proc and /sys; which of them a run may use; memory."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from collections.abc import Sequence

import pytest

from vrm.ext.energy.nodes import power
from vrm.ext.lending.nodes import dlb, lending, masks
from vrm.ext.slurm.nodes import usage
from vrm.live.runner import agent, claims, devices, proc
from vrm.live.nodes.topology import Gpu, Topology, gpus_of

A100 = ("GPU-aaaa0000-1111-2222-3333-444455556666", "GPU-bbbb0000-1111-2222-3333-444455556666",
        "GPU-cccc0000-1111-2222-3333-444455556666", "GPU-dddd0000-1111-2222-3333-444455556666")
SOCKETS = Topology.regular("n0", [4, 4])


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def nvidia(root: Path, number: int, address: str = "", uuid: str = "", near: str = "") -> None:
    """A GPU as NVIDIA's driver shows it."""
    write(root / f"dev/nvidia{number}")
    if address:
        write(root / f"proc/driver/nvidia/gpus/{address}/information",
              f"Model: \t\t NVIDIA A100-SXM4-40GB\nIRQ:   \t\t 132\nGPU UUID: \t {uuid}\n"
              f"Video BIOS: \t 92.00.19.00.13\nBus Type: \t PCIe\nBus Location: \t {address}\n"
              f"Device Minor: \t {number}\nGPU Excluded:\t No\n")
        write(root / f"sys/bus/pci/devices/{address}/local_cpulist", near + "\n")


def amd(root: Path, node: int, place: int, unique: int = 0, near: str = "", gpu: str = "4711"
        ) -> None:
    """A node of the KFD's topology."""
    folder = root / f"sys/class/kfd/kfd/topology/nodes/{node}"
    write(root / "dev/kfd")
    write(folder / "gpu_id", gpu + "\n")
    write(folder / "properties", f"cpu_cores_count 0\nsimd_count 440\nlocation_id {place << 8}\n"
          f"domain 0\nunique_id {unique}\ndrm_render_minor {128 + node}\n")
    write(root / f"sys/bus/pci/devices/0000:{place:02x}:00.0/local_cpulist", near + "\n")


def intel(root: Path, minor: int, address: str, vendor: str = "0x8086") -> None:
    """A card as the kernel's graphics driver shows it."""
    folder = root / f"sys/class/drm/renderD{minor}/device"
    write(folder / "vendor", vendor + "\n")
    write(folder / "uevent", f"DRIVER=xe\nPCI_CLASS=38000\nPCI_SLOT_NAME={address}\n")
    write(root / f"sys/bus/pci/devices/{address}/local_cpulist", "4-7\n")


def names(found: Sequence[dict[str, Any]]) -> list[str]:
    return [devices.name_of(device) for device in found]


# ----------------------------------------------------------------------------------- what is there


def test_a_node_without_gpus_has_none(tmp_path: Path) -> None:
    assert devices.find(tmp_path) == []
    for name in ("dev/nvidiactl", "dev/nvidia-uvm", "dev/nvidia-modeset", "dev/dri/card0"):
        write(tmp_path / name)
    assert devices.find(tmp_path) == []


def test_nvidias_have_uuid_and_the_cpus_near_them(tmp_path: Path) -> None:
    for number, address, near in ((0, "0000:07:00.0", "0-3"), (1, "0000:47:00.0", "4-7"),
                                  (10, "0000:87:00.0", "0-7")):
        nvidia(tmp_path, number, address, A100[number % 8], near)
    found = devices.find(tmp_path)
    assert names(found) == ["nvidia0", "nvidia1", "nvidia10"]
    assert gpus_of(found, SOCKETS) == (
        Gpu("nvidia", 0, A100[0], A100[0], 0), Gpu("nvidia", 1, A100[1], A100[1], 1),
        Gpu("nvidia", 10, A100[2], A100[2], -1))  # near to both sockets: to none


def test_nvidias_of_a_container_are_counted_as_cuda_does(tmp_path: Path) -> None:
    """Its /proc/driver shows nothing, and it has two of the four device files."""
    nvidia(tmp_path, 2)
    nvidia(tmp_path, 3)
    assert [(device["index"], device["word"]) for device in devices.find(tmp_path)] == [
        (2, "0"), (3, "1")]


def test_a_uuid_that_the_driver_does_not_know_is_none(tmp_path: Path) -> None:
    nvidia(tmp_path, 0, "0000:07:00.0", "GPU-????????-????-????-????-????????????", "0-7")
    found, = devices.find(tmp_path)
    assert (found["uuid"], found["word"], found["cpus"]) == ("", "0", "0-7")


def test_amds_are_counted_without_the_cpus_among_them(tmp_path: Path) -> None:
    amd(tmp_path, 0, 0, gpu="0")
    amd(tmp_path, 1, 0xc1, unique=0xdeadbeefdeadbeef, near="0-3")
    amd(tmp_path, 10, 0xd1, near="4-7")
    assert gpus_of(devices.find(tmp_path), SOCKETS) == (
        Gpu("amd", 0, "GPU-deadbeefdeadbeef", "GPU-deadbeefdeadbeef", 0), Gpu("amd", 1, "1", "", 1))


def test_the_gpu_in_an_intel_processor_is_none(tmp_path: Path) -> None:
    intel(tmp_path, 128, "0000:00:02.0")
    intel(tmp_path, 130, "0000:9a:00.0")
    intel(tmp_path, 129, "0000:b3:00.0")
    intel(tmp_path, 131, "0000:c3:00.0", vendor="0x1a03")  # a board's own display
    assert gpus_of(devices.find(tmp_path), SOCKETS) == (Gpu("intel", 0, "0", "", 1),
                                                        Gpu("intel", 1, "1", "", 1))


def test_gpus_of_two_makers_are_numbered_through(tmp_path: Path) -> None:
    nvidia(tmp_path, 0)
    amd(tmp_path, 1, 0xc1)
    assert [(gpu.kind, gpu.index, gpu.word) for gpu in gpus_of(devices.find(tmp_path), SOCKETS)] == [
        ("nvidia", 0, "0"), ("amd", 1, "0")]


# ------------------------------------------------------------------------------------- stand-ins


def test_files_of_a_directory_stand_for_devices(tmp_path: Path) -> None:
    write(tmp_path / "nvidia1", "# of the second socket\nsocket: 1\nuuid: GPU-0123\n")
    write(tmp_path / "gpu0")
    write(tmp_path / ".hidden")
    write(tmp_path / "n7/amd0", "socket: 0")
    assert gpus_of(devices.stand_ins(str(tmp_path), "n0"), SOCKETS) == (
        Gpu("nvidia", 0, "0"), Gpu("nvidia", 1, "GPU-0123", "GPU-0123", 1))
    assert gpus_of(devices.stand_ins(str(tmp_path), "n7"), SOCKETS) == (Gpu("amd", 0, "0", "", 0),)


@pytest.mark.parametrize("name, text, complaint", [
    ("card0", "", "card0: is the name of no device; wanted is nvidia0, amd0, intel0 or gpu0"),
    ("nvidia", "", "nvidia: is the name of no device"),
    ("nvidia0", "socket: first", "nvidia0:1: `socket: first` is not understood"),
    ("nvidia0", "\nuuid: a b", "nvidia0:2: `uuid: a b` is not understood"),
    ("gpu1", "", "the device nvidia 1 is there twice"),
])
def test_mistakes_in_such_a_directory_name_the_file(tmp_path: Path, name: str, text: str,
                                                    complaint: str) -> None:
    write(tmp_path / "nvidia1")
    write(tmp_path / name, text)
    with pytest.raises(devices.DeviceError) as error:
        devices.stand_ins(str(tmp_path))
    assert complaint in str(error.value) and str(error.value).startswith("VRM_DEVICES: ")


def test_a_directory_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(devices.DeviceError, match="No such file or directory; name a directory"):
        devices.stand_ins(str(tmp_path / "none"))


# ---------------------------------------------------------------------------- what may be used

FOUR = [{"kind": "nvidia", "index": number, "word": uuid, "uuid": uuid, "cpus": "", "socket": None,
         "file": f"/dev/nvidia{number}"} for number, uuid in enumerate(A100)]


@pytest.mark.parametrize("environment, indices, count, wanted", [
    # What Slurm sets without ConstrainDevices, and with it: 2 and 3 are 0 and 1 inside.
    ({"CUDA_VISIBLE_DEVICES": "2,3"}, None, None, [(2, "2"), (3, "3")]),
    ({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_STEP_GPUS": "2,3"}, None, None, [(2, "0"), (3, "1")]),
    ({"CUDA_VISIBLE_DEVICES": "0,1"}, [1, 3], 2, [(1, "0"), (3, "1")]),
    ({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, None, None, [(0, "0"), (1, "1"), (2, "2"), (3, "3")]),
    # Counted anew or not? Only the words are sure.
    ({"CUDA_VISIBLE_DEVICES": "0,1"}, None, None, [(0, "0"), (1, "1")]),
    # UUIDs, also cut, as PBS and NVIDIA have them; a part of a GPU.
    ({"CUDA_VISIBLE_DEVICES": f"{A100[3]},GPU-bbbb"}, None, None, [(3, A100[3]), (1, "GPU-bbbb")]),
    ({"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2"}, None, None, [(0, "MIG-1"), (1, "MIG-2")]),
    # None at all.
    ({"CUDA_VISIBLE_DEVICES": ""}, None, None, []),
    ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, None, None, []),
    ({"CUDA_VISIBLE_DEVICES": "2,-1,3"}, None, None, [(2, "2")]),
    # Nothing in the environment, as over ssh: what the batch system said elsewhere.
    ({}, [2, 3], 2, [(2, A100[2]), (3, A100[3])]),
    ({"SLURM_JOB_GPUS": "1-2"}, None, None, [(1, A100[1]), (2, A100[2])]),
    ({}, None, 2, [(0, A100[0]), (1, A100[1])]),
    ({}, None, 0, []),
    ({}, None, None, list(zip(range(4), A100))),
    # A variable of another maker says nothing of these.
    ({"ROCR_VISIBLE_DEVICES": "0", "ZE_AFFINITY_MASK": "0"}, None, None, list(zip(range(4), A100))),
])
def test_what_is_granted_counts(environment: dict[str, str], indices: list[int] | None,
                                count: int | None, wanted: list[Any]) -> None:
    chosen, trouble = devices.choose(FOUR, environment, indices, count)
    assert [(device["index"], device["word"]) for device in chosen] == wanted and not trouble


def test_words_that_may_have_been_counted_anew_are_no_claim() -> None:
    """Two batch jobs that each see their GPUs as 0 and 1 must not take each other's for theirs."""
    asked: list[str] = []
    chosen, _ = devices.choose(FOUR, {"CUDA_VISIBLE_DEVICES": "0,1"},
                               hold=lambda device: bool(asked.append(device["word"])))
    assert len(chosen) == 2 and not asked
    chosen, trouble = devices.choose(FOUR, {"CUDA_VISIBLE_DEVICES": "2,3"},
                                     hold=lambda device: device["index"] == 3)
    assert names(chosen) == ["nvidia3"]
    assert trouble == "nvidia2 is held by another vrm on this node, and left out"


def test_those_that_others_hold_or_that_cannot_be_opened_are_passed_over() -> None:
    chosen, trouble = devices.choose(FOUR, {}, count=2, opens=lambda file: not file.endswith("0"),
                                     hold=lambda device: device["index"] != 2)
    assert names(chosen) == ["nvidia1", "nvidia3"] and not trouble
    chosen, trouble = devices.choose(FOUR, {}, count=2, hold=lambda device: device["index"] == 2)
    assert names(chosen) == ["nvidia2"]
    assert trouble == "nvidia0, nvidia1, nvidia3 are held by another vrm on this node, and left out"


def test_fewer_than_granted_is_said() -> None:
    chosen, trouble = devices.choose(FOUR[:1], {}, count=2)
    assert len(chosen) == 1 and trouble == "2 GPU(s) are granted, and 1 are found there"


def test_a_device_that_may_not_be_opened_is_anothers(tmp_path: Path) -> None:
    write(tmp_path / "nvidia0")
    assert devices.opens(str(tmp_path / "nvidia0"))
    assert devices.opens(str(tmp_path / "none"))  # not this one's fault: made on first use


# -------------------------------------------------------------------------------------- agents


def test_facts_name_what_is_chosen(tmp_path: Path) -> None:
    write(tmp_path / "gpus/nvidia0")
    write(tmp_path / "gpus/nvidia1")
    wanted = {"stand_ins": str(tmp_path / "gpus"), "host": "n0", "indices": [1]}
    assert names(agent.device_facts(wanted, {})["devices"]) == ["nvidia1"]
    assert "No such file" in agent.device_facts({"stand_ins": str(tmp_path / "x")}, {})["fault"]


def test_a_claim_keeps_another_process_off(tmp_path: Path) -> None:
    for number in range(2):
        write(tmp_path / f"gpus/nvidia{number}")
    wanted = json.dumps({"stand_ins": str(tmp_path / "gpus"), "host": "n0", "claim": True, "count": 1})
    again = json.dumps({**json.loads(wanted), "again": ["nvidia0"]})
    started = []
    found = []
    try:
        for words in (wanted, wanted, wanted, again):
            process = subprocess.Popen([sys.executable, "-I", "-S", agent.__file__, "60", "", words],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            started.append(process)
            assert process.stdout is not None
            facts = json.loads(next(line for line in process.stdout if line.strip()))["facts"]
            found.append((names(facts["devices"]), facts["lacking"]))
    finally:
        for process in started:
            process.communicate()
    assert found == [(["nvidia0"], ""), (["nvidia1"], ""),
                     ([], "nvidia0, nvidia1 are held by another vrm on this node, and left out"),
                     (["nvidia0"], "")]  # of the same run, whose first agent is not gone yet


@pytest.mark.parametrize("module", [agent, claims, devices, dlb, lending, masks, power, proc, usage])
def test_agents_run_with_old_pythons(module: Any) -> None:
    tree = ast.parse(Path(module.__file__).read_text(), feature_version=(3, 6))
    taken = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import)
             for name in node.names}
    assert taken <= {"json", "os", "select", "sys", "time", "socket", "_signal", "fcntl", "stat", "struct",
                     "subprocess", "ctypes", "claims", "devices", "dlb", "lending", "masks", "power", "proc",
                     "usage"}


# -------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("files, wanted", [
    ({"proc/self/cgroup": "0::/job_7/step_0\n", "sys/fs/cgroup/job_7/memory.max": "4294967296\n",
      "sys/fs/cgroup/job_7/step_0/memory.max": "max\n"}, 4 << 30),
    ({"proc/self/cgroup": "0::/job_7/step_0\n", "sys/fs/cgroup/job_7/memory.max": "8589934592\n",
      "sys/fs/cgroup/job_7/step_0/memory.max": "4294967296\n"}, 4 << 30),
    ({"proc/self/cgroup": "4:memory:/slurm/job_7\n3:cpu,cpuacct:/x\n",
      "sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes": "2147483648\n",
      "sys/fs/cgroup/memory/slurm/memory.limit_in_bytes": "9223372036854771712\n"}, 2 << 30),
    ({"proc/self/cgroup": "4:memory:/\n",
      "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 0),
    ({"proc/self/cgroup": "0::/\n"}, 0),
    ({}, 0),
])
def test_limits_of_memory(tmp_path: Path, files: dict[str, str], wanted: int) -> None:
    for name, text in files.items():
        write(tmp_path / name, text)
    assert agent.memory_limit(tmp_path) == wanted


def test_what_a_process_has_in_memory() -> None:
    program = "import sys; data = b'x' * (50 << 20); print(flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline()
        for measure in (proc.resident, proc.proportional):
            assert 50 << 20 < measure(process.pid) < 90 << 20
    finally:
        process.communicate()
    assert proc.resident(process.pid) == proc.proportional(process.pid) == 0


def test_the_memory_of_a_job_is_that_of_its_processes_together() -> None:
    """Told when it has grown by a tenth, and when it is more than may be."""
    said: list[dict[str, Any]] = []
    task = agent.MemoryWatch({"number": 3, "run": "r", "job": 1, "limit": 60 << 20}, 0.0)
    sizes = {1: 10 << 20}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent, "say", said.append)
        patch.setattr(proc, "resident", lambda pid: sizes[pid])
        patch.setattr(proc, "proportional", lambda pid: sizes[pid] - (1 << 20))
        for more in ({}, {}, {2: 1 << 20}, {2: 40 << 20}, {3: 12 << 20}, {3: 14 << 20}, {3: 1 << 20}):
            sizes.update(more)
            for pid in sizes:
                task.see((pid, 0), [])
            assert not task.looked(1.0)
    assert [(each["memory"] >> 20, each["over"]) for each in said] == [
        (9, False), (48, False), (59, False), (61, True)]
