"""The command `vrm top`."""

from __future__ import annotations

import argparse
import locale
import os
import shutil
import sys
import time
from typing import Any

from vrm.commands.parsing import command
from vrm.commands.shared import CannotRun, run_of


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command to the argument parser."""
    command(commands, "top", watch, "watch a run on the full screen", [shared], "vrm top",
            "Shows nodes, jobs and the queue; cancels, holds and releases jobs (q quits, ? lists "
            "the keys). If the output is not a terminal, it is printed once as text.")


def watch(arguments: argparse.Namespace) -> int:
    """Show the run until the user quits; return 0."""
    try:
        from vrm.ext.top.commands.screen import Reader, Screen
    except ImportError as error:
        raise CannotRun(f"this Python has no curses ({error}); use `vrm -i queue --watch`, or a "
                        "Python built with ncurses") from error

    reader = Reader(run_of(arguments))
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return print_pictures(reader, once=True)
    if not addressable():
        return print_pictures(reader, once=False)
    reader.start()
    try:
        Screen(reader, speaks_utf8()).run()
    finally:
        reader.close()
    return 0


def speaks_utf8() -> bool:
    """Return whether the user's locale uses UTF-8.

    Python changes a C locale to a UTF-8 one for itself (PEP 538); that says nothing about the terminal.
    """
    try:
        locale.setlocale(locale.LC_ALL, "")
    except locale.Error:
        return False
    coerced = (not os.environ.get("LC_ALL") and os.environ.get("LC_CTYPE") == "C.UTF-8"
               and os.environ.get("LANG", "") in ("", "C", "POSIX"))
    return locale.nl_langinfo(locale.CODESET).upper() in ("UTF-8", "UTF8") and not coerced


def addressable() -> bool:
    """Return whether the terminal can put text at any position; with TERM=dumb it cannot."""
    import curses

    try:
        curses.setupterm()
        return bool(curses.tigetstr("cup"))
    except curses.error:
        return False


def print_pictures(reader: Any, once: bool) -> int:
    """Print the picture as text: once, or every two seconds until the manager has ended."""
    from vrm.ext.top import cells, top
    from vrm.results.state import now

    glyphs = cells.UNICODE if speaks_utf8() else cells.ASCII
    while True:
        reader.look()
        seen = reader.seen
        if seen.snapshot is None and seen.trouble:
            raise CannotRun(seen.trouble)
        size = (shutil.get_terminal_size((80, 24)).columns, 1000)
        print(cells.plain_text(top.render(seen.snapshot, seen.ends, size, now(seen.snapshot or {}),
                                        alive=seen.alive, glyphs=glyphs, interactive=False, around=seen.around)),
              flush=True)
        if once or (seen.snapshot is not None and seen.snapshot["manager"]["phase"] == "ended"):
            return 0
        try:
            time.sleep(2.0)
        except KeyboardInterrupt:
            return 0
        print("-" * 40)
