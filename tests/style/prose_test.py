"""Errors name values by their fields, and tests don't match their prose.

Whoever rewords an error mends no test: tests match its fields, or a param's path, a
value, a name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.style.builds import ROOT

# Two words of English; an escape such as \b or \n is no letter.
_PROSE = re.compile(r"(?<![\\\w./'\"-])[A-Za-z]{3,} [a-z]{2,}\b")


# A text that `expected` and `got` should make.
_SENTENCE = re.compile(r"\bexpected\b.*\bgot\b", re.DOTALL)


def _texts(node: ast.AST) -> Iterator[str]:
    """Yields the literal strings of an expression."""
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def _prose_of(source: str) -> list[str]:
    """Returns the `match` arguments with two words in a row."""
    return [
        f"line {keyword.value.lineno}: {text!r}"
        for keyword in ast.walk(ast.parse(source))
        if isinstance(keyword, ast.keyword) and keyword.arg == "match"
        for text in _texts(keyword.value)
        if _PROSE.search(text)
    ]


def _whole_sentences_of(source: str) -> list[str]:
    """Returns the errors for users with a message "... expected ..., got ..."."""
    return [
        f"line {node.lineno}: {ast.unparse(node.func)}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and node.args
        if re.search(r"\bUser\w*Error$", ast.unparse(node.func))
        if _SENTENCE.search("".join(_texts(node.args[0])))
    ]


def test_errors_give_values_in_fields() -> None:
    product = ROOT / "lingvo_pipe"
    found = {
        str(path.relative_to(product)): sentences
        for path in sorted(product.rglob("*.py"))
        if (sentences := _whole_sentences_of(path.read_text(encoding="utf-8")))
    }
    assert not found
    assert _whole_sentences_of("raise UserError(f'x: expected 1, got {x}.')")
    assert not _whole_sentences_of("raise UserError(expected='1', got=x)")


def test_patterns_of_errors_hold_no_prose() -> None:
    found = {
        str(path.relative_to(ROOT)): prose
        for path in sorted((ROOT / "tests").rglob("*_test.py"))
        if (prose := _prose_of(path.read_text(encoding="utf-8")))
    }
    assert not found


def test_prose_is_told_from_names_and_values() -> None:
    assert _prose_of("raises(E, match='must be positive')")
    assert _prose_of("raises(E, match=f'{x} must be')")
    assert not _prose_of(r"raises(E, match=r'task\.pipeline\.splits.*\b12')")
    assert not _prose_of("raises(E, match=rule)")
