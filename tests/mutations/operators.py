"""Operators that make a fault in Python source: each is an edit at one node's span.

Texts and types are left alone: docstrings, annotations, formatted strings, errors,
assertions, log lines, `__repr__` and decorators.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeGuard

OPERATORS = (
    *("comparison", "constant", "dropped statement", "swapped arguments"),
    *("order of a loop", "negated condition", "dropped call", "sign", "extreme"),
    "and/or",
)

# By an operator of Python: the operator of ours, the token, and the token instead.
_EXCHANGED: dict[type[ast.AST], tuple[str, str, str]] = {
    ast.Lt: ("comparison", "<", "<="),
    ast.LtE: ("comparison", "<=", "<"),
    ast.Gt: ("comparison", ">", ">="),
    ast.GtE: ("comparison", ">=", ">"),
    ast.Eq: ("comparison", "==", "!="),
    ast.NotEq: ("comparison", "!=", "=="),
    ast.Is: ("comparison", "is", "is not"),
    ast.IsNot: ("comparison", "is not", "is"),
    ast.In: ("comparison", "in", "not in"),
    ast.NotIn: ("comparison", "not in", "in"),
    ast.Add: ("sign", "+", "-"),
    ast.Sub: ("sign", "-", "+"),
    ast.Mult: ("sign", "*", "/"),
    ast.Div: ("sign", "/", "*"),
    ast.And: ("and/or", "and", "or"),
    ast.Or: ("and/or", "or", "and"),
}
# Operators of one operand.
_DROPPED: dict[type[ast.AST], str] = {ast.USub: "-", ast.Not: "not"}
_EXTREMES = {"min": "max", "minimum": "maximum", "reduce_min": "reduce_max"}
_EXTREMES |= {greater: less for less, greater in _EXTREMES.items()}
# Functions whose arguments may be swapped, or are of kinds that cannot be.
_SWAPPABLE = {*_EXTREMES, "add", "multiply", "gcd", "lcm", "isinstance", "getattr"}
_COPIES = {"tuple", "list", "iter", "super"}  # Dropping one seldom changes anything.
_DECLARATIONS = {"Define", "add_argument"}  # Their constants change, nothing else.
_TEXTS = re.compile(r"(?:\w*Error|log|_log|print|warn|debug|info|warning|error)$")
_LEFT_OUT_FIELDS = {"annotation", "returns", "decorator_list"}
_LEFT_OUT = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)


class Edit(NamedTuple):
    """An operator of OPERATORS, a span in bytes, and the text that replaces it."""

    operator: str
    start: int
    end: int
    text: str


class Source:
    """A source text, and the offsets of its nodes in bytes."""

    def __init__(self, source: bytes) -> None:
        self.bytes = source
        self.tree = ast.parse(source)
        lengths = [len(line) + 1 for line in source.split(b"\n")]
        self.starts = list(itertools.accumulate(lengths, initial=0))  # Of lines.

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self.starts[node.lineno - 1] + node.col_offset
        return start, self.starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, start: int, end: int) -> str:
        return self.bytes[start:end].decode()


def edits(source: Source) -> Iterator[tuple[Edit, tuple[int, int]]]:
    """Yields all edits of a source, each with the lines of its statement.

    The lines are the first and the last. Of a statement with a body, they are the
    head's.
    """
    for node, parent, statement in _nodes(source.tree, source.tree, source.tree):
        for edit in _edits(node, parent, source):
            yield edit, _lines(statement)


def _nodes(
    node: ast.AST, parent: ast.AST, statement: ast.AST
) -> Iterator[tuple[ast.AST, ast.AST, ast.AST]]:
    """Yields the nodes that may change, each with its parent and its statement."""
    if isinstance(node, ast.stmt):
        statement = node
    yield node, parent, statement
    for field, value in ast.iter_fields(node):
        if field in _LEFT_OUT_FIELDS:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_left_out(child):
                yield from _nodes(child, node, statement)


def _is_left_out(node: ast.AST) -> bool:
    """Returns whether a node and what is in it are texts, types or assertions."""
    if isinstance(node, ast.FunctionDef):
        return node.name in ("__repr__", "__str__")
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.dump(node.test)
    if isinstance(node, ast.keyword):
        return node.arg == "strict"
    if isinstance(node, ast.Call):
        return _TEXTS.match(_function(node)) is not None
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) or _is_left_out(node.value)
    return isinstance(node, _LEFT_OUT)


def _function(call: ast.Call) -> str:
    """Returns the last part of the name of a call's function, or nothing."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _lines(node: ast.AST) -> tuple[int, int]:
    """Returns the first and the last line of a statement, or of its head."""
    assert isinstance(node, ast.stmt)
    body = getattr(node, "body", None)
    if body:
        return node.lineno, max(node.lineno, body[0].lineno - 1)
    return node.lineno, node.end_lineno or node.lineno


def _edits(node: ast.AST, parent: ast.AST, source: Source) -> Iterator[Edit]:
    """Yields the edits of one node."""
    if _is_change(node) or _is_call_for_effect(node):
        yield Edit("dropped statement", *source.span(node), "pass")
    if isinstance(node, ast.Compare):
        yield from _exchanged([node.left, *node.comparators], node.ops, source)
    elif isinstance(node, ast.BoolOp):
        operators = [node.op] * (len(node.values) - 1)
        yield from _exchanged(node.values, operators, source)
    elif isinstance(node, ast.BinOp) and not _is_joining(node):
        yield from _exchanged([node.left, node.right], [node.op], source)
    elif isinstance(node, ast.AugAssign):
        yield from _exchanged([node.target, node.value], [node.op], source)
    elif isinstance(node, ast.UnaryOp) and type(node.op) in _DROPPED:
        start, _ = source.span(node)
        yield Edit("sign", start, start + len(_DROPPED[type(node.op)]), "")
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, (bool, int, float)):
            value = node.value + 1 if type(node.value) is not bool else not node.value
            yield Edit("constant", *source.span(node), repr(value))
    elif isinstance(node, ast.Call):
        yield from _edits_of_call(node, parent, source)
    elif _is_loop(node, parent):
        yield _wrapped("order of a loop", "reversed(list(", node.iter, "))", source)
    for condition in _conditions(node):
        yield _wrapped("negated condition", "not (", condition, ")", source)


def _wrapped(
    operator: str, before: str, node: ast.expr, after: str, source: Source
) -> Edit:
    start, end = source.span(node)
    return Edit(operator, start, end, before + source.text(start, end) + after)


def _exchanged(
    operands: Sequence[ast.expr], operators: Sequence[ast.AST], source: Source
) -> Iterator[Edit]:
    """Yields the edits of operators, each of which stands between two operands."""
    for (left, right), operator in zip(
        itertools.pairwise(operands), operators, strict=True
    ):
        if type(operator) in _EXCHANGED:
            name, old, new = _EXCHANGED[type(operator)]
            (_, start), (end, _) = source.span(left), source.span(right)
            yield Edit(name, start, end, source.text(start, end).replace(old, new, 1))


def _is_loop(node: ast.AST, parent: ast.AST) -> TypeGuard[ast.For | ast.comprehension]:
    """Returns whether a node is a loop whose order its result may show."""
    is_list = isinstance(node, ast.comprehension) and isinstance(parent, ast.ListComp)
    return is_list or isinstance(node, ast.For)


def _is_change(
    node: ast.AST,
) -> TypeGuard[ast.AugAssign | ast.Assign | ast.AnnAssign]:
    """Returns whether a statement updates a name, or sets an attribute or item."""
    if isinstance(node, ast.AnnAssign) and node.value:
        return isinstance(node.target, (ast.Attribute, ast.Subscript))
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        return isinstance(node.targets[0], (ast.Attribute, ast.Subscript))
    return isinstance(node, ast.AugAssign)


def _is_call_for_effect(node: ast.AST) -> TypeGuard[ast.Expr]:
    """Returns whether a statement is a call, and no declaration."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return _function(node.value) not in _DECLARATIONS
    return False


def _conditions(node: ast.AST) -> Sequence[ast.expr]:
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        return [node.test]
    return node.ifs if isinstance(node, ast.comprehension) else []


def _is_joining(node: ast.BinOp) -> bool:
    """Returns whether + or * joins texts or sequences, as its operands show."""
    joined = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)
    return any(
        isinstance(operand, joined)
        or (isinstance(operand, ast.Constant) and isinstance(operand.value, str))
        for operand in (node.left, node.right)
    )


def _edits_of_call(node: ast.Call, parent: ast.AST, source: Source) -> Iterator[Edit]:
    name, arguments = _function(node), node.args
    if any(isinstance(argument, ast.Starred) for argument in arguments):
        return
    if name in _EXTREMES:
        _, end = source.span(node.func)
        yield Edit("extreme", end - len(name), end, _EXTREMES[name])
    if _is_droppable(node, parent):
        text = source.text(*source.span(arguments[0]))
        yield Edit("dropped call", *source.span(node), f"({text})")
    if name in _SWAPPABLE | _DECLARATIONS:
        return
    for left, right in itertools.pairwise(arguments):
        if ast.dump(left) != ast.dump(right):
            (first, middle), (then, last) = source.span(left), source.span(right)
            swapped = [(then, last), (middle, then), (first, middle)]
            text = "".join(source.text(*span) for span in swapped)
            yield Edit("swapped arguments", first, last, text)


def _is_droppable(node: ast.Call, parent: ast.AST) -> bool:
    """Returns whether a call is a value that its one argument can stand for."""
    if len(node.args) != 1 or node.keywords or isinstance(parent, ast.Expr):
        return False
    is_literal = isinstance(node.args[0], (ast.Constant, ast.JoinedStr))
    return not is_literal and _function(node) not in _COPIES
