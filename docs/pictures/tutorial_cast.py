"""Record steps 2 to 5 of docs/guide/tutorial.md as an asciicast, and draw its last screen.

python docs/pictures/tutorial_cast.py [DIRECTORY]   writes tutorial.cast and tutorial-cast.svg (default: docs/pictures)

The commands are those of the page. They run in a shell in a pseudo terminal, in an empty home directory,
with the vrm of this Python. `asciinema play docs/pictures/tutorial.cast` shows the recording.
"""

from __future__ import annotations

import fcntl
import html
import json
import os
import pty
import re
import select
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path
from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "guide" / "tutorial.md"
HOME = "/home/user"
"""The home directory that the recording shows."""
COLUMNS, ROWS = 110, 30
PROMPT = "\x1b]133;A\x07"
"""What the shell prints when it waits for a line; terminals do not show it, and the recording leaves it out."""
LIMIT = 120.0
"""Seconds that a command may take."""
PAUSE = 2.0
"""Seconds: the recording shortens longer silences to this."""
KEY = 0.04
"""Seconds between two keys of the recording."""
WATCHED = 4.0
"""Seconds in which `vrm top` is shown."""


class RecordingError(Exception):
    """A command did not end."""


def lines() -> Iterator[str]:
    """The lines that the reader of steps 2 to 5 types."""
    steps = PAGE.read_text(encoding="utf-8").partition("\n## 2.")[2].partition("\n## 6.")[0]
    for block in re.findall(r"^```sh\n(.*?)^```$", steps, re.M | re.S):
        yield from block.splitlines()


class Recording:
    """A shell in a pseudo terminal, and what it has printed."""

    def __init__(self, home: str) -> None:
        self.home = home
        self.events: list[tuple[float, str]] = []
        self._clock = 0.0
        self._last = time.monotonic()
        self._held = ""
        (Path(home) / ".inputrc").write_text("set enable-bracketed-paste off\n", encoding="utf-8")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("VRM", "BASH", "PROMPT"))}
        env = {**kept, "HOME": home, "INPUTRC": f"{home}/.inputrc", "TERM": "xterm-256color", "HISTFILE": "",
               "LC_ALL": "C.UTF-8", "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
               "PS1": f"\\[{PROMPT}\\]$ ", "PS2": f"\\[{PROMPT}\\]> "}
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(home)
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], env)
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.wait_for(PROMPT)

    def wait_for(self, text: str, seconds: float = LIMIT) -> None:
        """Record until the text is printed."""
        found, end = "", time.monotonic() + seconds
        while text not in found:
            found += self._read(end, text)

    def watch(self, seconds: float) -> None:
        """Record for some seconds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if select.select([self.terminal], [], [], max(end - time.monotonic(), 0))[0]:
                self._read(end, "")

    def wait_for_file(self, path: Path, text: str) -> None:
        """Record until the file has the text."""
        end = time.monotonic() + LIMIT
        while not path.exists() or text not in path.read_text(encoding="utf-8"):
            if time.monotonic() > end:
                raise RecordingError(f"expected {text!r} in {path}")
            self.watch(0.1)

    def type(self, line: str) -> None:
        """Type a line, key by key, and its Enter."""
        for key in line:
            os.write(self.terminal, key.encode())
            self._read(time.monotonic() + LIMIT, "the echo")
            self._flush()
            self._clock += KEY
        os.write(self.terminal, b"\n")

    def press(self, key: str) -> None:
        """Press a key that is not shown."""
        os.write(self.terminal, key.encode())

    def close(self) -> None:
        """End the shell: its terminal is gone."""
        os.close(self.terminal)
        os.waitpid(self.pid, 0)

    def _read(self, end: float, missing_nodes: str) -> str:
        if not select.select([self.terminal], [], [], max(end - time.monotonic(), 0))[0]:
            raise RecordingError(f"expected {missing_nodes!r}, got {''.join(text for _, text in self.events)[-500:]!r}")
        data = os.read(self.terminal, 65536).decode("utf-8", "replace")
        now = time.monotonic()
        self._clock += min(now - self._last, PAUSE)
        self._last = now
        self._held += data
        if self._held.endswith(("\n", "\x07", "\x1b[0m")) or PROMPT in self._held:  # not in the middle of a path
            self._flush()
        return data

    def _flush(self) -> None:
        text = self._held.replace(self.home, HOME).replace(PROMPT, "")
        self._held = ""
        if text:
            self.events.append((round(self._clock, 3), text))


def record() -> list[tuple[float, str]]:
    """Run the commands; what was printed, and when."""
    with tempfile.TemporaryDirectory() as home:
        recording = Recording(home)
        try:
            for line in lines():
                recording.type(line)
                if line == "vrm top":
                    recording.wait_for("Running")
                    recording.watch(WATCHED)
                    recording.press("q")
                recording.wait_for(PROMPT)
                if line == "vrm run > run.log &":
                    recording.wait_for_file(Path(home) / "study" / "run.log", "completed")
        finally:
            recording.close()
        return recording.events


def last_screen(events: list[tuple[float, str]]) -> list[str]:
    """The last lines, without colours and without what filled the screen in between."""
    text = re.sub(r"\x1b\[\?1049h.*?\x1b\[\?1049l", "", "".join(text for _, text in events), flags=re.S)
    plain = re.sub(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[=>()][A-Z0-9]?)", "", text).replace("\r", "")
    return [line[start:start + COLUMNS] for line in plain.splitlines()
            for start in range(0, len(line) or 1, COLUMNS)][-ROWS:]


def svg(screen: list[str]) -> str:
    """The screen as a picture."""
    width, height = 8 * COLUMNS + 24, 18 * len(screen) + 24
    rows = "\n".join(f'<text x="12" y="{18 * row + 26}" xml:space="preserve">{html.escape(line)}</text>'
                     for row, line in enumerate(screen))
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return (f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n'
            f'<rect width="100%" height="100%" rx="6" fill="#1e1e1e"/>\n'
            f'<g font-family="monospace" font-size="13" fill="#e0e0e0">\n{rows}\n</g>\n</svg>\n')


def main() -> None:
    """Write both files."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    events = record()
    header = {"version": 2, "width": COLUMNS, "height": ROWS, "title": "vrm: 200 jobs on two nodes"}
    (out / "tutorial.cast").write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in (
        header, *([when, "o", text] for when, text in events))), encoding="utf-8")
    (out / "tutorial-cast.svg").write_text(svg(last_screen(events)), encoding="utf-8")


if __name__ == "__main__":
    main()
