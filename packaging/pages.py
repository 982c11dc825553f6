"""A hook of MkDocs: takes the files outside of docs/ that its pages link to into the site.

In the site a file of docs/ is at its path in docs/, any other at its path in the checkout.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from collections.abc import Iterator

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"\[(?P<text>[^]]*)\]\((?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")
SHIM = "https://unpkg.com/iframe-worker/shim"
"""What the theme loads for the search in pages that are opened as files."""
WORKER = "assets/worker.js"
"""What does the same, in the site."""
PAGES = ("CONTRIBUTING.md", "CHANGELOG.md", "npb/README.md", "packaging/README.md")
"""Pages of the site's navigation that are not in docs/."""


def source(name: str) -> Path:
    """The file of the checkout that has this path in the site."""
    return DOCS / name if (DOCS / name).exists() else ROOT / name


def targets(page: Path) -> Iterator[Path]:
    """The files of the checkout that a page links to."""
    for found in LINK.finditer(page.read_text(encoding="utf-8")):
        target = (page.parent / found["target"]).resolve()
        if target.is_file():
            yield target


def on_files(files: Any, config: Any) -> Any:
    """Add what the pages link to, and what that links to."""
    known = {source(file.src_uri) for file in files}
    left = [ROOT / name for name in PAGES] + [path for path in known if path.suffix == ".md"]
    while left:
        path = left.pop()
        if path not in known:
            known.add(path)
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
        if path.suffix == ".md":
            left += [target for target in targets(path) if target not in known and ROOT in target.parents]
    files.append(File.generated(config, WORKER, abs_src_path=str(ROOT / "packaging" / "worker.js")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make links that lead out of docs/, or into it, those of the site. A link to a directory becomes plain text."""
    here = source(page.file.src_uri)

    def moved(found: re.Match[str]) -> str:
        target = (here.parent / found["target"]).resolve()
        if target.is_dir():
            return found["text"]
        if not target.is_file():
            return found[0]
        place = target.relative_to(DOCS if DOCS in target.parents else ROOT)
        name = os.path.relpath(place, Path(page.file.src_uri).parent)
        return f"[{found['text']}]({name}{found['anchor'] or ''})"

    return LINK.sub(moved, markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Use the script of the site where the theme has one of the network."""
    return output.replace(SHIM, os.path.relpath(WORKER, Path(page.file.dest_uri).parent))


def on_post_template(output_content: str, **_: Any) -> str:
    """Do that in pages that are not from Markdown, too."""
    return output_content.replace(SHIM, WORKER)
