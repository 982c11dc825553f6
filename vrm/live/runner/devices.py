"""Finds the GPUs of a node and chooses those that a run may use. One file, the standard library only, Python 3.6 or
newer: agents (`agent.py`) run it on their nodes.

| kind | where they are found | index | what programs are given |
|---|---|---|---|
| `nvidia` | `/dev/nvidia0` ..., and `/proc/driver/nvidia/gpus` for details | the number of the device file | its UUID in `CUDA_VISIBLE_DEVICES` |
| `amd` | `/dev/kfd` and `/sys/class/kfd/kfd/topology/nodes` | its position there | its UUID in `ROCR_VISIBLE_DEVICES` |
| `intel` | `/sys/class/drm/renderD*`, except those on the processor's own bus (00) | its position by PCI address | its index in `ZE_AFFINITY_MASK` |

If a UUID cannot be read, programs are given the position among the visible devices, which is how the vendors' runtimes
count. A UUID means the same device in any order that CUDA counts in, and also if a batch system confines a job to some
devices (which then have other indices: Slurm's `ConstrainDevices` renumbers devices 2 and 3 of a node to 0 and 1 in a
job).

The batch system decides which of the found devices a run may use. The first rule that applies is used:

1. The node's own environment has one of the variables above: these devices, named with the same words as there.
2. The batch system has named their indices.
3. The batch system has named their number N: the first N that can be opened and that no other vrm holds.
4. Otherwise all devices.

A directory (`VRM_DEVICES`) may describe devices that do not exist or cannot be read: each of its files `nvidia0`,
`amd1`, `intel2` or `gpu3` (equal to `nvidia3`) is a device. A file may hold details, one per line: `socket: 1`, `uuid:
GPU-0123`. If the directory has a subdirectory with a node's name, that one is used for the node.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would take 10 % of the agent's start
    from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

    Device = Dict[str, Any]
    """`kind`, `index`, `word` (what programs are given), `uuid` ("": unknown), `cpus` (a list of the CPUs that are
    near, "": unknown), `socket` (only if a file of `VRM_DEVICES` names it, else None) and `file`, a file that a
    process can open only if it may use the device ("": none)."""

VARIABLES = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "ROCR_VISIBLE_DEVICES",
             "intel": "ZE_AFFINITY_MASK"}
"""The variables that select the devices of a kind for a program."""

PHYSICAL = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
"""Variables of Slurm with the indices of the devices on this node, independent of what jobs see. The second one
describes the node of the batch script."""


class DeviceError(Exception):
    """A file or directory of `VRM_DEVICES` is wrong; the text says which one and what to do."""


# ------------------------------------------------------------------------------------- found devices


def find(root: "Any" = "/") -> "List[Device]":
    """Return the devices of this node, or of the file system at `root` (for tests)."""
    root = os.fspath(root)
    return _nvidia(root) + _amd(root) + _intel(root)


def _device(kind: str, index: int, word: str, uuid: str = "", cpus: str = "",
            socket: "Optional[int]" = None, file: str = "") -> "Device":
    return {"kind": kind, "index": index, "word": word, "uuid": uuid, "cpus": cpus,
            "socket": socket, "file": file}


def _read(*parts: str) -> str:
    """Return a file's text, "" if there is none: drivers and containers differ in what they show."""
    try:
        with open(os.path.join(*parts), errors="replace") as file:
            return file.read().rstrip()
    except OSError:
        return ""


def _entries(*parts: str) -> "List[str]":
    try:
        return os.listdir(os.path.join(*parts))
    except OSError:
        return []


def _near(root: str, address: str) -> str:
    """Return the CPUs near a PCI address in the kernel's list format."""
    return _read(root, "sys/bus/pci/devices", address, "local_cpulist") if address else ""


def _nvidia(root: str) -> "List[Device]":
    known = {}
    for address in sorted(_entries(root, "proc/driver/nvidia/gpus")):
        said = {}
        for line in _read(root, "proc/driver/nvidia/gpus", address, "information").splitlines():
            name, _, value = line.partition(":")
            said[name.strip()] = value.strip()
        if said.get("Device Minor", "").isdigit():
            uuid = said.get("GPU UUID", "")
            known[int(said["Device Minor"])] = (
                address.lower(), uuid if uuid.startswith("GPU-") and "?" not in uuid else "")
    files = {int(name[6:]) for name in _entries(root, "dev")
             if name.startswith("nvidia") and name[6:].isdigit()}
    found = []
    for place, index in enumerate(sorted(files or known)):
        address, uuid = known.get(index, ("", ""))
        found.append(_device("nvidia", index, uuid or str(place), uuid, _near(root, address),
                             file=os.path.join(root, "dev/nvidia{}".format(index))))
    return found


def _amd(root: str) -> "List[Device]":
    found: "List[Device]" = []
    if not os.path.exists(os.path.join(root, "dev/kfd")):
        return found
    nodes = os.path.join(root, "sys/class/kfd/kfd/topology/nodes")
    for node in sorted(filter(str.isdigit, _entries(nodes)), key=int):
        # 0 is a CPU. A device that a job may not use cannot be read.
        if _read(nodes, node, "gpu_id") in ("", "0"):
            continue
        said = dict((line.split() + ["", ""])[:2]
                    for line in _read(nodes, node, "properties").splitlines())
        place, domain = _whole(said.get("location_id")), _whole(said.get("domain"))
        address = "" if not place else "{:04x}:{:02x}:{:02x}.{:x}".format(
            domain, place >> 8 & 0xff, place >> 3 & 0x1f, place & 7)
        unique = _whole(said.get("unique_id"))
        uuid = "GPU-{:016x}".format(unique) if unique else ""
        minor = _whole(said.get("drm_render_minor"))
        found.append(_device("amd", len(found), uuid or str(len(found)), uuid,
                             _near(root, address),
                             file=os.path.join(root, "dev/dri/renderD{}".format(minor))
                             if minor else ""))
    return found


def _whole(text: "Optional[str]") -> int:
    return int(text) if text and text.isdigit() else 0


def _intel(root: str) -> "List[Device]":
    drm = os.path.join(root, "sys/class/drm")
    cards = []
    for name in _entries(drm):
        if not name.startswith("renderD") or _read(drm, name, "device/vendor") != "0x8086":
            continue
        said = dict(line.partition("=")[::2]
                    for line in _read(drm, name, "device/uevent").splitlines())
        address = said.get("PCI_SLOT_NAME", "").lower()
        # The GPU inside a processor is on bus 00, and drives the screen.
        if address and address.split(":")[-2:-1] != ["00"]:
            cards.append((address, name))
    return [_device("intel", place, str(place), cpus=_near(root, address),
                    file=os.path.join(root, "dev/dri", name))
            for place, (address, name) in enumerate(sorted(cards))]


def stand_ins(directory: str, host: str = "") -> "List[Device]":
    """Return the devices that the files of a directory describe (see the top of this file). Raises DeviceError."""
    own = os.path.join(directory, host)
    folder = own if host and os.path.isdir(own) else directory
    try:
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError as error:
        raise DeviceError("VRM_DEVICES: {}: {}; name a directory that all nodes see, with a file "
                          "such as nvidia0 for each device".format(folder, error.strerror)) from error
    found: "Dict[Tuple[str, int], Device]" = {}
    for name in names:
        file = os.path.join(folder, name)
        if os.path.isdir(file):
            continue  # devices of another node
        kind, number = name.rstrip("0123456789"), name[len(name.rstrip("0123456789")):]
        kind = "nvidia" if kind == "gpu" else kind
        if kind not in VARIABLES or not number:
            raise DeviceError("VRM_DEVICES: {}: is the name of no device; wanted is nvidia0, amd0, "
                              "intel0 or gpu0, with any number".format(file))
        if (kind, int(number)) in found:
            raise DeviceError("VRM_DEVICES: {}: the device {} {} is there twice; remove one file"
                              .format(file, kind, int(number)))
        uuid, socket = "", None
        for place, line in enumerate(_read(file).splitlines(), 1):
            key, _, value = (part.strip() for part in line.partition(":"))
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            if key == "socket" and value.isdigit():
                socket = int(value)
            elif key == "uuid" and value and all(c.isalnum() or c in "-_./" for c in value):
                uuid = value
            else:
                raise DeviceError("VRM_DEVICES: {}:{}: `{}` is not understood; wanted is "
                                  "`socket: 1` or `uuid: GPU-0123`".format(
                                      file, place, line.strip()[:80]))
        found[kind, int(number)] = _device(kind, int(number), uuid or number, uuid, "", socket, file)
    return [found[key] for key in sorted(found, key=lambda key: (list(VARIABLES).index(key[0]),
                                                                 key[1]))]


# ---------------------------------------------------------------------------------- choice of devices


def name_of(device: "Device") -> str:
    """Return a device's name on its node, such as `nvidia0`."""
    return "{}{}".format(device["kind"], device["index"])


def choose(found: "List[Device]", environment: "Mapping[str, str]",
           indices: "Optional[List[int]]" = None, count: "Optional[int]" = None,
           hold: "Optional[Callable[[Device], bool]]" = None,
           opens: "Optional[Callable[[str], bool]]" = None) -> "Tuple[List[Device], str]":
    """Return the devices that this run may use, by the rules at the top of this file, and why there are fewer than
    granted ("": there are not fewer).

    `environment` is the node's own; `indices` and `count` come from the batch system. `hold` claims a device and
    returns False if another run holds it; `opens` returns whether a device file can be opened.
    """
    if indices is None:
        indices = next((_numbers(environment[name]) for name in PHYSICAL
                        if environment.get(name)), None)
    chosen: "List[Device]" = []
    named = False
    for kind, variable in VARIABLES.items():
        of_kind = [device for device in found if device["kind"] == kind]
        if variable not in environment or not (of_kind or environment[variable].strip()):
            chosen += of_kind
        elif of_kind:
            named = True
            chosen += _by_variable(of_kind, environment[variable], indices)
    if named:
        return _free(chosen, None, hold)
    if indices is not None:
        chosen = [device for device in found if device["index"] in indices]
        return _free(chosen, None, hold)
    if count is not None and count < len(chosen) and opens is not None:
        chosen = [device for device in chosen if not device["file"] or opens(device["file"])
                  ] or chosen
    return _free(chosen, count, hold)


def _by_variable(found: "List[Device]", text: str, indices: "Optional[List[int]]"
                 ) -> "List[Device]":
    """Return the devices that the `text` of a variable such as CUDA_VISIBLE_DEVICES names, each with its word there,
    which programs get again.

    A word that is not a UUID is an index, and may have been renumbered for this job. The device is then identified by
    `indices`, if there are as many of them as words; or if all devices are named; or if the index is too large to have
    been renumbered. Otherwise only its word is known.
    """
    words = text.replace(",", " ").split()
    if text.strip() in ("NoDevFiles", "none", "void"):
        return []
    if "-1" in words:
        words = words[:words.index("-1")]
    renumbered = words == [str(place) for place in range(len(words))]
    by_index = {device["index"]: device for device in found}
    chosen = []
    for place, word in enumerate(words):
        known = None
        if not word.isdigit():
            known = next((device for device in found if device["uuid"]
                          and device["uuid"].startswith(word)), None)
        elif indices is not None and len(indices) == len(words):
            known = by_index.get(indices[place])
        elif len(words) == len(found):
            known = found[place] if renumbered else by_index.get(int(word))
        elif not renumbered:
            known = by_index.get(int(word))
        if known is None:  # also a part of a device (MIG)
            known = _device(found[0]["kind"], int(word) if word.isdigit() else place, word,
                            "" if word.isdigit() else word)
            known["unsure"] = True
        chosen.append(dict(known, word=word))
    return chosen


def _numbers(text: str) -> "Optional[List[int]]":
    """Return the indices in a list such as `0,2-3`; None if the text is not such a list."""
    numbers: "List[int]" = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            return None
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def _free(chosen: "List[Device]", count: "Optional[int]",
          hold: "Optional[Callable[[Device], bool]]") -> "Tuple[List[Device], str]":
    """Return the first `count` devices (None: all) that no other run holds, and why there are fewer."""
    free: "List[Device]" = []
    taken = []
    for device in chosen:
        if count is not None and len(free) >= count:
            break
        # If only the word of a device is known, another run's device with that word looks the same.
        if hold is None or device.get("unsure") or hold(device):
            free.append(device)
        else:
            taken.append(device)
    wanted = len(chosen) if count is None else count
    if len(free) >= wanted:
        return free, ""
    if taken:
        return free, "{} {} held by another vrm on this node, and left out".format(
            ", ".join(map(name_of, taken)), "is" if len(taken) == 1 else "are")
    return free, "{} GPU(s) are granted, and {} are found there".format(wanted, len(free))


def opens(file: str) -> bool:
    """Return whether a device may be used. A system that confines a job shows it the files of all devices, but it can
    open only those of its own."""
    try:
        handle = os.open(file, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        return error.errno not in (1, 13)  # EPERM, EACCES
    os.close(handle)
    return True
