"""The documentation as pages for a browser, and `vrm docs`."""

from __future__ import annotations
from support import warm

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from vrm.ext.help.commands.docs import pages

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages of the site."""
    pytest.importorskip("material", reason="no MkDocs Material here: `python3 tasks.py site` installs it")
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)], cwd=ROOT, text=True,
                          env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=False, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.mark.system
@pytest.mark.slow
def test_the_site_has_every_page_and_needs_no_network(site: Path) -> None:
    for name in pages():
        assert (site / f"{name.replace('README', 'index')}.html").exists(), name
    for name in ("CHANGELOG.html", "CONTRIBUTING.html", "npb/index.html", "packaging/index.html"):
        assert (site / name).exists(), name
    for page in site.rglob("*.html"):
        fetched = re.findall(r'<(?:script|img|link|iframe)\b[^>]*?(?:src|href)="(https?:[^"]*)"', page.read_text())
        assert not fetched, f"{page}: {fetched}"


def test_docs_prints_the_index_and_pages() -> None:
    def docs(*words: str) -> subprocess.CompletedProcess[str]:
        return warm.run(["docs", *words], stderr=subprocess.STDOUT)

    assert docs().stdout == (ROOT / "docs/README.md").read_text()
    page = (ROOT / "docs/guide/install.md").read_text()
    assert docs("install").stdout == docs("guide/install").stdout == docs("install.md").stdout == page
    wrong = docs("instal")
    assert wrong.returncode == 2 and "no page `instal`; did you mean install?" in wrong.stdout
    several = docs("simulation")
    assert several.returncode == 2 and "guide/simulation, reference/simulation; give one of these" in several.stdout
