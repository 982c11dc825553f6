"""Arithmetic of a user's utility function, read by a parser of its own grammar's whitelist.

The text is parsed to Python's syntax tree, every node is checked, and the result is a chain of
closures over numbers: nothing of the text is ever run as Python.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
from typing import Any, Callable, Dict, FrozenSet, Optional, Sequence, Tuple

Values = Sequence[float]
Formula = Callable[[Values], float]

LONGEST = 1000
_DEEPEST = 50


class ExpressionError(ValueError):
    """A text that is not an expression of this grammar; says what is wrong and where."""


def _divide(a: float, b: float) -> float:
    if b or a != a:
        return a / b if b else a
    return math.copysign(math.inf, a) if a else 0.0


def _power(a: float, b: float) -> float:
    try:
        result = a ** b
    except ZeroDivisionError:
        return math.inf
    except OverflowError:
        return math.inf if a > 0 or b % 2 == 0 else -math.inf
    return math.nan if isinstance(result, complex) else result


def _log(function: Callable[[float], float]) -> Callable[[float], float]:
    def log(x: float) -> float:
        if x > 0:
            return function(x)
        return -math.inf if x == 0 else math.nan
    return log


def _constant(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf


def _source(node: ast.AST) -> str:
    try:
        return ast.unparse(node)
    except RecursionError:
        return "what is nested here"


def _least(*values: float) -> float:
    return math.nan if any(value != value for value in values) else min(values)


def _greatest(*values: float) -> float:
    return math.nan if any(value != value for value in values) else max(values)


def _sqrt(x: float) -> float:
    return math.sqrt(x) if x >= 0 else math.nan


_BINARY = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
           ast.Div: _divide, ast.Pow: _power}
_UNARY: Dict[type, Callable[[float], float]] = {ast.USub: operator.neg, ast.UAdd: operator.pos}
_FUNCTIONS: Dict[str, Tuple[Callable[..., float], int]] = {
    "log": (_log(math.log), 1), "log2": (_log(math.log2), 1), "log10": (_log(math.log10), 1),
    "sqrt": (_sqrt, 1), "min": (_least, 2), "max": (_greatest, 2)}


def compile_expression(text: str, names: Sequence[str]) -> Tuple[Formula, FrozenSet[str]]:
    """A function of the values of `names`, in that order, and the names the text uses.

    Allowed are numbers, the names, + - * / ** and parentheses, log, log2, log10, sqrt, min and
    max. Nothing raises when it is computed: x/0 is an infinity of x's sign (0/0 is 0), log(0)
    is minus infinity, what has no real value is NaN. Raises ExpressionError.
    """
    if len(text) > LONGEST:
        raise ExpressionError(f"the expression is longer than {LONGEST} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        at = f" at character {error.offset}" if isinstance(error, SyntaxError) else ""
        raise ExpressionError(f"`{text}` is not an arithmetic expression{at}") from error
    used = set()

    def build(node: ast.AST, depth: int) -> Formula:
        if depth > _DEEPEST:
            raise ExpressionError(f"`{text}` is nested more than {_DEEPEST} deep")
        if (isinstance(node, ast.Constant) and isinstance(node.value, (int, float))
                and not isinstance(node.value, bool)):
            value = _constant(node.value)
            return lambda v: value
        if isinstance(node, ast.Name):
            if node.id not in names:
                raise ExpressionError(
                    f"`{node.id}` in `{text}` is not known; there are {', '.join(names)} and "
                    f"the functions {', '.join(_FUNCTIONS)}")
            used.add(node.id)
            index = list(names).index(node.id)
            return lambda v: float(v[index])  # whole numbers would grow without limit in powers
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            function = _BINARY[type(node.op)]
            left, right = build(node.left, depth + 1), build(node.right, depth + 1)
            return lambda v: function(left(v), right(v))
        if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
            sign = _UNARY[type(node.op)]
            operand = build(node.operand, depth + 1)
            return lambda v: sign(operand(v))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return call(node, depth)
        raise ExpressionError(f"`{_source(node)}` in `{text}` is not arithmetic; allowed are "
                              f"numbers, {', '.join(names)}, + - * / ** and "
                              f"{', '.join(_FUNCTIONS)}")

    def call(node: ast.Call, depth: int) -> Formula:
        name = node.func.id  # type: ignore[attr-defined]
        if name not in _FUNCTIONS or node.keywords:
            raise ExpressionError(f"`{name}` in `{text}` is not one of {', '.join(_FUNCTIONS)}")
        function, fewest = _FUNCTIONS[name]
        if len(node.args) < fewest or (fewest == 1 and len(node.args) > 1):
            wanted = "1 argument" if fewest == 1 else "2 or more arguments"
            raise ExpressionError(f"`{name}` in `{text}` takes {wanted}, not {len(node.args)}")
        arguments = [build(argument, depth + 1) for argument in node.args]
        if fewest == 1:
            only = arguments[0]
            return lambda v: function(only(v))
        return lambda v: function(*[argument(v) for argument in arguments])

    return build(tree.body, 0), frozenset(used)


def compile_vector(text: str, names: Sequence[str]) -> Optional[Callable[[Sequence[Any]], Any]]:
    """The same expression for numpy arrays of values, equal but for the last digits.

    None where they might differ by more: powers and logarithms of arrays are rounded in other
    ways than those of single numbers, and a sum can make much of a small difference. The text
    is one that `compile_expression` has taken.
    """
    try:
        return _vector(ast.parse(text.strip(), mode="eval").body, names)[0]
    except _NoVector:
        return None


class _NoVector(Exception):
    """An expression that is left to single numbers."""


def _vector(node: ast.AST, names: Sequence[str]) -> Tuple[Callable[[Sequence[Any]], Any], bool]:
    """The function of arrays, and whether it is exact to the last digit."""
    if isinstance(node, ast.Constant):
        value = _constant(node.value)  # type: ignore[arg-type]
        return lambda v: value, True
    if isinstance(node, ast.Name):
        index = list(names).index(node.id)
        return lambda v: _numpy().asarray(v[index], dtype=float), True
    if isinstance(node, ast.UnaryOp):
        operand, exact = _vector(node.operand, names)
        return ((lambda v: -operand(v)) if isinstance(node.op, ast.USub) else operand), exact
    if isinstance(node, ast.BinOp):
        left, left_exact = _vector(node.left, names)
        right, right_exact = _vector(node.right, names)
        exact = left_exact and right_exact
        if isinstance(node.op, ast.Mult):
            return lambda v: left(v) * right(v), exact
        if isinstance(node.op, ast.Div):
            return lambda v: _divide_arrays(left(v), right(v)), exact
        if isinstance(node.op, ast.Pow):
            power = node.right
            if not (isinstance(power, ast.Constant) and 0 < power.value <= 16):  # type: ignore
                raise _NoVector
            return lambda v: _numpy().power(left(v), float(power.value)), False  # type: ignore
        if not exact:
            raise _NoVector
        if isinstance(node.op, ast.Add):
            return lambda v: left(v) + right(v), True
        return lambda v: left(v) - right(v), True
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    parts = [_vector(argument, names) for argument in node.args]
    first, exact = parts[0]
    if node.func.id == "sqrt":
        return lambda v: _numpy().sqrt(first(v)), exact
    if node.func.id in ("min", "max"):
        choose = "minimum" if node.func.id == "min" else "maximum"
        return (lambda v: functools.reduce(getattr(_numpy(), choose), [part(v) for part, _ in parts]),
                all(part[1] for part in parts))
    if not exact:
        raise _NoVector
    log = node.func.id
    return lambda v: getattr(_numpy(), log)(first(v)), False


def _numpy() -> Any:
    import numpy  # only once a queue is long
    return numpy


def _divide_arrays(a: Any, b: Any) -> Any:
    numpy = _numpy()
    a, b = numpy.asarray(a, dtype=float), numpy.asarray(b, dtype=float)
    zero = numpy.where(a == 0, 0.0, numpy.where(numpy.isnan(a), a, numpy.copysign(numpy.inf, a)))
    return numpy.where(b == 0, zero, a / b)
