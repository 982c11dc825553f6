"""Runs a program and puts a label before each line of its output: `label.py LABEL WIDTH PROGRAM...`."""

from __future__ import annotations

import _signal
import os
import select
import sys

PART = 1 << 16


def prefix(label: str, width: int) -> bytes:
    """Return the text that is put before each line."""
    return label.rjust(width).encode() + b": "


class LineLabeller:
    """Copies data from a pipe to a file, with a label before each line. A last line without line end gets one. Stops
    reading the pipe if the reader of the file has gone."""

    def __init__(self, source: int, target: int, label: bytes) -> None:
        self.source, self._target, self._label = source, target, label
        self._rest = b""

    def copy(self) -> bool:
        """Copy the data that is available; return False at the end of the pipe."""
        data = os.read(self.source, PART)
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if not data and self._rest:
            lines.append(self._rest)
        read = not lines or write(self._target, b"".join(self._label + line + b"\n" for line in lines))
        if not data or not read:
            os.close(self.source)
        return bool(data) and read


def write(target: int, data: bytes) -> bool:
    """Write all data; return False if the reader has gone."""
    while data:
        try:
            data = data[os.write(target, data):]
        except BlockingIOError:
            select.select([], [target], [])
        except BrokenPipeError:
            return False
    return True


def main(label: str, width: int, program: list[str]) -> int:
    """Run the program; return its exit status as a shell shows it."""
    pipes = [os.pipe(), os.pipe()]
    child = os.fork()
    if not child:
        try:
            for number, (_, target) in enumerate(pipes, 1):
                os.dup2(target, number)
            os.closerange(3, pipes[-1][1] + 1)
            os.execvp(program[0], program)
        except OSError as error:
            os.write(2, f"{program[0]}: {error.strerror}\n".encode())
            os._exit(127)
    for number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGUSR1, _signal.SIGUSR2,
                   _signal.SIGCONT):
        _signal.signal(number, lambda got, frame: os.kill(child, got))
    open_ends = []
    for number, (source, target) in enumerate(pipes, 1):
        os.close(target)
        open_ends.append(LineLabeller(source, number, prefix(label, width)))
    while open_ends:
        ready = select.select([each.source for each in open_ends], [], [])[0]
        open_ends = [each for each in open_ends if each.source not in ready or each.copy()]
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
