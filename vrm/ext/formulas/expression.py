"""Arithmetic expressions for a user's utility function, parsed with a whitelist.

The text is parsed to Python's syntax tree, every node is checked, and the result is a chain of closures over numbers:
no part of the text is ever executed as Python.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
from typing import Any
from collections.abc import Callable, Sequence

Values = Sequence[float]
Formula = Callable[[Values], float]

LONGEST = 1000
_DEEPEST = 50


class ExpressionError(ValueError):
    """The text is not an expression of this grammar; the message says what is wrong and where."""


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
_UNARY: dict[type, Callable[[float], float]] = {ast.USub: operator.neg, ast.UAdd: operator.pos}
_FUNCTIONS: dict[str, tuple[Callable[..., float], int]] = {
    "log": (_log(math.log), 1), "log2": (_log(math.log2), 1), "log10": (_log(math.log10), 1),
    "sqrt": (_sqrt, 1), "min": (_least, 2), "max": (_greatest, 2)}


def compile_expression(text: str, names: Sequence[str]) -> tuple[Formula, frozenset[str]]:
    """Compile an expression: returns a function of the values of `names`, in that order, and the names that the text
    uses.

    Allowed are numbers, the names, + - * / ** and parentheses, log, log2, log10, sqrt, min and max. The function never
    raises: x/0 is an infinity with the sign of x (0/0 is 0), log(0) is minus infinity, and a result without a real
    value is NaN. Raises ExpressionError for a wrong text.
    """
    if len(text) > LONGEST:
        raise ExpressionError(f"the expression is longer than {LONGEST} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        offset = getattr(error, "offset", None)
        at = "" if offset is None else f" at character {offset}" if offset else ": it ends too early"
        raise ExpressionError(f"`{text}` is not an arithmetic expression{at}") from error
    compiler = _Compiler(text, names)
    return compiler.build(tree.body, 0), frozenset(compiler.used)


class _Compiler:
    """Makes functions of the parts of an expression; `used` has the names in it. A maker returns None for a part that
    is not arithmetic."""

    def __init__(self, text: str, names: Sequence[str]) -> None:
        self.text, self.names, self.used = text, list(names), set[str]()
        self._makers: dict[type, Callable[[Any, int], Formula | None]] = {
            ast.Constant: self._constant, ast.Name: self._name, ast.BinOp: self._binary, ast.UnaryOp: self._unary,
            ast.Call: self._call}

    def build(self, node: ast.AST, depth: int) -> Formula:
        """Return the function of a part at this depth of the expression."""
        if depth > _DEEPEST:
            raise ExpressionError(f"`{self.text}` is nested more than {_DEEPEST} deep")
        make = self._makers.get(type(node))
        made = make(node, depth + 1) if make else None
        if made is None:
            raise ExpressionError(f"`{_source(node)}` in `{self.text}` is not arithmetic; allowed are "
                                  f"numbers, {', '.join(self.names)}, + - * / ** and "
                                  f"{', '.join(_FUNCTIONS)}")
        return made

    def _constant(self, node: ast.Constant, depth: int) -> Formula | None:
        if not isinstance(node.value, (int, float)) or isinstance(node.value, bool):
            return None
        value = _constant(node.value)
        return lambda v: value

    def _name(self, node: ast.Name, depth: int) -> Formula:
        if node.id not in self.names:
            raise ExpressionError(
                f"`{node.id}` in `{self.text}` is not known; there are {', '.join(self.names)} and "
                f"the functions {', '.join(_FUNCTIONS)}")
        self.used.add(node.id)
        index = self.names.index(node.id)
        return lambda v: float(v[index])  # powers of integers would grow without limit

    def _binary(self, node: ast.BinOp, depth: int) -> Formula | None:
        function = _BINARY.get(type(node.op))
        if function is None:
            return None
        left, right = self.build(node.left, depth), self.build(node.right, depth)
        return lambda v: function(left(v), right(v))

    def _unary(self, node: ast.UnaryOp, depth: int) -> Formula | None:
        sign = _UNARY.get(type(node.op))
        if sign is None:
            return None
        operand = self.build(node.operand, depth)
        return lambda v: sign(operand(v))

    def _call(self, node: ast.Call, depth: int) -> Formula | None:
        if not isinstance(node.func, ast.Name):
            return None
        name = node.func.id
        if name not in _FUNCTIONS or node.keywords:
            raise ExpressionError(f"`{name}` in `{self.text}` is not one of {', '.join(_FUNCTIONS)}")
        function, fewest = _FUNCTIONS[name]
        if len(node.args) < fewest or (fewest == 1 and len(node.args) > 1):
            wanted = "1 argument" if fewest == 1 else "2 or more arguments"
            raise ExpressionError(f"`{name}` in `{self.text}` takes {wanted}, not {len(node.args)}")
        arguments = [self.build(argument, depth) for argument in node.args]
        if fewest == 1:
            only = arguments[0]
            return lambda v: function(only(v))
        return lambda v: function(*[argument(v) for argument in arguments])


def compile_vector(text: str, names: Sequence[str]) -> Callable[[Sequence[Any]], Any] | None:
    """Compile the expression for numpy arrays of values; results differ from `compile_expression` only in the last
    digits.

    Returns None if they might differ more: powers and logarithms of arrays are rounded differently from those of
    single numbers, and a sum can amplify a small difference. The text must be one that `compile_expression` accepts.
    """
    try:
        return _vector(ast.parse(text.strip(), mode="eval").body, names)[0]
    except _NoVector:
        return None


class _NoVector(Exception):
    """The expression can only be computed for single numbers."""


Array = Callable[[Sequence[Any]], Any]


def _vector(node: ast.AST, names: Sequence[str]) -> tuple[Array, bool]:
    """Return the function of arrays, and whether it is exact to the last digit."""
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
        return _vector_of_two(node, names)
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return _vector_of_call(node.func.id, [_vector(argument, names) for argument in node.args])


def _vector_of_two(node: ast.BinOp, names: Sequence[str]) -> tuple[Array, bool]:
    left, left_exact = _vector(node.left, names)
    right, right_exact = _vector(node.right, names)
    exact, power = left_exact and right_exact, node.right
    if isinstance(node.op, ast.Pow):
        if not (isinstance(power, ast.Constant) and 0 < power.value <= 16):  # type: ignore[operator]
            raise _NoVector
        return lambda v: _numpy().power(left(v), float(power.value)), False  # type: ignore[arg-type]
    if not exact and isinstance(node.op, (ast.Add, ast.Sub)):
        raise _NoVector
    function = _divide_arrays if isinstance(node.op, ast.Div) else _BINARY[type(node.op)]
    return lambda v: function(left(v), right(v)), exact


def _vector_of_call(name: str, parts: list[tuple[Array, bool]]) -> tuple[Array, bool]:
    first, exact = parts[0]
    if name in ("min", "max"):
        choose = "minimum" if name == "min" else "maximum"
        return (lambda v: functools.reduce(getattr(_numpy(), choose), [part(v) for part, _ in parts]),
                all(exact for _, exact in parts))
    if name != "sqrt" and not exact:
        raise _NoVector
    return lambda v: getattr(_numpy(), name)(first(v)), exact and name == "sqrt"


def _numpy() -> Any:
    import numpy  # imported only when a queue is long
    return numpy


def _divide_arrays(a: Any, b: Any) -> Any:
    numpy = _numpy()
    a, b = numpy.asarray(a, dtype=float), numpy.asarray(b, dtype=float)
    zero = numpy.where(a == 0, 0.0, numpy.where(numpy.isnan(a), a, numpy.copysign(numpy.inf, a)))
    return numpy.where(b == 0, zero, a / b)
