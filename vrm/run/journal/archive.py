"""The archive of a run: what its jobs have printed, in one file instead of two for each (`Output: {Archive: true}`).

A frame for each output that is not empty: a line with the job, when it started, which output it is, its length and its
checksum; then the text as it is, and a line end. An index beside it has where each is. Both are only added to. Who adds
writes the frame first; then the file that it is of may go, when the archive is on disk. So what a crash leaves is a
frame that is not whole, which is cut off, or one that is there twice: the last one of a job counts. What the index
lacks is read from the archive.
"""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from pathlib import Path
from typing import BinaryIO, NamedTuple
from collections.abc import Container, Iterator, Sequence

from vrm.system.files import open_own

OUT, ERR = "out", "err"
"""The outputs of a job."""

_HEAD = b"==> vrm: job %d, started %.6f, %b: %d bytes, crc32 %08x\n"
_READ = re.compile(rb"==> vrm: job (\d+), started [0-9.]+, (out|err): (\d+) bytes, crc32 ([0-9a-f]{8})\n")
_LONGEST = 200
"""Bytes of the longest first line of a frame."""

PART = 1 << 20
"""Bytes that are copied at once."""


class Frame(NamedTuple):
    """Where an output is in the archive."""

    job_id: int
    output: str
    at: int
    length: int

    @property
    def line(self) -> bytes:
        """Its line in the index."""
        return b"%d %b %d %d\n" % (self.job_id, self.output.encode(), self.at, self.length)


def _lines(index: Path) -> bytes:
    """The whole lines of the index; none where it is not there."""
    try:
        with open(open_own(index, os.O_RDONLY), "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return b""
    return data[:data.rfind(b"\n") + 1]


def _frame_at(file: BinaryIO, at: int) -> Frame | None:
    """The frame that begins there; None where it is not whole."""
    file.seek(at)
    head = _READ.match(file.read(_LONGEST))
    if head is None:
        return None
    frame = Frame(int(head[1]), head[2].decode(), at + head.end(), int(head[3]))
    file.seek(frame.at)
    total, left = 0, frame.length
    while left:
        part = file.read(min(PART, left))
        if not part:
            return None
        total, left = zlib.crc32(part, total), left - len(part)
    return frame if total == int(head[4], 16) and file.read(1) == b"\n" else None


def _end_of(lines: bytes) -> int:
    """Where the last frame of these lines ends."""
    if not lines:
        return 0
    *_, at, length = lines[lines.rfind(b"\n", 0, -1) + 1:].split()
    return int(at) + int(length) + 1


def _behind(file: BinaryIO, lines: bytes) -> Iterator[Frame]:
    """The frames that the index lacks."""
    at = _end_of(lines)
    while True:
        frame = _frame_at(file, at)
        if frame is None:
            return
        yield frame
        at = frame.at + frame.length + 1


class Archive:
    """The archive at a path, to be read while somebody else adds to it. `index` is the file beside it."""

    def __init__(self, path: Path) -> None:
        self.path, self.index = path, path.with_name(f"{path.name}.index")

    def find(self, job_id: int, output: str) -> Frame | None:
        """An output of a job; None where there is none."""
        try:
            with open(open_own(self.path, os.O_RDONLY), "rb") as file:
                lines = _lines(self.index)
                for frame in reversed(list(_behind(file, lines))):
                    if (frame.job_id, frame.output) == (job_id, output):
                        return frame
        except FileNotFoundError:
            return None
        found = re.findall(b"(?m)^%d %b (\\d+) (\\d+)$" % (job_id, output.encode()), lines)
        return Frame(job_id, output, int(found[-1][0]), int(found[-1][1])) if found else None

    def all(self) -> list[Frame]:
        """The outputs of all jobs, by their ids."""
        found: dict[tuple[int, str], Frame] = {}
        try:
            with open(open_own(self.path, os.O_RDONLY), "rb") as file:
                lines = _lines(self.index)
                for words in map(bytes.split, lines.splitlines()):
                    job_id, output = int(words[0]), words[1].decode()
                    found[job_id, output] = Frame(job_id, output, int(words[2]), int(words[3]))
                found.update(((frame.job_id, frame.output), frame) for frame in _behind(file, lines))
        except FileNotFoundError:
            pass
        return [found[key] for key in sorted(found)]

    def parts(self, frame: Frame) -> Iterator[bytes]:
        """What is in a frame, some bytes at a time."""
        with open(open_own(self.path, os.O_RDONLY), "rb") as file:
            file.seek(frame.at)
            left = frame.length
            while left:
                part = file.read(min(PART, left))
                if not part:
                    raise OSError(0, "is shorter than its index says", os.fspath(self.path))
                left -= len(part)
                yield part


class ArchiveWriter(Archive):
    """Adds to an archive; one process at a time does. What a crash left of a frame is cut off first. OSError where the
    files cannot be written."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._file = open(open_own(path, os.O_RDWR | os.O_CREAT), "r+b", buffering=0)
        self._lines = open(open_own(self.index, os.O_RDWR | os.O_CREAT), "r+b", buffering=0)
        lines = _lines(self.index)
        while lines:  # a machine that dies may leave lines of frames that are not there
            before = lines[:lines.rfind(b"\n", 0, -1) + 1]
            if _frame_at(self._file, _end_of(before)) is not None:
                break
            lines = before
        self._lines.truncate(len(lines))
        self._lines.seek(len(lines))
        self._end = _end_of(lines)
        for frame in list(_behind(self._file, lines)):
            self._lines.write(frame.line)
            self._end = frame.at + frame.length + 1
        self._file.truncate(self._end)
        self._files: list[tuple[int, str]] = []

    def add(self, job_id: int, started: float, outputs: Sequence[tuple[str, str]]) -> None:
        """Add the outputs of a job: which ones, and the files that they are in. `settle` removes these files."""
        for output, path in outputs:
            try:
                with open(open_own(path, os.O_RDONLY), "rb") as file:
                    length, total = self._measured(file)
                    if length:
                        self._put(job_id, started, output, file, length, total)
            except FileNotFoundError:
                continue
            self._files.append((job_id, path))

    @staticmethod
    def _measured(file: BinaryIO) -> tuple[int, int]:
        """The length of a file, and its checksum."""
        length = total = 0
        while part := file.read(PART):
            length, total = length + len(part), zlib.crc32(part, total)
        file.seek(0)
        return length, total

    def _put(self, job_id: int, started: float, output: str, file: BinaryIO, length: int, total: int) -> None:
        """Add a frame; nothing at all where the disk does not take it."""
        head = _HEAD % (job_id, started, output.encode(), length, total)
        frame = Frame(job_id, output, self._end + len(head), length)
        try:
            self._file.seek(self._end)
            self._all(head)
            left = length
            while left:
                part = file.read(min(PART, left))
                if not part:
                    raise OSError(0, "became shorter while it was read", file.name)
                self._all(part if left > len(part) else part + b"\n")
                left -= len(part)
        except OSError:
            self._file.truncate(self._end)
            raise
        self._end = frame.at + length + 1
        self._lines.write(frame.line)

    def _all(self, data: bytes) -> None:
        while data:
            data = data[self._file.write(data):]

    @property
    def unsettled(self) -> int:
        """How many files are in the archive, and still there."""
        return len(self._files)

    def settle(self, over: Container[int]) -> None:
        """Have the archive on disk, and remove the files that are in it, but those of jobs that are not `over`: they
        run again, perhaps."""
        if self._files:
            os.fdatasync(self._file.fileno())
        for job_id, path in self._files:
            if job_id in over:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
        self._files.clear()

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        self._lines.close()
