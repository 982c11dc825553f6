"""/proc of the simulated machine, as far as vrm reads it."""

from __future__ import annotations

from world.machine.kernel import K
from world.machine.processes import Process, line_of


def of_proc(path: str, process: Process) -> bytes | None:
    """Return the text of a file of /proc; None if there is none."""
    if path == "/proc/sys/kernel/random/boot_id":
        return f"{process.host.boot}\n".encode()
    if path == "/proc/sys/kernel/hostname":
        return f"{process.host.name}\n".encode()
    if path == "/proc/uptime":
        return f"{K.now - process.host.booted:.2f} 0.00\n".encode()
    if path == "/proc/meminfo":
        return b"MemTotal: 4194304 kB\nMemAvailable: 4194304 kB\n"
    parts = path.split("/")
    if len(parts) < 4:
        return None
    who = process if parts[2] in ("self", "thread-self") else K.processes.get(int(parts[2])) if parts[2].isdigit() else None
    if who is None or who.pid == 1 or who.host is not process.host:
        return None
    what = "/".join(parts[3:])
    if what == "stat":
        return line_of(who).encode()
    if what == "children":
        return " ".join(map(str, who.children)).encode()
    if what == "environ":
        return b"" if who.dead else b"".join(f"{name}={value}\0".encode() for name, value in who.env.items())
    if what == "cmdline":
        return b"" if who.dead else b"".join(f"{word}\0".encode() for word in who.argv)
    if what == "status":
        return b"Cpus_allowed_list:\t0-63\n"
    return None


def listed(path: str, process: Process) -> list[str] | None:
    """Return the names in a directory of /proc; None if it is not a directory."""
    parts = [part for part in path.split("/") if part]
    if parts == ["proc"]:
        return [*map(str, sorted(pid for pid, each in K.processes.items() if each.host is process.host)), "sys"]
    if len(parts) == 2 and parts[1].isdigit() and int(parts[1]) in K.processes:
        return ["stat", "environ", "cmdline", "status"]
    if len(parts) == 3 and parts[1].isdigit() and int(parts[1]) in K.processes and parts[2] == "task":
        return [parts[1]]
    return None
