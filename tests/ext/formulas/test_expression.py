"""Utility expressions: the same as Python's arithmetic on what is allowed, and nothing else."""

import ast
import math
import subprocess
import sys

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vrm.ext.formulas.expression import LONGEST, ExpressionError, compile_expression, compile_vector

NAMES = ("q", "t", "n", "procs", "s", "id")
BINARY = {ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
          ast.Div: lambda a, b: a / b, ast.Pow: lambda a, b: a ** b}
FUNCTIONS = {"log": math.log, "log2": math.log2, "log10": math.log10, "sqrt": math.sqrt,
             "min": min, "max": max}


def value_of(text, **values):
    formula, _ = compile_expression(text, NAMES)
    return formula([values.get(name, 1.0) for name in NAMES])


def arithmetic(node, values):
    """What Python makes of the tree, by its operators on floats."""
    if isinstance(node, ast.Constant):
        return float(node.value)
    if isinstance(node, ast.Name):
        return float(values[NAMES.index(node.id)])
    if isinstance(node, ast.UnaryOp):
        operand = arithmetic(node.operand, values)
        return -operand if isinstance(node.op, ast.USub) else operand
    if isinstance(node, ast.BinOp):
        return BINARY[type(node.op)](arithmetic(node.left, values), arithmetic(node.right, values))
    found = [arithmetic(argument, values) for argument in node.args]
    if any(value != value for value in found):
        return math.nan  # min and max of Python answer by the order of their arguments
    return FUNCTIONS[node.func.id](*found)


def calls(parts):
    one = st.builds(lambda name, part: ast.Call(ast.Name(name), [part], []),
                    st.sampled_from(["log", "log2", "log10", "sqrt"]), parts)
    many = st.builds(lambda name, some: ast.Call(ast.Name(name), some, []),
                     st.sampled_from(["min", "max"]), st.lists(parts, min_size=2, max_size=4))
    return st.one_of(one, many)


NUMBERS = st.one_of(st.integers(0, 20), st.integers(0, 10**12),
                    st.floats(0, 1e6, allow_subnormal=False), st.sampled_from([1e300, 1.7e308]))
TREES = st.recursive(
    st.one_of(st.builds(ast.Name, st.sampled_from(NAMES)), st.builds(ast.Constant, NUMBERS)),
    lambda parts: st.one_of(
        st.builds(ast.BinOp, parts, st.sampled_from([kind() for kind in BINARY]), parts),
        st.builds(ast.UnaryOp, st.sampled_from([ast.USub(), ast.UAdd()]), parts), calls(parts)),
    max_leaves=12)
VALUES = st.tuples(st.floats(0, 1e7), st.floats(0.001, 1e6), st.integers(1, 5000),
                   st.integers(1, 10**6), st.floats(0, 2e9), st.integers(0, 10**9))


def same(a, b):
    return a == b or (a != a and b != b)


@settings(max_examples=300, deadline=None)
@given(TREES, VALUES)
@pytest.mark.slow
def test_agrees_with_pythons_arithmetic(tree, values):
    text = ast.unparse(tree)  # as few parentheses as precedence allows
    formula, used = compile_expression(text, NAMES)
    assert used == {node.id for node in ast.walk(tree)
                    if isinstance(node, ast.Name) and node.id in NAMES}
    found = formula(values)
    assert isinstance(found, float)
    try:
        wanted = arithmetic(tree, values)
    except (ArithmeticError, ValueError, TypeError):
        return  # where Python raises, there is a convention (below)
    if not isinstance(wanted, complex):
        assert same(found, wanted), f"{text}: {found} instead of {wanted}"


@settings(max_examples=200, deadline=None)
@given(TREES, st.lists(VALUES, min_size=1, max_size=5))
@pytest.mark.slow
def test_arrays_of_values_give_the_same_but_for_rounding(tree, rows):
    text = ast.unparse(tree)
    vector = compile_vector(text, NAMES)
    if vector is None:
        return
    formula, _ = compile_expression(text, NAMES)
    kinds = [float, float, numpy.int64, numpy.int64, float, numpy.int64]
    with numpy.errstate(all="ignore"):
        found = vector([numpy.array(column, dtype=kind) for column, kind in zip(zip(*rows), kinds)])
    for number, value in zip(numpy.broadcast_to(found, len(rows)).tolist(), map(formula, rows)):
        assert same(number, value) or math.isclose(number, value, rel_tol=1e-10), text


@pytest.mark.parametrize("text, wanted", [
    ("1 + 2 * 3", 7), ("(1 + 2) * 3", 9), ("2 ** 3 ** 2", 512), ("-2 ** 2", -4), ("--2", 2),
    ("10 / 4", 2.5), ("7 - 2 - 1", 4), ("  q\n", 5), ("min(q, t, 3)", 3), ("max(2, 1)", 2),
    ("log(1)", 0), ("log2(8)", 3), ("log10(100)", 2), ("sqrt(9)", 3), ("1e3", 1000),
    ("(q / t)**3 * n", 2), ("sqrt(" * 20 + "1" + ")" * 20, 1), ("+ q" * 30, 150), ("q + 0*s + 0*id", 5), ("0x10 + 1_0", 26),
])
def test_examples(text, wanted):
    assert value_of(text, q=5.0, t=5.0, n=2) == wanted


@pytest.mark.parametrize("text, wanted", [
    ("1 / 0", math.inf), ("-1 / 0", -math.inf), ("0 / 0", 0.0), ("sqrt(-1) / 0", math.nan),
    ("log(0)", -math.inf), ("log(-1)", math.nan), ("sqrt(-1)", math.nan),
    ("0 ** -1", math.inf), ("(-8) ** 0.5", math.nan), ("10.0 ** 400", math.inf),
    ("(-10) ** 401", -math.inf), ("(-10) ** 400", math.inf), ("1e308 * 10", math.inf),
    ("min(1, sqrt(-1))", math.nan), ("min(sqrt(-1), 1)", math.nan), ("max(sqrt(-1), 1)", math.nan),
    ("1.5e308", 1.5e308), (f"1{'0' * 400}", math.inf), ("9 ** 9 ** 9 ** 9", math.inf),
])
def test_what_has_no_number_follows_the_conventions(text, wanted):
    assert same(value_of(text), wanted)


@pytest.mark.parametrize("text", [
    "", "  ", "q +", "q q", "(q", "q)", "1 2", "q; t", "q\nt", "x = q", "q = 1", "import os",
    "q.real", "q.__class__", "().__class__", "q[0]", "[q]", "(q, t)", "{q}", "{q: t}",
    "[q for q in t]", "(q for q in t)", "lambda: q", "lambda q: q", "q if t else n",
    "q and t", "q or t", "not q", "q < t", "q == t", "q % t", "q // t", "q @ t", "q & t", "q | t",
    "q ^ t", "q << t", "~q", "'q'", "b'q'", "f'{q}'", "...", "None", "True", "False", "1j",
    "q := 1", "(q := 1)", "*q", "await q", "yield q", "min(*q)", "min(q, t, key=n)", "log(q, x=t)", "max(**q)",
    "abs(q)", "eval(q)", "__import__('os')", "print(q)", "math.log(q)", "log", "min", "log()",
    "log(q, 2)", "min()", "min(q)", "sqrt(q, t)", "log(q)(t)", "(q)(t)", "x", "Q", "nan", "inf",
    "q, t", "q\0", "q\\", "\ud800", "q \N{MULTIPLICATION SIGN} t", "1__0", "q!",
])
def test_everything_else_is_refused(text):
    with pytest.raises(ExpressionError) as refused:
        compile_expression(text, NAMES)
    assert str(refused.value)


def test_messages_name_what_is_wrong_and_what_there_is():
    for text, parts in [
            ("(x / t)**3", ["`x`", "(x / t)**3", "q, t, n, procs, s, id", "log2"]),
            ("q.real + t", ["`q.real`", "not arithmetic"]),
            ("sin(q)", ["`sin`", "log, log2, log10, sqrt, min, max"]),
            ("log(q, 2)", ["`log`", "1 argument, not 2"]), ("min(q)", ["2 or more", "not 1"]),
            ("q + * t", ["character 5"])]:
        with pytest.raises(ExpressionError) as refused:
            compile_expression(text, NAMES)
        assert all(part in str(refused.value) for part in parts), str(refused.value)


NASTY = {
    "longer than allowed": "q" + " + q" * (LONGEST // 4), "a megabyte": "1 + " * 250_000 + "1",
    "deep parentheses": "(" * 90 + "q" + ")" * 90,
    "deeper parentheses": "(" * 400 + "q" + ")" * 400,
    "open parentheses": "(" * 999, "deep functions": "log(" * 190 + "q" + ")" * 190,
    "signs": "-" * 990 + "q", "deep powers": "**".join(["9"] * 300),
    "deep attributes": "q" + ".a" * 450, "deep calls": "q" + "()" * 450,
    "deep items": "q" + "[0]" * 300, "deep lists": "[" * 150 + "]" * 150,
    "nots": "not " * 240 + "q", "lambdas": "lambda:" * 120 + "q",
    "deep conditions": "q if " * 90 + "q", "a long number": "9" * 999,
    "a long fraction": "0." + "1" * 990, "a huge exponent": "1e" + "9" * 900,
    "huge powers": "9**9**9**9**9 + id**id**id**procs**id", "a power of integers": "id ** id ** n",
    "a quotient of integers": "id ** 99 / procs ** 99", "quotes": "'" * 999, "nulls": "\0" * 999,
}

CHILD = """
import sys
from vrm.ext.formulas.expression import ExpressionError, compile_expression
for text in sys.stdin.read().split("\\x01"):
    try:
        formula, used = compile_expression(text, ("q", "t", "n", "procs", "s", "id"))
    except ExpressionError:
        print("refused")
    else:
        print(type(formula((1.0, 2.0, 3, 10**6, 4.0, 10**6))).__name__)
"""


def test_nasty_texts_are_refused_or_computed_without_end_or_fall():
    """In a process of its own with a limit, since what is tested for is hanging and crashing."""
    done = subprocess.run([sys.executable, "-c", CHILD], input="\x01".join(NASTY.values()),
                          capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    answers = dict(zip(NASTY, done.stdout.split()))
    assert len(answers) == len(NASTY)
    assert set(answers.values()) <= {"refused", "float"}
    for name in ("longer than allowed", "a megabyte", "open parentheses", "deep attributes",
                 "deep calls", "deep items", "deep lists", "nots", "lambdas", "deep conditions",
                 "quotes", "nulls"):
        assert answers[name] == "refused", name


@pytest.mark.filterwarnings("error")
@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([*"qtn+-*/()., =%['", "1", "2.5", "**", "log", "min(", "max(",
                                 "sqrt(", "if"]), max_size=14).map("".join), VALUES)
@pytest.mark.slow
def test_any_text_is_refused_or_gives_a_number(text, values):
    try:
        formula, _ = compile_expression(text, NAMES)
    except ExpressionError as error:
        assert str(error)
    else:
        assert isinstance(formula(values), float)
