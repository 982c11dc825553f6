"""Starts a program of a job: its output files, cores and limits, and the filter ("sieve") that takes the launcher's
reports out of its output. Supervisors and runners use it, with no other part of vrm than the files of this folder."""

import errno
import os
import resource
import select
import stat
import time

import _signal as signal  # see `wire.py`

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

HELD_BACK = 200
"""Milliseconds for which a line without its end is held back, since it may become a report."""

STAMPED = b"<stderr>:"
"""The end of the time stamp that mpirun may print before a line."""

FILTER_ENDS = 0.2
"""Seconds within which the last output of a program that has ended passes through its sieve."""

DEFAULTED = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
"""Signals that are reset to their default for a program, whatever its parents ignore."""


LONGEST_LINE = 4096
"""Characters of a script's first line that are read."""

LOOK_EVERY = 0.02
"""Seconds between two checks whether a directory exists now."""


class StartError(Exception):
    """The job could not be started; the text says why."""


class FolderMissing(StartError):
    """The directory `folder` of an output file does not exist. It may be created within `seconds`: clients learn the
    job's id when it is submitted, and some of them create the directory then."""

    def __init__(self, message: str, folder: bytes, seconds: float) -> None:
        super().__init__(message)
        self.folder, self.seconds = folder, seconds


def described(what: str, path: bytes, error: "Exception") -> str:
    """Return `what path: reason` for an OSError or a ValueError."""
    return clean(f"{what} {os.fsdecode(path)}: {reason_of(error)}")


def reason_of(error: "Exception") -> str:
    """Return an error's reason without its number and file name."""
    return getattr(error, "strerror", None) or str(error)


def clean(message: str) -> str:
    """Return the text in a form that fits into one packet and prints on any terminal, even with odd file names
    in it."""
    return message[:2000].encode(errors="backslashreplace").decode()


class PreparedFiles:
    """Empty files that are created while a job runs, for the outputs of the next job: to create a file takes
    milliseconds on some file systems. `paths` are those that exist."""

    def __init__(self) -> None:
        self.paths: "List[bytes]" = []

    def make(self, folder: bytes) -> None:
        """Create two files in the folder, if possible and if they do not exist yet."""
        self.remove(keep=folder)
        for name in (b"o", b"e")[len(self.paths):]:
            path = os.path.join(folder, b".vrm-%d.%s" % (os.getpid(), name))
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
            except OSError:
                return
            self.paths.append(path)

    def give(self, path: bytes) -> None:
        """Rename one of the files to `path`, unless `path` exists or is in another folder."""
        if (self.paths and os.path.dirname(self.paths[-1]) == os.path.dirname(path)
                and not os.path.lexists(path)):
            try:
                os.rename(self.paths.pop(), path)
            except OSError:
                pass

    def remove(self, keep: "Optional[bytes]" = None) -> None:
        """Remove the files that are not in the folder `keep`."""
        for path in [each for each in self.paths if os.path.dirname(each) != keep]:
            self.paths.remove(path)
            try:
                os.unlink(path)
            except OSError:
                pass


PREPARED = PreparedFiles()
"""The prepared files of this process."""


def fork_into(body: "Callable[..., object]", *arguments: "Any") -> int:
    """Fork a child that calls `body` and then ends; return its process number. Raises OSError if no process can be
    created."""
    pid = os.fork()
    if not pid:
        status = 255
        try:
            body(*arguments)
            status = 0
        finally:
            os._exit(status)
    return pid


# The launch.

def start_job(argv: "List[bytes]", env: "Dict[bytes, bytes]", cwd: bytes, stdout: "Any", stderr: "Any",
              affinity: "Optional[Tuple[int, ...]]", limits: "Tuple[Any, ...]", reports: "Optional[Tuple[Any, ...]]" = None,
              append: bool = False, stdin: bytes = b"", patience: float = 0.0, make: bool = False) -> int:
    """Start the program and return its process number; raises StartError.

    `stdout` and `stderr` are paths, or descriptors of open files. If the directory of an output does not exist: with
    `patience` (seconds) raises FolderMissing; else with `make` creates the directory. `append`: the outputs are not emptied
    first. `stdin` is a file for standard input (b"": no input). With `reports`, the arguments of `start_report_filter`, the
    reports of the launcher's program go to a file instead of standard error.

    Working directory, cores and limits are set on this process, inherited by the program, and then reset. So
    `posix_spawn` can be used, which reports why a program could not be executed.
    """
    outputs: "List[int]" = []
    cores = given = None
    before: "List[Any]" = []
    try:
        # Where the second cannot be opened, the first is in the list, and is closed below.
        outputs.extend(_opened(path, append, patience, make)
                       for path in ((stdout,) if stderr == stdout else (stdout, stderr)))
        _enter(cwd)
        if affinity is not None:
            cores = os.sched_getaffinity(0)
            _bind(affinity)
        for name, kind, value in limits:
            before.append((kind, _limited(name, kind, value)))
        if reports is not None:
            outputs += os.pipe()
        actions = [(os.POSIX_SPAWN_DUP2, outputs[0], 1), (os.POSIX_SPAWN_DUP2, outputs[-1], 2)]
        if stdin:
            given = _input(stdin)
            actions.append((os.POSIX_SPAWN_DUP2, given, 0))
        pid = _spawned(argv, env, actions)
        if reports is not None:  # now, since the program need not wait for that
            _sieve(pid, outputs, reports)
        return pid
    finally:
        for kind, old in before:
            resource.setrlimit(kind, old)
        if cores is not None:
            os.sched_setaffinity(0, cores)
        for descriptor in outputs:
            os.close(descriptor)
        if given is not None:
            os.close(given)
        os.chdir("/")


def _opened(path: "Any", append: bool, patience: float, make: bool) -> int:
    """Open an output and return its descriptor."""
    if isinstance(path, int):
        return os.dup(path)
    folder = os.path.dirname(path)
    try:
        if make and not patience:
            os.makedirs(folder, exist_ok=True)
        return open_output(path, append)
    except (OSError, ValueError) as error:
        why = described("output file", path, error)
        if patience and isinstance(error, FileNotFoundError) and not os.path.isdir(folder):
            raise FolderMissing(why, folder, patience) from None
        raise StartError(why) from None


def _sieve(pid: int, outputs: "List[int]", reports: "Tuple[Any, ...]") -> None:
    """Start the sieve of a program; if that fails, kill the program."""
    try:
        start_report_filter(outputs[-2], outputs[-3], *reports)
    except StartError:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _enter(cwd: bytes) -> None:
    """Change to this working directory; raises StartError."""
    try:
        os.chdir(cwd)
    except (OSError, ValueError) as error:
        raise StartError(described("working directory", cwd, error)) from None


def _input(path: bytes) -> int:
    """Open the file for standard input; raises StartError."""
    try:
        return os.open(path, os.O_RDONLY | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        raise StartError(described("input file", path, error)) from None


def _limited(name: str, kind: int, value: int) -> "Tuple[int, int]":
    """Set a limit of this process and return the old one."""
    old = resource.getrlimit(kind)
    try:
        resource.setrlimit(kind, (value, old[1]))
    except (OSError, ValueError) as error:
        raise StartError(f"limit {name} = {value}: {reason_of(error)}") from None
    return old


def _bind(affinity: "Tuple[int, ...]") -> None:
    """Bind this process to these CPUs; raises StartError if not all of them may be used."""
    try:
        os.sched_setaffinity(0, affinity)
    except (OSError, ValueError) as error:
        raise StartError(f"CPUs {','.join(map(str, affinity))}: {reason_of(error)}") from None
    if len(os.sched_getaffinity(0)) != len(set(affinity)):  # the kernel drops the others
        raise StartError(f"CPUs {','.join(map(str, affinity))}: not all of them may be used here")


def _spawned(argv: "List[bytes]", env: "Dict[bytes, bytes]", actions: "List[Tuple[int, int, int]]") -> int:
    """Start the program and return its process number."""
    if not hasattr(os, "posix_spawn"):
        raise StartError("the Python on this node is older than 3.8, which programs need")
    spawn = os.posix_spawn
    if b"/" not in argv[0]:
        spawn = os.posix_spawnp
        os.environb[b"PATH"] = env.get(b"PATH", os.defpath.encode())
    try:
        # A process group of its own: `kill 0` in a job script must not reach the supervisor.
        return spawn(argv[0], argv, env, setpgroup=0, setsigmask=(), setsigdef=DEFAULTED, file_actions=actions)
    except (OSError, ValueError) as error:
        raise StartError(refusal(argv[0], error)) from None


def start_wait(absent: "FolderMissing") -> int:
    """Fork a process that ends when the directory exists, or when its time is over; return its process number. It is a
    part of the job: a signal that ends a job ends it. Raises StartError."""
    try:
        return fork_into(wait_for_folder, absent)
    except OSError as error:
        raise StartError(f"no process that waits for its directory: {reason_of(error)}") from None


def wait_for_folder(absent: "FolderMissing") -> None:
    """Return when the directory exists, or when its time is over."""
    os.setpgid(0, 0)
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    due = time.monotonic() + absent.seconds
    while not os.path.isdir(absent.folder) and time.monotonic() < due:
        time.sleep(LOOK_EVERY)


def start_report_filter(source: int, errors: int, path: bytes, ranks: int, marks: "Tuple[Tuple[bytes, bytes, bytes], ...]") -> None:
    """Fork a process that copies the pipe `source` to the file `errors`, without the launcher's reports. A report
    begins with the first text of a mark, has the two others behind it, and goes to the end of the line. The first
    `ranks` reports are written to the file `path`. Raises StartError.

    The process ends when nobody has the pipe open any more. It is a process and not a thread of the supervisor, since
    the program's output must not wait for the record of its end, nor the record for the output.
    """
    try:
        found = open_output(path)
    except (OSError, ValueError) as error:
        raise StartError(described("file of bindings", path, error)) from None
    try:
        fork_into(run_report_filter, source, errors, found, ranks, marks)
    except OSError as error:
        raise StartError(f"no process for its output: {reason_of(error)}") from None
    finally:
        os.close(found)


def run_report_filter(source: int, errors: int, found: int, ranks: int, marks: "Tuple[Tuple[bytes, bytes, bytes], ...]") -> None:
    """Run `filter_reports` with all other files closed; otherwise the manager's lock would never be free."""
    for target, descriptor in enumerate([os.dup(each) for each in (source, errors, found)]):
        os.dup2(descriptor, target)
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    filter_reports(ranks, marks)


def filter_reports(left: int, marks: "Tuple[Tuple[bytes, bytes, bytes], ...]") -> None:
    """Copy standard input to standard output, but the first `left` reports to standard error."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    rest = b""  # the start of a line whose end has not come
    while True:
        ready = poll.poll(HELD_BACK if rest else None)
        data = os.read(0, 1 << 16) if ready else b""
        data, rest, ended = rest + data, b"", bool(ready and not data)
        if left > 0:
            lines = data.splitlines(True)
            if ready and not ended and not data.endswith(b"\n"):
                rest = lines.pop()
            kept = []
            for line in lines:
                at = len(line) if left <= 0 else report_in(line, marks)
                kept.append(line[:at])
                if at < len(line):
                    left -= 1
                    put(2, line[at:])
            data = b"".join(kept)
        put(1, data)
        if ended:
            return


def report_in(line: bytes, marks: "Tuple[Tuple[bytes, bytes, bytes], ...]") -> int:
    """Return where a report begins in a line (a program may have printed text before it without a line end); the
    line's length if there is no report. If a time stamp stands directly before the report, it belongs to it."""
    for start, then, last in marks:
        at = line.find(then)
        begin = line.rfind(start, 0, at) if at >= 0 else -1
        if begin >= 0 and last in line[at:]:
            stamp = line.rfind(STAMPED, 0, begin)
            return 0 if stamp >= 0 and not line[stamp + len(STAMPED):begin].strip() else begin
    return len(line)


def put(descriptor: int, data: bytes) -> None:
    """Write all of the data; what a full disk does not take is lost, as it would be without a sieve."""
    try:
        while data:
            data = data[os.write(descriptor, data):]
    except OSError:
        pass


def open_output(path: bytes, append: bool = False) -> int:
    """Open an output file and empty it unless `append` is set. Raises OSError for links, pipes and files of other
    users: somebody may have put them there, and would read what the program prints."""
    PREPARED.give(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY | os.O_NOFOLLOW
                         | os.O_NONBLOCK, 0o666)
    try:
        about = os.fstat(descriptor)
        if stat.S_ISREG(about.st_mode):
            if about.st_uid != os.geteuid() and about.st_uid not in (0, os.stat("/").st_uid):
                raise OSError(errno.EPERM, "belongs to another user; remove it")
            if about.st_size and not append:
                os.truncate(descriptor, 0)
        elif not stat.S_ISCHR(about.st_mode):  # /dev/null is all right
            raise OSError(errno.EPERM, "is a pipe or socket; remove it")
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def refusal(program: bytes, error: "Exception") -> str:
    """Return why the kernel did not run a program, in plain words where the error number misleads."""
    reason = reason_of(error)
    if isinstance(error, OSError) and os.path.isdir(program):
        reason = "is a directory"
    elif isinstance(error, FileNotFoundError) and os.path.exists(program):
        reason = "the interpreter that its first line names does not exist" + _windows_lines(program)
    elif isinstance(error, OSError) and error.errno == errno.ENOEXEC:
        reason = "no program for this machine, nor a script whose first line names one (#!/bin/sh)"
    return clean(f"{os.fsdecode(program)}: {reason}")


def _windows_lines(script: bytes) -> str:
    """Return what to do about a script whose first line ends as on Windows; "" if it does not."""
    try:
        with open(script, "rb") as file:
            wrong = file.readline(LONGEST_LINE).endswith(b"\r\n")
    except OSError:
        return ""
    return ": its lines end as on Windows; type sed -i 's/\\r$//' " + os.fsdecode(script) if wrong else ""


def has_no_children() -> bool:
    """Collect the children that have ended; return whether none is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def wait_for_report_filter() -> None:
    """Wait until the output of the program has come to its file, for at most `FILTER_ENDS` seconds: a process that
    outlives the program may hold the pipe open."""
    due = time.monotonic() + FILTER_ENDS
    while not has_no_children():
        left = due - time.monotonic()
        if left <= 0 or signal.sigtimedwait((signal.SIGCHLD,), left) is None:
            return
