"""The forecast of a run as one HTML file: it needs no network, and is readable on a phone, in light and dark
mode.

A Gantt chart of the nodes shows running jobs, forecast jobs, reservations and the end of the allocation; a list
shows each job with its range and why it waits. All text from files is escaped.
"""

from __future__ import annotations

import html
import math
import time
from typing import Any, NamedTuple
from collections.abc import Iterable, Mapping, Sequence

from vrm.ext.forecast.report.forecast_table import UNKNOWN, called, chosen, head
from vrm.report.moments import all_near, span, when
from vrm.report.tables import geometry, shown
from vrm.results.forecast import Record, moment
from vrm.model.forms.hosts import expand

ROWS = 64
"""Greatest number of rows of the chart. Neighbouring nodes with the same jobs share a row; further rows are
left out."""

MOST = 500
"""Greatest number of jobs in the list."""

HUES = 8
"""Number of colours that distinguish jobs."""

TICKS = 6
"""Greatest number of times on the axis."""

STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)
"""Possible distances of these times, in seconds."""


class Bar(NamedTuple):
    """A bar on a node from `begin` to `end` (seconds); `kind` is run, wait or kept (reserved)."""

    begin: float
    end: float
    kind: str
    label: str
    hue: int
    title: str


def page(made: Record, state: Mapping[str, Any] | None, now: float, name: str,
         renew: int | None = None) -> str:
    """Return the HTML page of a forecast, and of the state that belongs to it, if there is one. With `renew`
    the page reloads itself after that many seconds."""
    end = moment(made, "allocation_end")
    if state is not None and state["allocation"]["end"] is not None:
        end = state["allocation"]["end"]
    jobs = chosen(made)
    kept = (state or {}).get("reservations", ())
    until = _until([*(at for job in jobs for at in (moment(job, "end"), moment(job, "p90"))),
                    *(each["end"] for each in kept)], now, end)
    scale = _Scale(now, until)
    down = [node["name"] for node in state["nodes"] if not node.get("up", True)] if state else []
    facts = head(made, now)
    running = sum(1 for job in jobs if job["running"])
    counts = f"{running} running, {len(jobs) - running} waiting"
    if state is not None:
        counts += f", {sum(state['ended'].values())} ended; {geometry(state['nodes'])}"
    if math.isfinite(end):
        facts.append(f"the allocation ends {when(end, now)}")
    reload = f'<meta http-equiv="refresh" content="{renew}">' if renew else ""
    gantt = _gantt(made, state, scale, end, down)
    return "".join([
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">", reload,
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
        "<meta name=\"color-scheme\" content=\"light dark\">",
        f"<title>{_text(name)}: forecast</title><style>{STYLE}</style></head><body><main>",
        f"<h1>{_text(name)}</h1><p class=\"counts\">{_text(counts)}</p>",
        f"<p class=\"facts\">{_text('; '.join(facts))}.</p>", gantt,
        _list(jobs, now, scale, end), f"<p class=\"facts\">{_text(UNKNOWN[0].upper() + UNKNOWN[1:])}."
        "</p></main></body></html>\n"])


class _Scale:
    """Converts times to positions in the chart, in percent."""

    def __init__(self, now: float, until: float) -> None:
        self.now, self.until = now, until

    def __call__(self, at: float) -> float:
        return round(min(100.0, max(0.0, 100 * (at - self.now) / (self.until - self.now))), 3)

    def box(self, begin: float, end: float) -> str:
        """Return the CSS style of a box from one time to another."""
        left, right = self(begin), self(end)
        return f"left:{left}%;width:{max(0.4, right - left):.3f}%"

    def axis(self) -> str:
        """Return the axis: round times of this machine's clock."""
        least = (self.until - self.now) / TICKS
        step = next((each for each in STEPS if each >= least), math.ceil(least))
        zone = time.localtime(self.now).tm_gmtoff
        first = math.ceil((self.now + zone) / step) * step - zone
        return "<div class=\"axis\">" + "".join(
            f"<span style=\"left:{self(at)}%\">{when(at, self.now, step < 60)}</span>"
            for at in range(first, math.ceil(self.until), step) if self(at) < 93) + "</div>"  # so that the text fits

    def edge(self, end: float) -> str:
        """Return the mark of the allocation's end."""
        return f"<i class=\"edge\" style=\"left:{self(end)}%\"></i>" if end <= self.until else ""


def _until(times: Iterable[float], now: float, end: float) -> float:
    """Return the end of the chart's time axis: the last of these times, or the allocation's end if that is not
    much later; never far after it."""
    last = max([now + 60.0, *(at for at in times if math.isfinite(at))])
    if end - now < 2 * (last - now):
        last = max(now + 60.0, end)
    return last + 0.04 * (last - now)


def _bars(made: Record, state: Mapping[str, Any] | None, now: float) -> dict[str, list[Bar]]:
    """Return the bars of each node."""
    found: dict[str, list[Bar]] = {}
    if state is not None:
        found = {node["name"]: [] for node in state["nodes"]}
    for job in made["jobs"]:
        start, end = moment(job, "start"), moment(job, "end")
        if not math.isfinite(start) or not job["nodes"]:
            continue
        running = job["running"]
        low = now if running else max(now, start)
        words = f"#{job['id']} {called(job)}, {job['procs']} ranks: " + (
            f"runs until {when(end, now)}" if running else
            f"starts {when(low, now)} ({span(job, now) or 'no range'}), ends {when(end, now)}")
        bar = Bar(low, max(end, low), "run" if running else "wait", f"#{job['id']} {called(job)}",
                  job["id"] % HUES, words)
        for node in _names(job["nodes"]):
            found.setdefault(node, []).append(bar)
    for each in (state or {}).get("reservations", ()):
        words = (f"reservation {shown(each['name'])}: {when(each['begin'], now)} to "
                 f"{when(each['end'], now)}")
        for node in each["nodes"]:
            if node in found:
                found[node].append(Bar(max(now, each["begin"]), each["end"], "kept",
                                       shown(each["name"]), 0, words))
    return found


def _names(nodes: str) -> list[str]:
    try:
        return expand(nodes)
    except ValueError:  # names that are not ranges
        return nodes.split(",")


def _gantt(made: Record, state: Mapping[str, Any] | None, scale: _Scale, end: float,
           down: Iterable[str]) -> str:
    """Return the chart of the nodes over time."""
    bars = _bars(made, state, scale.now)
    groups: list[tuple[str, str, list[Bar]]] = []
    gone = set(down)
    for node, here in bars.items():
        before = groups[-1] if groups else None
        if before is not None and before[2] == here and (before[0] in gone) == (node in gone):
            groups[-1] = before[0], node, here
        else:
            groups.append((node, "", here))
    if not groups:
        return ""
    rows = []
    for first, last, here in groups[:ROWS]:
        name = f"{first} – {last}" if last else first
        lanes = _lanes(here)
        drawn = "".join(
            f"<b class=\"{bar.kind} h{bar.hue}\" title=\"{_text(bar.title)}\" style=\""
            f"{scale.box(bar.begin, bar.end)};top:{100 * lane / len(lanes):.2f}%;"
            f"height:{100 / len(lanes):.2f}%\"><span>{_text(bar.label)}</span></b>"
            for lane, part in enumerate(lanes) for bar in part if bar.begin < scale.until)
        words = " down" if first in gone else ""
        rows.append(f"<div class=\"row{words}\"><span class=\"node\">{_text(shown(name))}{words}</span>"
                    f"<div class=\"time\" style=\"height:{max(1, len(lanes)) * 1.55:.2f}em\">{drawn}"
                    f"{scale.edge(end)}</div></div>")
    more = f"<p class=\"facts\">{len(groups) - ROWS} more rows of nodes are not shown.</p>" * (
        len(groups) > ROWS)
    return ("<h2>Nodes</h2><div class=\"gantt\"><div class=\"row\"><span class=\"node\"></span>"
            f"<div class=\"time\">{scale.axis()}</div></div>{''.join(rows)}</div>{more}"
            "<p class=\"key\"><b class=\"run h1\"></b> runs <b class=\"wait h1\"></b> is forecast "
            "<b class=\"kept\"></b> reservation <i class=\"edge\"></i> end of the allocation</p>")


def _lanes(bars: Iterable[Bar]) -> list[list[Bar]]:
    """Distribute the bars of a node to as few lanes as possible so that no two overlap; a reservation lies
    behind other bars."""
    lanes: list[list[Bar]] = [[]]
    for bar in sorted(bars, key=lambda each: (each.kind == "kept", each.begin, each.end)):
        for lane in lanes:
            if bar.kind == "kept" or all(bar.begin >= each.end or each.kind == "kept" for each in lane):
                lane.append(bar)
                break
        else:
            lanes.append([bar])
    return lanes


def _list(jobs: Sequence[Record], now: float, scale: _Scale, end: float) -> str:
    """Return the table of the jobs."""
    if not jobs:
        return "<p>No job runs or waits.</p>"
    rows, near = [], all_near(jobs, now)
    for job in jobs[:MOST]:
        running, start = job["running"], moment(job, "start")
        never = not math.isfinite(start)
        begins = "runs" if running else when(max(now, start), now)
        latest = moment(job, "latest")
        cells = [("id", f"#{job['id']} {called(job)}"), ("ranks", str(job["procs"])),
                 ("state" if running else "start", begins), ("range", "" if running else span(job, now, near)),
                 ("end", "" if never else when(max(now, moment(job, "end")), now, near)),
                 ("latest", "" if running or never else when(max(latest, now), now, near)),
                 ("chance", "" if running or job["chance"] >= 0.995 else f"{job['chance']:.0%}"),
                 ("nodes", shown(job["nodes"])), ("why", shown(job["reason"]))]
        drawn = "".join(f"<td class=\"{key}\" data-name=\"{key}\">{_text(value)}</td>" if value else
                        f"<td class=\"{key} none\"></td>" for key, value in cells)
        rows.append(f"<tr>{drawn}<td class=\"bar\">{_range(job, now, scale, end)}</td></tr>")
    names = ("Job", "Ranks", "Start", "Range", "End", "Latest", "Chance", "Nodes", "Why it waits")
    more = f"<p class=\"facts\">{len(jobs) - MOST} more jobs are not shown.</p>" * (len(jobs) > MOST)
    return ("<h2>Jobs</h2><table><thead><tr>" + "".join(f"<th>{name}</th>" for name in names)
            + f"<th class=\"bar\">{scale.axis()}</th></tr></thead><tbody>{''.join(rows)}</tbody></table>"
            + more + "<p class=\"facts\">Four starts of five are in Range: the light part of a bar before "
            "it begins. Latest is the start if all jobs take as long as their users allow.</p>")


def _range(job: Record, now: float, scale: _Scale, end: float) -> str:
    """Return the bar of a job: the range of its start, its run, the range of its end."""
    start = moment(job, "start")
    if not math.isfinite(start):
        return f"<div class=\"time\">{scale.edge(end)}</div>"
    hue, running = job["id"] % HUES, job["running"]
    low = now if running else max(now, min(start, moment(job, "p10")))
    last = max(moment(job, "end"), min(moment(job, "end_p90"), scale.until))
    light = f"<b class=\"maybe h{hue}\" style=\"{scale.box(low, last)}\"></b>"
    solid = (f"<b class=\"{'run' if running else 'wait'} h{hue}\" style=\""
             f"{scale.box(now if running else max(now, start), moment(job, 'end'))}\"></b>")
    return f"<div class=\"time\">{light}{solid}{scale.edge(end)}</div>"


def _text(words: str) -> str:
    return html.escape(shown(words), quote=True)


def name_of(directory: Any) -> str:
    """Return the name of a run: the last parts of its directory."""
    return "/".join(directory.parts[-2:]) if len(directory.parts) > 2 else str(directory)


STYLE = """
:root{--bg:#fff;--fg:#1b1f24;--dim:#5c6670;--line:#d8dee4;--lane:#f3f5f7;--edge:#c22}
@media(prefers-color-scheme:dark){:root{--bg:#14181d;--fg:#e3e8ee;--dim:#98a4b0;--line:#323a43;
--lane:#1d232a;--edge:#ff7066}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.45 system-ui,sans-serif}
main{max-width:1200px;margin:0 auto;padding:1rem}
h1{font-size:1.4rem;margin:.2em 0;overflow-wrap:anywhere}h2{font-size:1.05rem;margin:1.4em 0 .5em}
.counts{font-weight:600;margin:.2em 0}.facts,.key{color:var(--dim);margin:.4em 0;font-size:.9rem}
.row{display:flex;gap:.5rem;align-items:stretch;border-top:1px solid var(--line)}
.row:first-child{border:0}.node{flex:0 0 8.5em;font-size:.85rem;overflow:hidden;text-overflow:ellipsis;
white-space:nowrap;padding:.15em 0}.down .node{color:var(--edge)}
.time{position:relative;flex:1;min-height:1.55em;background:var(--lane);overflow:hidden}
.axis{position:relative;height:1.55em;font-size:.75rem;color:var(--dim);font-weight:400}
.row .time:has(.axis){background:none}
.axis span{position:absolute;padding-left:.3em;border-left:1px solid var(--line);white-space:nowrap}
.time b{position:absolute;top:0;height:100%;overflow:hidden;white-space:nowrap;font-weight:500;
font-size:.78rem;padding:.12em .3em;border-right:1px solid var(--bg);border-bottom:1px solid var(--bg)}
.run{background:var(--c);color:#fff}
.wait{background:color-mix(in srgb,var(--c) 28%,var(--bg));border-left:3px solid var(--c);
color:var(--fg)}
td .time b{padding:0;border:0;top:20%;height:60%}td .time .wait{background:var(--c)}
td .time .maybe{background:color-mix(in srgb,var(--c) 45%,transparent);top:36%;height:28%}
.kept{background:repeating-linear-gradient(45deg,var(--line) 0 6px,transparent 6px 12px);
color:var(--dim);border:1px dashed var(--dim)}
.edge{position:absolute;top:0;bottom:0;border-left:2px dashed var(--edge)}
.key b{display:inline-block;width:1.8em;height:.9em;vertical-align:-.1em;margin:0 .2em 0 .8em}
.key b:first-child{margin-left:0}
.key .edge{position:static;display:inline-block;height:1em;vertical-align:-.15em;margin:0 .3em 0 .9em}
table{border-collapse:collapse;width:100%;font-size:.88rem}
th{text-align:left;font-weight:600;color:var(--dim);padding:.2em .6em .2em 0;white-space:nowrap}
td{padding:.25em .6em .25em 0;border-top:1px solid var(--line);vertical-align:top}
td.id{font-weight:600}td.ranks{text-align:right}td.start,td.range,td.end,td.latest{white-space:nowrap}
td.id{white-space:nowrap;max-width:14em;overflow:hidden;text-overflow:ellipsis}
th.bar,td.bar{width:28%;padding-right:0}th.bar .axis span:nth-child(even){display:none}
.h0{--c:#2f6fb5}.h1{--c:#b5602a}.h2{--c:#2c8a5b}.h3{--c:#9a4a9c}.h4{--c:#8a7412}.h5{--c:#c0405a}
.h6{--c:#3c8a94}.h7{--c:#6a62c4}
@media(max-width:760px){main{padding:.7rem}.node{flex-basis:4.6em}
.axis span:nth-child(even){display:none}
thead{display:none}table,tbody,tr,td{display:block}
tr{border-top:1px solid var(--line);padding:.5em 0;display:flex;flex-wrap:wrap;gap:0 .9em}
td{border:0;padding:0}td.none{display:none}td.ranks{text-align:left}td.id{flex:1 0 100%}td.bar{width:100%;
margin-top:.3em}
td.why{flex:1 0 100%;color:var(--dim)}td.bar .time{min-height:1em}
td[data-name]:not(.id):not(.why):not(.state)::before{content:attr(data-name) " ";color:var(--dim)}}
@media print{.time b{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""
