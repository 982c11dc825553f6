"""Record the answers in tests/data/answers again: `python tests/make_answers.py`; `git diff` shows what has changed."""

from __future__ import annotations

import tempfile
from pathlib import Path

from support.answers import record

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        record(Path(folder).resolve() / "site")
