"""The archive of a run: the output of all its jobs in one file, instead of two files for each job (`Output: {Archive:
true}`).

Each output that is not empty is a frame: a header line with the job, its start time, the kind of output, the length
and the checksum; then the unchanged text, and a newline. An index file in the same directory has the position of each
frame. Both files are only appended to. The writer writes a frame first; the job's own output file is removed only
when the archive is on disk. So after a crash there may be an incomplete frame, which is cut off, or a duplicate
frame: the last one of a job counts. Frames that the index lacks are read from the archive.
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
"""The kinds of output of a job."""

_HEAD = b"==> vrm: job %d, started %.6f, %b: %d bytes, crc32 %08x\n"
_READ = re.compile(rb"==> vrm: job (\d+), started [0-9.]+, (out|err): (\d+) bytes, crc32 ([0-9a-f]{8})\n")
_LONGEST = 200
"""Maximum length of a frame's header line in bytes."""

PART = 1 << 20
"""Bytes that are copied at once."""


class Frame(NamedTuple):
    """Position and length (bytes) of an output in the archive."""

    job_id: int
    output: str
    at: int
    length: int

    @property
    def line(self) -> bytes:
        """The frame's line in the index."""
        return b"%d %b %d %d\n" % (self.job_id, self.output.encode(), self.at, self.length)


def _lines(index: Path) -> bytes:
    """Return the complete lines of the index; empty if there is no index."""
    try:
        with open(open_own(index, os.O_RDONLY), "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return b""
    return data[:data.rfind(b"\n") + 1]


def _frame_at(file: BinaryIO, at: int) -> Frame | None:
    """Return the frame that begins at this offset; None if it is incomplete or damaged."""
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
    """Return the offset at which the last frame of these index lines ends."""
    if not lines:
        return 0
    *_, at, length = lines[lines.rfind(b"\n", 0, -1) + 1:].split()
    return int(at) + int(length) + 1


def _behind(file: BinaryIO, lines: bytes) -> Iterator[Frame]:
    """Yield the frames that the index lacks."""
    at = _end_of(lines)
    while True:
        frame = _frame_at(file, at)
        if frame is None:
            return
        yield frame
        at = frame.at + frame.length + 1


class Archive:
    """Reads the archive at a path, even while another process appends to it. `index` is its index file."""

    def __init__(self, path: Path) -> None:
        self.path, self.index = path, path.with_name(f"{path.name}.index")

    def find(self, job_id: int, output: str) -> Frame | None:
        """Return the frame of an output of a job; None if there is none."""
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
        """Return the last frame of each output of each job, sorted by job id."""
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
        """Yield the content of a frame in blocks of bytes. Raises OSError if the archive is too short."""
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
    """Appends to an archive; only one process may do so at a time. It first cuts off an incomplete frame that a crash
    has left. Raises OSError if the files cannot be written."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._file = open(open_own(path, os.O_RDWR | os.O_CREAT), "r+b", buffering=0)
        self._lines = open(open_own(self.index, os.O_RDWR | os.O_CREAT), "r+b", buffering=0)
        lines = _lines(self.index)
        while lines:  # a crash of the machine may leave index lines without frames
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
        """Append the outputs of a job, as pairs of kind and path. `settle` removes these files."""
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
        """Return the length and the checksum of a file."""
        length = total = 0
        while part := file.read(PART):
            length, total = length + len(part), zlib.crc32(part, total)
        file.seek(0)
        return length, total

    def _put(self, job_id: int, started: float, output: str, file: BinaryIO, length: int, total: int) -> None:
        """Append a frame, or nothing at all if the disk does not take it."""
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
        """Number of files that are archived and not yet removed."""
        return len(self._files)

    def settle(self, over: Container[int]) -> None:
        """Flush the archive to disk, and remove the archived files of the jobs that are `over`; other jobs may run
        again."""
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
