"""The archive of outputs: what is added is found again, wherever a crash cuts it off."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from vrm.run.journal.archive import ERR, OUT, Archive, ArchiveWriter

TEXTS = st.binary(max_size=300) | st.sampled_from([b"", b"\n", b"==> vrm: job 0, started 1.000000, out: 3 bytes, crc32 0\n"])
ADDED = st.lists(st.tuples(st.integers(0, 4), st.sampled_from([OUT, ERR]), TEXTS), max_size=8)


def text_of(archive: Archive, job_id: int, output: str) -> bytes | None:
    """What is found of an output."""
    frame = archive.find(job_id, output)
    return None if frame is None else b"".join(archive.parts(frame))


def fill(folder: Path, added: list[tuple[int, str, bytes]]) -> None:
    """Add these outputs."""
    writer = ArchiveWriter(folder / "outputs")
    for number, (job_id, output, text) in enumerate(added):
        (folder / f"{number}").write_bytes(text)
        writer.add(job_id, 1.5 * number, [(output, str(folder / f"{number}")), (ERR, str(folder / "missing"))])
    assert writer.unsettled == len(added)
    writer.settle(range(4))
    left = {path.name for path in folder.iterdir()} - {"outputs", "outputs.index"}
    assert left == {f"{number}" for number, (job_id, _, _) in enumerate(added) if job_id == 4}, "job 4 runs again"
    writer.close()


def expected(added: list[tuple[int, str, bytes]]) -> dict[tuple[int, str], bytes]:
    """The last output of each job that is not empty."""
    return {(job_id, output): text for job_id, output, text in added if text}


@given(ADDED, ADDED)
def test_what_is_added_is_found_also_by_later_writers_and_its_text_is_readable(
        first: list[tuple[int, str, bytes]], then: list[tuple[int, str, bytes]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        archive = Archive(folder / "outputs")
        assert archive.find(0, OUT) is None and archive.all() == []
        fill(folder, first)
        for path in folder.glob("[0-9]*"):
            path.unlink()
        fill(folder, then)
        wanted = expected(first + then)
        assert {(frame.job_id, frame.output): text_of(archive, frame.job_id, frame.output)
                for frame in archive.all()} == wanted
        assert all(text_of(archive, *key) == wanted.get(key) for key in [(job_id, OUT) for job_id in range(5)])
        data = archive.path.read_bytes()
        assert all(text in data for text in wanted.values())


@given(ADDED.filter(lambda added: any(text for _, _, text in added)), st.data())
def test_after_a_crash_whole_frames_are_there_and_the_rest_is_cut_off(added: list[tuple[int, str, bytes]],
                                                                       data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fill(folder, added)
        archive = Archive(folder / "outputs")
        whole, lines = archive.path.read_bytes(), archive.index.read_bytes()
        cut = data.draw(st.integers(0, len(whole)), "bytes of the archive")
        index = data.draw(st.integers(0, len(lines)), "bytes of the index")
        archive.path.write_bytes(whole[:cut] + data.draw(st.sampled_from([b"", bytes(9), b"==> vrm: job 1, st"])))
        archive.index.write_bytes(lines[:index])
        ends = [int(line.split()[2]) + int(line.split()[3]) + 1 for line in lines.splitlines()]
        kept = [each for each, end in zip([each for each in added if each[2]], ends) if end <= cut]
        ArchiveWriter(archive.path).close()
        assert archive.path.read_bytes() == whole[:max([end for end in ends if end <= cut], default=0)]
        assert archive.index.read_bytes() == b"".join(lines.splitlines(True)[:len(kept)])
        assert {(frame.job_id, frame.output): text_of(archive, frame.job_id, frame.output)
                for frame in archive.all()} == expected(kept)
        again = ArchiveWriter(archive.path)
        (folder / "new").write_bytes(b"more\n")
        again.add(3, 9.0, [(OUT, str(folder / "new"))])
        assert text_of(archive, 3, OUT) == b"more\n", "before it is settled, too"
        again.close()


@given(ADDED.filter(lambda added: any(text for _, _, text in added)), st.data())
def test_a_reader_needs_no_index(added: list[tuple[int, str, bytes]], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fill(folder, added)
        archive = Archive(folder / "outputs")
        lines = archive.index.read_bytes()
        archive.index.write_bytes(lines[:data.draw(st.integers(0, len(lines)))])
        assert all(text_of(archive, *key) == text for key, text in expected(added).items())
        archive.index.unlink()
        assert all(text_of(archive, *key) == text for key, text in expected(added).items())
