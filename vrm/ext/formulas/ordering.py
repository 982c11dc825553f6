"""An ordering defined by an expression."""

from __future__ import annotations

from vrm.ext.formulas.expression import ExpressionError, compile_expression, compile_vector
from vrm.scheduling.orderings.ordering import NAMES, Ordering
from vrm.scheduling.registry import PolicyError


def written(text: str) -> Ordering:
    """Return the ordering for an expression over NAMES, highest value first. Raises PolicyError."""
    try:
        formula, used = compile_expression(text, NAMES)
    except ExpressionError as error:
        raise PolicyError(str(error)) from error
    return Ordering(text.strip(), lambda job, now, nodes: formula(
        (now - job.submit, job.expected, nodes, job.procs, job.submit, job.id)),
        "q" not in used, compile_vector(text, NAMES))
