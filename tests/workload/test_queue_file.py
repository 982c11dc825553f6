"""Queue files: their lines, following them through everything that may happen to a file, replay,
and the marker of a writer.
"""

import contextlib
import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import permissions_obeyed
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from vrm.model import Dependency
from vrm.model.job import ANY, resolved
from vrm.model.quantities import fold, numbers, seconds_of
from vrm.workload.queue_follower import SETTLED, Line, Position, QueueFollower
from vrm.workload.grammar import LONGEST, LineError, QueueLine, parse_line
from vrm.workload.replay import QueueReplay, replay
from vrm.workload.writer_marker import WriterMarker, marker_path, writer_of

# ------------------------------------------------------------------------------------- lines


@pytest.mark.parametrize("text, wanted", [
    ("ft.B.x 8 60 0", QueueLine("ft.B.x", 8, 60.0)),
    ("is.B.x 32 10 1 4", QueueLine("is.B.x", 32, 10.0, True, 4.0)),
    ("  lu.B.x\t8   90.5 0 \r\n", QueueLine("lu.B.x", 8, 90.5)),
    ("a 08 .5 0 0", QueueLine("a", 8, 0.5, False, 0.0)),
    ("a 1 1e2 0 2.5", QueueLine("a", 1, 100.0, False, 2.5)),
    ("a 1 1 0 # it's a comment", QueueLine("a", 1, 1.0)),
    ("a 1 1 0 3 cores=2 # cores=3", QueueLine("a", 1, 1.0, False, 3.0, {"cores": 2})),
    ("a 1 1 0 name='run # 1'", QueueLine("a", 1, 1.0, fields={"name": "run # 1"})),
    ("a 1 1 0 name=run#1", QueueLine("a", 1, 1.0, fields={"name": "run#1"})),
    ('a 1 1 0 name="say \\"a b\\"" cores=1',
     QueueLine("a", 1, 1.0, fields={"name": 'say "a b"', "cores": 1})),
    ("a 1 1 0 name=a=b", QueueLine("a", 1, 1.0, fields={"name": "a=b"})),
    ("'my app.x' 1 1 0", QueueLine("my app.x", 1, 1.0)),
    ("a=b 1 1 0", QueueLine("a=b", 1, 1.0)),
    ("a 1 1 0 after=3,5-7,any:9", QueueLine("a", 1, 1.0, fields={"after": (
        Dependency.on(3), Dependency(range(5, 8)), Dependency.on(9, ANY))})),
    ("a 1 1 0 priority=-3 retries=0 hold=1 dir=../x",
     QueueLine("a", 1, 1.0, fields={"priority": -3, "retries": 0, "hold": True, "dir": "../x"})),
    ("a 1 1 0 env=A=1,B=2 env='C= x' env=D=",
     QueueLine("a", 1, 1.0, fields={"env": {"A": "1,B=2", "C": " x", "D": ""}})),
    ("""a 1 1 0 args='-o "a b" $HOME; c:d'""",
     QueueLine("a", 1, 1.0, fields={"args": ("-o", "a b", "$HOME;", "c:d")})),
    ("a 1 1 0 array=7,0-6:3", QueueLine("a", 1, 1.0, fields={"array": (7, 0, 3, 6)})),
    ("end 1 1 0", QueueLine("end", 1, 1.0)),
    ("..x 1 1 0", QueueLine("..x", 1, 1.0)),
])
def test_lines_that_are_right(text, wanted):
    assert parse_line(text) == wanted


@pytest.mark.parametrize("text, parts", [
    ("", ["no job", "ft.B.x 8 60 0"]),
    ("# only this", ["no job"]),
    ("ft.B.x", ["procs missing", "ft.B.x 8 60 0"]),
    ("ft.B.x name=x", ["procs missing"]),
    ("ft.B.x eight 60 0", ["procs", "`eight`", "whole number", "ft.B.x 8 60 0"]),
    ("ft.B.x 0 60 0", ["procs", "`0`", "1 or more"]),
    ("ft.B.x -8 60 0", ["procs", "`-8`"]),
    ("ft.B.x 8.0 60 0", ["procs", "`8.0`"]),
    ("ft.B.x 1_0 60 0", ["procs", "`1_0`"]),
    ("ft.B.x \u0663 60 0", ["procs", "`\u0663`"]),
    (f"ft.B.x {'9' * 5000} 60 0", ["procs", "..."]),
    ("ft.B.x 8 1x 0", ["seconds", "`1x`", "above 0", "ft.B.x 8 60 0"]),
    ("ft.B.x 8 0 0", ["seconds", "`0`", "above 0"]),
    ("ft.B.x 8 -1 0", ["seconds", "`-1`"]),
    ("ft.B.x 8 nan 0", ["seconds", "`nan`"]),
    ("ft.B.x 8 inf 0", ["seconds", "`inf`"]),
    ("ft.B.x 8 1e999 0", ["seconds", "`1e999`"]),
    ("ft.B.x 8 1e300 0", ["seconds", "`1e300`", "at most 1000000000"]),
    ("ft.B.x 8 60 yes", ["exclusive", "`yes`", "0 ", "1 "]),
    ("ft.B.x 8 60 00", ["exclusive", "`00`"]),
    ("ft.B.x 8 60 0 -1", ["delay", "`-1`"]),
    ("ft.B.x 8 60 0 4 5", ["`5`", "too many"]),
    ("ft.B.x 8 60 0 core=2", ["`core`", "did you mean `cores`"]),
    ("ft.B.x 8 60 0 zzz=2", ["`zzz`", "vrm docs job-fields"]),
    ("ft.B.x 8 60 0 cores=x", ["cores", "`x`", "1 or more"]),
    ("ft.B.x 8 60 0 cores=", ["cores", "found nothing"]),
    ("ft.B.x 8 60 0 cores=1 cores=1", ["`cores`", "twice"]),
    ("ft.B.x 8 60 0 name=run 1", ["`1`", "quote"]),
    ("ft.B.x 8 60 0 name=a\u202eb", ["name", "printable"]),
    (f"ft.B.x 8 60 0 name={'a' * 65}", ["name", "at most 64"]),
    ("ft.B.x 8 60 0 name='run", ["quote is not closed"]),
    ("ft.B.x 8 60 0 name=run\\", ["backslash"]),
    ("a 1 1 0 after=", ["after", "found nothing"]),
    ("a 1 1 0 after=3,", ["after", "`3,`", "any:3"]),
    ("a 1 1 0 name=3-7", ["name", "`3-7`", "after=", "name=run3-7"]),
    ("a 1 1 0 name=any:x", ["name", "`any:x`"]),
    ("a 1 1 0 after=7-5", ["after", "`7-5`"]),
    ("a 1 1 0 after=-1", ["after", "`-1`"]),
    ("a 1 1 0 priority=high", ["priority", "`high`"]),
    ("a 1 1 0 retries=-1", ["retries", "`-1`"]),
    ("a 1 1 0 env=A", ["env", "`A`", "NAME=VALUE"]),
    ("a 1 1 0 env='A B=1'", ["env", "NAME=VALUE"]),
    ("a 1 1 0 env=A=1 env=A=2", ["env", "`A`", "twice"]),
    ("a 1 1 0 env=VRM_JOB_ID=3", ["VRM_JOB_ID", "does not begin with VRM_"]),
    ("a 1 1 0 args='a : b'", ["args", "second program"]),
    ("a 1 1 0 args='\"a'", ["args", "quoted"]),
    ("a 1 1 0 array=0-100000", ["array", "100000"]),
    ("a 1 1 0 array=0-9:0", ["array"]),
    ("a 1 1 0 array=0-99999999999", ["array"]),
    ("a 1 1 0 hold=yes", ["hold", "`yes`"]),
    ("a 1 1 0 dir=", ["dir", "found nothing"]),
    ("'' 8 60 0", ["names no file"]),
    (".. 8 60 0", ["`..`", "inside Applications.Path"]),
    ("../.. 8 60 0", ["`..`", "inside Applications.Path"]),
    ("/opt/bin/ 8 60 0", ["names no file"]),
    ("../--oversubscribe 8 60 0", ["begins with `-`"]),
    ("bin/a 8 60 0 0 file=/b/a", ["`file` is given twice"]),
    ("--oversubscribe 8 60 0", ["begins with `-`", "inside Applications.Path"]),
    ("a\u2028b 8 60 0", ["cannot be printed"]),
    (f"{'a' * 201} 8 60 0", ["longer than 200"]),
    ("a\x1b[31m 8 60 0", ["0x1b", "place 2"]),
    ("\0\0\0ft.B.x 8 60 0", ["0x00", "place 1"]),
    ("ft.B.x 8 60 0\rft.B.x 8 60 0", ["0x0d"]),
    ("ft.B.x 8 60 0\nft.B.x 8 60 0", ["0x0a"]),
])
def test_lines_that_are_wrong(text, parts):
    with pytest.raises(LineError) as caught:
        parse_line(text)
    message = str(caught.value)
    for part in parts:
        assert part in message
    assert message.isprintable() and len(message) < 400


APPS = st.text(min_size=1, max_size=20).filter(
    lambda a: a.isprintable() and "/" not in a and not a.startswith("-") and a not in (".", ".."))
SECONDS = st.one_of(st.integers(1, 10**6).map(float), st.floats(5e-324, 1e9))
LABELS = st.text(min_size=1, max_size=20).filter(str.isprintable).filter(
    lambda text: text.strip("0123456789:,-") and not text.startswith(("any:", "start:", "fail:")))
KINDS = st.sampled_from(("", "any", "start", "fail"))
AFTERS = st.one_of(
    st.builds(lambda first, count, step, kind, delay: Dependency(
        range(first, first + count * step, step if count > 1 else 1), kind, delay=delay if kind == "start" else 0.0),
        st.integers(0, 30), st.sampled_from([1, 3, 7]), st.integers(1, 3), KINDS, st.sampled_from([0.0, 300.0])).filter(
            lambda each: each.ids == range(each.ids[0], each.ids[-1] + 1, each.ids.step)),
    st.builds(Dependency, st.just(range(0)), KINDS, LABELS.filter(
        lambda text: "," not in text and "+" not in text), st.just(0.0)))
TEXTS = st.text(max_size=12).filter(str.isprintable)
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True).filter(
    lambda name: not name.startswith("VRM_"))
QUEUE_LINES = st.builds(
    QueueLine, APPS, st.integers(1, 10**9 - 1), SECONDS, st.booleans(),
    st.one_of(st.none(), st.just(0.0), SECONDS),
    st.fixed_dictionaries({}, optional={
        "cores": st.integers(1, 64), "name": LABELS,
        "after": st.lists(AFTERS, min_size=1, unique=True).map(tuple),
        "priority": st.integers(-10**6, 10**6), "retries": st.integers(0, 9999),
        "env": st.dictionaries(NAMES, TEXTS, min_size=1, max_size=3),
        "args": st.lists(TEXTS.filter(lambda word: word != ":"), max_size=3).map(tuple),
        "dir": TEXTS.filter(bool), "hold": st.booleans(),
        "array": st.lists(st.integers(0, 40), min_size=1, unique=True).map(tuple)}))


@given(QUEUE_LINES)
@example(QueueLine("#x", 1, 1.0, fields={"name": "# it's"}))
@pytest.mark.slow
def test_a_line_that_was_written_says_the_same_when_read(line):
    assert parse_line(str(line)) == line
    assert parse_line(f"{line} # it's \"so") == line


@given(st.lists(st.integers(0, 60), unique=True, min_size=1))
@example([0, 1, 2, 5, 7, 9, 20, 21, 30])
def test_a_folded_list_says_the_same_numbers(values):
    assert numbers(fold(values)) == tuple(values)


@given(st.text(max_size=60))
def test_any_text_is_a_job_or_a_line_error(text):
    try:
        line = parse_line(text)
    except LineError as error:
        assert str(error).isprintable()
    else:
        assert line.procs >= 1 and line.seconds > 0
        assert "/" not in line.app


@given(st.lists(st.sampled_from(["a", "b c", "'", '"', "\\", "#", " ", "\t", "\u00a0", "x=1"])
                ).map("".join))
def test_words_are_those_of_the_shell_rules(tail):
    """The fast split, the comment search and shlex agree on what the words are."""
    from vrm.workload.grammar import words_of
    try:
        words = words_of(tail)
    except LineError:
        with pytest.raises(ValueError):
            shlex.split(tail, comments=False)
        return
    lexer = shlex.shlex(tail, posix=True, punctuation_chars=False)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    try:
        every = list(lexer)
    except ValueError:  # a quote that opens inside the comment
        assert "#" in tail
        return
    assert words == every[:len(words)]
    if len(every) > len(words):
        assert every[len(words)].startswith("#")


# --------------------------------------------------------------------------------- following

A, B, C = "a 1 1 0\n", "b 2 2 0\n", "c 3 3 0\n"


@pytest.fixture
def queue(tmp_path):
    return tmp_path / "queue"


def append(path, text):
    with open(path, "ab") as file:
        file.write(text.encode() if isinstance(text, str) else text)


def replace(path, text):
    new = path.with_name("new")
    new.write_text(text)
    os.replace(new, path)


def taken(lines):
    """What was taken, short: app, or `!` for a bad line, with the line's number."""
    return [(line.number, "!" if isinstance(line.parsed, LineError) else line.parsed.app)
            for line in lines]


def test_takes_lines_as_they_come_and_nothing_twice(queue):
    queue.write_text(A + "\n# comment\n  \n" + B)
    follower = QueueFollower(queue)
    first = follower.read_new()
    assert taken(first) == [(1, "a"), (5, "b")]
    assert first[1] == Line(5, "b 2 2 0", QueueLine("b", 2, 2.0), first[1].position)
    assert follower.read_new() == []
    append(queue, C)
    assert taken(follower.read_new()) == [(6, "c")]
    assert follower.read_new() == [] and follower.take_notices() == []


def test_bad_lines_are_given_with_their_number_and_the_rest_goes_on(queue):
    queue.write_bytes(b"a 1 1 0\nb two 2 0\nc 3 3 0\n\xff\xfe 1 1 0\n\0\0d 1 1 0\nf 1 1 0\n")
    lines = QueueFollower(queue).read_new()
    assert taken(lines) == [(1, "a"), (2, "!"), (3, "c"), (4, "!"), (5, "!"), (6, "f")]
    assert lines[1].text == "b two 2 0"
    assert "UTF-8" in str(lines[3].parsed) and "0xff" in str(lines[3].parsed)


def test_a_half_written_line_waits_for_its_newline(queue):
    follower = QueueFollower(queue)
    for part in ("a 1", "2 6", "0 0"):
        append(queue, part)
        assert follower.read_new() == []
    append(queue, "\nb 2")
    assert [line.parsed for line in follower.read_new()] == [QueueLine("a", 12, 60.0)]
    append(queue, " 2 0")
    assert follower.read_new() == [] and not follower.ended
    follower.finish()
    assert taken(follower.read_new()) == [(2, "b")]
    assert follower.ended and follower.read_new() == []


def test_a_character_that_was_cut_in_two_is_whole_in_the_end(queue):
    text = "\u00e9.B.x 1 1 0\n".encode()
    append(queue, text[:1])
    follower = QueueFollower(queue)
    assert follower.read_new() == []
    append(queue, text[1:])
    assert taken(follower.read_new()) == [(1, "\u00e9.B.x")]


def test_windows_line_ends_and_byte_order_mark(queue):
    queue.write_bytes(b"\xef\xbb\xbfa 1 1 0\r\n\r\n\xef\xbb\xbfb 2 2 0 4\r\nend\r\n")
    follower = QueueFollower(queue)
    lines = follower.read_new()
    assert taken(lines) == [(1, "a"), (3, "b")]
    assert lines[1].text == "b 2 2 0 4" and follower.ended


def test_nothing_after_end_is_taken(queue):
    queue.write_text(A + "  end # of it\n" + B)
    follower = QueueFollower(queue)
    assert taken(follower.read_new()) == [(1, "a")]
    assert follower.ended
    [notice] = follower.take_notices()
    assert "`end` line (line 2)" in notice and str(queue) in notice
    append(queue, C)
    assert follower.read_new() == [] and follower.take_notices() == []


def test_a_restored_position_finds_the_end_line_again(queue):
    queue.write_text(A + "end\n")
    follower = QueueFollower(queue)
    follower.read_new()
    again = QueueFollower(queue, follower.position)
    assert again.read_new() == [] and again.ended


def test_waits_for_a_file_that_is_not_there_and_says_so_once(queue):
    follower = QueueFollower(queue)
    assert follower.read_new() == follower.read_new() == []
    [notice] = follower.take_notices()
    assert str(queue) in notice and "not there" in notice
    assert follower.trouble
    queue.write_text(A)
    assert taken(follower.read_new()) == [(1, "a")]
    assert follower.take_notices() == [] and not follower.trouble


def test_a_missing_file_ends_when_nobody_will_write_it(queue):
    follower = QueueFollower(queue)
    follower.finish()
    assert follower.read_new() == [] and follower.ended
    assert len(follower.take_notices()) == 1


class Watch:
    """A clock that is set by hand."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def edited(follower, watch):
    """Whether the file is known to be edited when it has been the same for some time, and not before."""
    assert follower.read_new() == [] and follower.in_doubt and not follower.edited
    watch.now += SETTLED
    assert follower.read_new() == []
    return follower.edited and follower.take_notices() == []


@pytest.mark.parametrize("change", [
    lambda path: path.write_text(""), lambda path: os.truncate(path, len(A) + 3), lambda path: path.write_text(C),
    lambda path: replace(path, C + B + A), lambda path: replace(path, C), lambda path: path.write_text(B + B),
    lambda path: replace(path, B + B + C)])
def test_a_file_that_was_edited_is_compared_and_nothing_is_read_from_it(queue, change):
    """Also where only the beginning has changed and the length is the same."""
    queue.write_text(A + B)
    watch = Watch()
    follower = QueueFollower(queue, taken=False, clock=watch)
    follower.read_new()
    change(queue)
    assert edited(follower, watch)
    raws = [raw for raw in follower.read_all() if raw.digest]
    follower.go_to(raws[0] if raws else None)
    lines = queue.read_text().splitlines()
    assert [line.text for line in follower.read_rest()] == lines[1:len(raws)]
    assert not follower.edited and not follower.in_doubt
    append(queue, "\n" + C)
    assert taken(follower.read_new())[-1][1] == "c"


def test_a_file_that_is_written_while_it_is_compared_is_compared_again(queue):
    """What counts as taken is what was compared, not what is there a moment later."""
    queue.write_text(A + B)
    watch = Watch()
    follower = QueueFollower(queue, taken=False, clock=watch)
    follower.read_new()
    queue.write_text(A + C)
    assert edited(follower, watch)
    raws = [raw for raw in follower.read_all() if raw.digest]
    queue.write_text(A + B + C)
    follower.go_to(raws[-1])
    assert not follower.read_new() and edited(follower, watch)


@pytest.mark.parametrize("line", [1, 2])
def test_a_line_that_is_changed_while_it_is_taken_is_seen_to_be_another(queue, monkeypatch, line):
    """What was taken is known by the bytes that were read, not by those that are there a moment later."""
    queue.write_text(A + B)
    os.utime(queue, (1, 1))
    parse = QueueFollower._parse

    def parse_and_edit(self, raw):
        if raw.number == line:
            queue.write_text(A + C)
        return parse(self, raw)

    monkeypatch.setattr(QueueFollower, "_parse", parse_and_edit)
    watch = Watch()
    follower = QueueFollower(queue, taken=False, clock=watch)
    assert taken(follower.read_new()) == [(1, "a"), (2, "b")]
    monkeypatch.undo()
    assert edited(follower, watch)


def test_a_large_file_is_compared_seldom(queue):
    """What is appended is read at once; an edit of what was taken is found somewhat later."""
    line = "a 1 1 0 args=" + "x" * 1000 + "\n"
    queue.write_text(B + line * 1100)
    watch = Watch()
    follower = QueueFollower(queue, taken=False, clock=watch)
    assert len(follower.read_new()) == 1101
    with open(queue, "r+") as file:
        file.write(C)
    append(queue, A)
    assert len(follower.read_new()) == 1 and not follower.in_doubt
    watch.now += SETTLED
    assert edited(follower, watch)


def test_a_line_that_was_taken_without_its_end_may_have_more(queue):
    queue.write_text(A + "b 2 2")
    watch = Watch()
    follower = QueueFollower(queue, taken=False, clock=watch)
    assert taken(follower.read_rest()) == [(1, "a"), (2, "b")]
    append(queue, "\n" + C)
    assert taken(follower.read_new())[-1][1] == "c"
    queue.write_text(A + "b 2 2")
    follower = QueueFollower(queue, taken=False, clock=watch)
    follower.read_rest()
    append(queue, "0\n" + C)
    assert edited(follower, watch)


def test_an_editor_that_saves_in_place_repeats_nothing(queue):
    queue.write_text(A + B)
    follower = QueueFollower(queue)
    follower.read_new()
    os.truncate(queue, 0)
    assert follower.read_new() == []
    append(queue, A)
    assert follower.read_new() == []  # another state: still being written
    append(queue, B + C)
    assert taken(follower.read_new()) == [(3, "c")]
    assert follower.take_notices() == []


def test_an_editor_that_saves_by_renaming_repeats_nothing(queue):
    queue.write_text(A + B)
    follower = QueueFollower(queue)
    follower.read_new()
    os.rename(queue, queue.with_name("backup"))
    assert follower.read_new() == []
    replace(queue, A + B + C)
    assert taken(follower.read_new()) == [(3, "c")]
    [notice] = follower.take_notices()
    assert "replaced" in notice and "2 line(s)" in notice
    append(queue, A)
    assert taken(follower.read_new()) == [(4, "a")] and follower.take_notices() == []


def test_a_file_moved_away_and_back_is_the_same_file(queue):
    queue.write_text(A)
    follower = QueueFollower(queue)
    follower.read_new()
    away = queue.with_name("away")
    for _ in range(2):
        os.rename(queue, away)
        assert follower.read_new() == []
        os.rename(away, queue)
        assert follower.read_new() == []
    assert follower.take_notices() == []


def test_a_file_that_vanishes_is_waited_for(queue):
    queue.write_text(A)
    watch = Watch()
    follower = QueueFollower(queue, taken=False, clock=watch)
    follower.read_new()
    queue.unlink()
    assert follower.read_new() == [] and follower.take_notices() == []
    watch.now += SETTLED
    assert follower.read_new() == follower.read_new() == []
    [notice] = follower.take_notices()
    assert "is not there; 1 line(s) of it were taken, and their jobs stay" in notice and not follower.in_doubt
    queue.write_text(A + B)
    assert taken(follower.read_new()) == [(2, "b")] and not follower.trouble


@contextmanager
def unreadable(path):
    """Takes the right to read the file from this process, also when it is root's."""
    path.chmod(0)
    with permissions_obeyed():
        yield
    path.chmod(0o600)


def test_a_file_that_may_not_be_read_is_tried_again(queue):
    queue.write_text(A)
    follower = QueueFollower(queue)
    with unreadable(queue):
        assert follower.read_new() == follower.read_new() == []
        [notice] = follower.take_notices()
        assert "Permission denied" in notice and f"chmod u+r {queue}" in notice
        assert follower.trouble
    assert taken(follower.read_new()) == [(1, "a")] and not follower.trouble


@pytest.mark.parametrize("make, part", [
    (lambda path: path.mkdir(), "not a regular file"),
    (lambda path: os.mkfifo(path), "not a regular file"),
    (lambda path: path.symlink_to(path), "cannot be read"),
])
def test_what_is_not_a_file_is_named_and_not_waited_on(queue, make, part):
    make(queue)
    follower = QueueFollower(queue)
    assert follower.read_new() == follower.read_new() == []
    [notice] = follower.take_notices()
    assert part in notice and str(queue) in notice


def test_lines_that_are_too_long_are_refused_and_not_kept(queue):
    limit = "#" + "x" * (LONGEST - 2) + "\n"
    queue.write_text(A + limit + "#" + limit + B)
    lines = QueueFollower(queue).read_new()
    assert taken(lines) == [(1, "a"), (3, "!"), (4, "b")]
    assert str(LONGEST) in str(lines[1].parsed) and len(lines[1].text) == 200


def test_a_line_too_long_is_refused_when_its_end_has_come(queue):
    follower = QueueFollower(queue)
    append(queue, A)
    follower.read_new()
    for _ in range(5):
        append(queue, "x" * LONGEST)
        assert follower.read_new() == []
    position = follower.position
    append(queue, " 1 1 0\n" + B)
    again = QueueFollower(queue, position)
    assert taken(follower.read_new()) == taken(again.read_new()) == [(2, "!"), (3, "b")]
    assert follower.position == again.position


@pytest.mark.parametrize("longer", [0, 2 * LONGEST])
def test_another_file_in_the_place_of_a_line_too_long(queue, longer):
    """How far the line was searched says nothing of the new file."""
    append(queue, "x" * (LONGEST + 100))
    follower = QueueFollower(queue)
    assert follower.read_new() == []
    replace(queue, "x" * (LONGEST + 9) + "\n" + B + "#" * longer + "\n" + C)
    assert taken(follower.read_new()) == [(1, "!"), (2, "b"), *[(3, "!")] * (longer > 0), (4, "c")]


def test_a_line_too_long_that_is_never_ended(queue):
    queue.write_text("x" * (3 * LONGEST))
    follower = QueueFollower(queue)
    assert follower.read_new() == []
    follower.finish()
    assert taken(follower.read_new()) == [(1, "!")]


# ---------------------------------------------------------------------------------- positions


def test_a_position_goes_through_a_journal(queue):
    queue.write_text(A + B)
    [first, second] = QueueFollower(queue).read_new()
    stored = json.loads(json.dumps(first.position))
    again = QueueFollower(queue, Position(*stored))
    assert again.read_new() == [second] and again.take_notices() == []


def test_a_position_in_a_file_that_was_copied_still_holds(queue):
    queue.write_text(A + B)
    follower = QueueFollower(queue)
    follower.read_new()
    replace(queue, A + B + C)
    again = QueueFollower(queue, follower.position)
    assert taken(again.read_new()) == [(3, "c")]
    assert len(again.take_notices()) == 1


def test_a_position_in_a_file_that_is_another_now(queue):
    queue.write_text(A + B)
    follower = QueueFollower(queue)
    follower.read_new()
    queue.write_text(B + A + C)
    again = QueueFollower(queue, follower.position, clock=Watch())
    assert again.read_new() == [] and again.in_doubt


class GrowingFile(RuleBasedStateMachine):
    """A file that is written in pieces, and a manager that is killed now and then: every line of
    the file is taken exactly once, in order, with its number.
    """

    @initialize()
    def start(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "queue"
        self.path.touch()
        self.follower = QueueFollower(self.path)
        self.written = b""
        self.journal = []

    @rule(piece=st.one_of(
        st.sampled_from([A, B, C, "\n", "#c\n", "bad\n", "x" * LONGEST, "\u00e9", "a 1", " 1 0",
                         "\r\n"]).map(str.encode),
        st.binary(max_size=4).filter(lambda raw: b"end" not in raw)))
    def write(self, piece):
        append(self.path, piece)
        self.written += piece

    @rule()
    def read(self):
        self.journal += self.follower.read_new()

    @rule(cut=st.integers(0, 3))
    def manager_is_killed(self, cut):
        """What it read is journalled but for the last lines; a new one continues from there."""
        self.journal += self.follower.read_new()
        self.journal = self.journal[:max(0, len(self.journal) - cut)]
        position = self.journal[-1].position if self.journal else None
        self.follower = QueueFollower(self.path, position)

    @rule()
    def editor_saves(self):
        replace(self.path, "")
        self.path.write_bytes(self.written)

    def lines_that_are_there(self):
        wanted = []
        for number, raw in enumerate(self.written.split(b"\n")[:-1], 1):
            try:  # what is not UTF-8 is a bad line, even in a comment
                parse_line(raw.decode("utf-8").removeprefix("\ufeff"))
            except UnicodeDecodeError:
                pass
            except LineError as error:
                if "names no job" in str(error) and len(raw) < LONGEST:
                    continue
            wanted.append(number)
        return wanted

    @invariant()
    def nothing_is_repeated_or_missed(self):
        if hasattr(self, "follower"):
            there = self.lines_that_are_there()
            got = [line.number for line in self.journal]
            assert got == there[:len(got)]

    def teardown(self):
        if hasattr(self, "follower"):
            self.journal += self.follower.read_new()
            assert [line.number for line in self.journal] == self.lines_that_are_there()
            self.folder.cleanup()


TestGrowingFile = pytest.mark.slow(GrowingFile.TestCase)
TestGrowingFile.settings = settings(max_examples=60, stateful_step_count=15, deadline=None)


# ------------------------------------------------------------------------------------ replay

RECORDED = "a 1 1 0 4\nb 2 2 0 6\nbad\nc 3 3 0\nd 1 1 0\n"


def test_the_schedule_of_a_recorded_queue(queue):
    queue.write_text(RECORDED)
    lines = QueueFollower(queue).read_new()
    assert [at for at, _ in replay(lines)] == [0, 4, 10, 10, 10]
    assert [at for at, _ in replay(lines, speed=2)] == [0, 2, 5, 5, 5]
    assert [line for _, line in replay(lines)] == lines


@pytest.mark.parametrize("speed", [0, -1, float("nan")])
def test_a_replay_needs_a_speed(queue, speed):
    with pytest.raises(ValueError, match="above 0"):
        QueueReplay(QueueFollower(queue), speed)
    with pytest.raises(ValueError, match="above 0"):
        next(replay([], speed))


def test_replay_gives_each_line_when_it_is_due(queue):
    queue.write_text(RECORDED + "end\n")
    play = QueueReplay(QueueFollower(queue), speed=2)
    assert taken(play.due(1000.0)) == [(1, "a")]
    assert not play.ended
    assert play.due(1001.9) == []
    assert taken(play.due(1002.5)) == [(2, "b")]  # seen late, and the next one is not delayed
    assert play.due(1004.9) == []
    assert taken(play.due(1005.0)) == [(3, "!"), (4, "c"), (5, "d")]
    assert play.ended


def test_replay_of_a_file_that_grows_more_slowly_than_it_tells(queue):
    queue.write_text("a 1 1 0 4\n")
    play = QueueReplay(QueueFollower(queue))
    assert taken(play.due(0.0)) == [(1, "a")]
    append(queue, "b 1 1 0 10\nc 1 1 0\n")
    assert taken(play.due(20.0)) == [(2, "b")]
    assert play.due(29.9) == []
    assert taken(play.due(30.0)) == [(3, "c")]


def test_replay_continues_after_the_last_line_given(queue):
    queue.write_text(RECORDED)
    play = QueueReplay(QueueFollower(queue))
    play.due(0.0)
    again = QueueReplay(QueueFollower(queue, play.position))
    assert taken(again.due(100.0)) == [(2, "b")]
    assert again.due(105.9) == [] and again.due(106.0)


def test_a_queue_without_delays_is_just_followed(queue):
    queue.write_text(A + B)
    play = QueueReplay(QueueFollower(queue))
    assert taken(play.due(5.0)) == [(1, "a"), (2, "b")]
    append(queue, C)
    assert taken(play.due(5.0)) == [(3, "c")]


@given(st.lists(st.floats(0, 100)), st.floats(0.1, 100), st.lists(st.floats(0, 50), min_size=1))
def test_replay_gives_every_line_once_and_never_early(delays, speed, waits):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "queue"
        path.write_text("".join(f"a{i} 1 1 0 {delay!r}\n" for i, delay in enumerate(delays)))
        follower = QueueFollower(path)
        follower.finish()
        play, now, given_ = QueueReplay(follower, speed), 0.0, []
        wanted = {line.parsed.app: at
                      for at, line in replay(QueueFollower(path).read_new(), speed)}
        waits = [0.0, *waits]
        while not play.ended:
            now = now + (waits.pop(0) if waits else 1e6)
            for line in play.due(now):
                assert now >= wanted[line.parsed.app]
                given_.append(line.parsed.app)
        assert given_ == [f"a{i}" for i in range(len(delays))]


# ----------------------------------------------------------------------------------- writers


def test_without_a_marker_nobody_has_announced_to_write(queue):
    assert writer_of(queue, 0.0).state == "none"


def test_a_writer_is_seen_while_it_lives_and_when_it_has_ended(queue):
    with WriterMarker(queue) as marker:
        marker.beat()
        seen = writer_of(queue, 0.0)
        assert seen.state == "writing" and str(os.getpid()) in seen.reason
        with pytest.raises(RuntimeError, match="is being written already"):
            WriterMarker(queue).__enter__()
    assert writer_of(queue, 0.0).state == "ended"
    with WriterMarker(queue):  # an old marker is not a hindrance
        assert writer_of(queue, 0.0).state == "writing"
    assert [path.name for path in queue.parent.iterdir()] == ["queue.writer"]


def test_a_writer_that_was_killed_has_ended(queue):
    program = ("import sys\nfrom vrm.workload.writer_marker import WriterMarker\n"
               "with WriterMarker(sys.argv[1]):\n    print('writing', flush=True)\n"
               "    sys.stdin.read()\n")
    with subprocess.Popen([sys.executable, "-c", program, str(queue)], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"writing\n"
        assert writer_of(queue, 0.0).state == "writing"
        child.kill()
        child.wait(timeout=30)
    assert writer_of(queue, 0.0) == writer_of(queue, 1e12)
    assert writer_of(queue, 0.0).state == "ended"


def mark(queue, **changes):
    facts = {"host": socket.gethostname(), "pid": os.getpid(), "start": 1, "ended": False}
    marker_path(queue).write_text(json.dumps({**facts, **changes}))
    os.utime(marker_path(queue), (1000.0, 1000.0))


def test_a_pid_that_another_process_has_now_is_not_the_writer(queue):
    mark(queue)
    assert writer_of(queue, 1000.0).state == "ended"


def test_a_zombie_writes_no_more(queue):
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    start = int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19])
    mark(queue, pid=child.pid, start=start)
    assert writer_of(queue, 1000.0).state == "ended"
    child.wait(timeout=30)


def test_a_writer_on_another_host_is_known_by_its_heartbeat(queue):
    mark(queue, host="elsewhere")
    assert writer_of(queue, 1060.0).state == "writing"
    assert writer_of(queue, 1200.0).state == "ended"
    mark(queue, host="elsewhere", ended=True)
    assert writer_of(queue, 1000.0).state == "ended"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"host": 1}', "\udcff",
                                  '{"host": "h", "pid": "x", "start": 1, "ended": false}'])
def test_a_marker_that_is_not_understood_ends_nothing(queue, text):
    marker_path(queue).write_bytes(text.encode("utf-8", "surrogateescape"))
    found = writer_of(queue, 0.0)
    assert found.state == "none" and f"{queue}.writer" in found.reason


# ---------------------------------------------------------------------- what a line may cost


SLOW = {
    "after=": "h 1 5 0 after=" + ",".join(["0-99999"] * 1500),
    "after= of names": "h 1 5 0 after=" + ",".join(["x"] * 8000),
    "array=": "h 1 5 0 array=" + ",".join(["0-99999"] * 1500),
    "digits": "h 1 " + "1" * 16000 + "x 0",
    "digits in ranks": "h " + "1" * 16000 + " 1 0",
    "an unknown field": "h 1 5 0 " + "x" * 16000 + "=1",
    "quotes": "h 1 5 0 args=" + "\"'\"'" * 4000,
    "open quotes": "h 1 5 0 # " + "\"\\" * 8000,
    "variables": "h 1 5 0 " + " ".join(f"env=A{i}=1" for i in range(1500)),
    "arguments": "h 1 5 0 args='" + "a " * 8000 + "'",
}


@pytest.mark.parametrize("what", SLOW)
def test_no_line_takes_long_to_read(what):
    """The limit is 50 ms. A busy machine may take twenty times as long; without the limits inside
    the parser the first of these took 169 s."""
    begin = time.process_time()
    with contextlib.suppress(LineError):
        parse_line(SLOW[what][:16384])
    assert time.process_time() - begin < 1.0


def test_more_jobs_than_a_line_may_name_are_refused_with_their_number():
    with pytest.raises(LineError, match="more than 100000 jobs"):
        parse_line(SLOW["after="])
    with pytest.raises(LineError, match="at most 100000 jobs"):
        parse_line(SLOW["array="])
    assert len(parse_line("h 1 5 0 after=0-99999").fields["after"][0].ids) == 100_000


# ------------------------------------------------------------------- ids of lines that are wrong


@pytest.mark.parametrize("line, app, jobs", [
    ("nap 1 1x 0", "nap", 1), ("nap 1 1x 0 array=0-9:2", "nap", 5), ("nap", "nap", 1),
    ("../.. 1 1 0 array=0-2", "", 3), ("nap 1 1 0 array=2-0", "nap", 1), ("nap 'x", "", 1)])
def test_a_wrong_line_takes_as_many_ids_as_it_would(line, app, jobs):
    with pytest.raises(LineError) as caught:
        parse_line(line)
    assert (caught.value.app, caught.value.jobs) == (app, jobs)


def test_a_path_in_the_place_of_a_program_is_its_file():
    line = parse_line("../bin/nap 1 1 0 array=0-2")
    assert (line.app, line.fields["file"]) == ("nap", "../bin/nap")
    assert line.values_at("/home/user/study")["file"] == "/home/user/bin/nap"
    assert parse_line(str(line)) == line and parse_line("/bin/true 1").fields["file"] == "/bin/true"


def test_names_stand_for_the_jobs_that_have_them_so_far():
    after = parse_line("a 1 1 0 after=prep,any:0,'any:my run'").fields["after"]
    assert resolved(after, {"prep": [3, 4, 5, 9], "my run": [7]}) == (
        Dependency(range(3, 6)), Dependency.on(9), Dependency.on(0, ANY), Dependency.on(7, ANY))
    with pytest.raises(ValueError, match="it waits for job `prep`, but no earlier job has this name"):
        resolved(after, {"my run": [7]})


# ------------------------------------------------------------------------------------- times


@pytest.mark.parametrize("text, seconds", [
    ("90", 90.0), ("1.5", 1.5), ("1e2", 100.0), ("90m", 5400.0), ("2h", 7200.0), ("1d", 86400.0),
    ("45s", 45.0), ("1h30m", 5400.0), ("1.5h", 5400.0), ("1:30:00", 5400.0), ("00:10:00", 600.0),
    ("1-12:00:00", 129600.0), ("100:00:00", 360000.0)])
def test_times_as_people_write_them(text, seconds):
    assert seconds_of(text) == seconds
    line = parse_line(f"a 2 {text} 1 2 name=x")
    assert line.seconds == seconds and line.exclusive and line.delay == 2
    assert parse_line(str(line)) == line


@pytest.mark.parametrize("text", ["", "1:30", "1m2h", "m", "1:60:00", "-1", "nan", "1e999", "1 h",
                                  "1-2", "inf", "1h1h"])
def test_what_is_no_time(text):
    with pytest.raises(ValueError):
        seconds_of(text)


@pytest.mark.parametrize("text, wanted", [
    ("a 8", QueueLine("a", 8, 3600.0)), ("a 8 cores=2", QueueLine("a", 8, 3600.0, fields={"cores": 2})),
    ("a 8 2h", QueueLine("a", 8, 7200.0)), ("a 8 60 name=x", QueueLine("a", 8, 60.0, fields={"name": "x"})),
])
def test_estimate_and_exclusive_may_be_left_out(text, wanted):
    line = parse_line(text)
    assert line == wanted and line.assumed == (len(text.split("=")[0].split()) < 3 or "cores" in text)
