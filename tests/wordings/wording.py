"""Entries of the tables of errors: what a user does, and the whole text of the error.

To reword an error, change its entry and no other test.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lingvo_pipe.core.errors import UserError

# A question after near names may replace the last sentence.
_END = re.compile(r"\.$|Did you mean '[^?]*\?$")


@dataclass(frozen=True)
class Wording:
    """An error and its text.

    Attributes:
        id: what the user does, in a few words.
        provoke: does it, in an empty folder.
        kind: the error's type; for a UserError, Python's kind.
        given: text that the error must contain: a param, or its value.
        text: the whole text, with `{folder}` for the folder's path.
    """

    id: str
    provoke: Callable[[Path], object]
    kind: type[Exception]
    given: str
    text: str

    def __str__(self) -> str:
        return self.id

    def raised(self, folder: Path) -> tuple[type[Exception], str]:
        """Provokes the error; returns its type and text."""
        try:
            self.provoke(folder)
        except Exception as error:
            kind: Any = type(error)
            if isinstance(error, UserError) and kind is not self.kind:
                kind = next(k for k in kind.__mro__ if not issubclass(k, UserError))
            return kind, str(error).replace(str(folder), "{folder}")
        pytest.fail(f"{self.id}: there was no error.")

    def problems(self) -> list[str]:
        """Returns what is wrong with the form of the text."""
        rules = {
            f"must name {self.given}": bool(self.given) and self.given in self.text,
            "must end with a full stop": bool(_END.search(self.text)),
        }
        return [rule for rule, holds in rules.items() if not holds]
