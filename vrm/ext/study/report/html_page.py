"""The report as one HTML file: works without a network and on a phone, in light and dark mode.

Text from files (names of programs, scenarios, queues) is escaped by the template engine; only the pictures are
inserted as they are, because matplotlib escapes their text.
"""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any
from collections.abc import Callable, Iterable, Iterator

from vrm import __version__
from vrm.ext.study.report.table_formats import Table
from vrm.ext.study.report.plotting import INSTALL, PictureError
from vrm.ext.study.report.pictures import Picture
from vrm.ext.study.report.study import MAIN, Study
from vrm.ext.study.report.study_findings import findings
from vrm.ext.study.report.study_pictures import average, distributions
from vrm.ext.study.report.study_tables import tables
from vrm.ext.study.report.study_timelines import Window, timelines
from vrm.ext.study.confidence import CONFIDENCE, ConfidenceInterval

OPEN = 2  # number of timelines that are unfolded at first


def page(study: Study, window: Window | None = None,
         progress: Callable[[str], None] = lambda text: None) -> str:
    """Return the whole page; the timelines show only `window` (s after the first submission) if given.

    `progress` is called with the name of each step. Raises PictureError if matplotlib or Jinja2 is missing.
    """
    try:
        from jinja2 import Environment, FileSystemLoader
    except ImportError as error:
        raise PictureError(f"Jinja2 is needed for HTML ({error}); {INSTALL}, or ask for text, csv, "
                           "markdown or latex") from error
    folder = Path(__file__).parent
    template = Environment(loader=FileSystemLoader(folder), autoescape=True, trim_blocks=True,
                           lstrip_blocks=True).get_template("page.html")
    progress("tables")
    all_tables = tables(study)
    shown = {name: [_table(table) for table in all_tables if _place(study, table) == name]
             for name in ("main", "queues", "applications", "origin")}
    opened = _opened(study)
    return template.render(
        title=f"{study.name}: {len(study.scenarios)} scenario"
              f"{'s' * (len(study.scenarios) != 1)}",
        repeated=f"{CONFIDENCE:.0%}" if _repeated(study) else "",
        findings=[re.sub(r"(?<=\d) (?=s\b|%)", "\u00a0", said) for said in findings(study)],
        version=__version__, plans=_plans(study),
        averages=[_picture(average(study, name, queue)) for queue in study.averaged_queues
                  for name in MAIN if len(study.scenarios) > 1],
        distributions=[_picture(picture) for picture in _told(
            distributions(study), "distributions", progress)],
        timelines=[{**_picture(picture, titled=False), "summary": picture.title,
                    "open": number in opened}
                   for number, picture in enumerate(_told(
                       timelines(study, window), "timelines", progress))],
        **shown)


def _opened(study: Study) -> list[int]:
    """Return the timelines that are unfolded at first: those of the last group in each series, to be compared."""
    group = study.groups[-1]
    found = [number for number, one in enumerate(study.scenarios) if one.group == group]
    return found[:OPEN] if len(study.scenarios) > OPEN else list(range(OPEN))


def _told(pictures: Iterable[Picture], what: str,
          progress: Callable[[str], None]) -> Iterator[Picture]:
    """Yield the pictures; call `progress` for each."""
    progress(what)
    for number, picture in enumerate(pictures, 1):
        progress(f"{what}: {number}")
        yield picture


def _repeated(study: Study) -> bool:
    """Return whether any bar has a confidence interval."""
    means = (study.mean(one.name, name, queue) for queue in study.averaged_queues
             for one in study.scenarios for name in MAIN)
    return any(mean is not None and mean.half for mean in means)


def _place(study: Study, table: Table) -> str:
    if table.name.startswith("averages-") and study.averaged_queues == [None]:
        return "queues"
    return {"applications": "applications", "runs": "origin", "origins": "origin"}.get(
        table.name, "main")


def _table(table: Table) -> dict[str, Any]:
    numbers = [table.is_number(index) for index in range(len(table.columns))]
    rows = []
    for row, words in zip(table.rows, table.words()):
        cells = []
        for value, word, number, column in zip(row, words, numbers, table.columns):
            sure = column.signed and isinstance(value, ConfidenceInterval) and value.excludes_zero
            cells.append((word, " ".join(["number"] * number + ["sure"] * sure)))
        rows.append(cells)
    bold = any("sure" in kind for row in rows for _, kind in row)
    return {"name": table.name, "title": table.title, "rows": rows,
            "heads": [(head.replace(" [", "\u00a0["), number)
                      for head, number in zip(table.heads, numbers)],
            "note": table.note + (" (bold)" if bold else "")}


def _picture(picture: Picture, titled: bool = True) -> dict[str, Any]:
    from markupsafe import Markup
    return {"title": picture.title if titled else "", "wide": picture.inches > 6,
            "label": picture.text if not titled else f"{picture.title}: {picture.text}",
            "svg": "" if picture.heavy else Markup(picture.svg()),  # noqa: S704  (matplotlib escapes names)
            "png": base64.b64encode(picture.png()).decode() if picture.heavy else ""}


def _plans(study: Study) -> list[tuple[str, str]]:
    """Return titles and texts of the plans of the experiments that the runs belong to."""
    found = []
    for folder in dict.fromkeys(run.directory.parent for run in study.runs if run.record):
        path = folder / "experiment.yaml"
        if path.exists():
            found.append((f"The plan, {folder.resolve().name}/experiment.yaml",
                          path.read_text(encoding="utf-8", errors="replace")))
    return found
