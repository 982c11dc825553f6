"""The terminal of `vrm top`: reads the run's files, handles keys, and shows what
`vrm/ext/top/top.py` draws."""

from __future__ import annotations

import contextlib
import curses
import os
import queue
import signal
import threading
import time
from dataclasses import dataclass, replace
from typing import Any
from collections.abc import Iterator

from vrm.commands.shared import nothing_yet
from vrm.ext.top import cells, top, top_nodes, top_view
from vrm.report.overviews import overviews
from vrm.results import forecast
from vrm.results.state import Snapshot, current, now as clock_of, parsed
from vrm.run import command_files
from vrm.run.rundir import RunDirectory
from vrm.system.errors import RunError

LOOK = 0.25
"""Seconds between two looks at the files; a change is drawn at once."""
SILENT = 7.0
"""Age of a state file in seconds from which the reader checks whether its manager lives."""
REPLY_SECONDS = 15.0
MESSAGE_SECONDS = 8.0
AROUND, REST = 2.0, 20.0
"""Minimum seconds between two queries to extensions; the pause is also at least REST times the seconds of the last
query."""
LAST_WORDS = 2.0
"""Maximum seconds to wait at the end for the answer to the last command."""


# ------------------------------------------------------------------------------------- the files


@dataclass(frozen=True)
class ScreenData:
    """The data that was read last; `alive` is None if not known. `around`: lines that extensions show."""

    snapshot: Snapshot | None = None
    ends: tuple[top_view.JobEnd, ...] = ()
    alive: bool | None = None
    trouble: str = ""
    around: tuple[str, ...] = ()


class Reader(threading.Thread):
    """Thread that reads a run's files and sends commands to its manager.

    It is a separate thread because a shared file system that hangs must not freeze the screen.
    """

    def __init__(self, run: RunDirectory) -> None:
        super().__init__(daemon=True, name="reader")
        self.seen = ScreenData()
        self.replies: queue.Queue[cells.Span] = queue.Queue()
        self._run = run
        self._commands: queue.Queue[top_view.Command | None] = queue.Queue()
        self._sent: dict[str, float] = {}
        self._versions: dict[str, Any] = {}
        self._forecasts: tuple[float, dict[int, forecast.Record]] = (0.0, {})
        self._asked = self._around_due = 0.0
        self._failure: BaseException | None = None

    def send(self, wanted: top_view.Command) -> None:
        """Send a command; its result is put into `replies`."""
        self._commands.put(wanted)

    def close(self) -> None:
        """End the thread within LAST_WORDS seconds, even if an answer is missing or the file system hangs. Raises the
        exception that ended the thread early, if any."""
        self._commands.put(None)
        self.join(LAST_WORDS)
        if self._failure is not None:
            raise self._failure

    def run(self) -> None:
        """Read files and send commands until `close` is called."""
        try:
            self._serve()
        except BaseException as error:  # raised when the screen is closed, so that the user can read it
            self._failure = error

    def _serve(self) -> None:
        open_ = True
        while open_ or self._sent:
            self.look()
            self._collect()
            with contextlib.suppress(queue.Empty):
                wanted = self._commands.get(timeout=0.05 if self._sent else LOOK)
                if wanted is None:
                    open_ = False
                else:
                    self._drop(wanted)

    def _drop(self, wanted: top_view.Command) -> None:
        phase = self.seen.snapshot["manager"]["phase"] if self.seen.snapshot else ""
        if phase == "ended" or self.seen.alive is False:
            self.replies.put(("no manager runs", "bad"))
            return
        try:
            self._sent[command_files.send(self._run, wanted)] = time.monotonic()
        except RunError as error:
            self.replies.put((str(error), "bad"))
        else:
            self.replies.put((f"asked: {wanted['do']} job {wanted['id']}", "plain"))

    def _collect(self) -> None:
        for name, since in list(self._sent.items()):
            try:
                reply = command_files.wait_reply(self._run, name, 0)
            except OSError:
                reply = None  # the next turn tries again
            if reply is not None:
                del self._sent[name]
                self.replies.put((reply["text"], "good" if reply["ok"] else "bad"))
            elif time.monotonic() - since > REPLY_SECONDS:
                del self._sent[name]
                back = command_files.withdraw(self._run, name)
                self.replies.put((f"no answer within {REPLY_SECONDS:g} s"
                                  + ("; the command was withdrawn" if back else ""), "bad"))

    def look(self) -> None:
        """Read what has changed."""
        self._look_around()
        try:
            found = self._look_at_forecast()
            state = self._changed("state", self._run.state)
            if state is not None or found:
                snapshot = (current(parsed(state)) if state is not None else self.seen.snapshot)
                snapshot = self._with_forecast(snapshot)
                top.render(snapshot, (), (80, 24), 0.0)  # raises an error if it cannot be drawn
                self.seen = replace(self.seen, snapshot=snapshot, alive=None, trouble="")
        except FileNotFoundError:
            self._trouble("" if self.seen.around else nothing_yet(self._run))
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._trouble(f"cannot read {self._run.state}: {error}")
        try:
            if self._changed("jobs", self._run.jobs, content=False) is not None:
                self.seen = replace(self.seen, ends=tuple(top_view.read_ends(self._run.jobs)))
        except OSError:
            self._versions.pop("jobs", None)  # there is none before the first job has ended
        self._ask()

    def _look_around(self) -> None:
        """Query the lines that extensions show; less often if that is slow."""
        begun = time.monotonic()
        if begun >= self._around_due:
            found = overviews(self._run.directory, self._run.log)
            around = tuple(line for each in found.values() for line in each.lines())
            done = time.monotonic()
            self._around_due = done + max(AROUND, REST * (done - begun))
            if around != self.seen.around:
                self.seen = replace(self.seen, around=around)

    def _look_at_forecast(self) -> bool:
        """Read the forecast if it has changed; return whether it has."""
        path = self._run.forecast
        try:
            data = self._changed("forecast", path)
            if data is None:
                return False
            made = forecast.parsed(data)
            self._forecasts = made["time"], {job["id"]: job for job in made["jobs"]}
        except (OSError, ValueError):
            if not self._forecasts[1]:
                return False
            self._versions.pop("forecast", None)
            self._forecasts = 0.0, {}
        return self.seen.snapshot is not None

    def _with_forecast(self, snapshot: Any) -> Any:
        """Return the state with the forecasts of its jobs."""
        made, jobs = self._forecasts
        if abs(snapshot["time"] - made) > forecast.OLD or snapshot["manager"]["phase"] == "ended":
            jobs = {}
        return {**snapshot, "jobs": [{**job, "forecast": jobs.get(job["id"])}
                                     for job in snapshot["jobs"]]}

    def _trouble(self, text: str) -> None:
        self._versions.pop("state", None)
        if text != self.seen.trouble:
            self.seen = replace(self.seen, trouble=text)

    def _changed(self, what: str, path: os.PathLike[str], content: bool = True
                 ) -> bytes | None:
        """Return the file's content if it has changed since the last look, otherwise None.

        The file is opened each time: this makes NFS query its server; a `stat` alone does not.
        """
        with open(path, "rb") as file:
            about = os.fstat(file.fileno())
            version = (about.st_ino, about.st_mtime_ns, about.st_size)
            if self._versions.get(what) == version:
                return None
            data = file.read() if content else b""
            self._versions[what] = version
            return data

    def _ask(self) -> None:
        """Check every few seconds whether the manager still holds its lock, while its state file is old."""
        snapshot = self.seen.snapshot
        if snapshot is None or clock_of(snapshot) - snapshot["time"] < SILENT:
            return
        if snapshot["manager"]["phase"] != "ended" and time.monotonic() - self._asked > SILENT:
            self._asked = time.monotonic()
            try:
                alive = self._run.manager_runs()
            except OSError:
                return  # no permission, or no locks here: the state's age must do
            self.seen = replace(self.seen, alive=alive)


# ------------------------------------------------------------------------------------ the screen


class Screen:
    """The full screen: draws and handles keys."""

    def __init__(self, reader: Reader, utf8: bool) -> None:
        self.reader = reader
        self.glyphs = cells.UNICODE if utf8 else cells.ASCII
        self.view = top_view.View()
        self.status: cells.Span = ("", "plain")
        self._status_until = 0.0
        self._quit = False

    def run(self) -> None:
        """Show the run until the user quits, or until SIGTERM, SIGHUP (a lost terminal) or SIGINT."""
        os.environ.setdefault("ESCDELAY", "25")  # ms; a lone escape is a key, not a long wait
        before = {number: signal.signal(number, self._end)
                  for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
        window = curses.initscr()
        try:  # not curses.wrapper: it starts colours, white on black, even if none are wanted
            curses.noecho()
            curses.cbreak()
            window.keypad(True)
            self._loop(window)
        finally:
            curses.endwin()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _end(self, number: int, frame: Any) -> None:
        self._quit = True

    def _loop(self, window: Any) -> None:
        self._attributes = self._styles()
        with contextlib.suppress(curses.error):  # a terminal that cannot hide its cursor
            curses.curs_set(0)
        if not hasattr(window, "get_wch"):
            self.glyphs = cells.ASCII  # this curses supports only bytes
        window.timeout(100)
        drawn: Any = None
        while not self._quit and self.reader.is_alive():
            self._take_replies()
            size = window.getmaxyx()
            picture = (self.reader.seen, self.view, self.status, size, int(time.time()))
            if picture != drawn:
                self._draw(window, size)
                drawn = picture
            for key in self._keys(window):
                self._press(key, size[0])

    def _take_replies(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self.status = self.reader.replies.get_nowait()
                self._status_until = time.monotonic() + MESSAGE_SECONDS
        if self.status[0] and time.monotonic() > self._status_until:
            self.status = ("", "plain")

    def _keys(self, window: Any) -> Iterator[str]:
        """Yield the next key, named as in `top_view.press`, if one arrives within the turn."""
        try:
            code = window.get_wch() if hasattr(window, "get_wch") else window.getch()
        except curses.error:
            return
        if isinstance(code, int) and 0 <= code < 256:
            code = chr(code)
        named = {curses.KEY_UP: "up", curses.KEY_DOWN: "down", curses.KEY_PPAGE: "pageup",
                 curses.KEY_NPAGE: "pagedown", curses.KEY_HOME: "home", curses.KEY_END: "end",
                 curses.KEY_ENTER: "enter", "\n": "enter", "\r": "enter", "\x1b": "escape",
                 curses.KEY_BACKSPACE: "backspace", "\x7f": "backspace", "\b": "backspace"}
        if code == "\x0c":  # Ctrl-L: another program wrote on the screen
            window.clear()
        elif code in named:
            yield named[code]
        elif isinstance(code, str):
            yield code

    def _press(self, key: str, height: int) -> None:
        if key == "q" and self.view.mode == "list":
            self._quit = True
            return
        snapshot = self.reader.seen.snapshot
        jobs: list[top_view.Job] = []
        if snapshot is not None:
            running, waiting = top_view.jobs_in_view(snapshot, self.view, clock_of(snapshot))
            jobs = [*running, *waiting]
        self.status = ("", "plain")
        if key in ("c", "h", "r") and self.view.mode == "list" and (
                top_view.chosen(jobs, self.view) is None):
            self.status = ("select a job first, with the arrow keys", "warn")
            self._status_until = time.monotonic() + MESSAGE_SECONDS
        self.view, wanted = top_view.press(self.view, key, jobs, max(1, height // 3))
        if wanted is not None:
            self.reader.send(wanted)

    def _draw(self, window: Any, size: tuple[int, int]) -> None:
        seen = self.reader.seen
        status = self.status if self.status[0] or not seen.trouble else (seen.trouble, "bad")
        window.erase()
        for row, line in enumerate(top.render(
                seen.snapshot, seen.ends, (size[1], size[0]), clock_of(seen.snapshot or {}), self.view, status,
                seen.alive, self.glyphs, around=seen.around)):
            column = 0
            for text, style in line:
                window.addstr(row, column, text, self._attribute(style))
                column += cells.columns(text)
        window.refresh()

    def _attribute(self, style: str) -> int:
        reverse = style.startswith("reverse ")
        attribute = self._attributes.get(style[len("reverse "):] if reverse else style, 0)
        return attribute | curses.A_REVERSE if reverse else attribute

    def _styles(self) -> dict[str, int]:
        """Return the attributes of the styles, with colours if the terminal has them and NO_COLOR is not set."""
        plain = {"title": curses.A_REVERSE | curses.A_BOLD, "heading": curses.A_BOLD
                 | curses.A_UNDERLINE, "bold": curses.A_BOLD, "dim": curses.A_DIM,
                 "bad": curses.A_BOLD, "warn": curses.A_BOLD, "ask": curses.A_REVERSE}
        if os.environ.get("NO_COLOR") or not curses.has_colors():
            return plain
        curses.start_color()
        curses.use_default_colors()
        if curses.COLORS >= 256:  # also distinct for colour-blind users, on dark and on light backgrounds
            jobs = (38, 208, 35, 170, 178, 69)
        else:
            jobs = (curses.COLOR_CYAN, curses.COLOR_YELLOW, curses.COLOR_GREEN,
                    curses.COLOR_MAGENTA, curses.COLOR_BLUE, curses.COLOR_WHITE)
        colours = {"good": curses.COLOR_GREEN, "warn": curses.COLOR_YELLOW,
                   "bad": curses.COLOR_RED, **{f"job{i}": jobs[i] for i in range(top_nodes.COLOURS)}}
        for pair, (style, colour) in enumerate(colours.items(), 1):
            curses.init_pair(pair, colour, -1)
            plain[style] = plain.get(style, 0) | curses.color_pair(pair)
        return plain
