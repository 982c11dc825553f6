"""`vrm docs`: shows the pages of the documentation, which are installed with vrm."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vrm.commands.parsing import command, meant

INDEX = "README"


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command to the parser of vrm."""
    parser = command(
        commands, "docs", show, "read the documentation, which comes with vrm", [],
        "vrm docs\nvrm docs install",
        "Without a page it prints the index. In a terminal a page opens in $PAGER; in a pipe it is printed. "
        "Pictures are not included. Exit status: 0, or 2 if there is no such page.")
    parser.add_argument("page", metavar="PAGE", nargs="?", default=INDEX,
                        help="a page's name, with or without its folder (default: the index)")


def show(arguments: argparse.Namespace) -> int:
    """Print the page, or open it in a pager; exit status 0."""
    import pydoc

    known = pages()
    word = arguments.page.removesuffix(".md")
    found = [word] if word in known else [name for name in known if name.rpartition("/")[2] == word]
    if not found:
        arguments.parser.error(f"there is no page `{arguments.page}`"
                               + (meant(word, [*known, *(name.rpartition("/")[2] for name in known)])
                                  or "; `vrm docs` prints the index"))
    if len(found) > 1:
        arguments.parser.error(f"several pages have the name `{arguments.page}`: {', '.join(found)}; give one of these")
    pydoc.pager(known[found[0]].read_text(encoding="utf-8"))
    return 0


def pages() -> dict[str, Path]:
    """Return the Markdown pages by name: the path below docs/ without its suffix."""
    package = Path(__file__).parents[3]
    inside = package / "docs"  # setup.py puts them there in a wheel
    folder = inside if inside.exists() else package.parent / "docs"
    return {str(path.relative_to(folder).with_suffix("")): path for path in sorted(folder.rglob("*.md"))}
