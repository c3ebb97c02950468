"""Locals are named for the thing, not for their grammar: `gradients`, not `found`."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.style.builds import ROOT

_PRODUCT = ("lingvo_pipe", "model_registry", "params", "tools")
_VAGUE = frozenset(
    ["found", "own", "each", "given", "known", "made", "ours", "rest", "other"]
    + ["others", "whole", "both", "every"]
)
_MAX_SHARE = 0.08  # Of a folder's functions.
_FEW = 12  # A folder of fewer functions counts with the folder above.


def vague_functions(path: Path) -> Iterator[tuple[ast.AST, set[str]]]:
    """Yields a module's functions, each with its locals that name no thing."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            stored = {
                child.id
                for child in ast.walk(node)
                if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store)
            }
            yield node, stored & _VAGUE


def shares() -> dict[str, float]:
    """Returns for each folder the share of functions with a vague local."""
    functions: dict[str, list[bool]] = defaultdict(list)
    for top in _PRODUCT:
        for path in sorted((ROOT / top).rglob("*.py")):
            folder = str(path.parent.relative_to(ROOT))
            functions[folder] += [bool(names) for _, names in vague_functions(path)]
    for folder in sorted(functions, reverse=True):  # The deepest first.
        if len(functions[folder]) < _FEW and "/" in folder:
            above = str(Path(folder).parent)
            functions[above] = functions.get(above, []) + functions.pop(folder)
    return {
        folder: sum(vague) / len(vague) for folder, vague in functions.items() if vague
    }


def test_few_locals_of_any_folder_are_vague() -> None:
    assert {k: x for k, x in shares().items() if x > _MAX_SHARE} == {}
