"""Entries of the tables of errors: what a user does, and all that the error says.

Whoever rewords an error mends its entry, and no other test.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

# A question after near names may stand in place of a last sentence.
_END = re.compile(r"\.$|Did you mean '[^?]*\?$")


@dataclass(frozen=True)
class Wording:
    """An error and its text.

    Attributes:
        id: what a user has done, in a few words.
        provoke: does it; is given an empty folder.
        kind: the error's type, and no base class of it.
        given: what the text must name: a param, or what was given for one.
        text: the whole text, with `{folder}` for the folder's path.
    """

    id: str
    provoke: Callable[[Path], object]
    kind: type[Exception]
    given: str
    text: str

    def __str__(self) -> str:
        return self.id

    def told(self, folder: Path) -> tuple[type[Exception], str]:
        """Provokes the error; returns its type and text."""
        try:
            self.provoke(folder)
        except Exception as error:
            return type(error), str(error).replace(str(folder), "{folder}")
        pytest.fail(f"{self.id}: there was no error.")

    def faults(self) -> list[str]:
        """Says what is wrong with the form of the text."""
        rules = {
            f"must name {self.given}": bool(self.given) and self.given in self.text,
            "must end with a full stop": bool(_END.search(self.text)),
        }
        return [rule for rule, holds in rules.items() if not holds]
