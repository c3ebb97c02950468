"""The rules of English in CONTRIBUTING.md that a machine can check."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.style.builds import ROOT

PRODUCT = ("lingvo_pipe", "model_registry", "params", "tools")
_FRONTED = re.compile(
    r"(What|Whether|How|Of|As|Which|Those|Whose|That|Where|When|Has|Have|Is|Are)\b"
)
_STILTED = re.compile(
    r"\b(that of|those of|as of|likewise|so many|for want of|made anew|is told)\b", re.I
)
_VERB = re.compile(r"[A-Z][a-z]+s\b")


def _python_files(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def _docstrings(path: Path) -> Iterator[tuple[str, ast.AST, str]]:
    """Yields where each docstring is, what it documents, and its text."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            text = ast.get_docstring(node)
            if text:
                name = getattr(node, "name", "")
                yield f"{path.relative_to(ROOT)} {name}", node, text


def _is_property(node: ast.AST) -> bool:
    decorators = getattr(node, "decorator_list", [])
    return any("property" in ast.dump(each) for each in decorators)


def test_no_docstring_begins_with_a_clause() -> None:
    found = [
        f"{where}: {text.splitlines()[0]}"
        for path in _python_files(*PRODUCT, "tests")
        for where, _, text in _docstrings(path)
        if _FRONTED.match(text)
    ]
    assert found == []


def test_functions_begin_with_a_verb() -> None:
    found = [
        f"{where}: {text.splitlines()[0]}"
        for path in _python_files(*PRODUCT)
        for where, node, text in _docstrings(path)
        if isinstance(node, ast.FunctionDef) and not _is_property(node)
        if not _VERB.match(text)
    ]
    assert found == []


def test_no_docstring_and_no_page_is_stilted() -> None:
    texts = [
        (where, text)
        for path in _python_files(*PRODUCT)
        for where, _, text in _docstrings(path)
    ]
    for path in sorted(ROOT.rglob("*.md")):
        if not any(part.startswith(".") for part in path.relative_to(ROOT).parts):
            texts.append(
                (str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
            )
    found = [
        f"{where}: {match[0]}"
        for where, text in texts
        for match in _STILTED.finditer(text)
    ]
    assert found == []
