"""Tables that are shown repeatedly."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from typing import Any, NoReturn, TextIO
from collections.abc import Callable, Iterator

from vrm.system.printing.local_times import local_time_text
from vrm.system.printing.text import marked, printable

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"  # alternate screen, no cursor, no wrapping of long lines
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"


def watch(render: Callable[[], str], interval: float, stop: threading.Event | None = None,
          out: TextIO | None = None) -> None:
    """Show the text of `render` repeatedly, every `interval` seconds.

    On a terminal the text is redrawn in place, on the alternate screen, cut to its size; afterwards the previous
    content is back. Elsewhere the texts follow one another, separated by a line. If `render` raises OSError or
    ValueError (the file is missing, or is not a snapshot), the reason is shown above the last text, and the loop
    continues.

    Returns when `stop` is set (checked after each text) or at Ctrl-C. SIGTERM also restores the terminal, and then
    raises SystemExit. Errors of writing are raised (BrokenPipeError if the reader is gone).
    """
    out = sys.stdout if out is None else out
    stop = threading.Event() if stop is None else stop
    screen = out.isatty()
    last = ""
    with _unwound_by_sigterm():
        try:
            if screen:
                out.write(_ENTER)
            first = True
            while True:
                try:
                    text = last = render()
                except (OSError, ValueError) as error:
                    text = f"{local_time_text(time.time())} {printable(str(error))}\n{last}"
                if screen:
                    out.write(marked(_frame(text, _size(out)), out))
                else:
                    out.write(("" if first else "-" * 40 + "\n") + text.rstrip("\n") + "\n")
                out.flush()
                first = False
                if _wait(stop, interval):
                    return
        except KeyboardInterrupt:
            return
        finally:
            if screen:
                out.write(_LEAVE)
                out.flush()


def _wait(stop: threading.Event, seconds: float) -> bool:
    """Wait for the event at most `seconds`; return whether it is set.

    Waits in short periods: Python handles a signal that arrives just before a wait begins only after that wait.
    """
    end = time.monotonic() + seconds
    while True:
        left = end - time.monotonic()
        if stop.wait(max(0.0, min(left, 0.5))):
            return True
        if left <= 0.5:
            return False


def _frame(text: str, size: os.terminal_size) -> str:
    """Return the text that redraws the screen of a terminal of that size."""
    lines = text.rstrip("\n").split("\n")
    if len(lines) > size.lines > 1:
        hidden = len(lines) - size.lines + 1
        lines[size.lines - 1:] = [f"... {hidden} more lines: a higher terminal shows them"]
    # Erase before writing: after a line of full width, the cursor is still on its last column.
    text = "\n".join(f"\x1b[K{line[:size.columns]}" for line in lines)
    return f"\x1b[H{text}" + ("\n\x1b[J" if len(lines) < size.lines else "")


def _size(out: TextIO) -> os.terminal_size:
    try:
        return os.get_terminal_size(out.fileno())
    except (OSError, io.UnsupportedOperation):
        return os.terminal_size((80, 24))


@contextmanager
def _unwound_by_sigterm() -> Iterator[None]:
    """In the block, SIGTERM unwinds the main thread, so that `finally` blocks are run."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def unwind(number: int, frame: Any) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
