"""Manual pages, made from the help texts of the commands."""

from __future__ import annotations

import argparse
import textwrap

from vrm.commands.guide import GROUPS, SHORT
from vrm.commands.parsing import Parser


def manual(parser: Parser) -> str:
    """Return a page for `man`, of one command or, for the whole program, of all commands."""
    from vrm import __version__

    name = parser.prog.replace(" ", "-")
    about = parser.description or SHORT.partition("\n")[0].partition(" ")[2]
    lines = [f'.TH "{name.upper()}" 1 "" "vrm {__version__}" "vrm"', ".SH NAME",
             f"{_safe(name)} \\- {_safe(about.split('. ')[0].splitlines()[0].rstrip('.'))}"]
    lines += [".SH SYNOPSIS", _safe(_usage(parser))]
    if parser.description:
        lines += [".SH DESCRIPTION", *_paragraphs(parser.description)]
    lines += _options(parser, ".SH OPTIONS")
    lines += _example(parser, ".SH EXAMPLES")
    below = parser.commands()
    if below:
        lines.append(".SH COMMANDS")
        order = [each for _, names in GROUPS for each in names] if parser.prog == "vrm" else list(below)
        for each in order:
            lines += _section(below[each]) if each in below else []
    return "\n".join(lines) + "\n"


def _section(parser: Parser) -> list[str]:
    lines = [f".SS {_safe(parser.prog)}", ".B " + _safe(_usage(parser)), ".PP"]
    lines += _paragraphs(parser.description or "")
    lines += _options(parser, ".PP")
    lines += _example(parser, ".PP")
    for inner in parser.commands().values():
        lines += _section(inner)
    return lines


def _usage(parser: Parser) -> str:
    return " ".join(parser.format_usage().split()[1:])


def _options(parser: Parser, head: str) -> list[str]:
    lines: list[str] = []
    formatter = parser._get_formatter()
    for action in parser._actions:
        if (action.help in (None, argparse.SUPPRESS) or isinstance(
                action, (argparse._HelpAction, argparse._SubParsersAction))):
            continue
        lines += [".TP", ".B " + _safe(formatter._format_action_invocation(action)),
                  _safe(formatter._expand_help(action))]
    return [head, *lines] if lines else []


def _example(parser: Parser, head: str) -> list[str]:
    shown = (parser.epilog or "").splitlines()[1:]
    return [head, ".nf", *map(_safe, map(str.strip, shown)), ".fi"] if shown else []


def _paragraphs(text: str) -> list[str]:
    return [line for part in text.split("\n\n")
            for line in (".PP", _safe(" ".join(textwrap.dedent(part).split())))]


def _safe(text: str) -> str:
    """Escape a text for roff: hyphens that can be copied, and no line that looks like a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text
