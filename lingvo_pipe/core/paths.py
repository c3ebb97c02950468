"""Paths such as `task.cells[0].x` and `branches['left'].x`."""

import ast
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from lingvo_pipe.core.errors import UserValueError


@dataclass(frozen=True)
class Name:
    """A part of a path that names a param, an attribute or a key, such as `.cells`."""

    name: str


@dataclass(frozen=True)
class Item:
    """A part of a path in brackets, `[0]` or `['left']`: an index or a dict's key."""

    key: int | str


Step: TypeAlias = Name | Item

# A name, after a dot unless it is first; or [index] or ['key'] after something.
_STEP = re.compile(
    r"(?:^|(?<!^)\.)([A-Za-z_]\w*)"
    r"""|(?<!^)\[\s*(-?\d+|'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")\s*\]""",
    re.DOTALL,
)


@functools.lru_cache(maxsize=4096)
def parse_path(text: str) -> tuple[Step, ...]:
    """Splits a path such as `task.cells[0].x` into steps, each a Name or an Item.

    Raises:
        ValueError: if the text is no path.
    """
    steps: list[Step] = []
    end = 0
    while end < len(text) or not steps:
        match = _STEP.match(text, end)
        if not match:
            raise UserValueError(
                expected="a path of names joined by dots, with [index] or ['key'] for "
                "items, such as task.cells[0].x",
                got=text,
            )
        name, key = match.groups()
        steps.append(Name(name) if name else Item(ast.literal_eval(key)))
        end = match.end()
    return tuple(steps)


def format_path(steps: Sequence[Step]) -> str:
    """Returns the text of a path. This is the inverse of parse_path."""
    text = "".join(
        f".{step.name}" if isinstance(step, Name) else f"[{step.key!r}]"
        for step in steps
    )
    return text.removeprefix(".")
