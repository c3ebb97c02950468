"""What every kind of phrase is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from lingvo_pipe.input.cldr.draws import Draws
from lingvo_pipe.input.cldr.language import Language

# What a phrase says, in no language: numbers, and codes of units or names.
Value = tuple[int | str, ...]
# The name of a value's kind, and then the value.
Content = tuple[int | str, ...]


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of phrase: dates, prices, and so on.

    Attributes:
        name: What its values are. Kinds of the same name write the same values in
            different styles.
        weight: How many phrases of a hundred are of this kind.
        draw: Draws a value that the language, as English, has words for.
        render: Writes a value in a language.
        is_name: Whether a value is a single name, one of a few hundred.
        parts: If a value is made up of values of other kinds, one after the other:
            their names, and how many of the value's numbers and codes are theirs.
    """

    name: str
    weight: int
    draw: Callable[[Draws, Language], Value]
    render: Callable[[Language, Value], str]
    is_name: bool = False
    parts: tuple[tuple[str, int], ...] = ()

    def contents(self, value: Value) -> list[Content]:
        """Returns what a value says: itself, or the values that it is made up of."""
        if not self.parts:
            return [(self.name, *value)]
        contents: list[Content] = []
        for name, size in self.parts:
            contents.append((name, *value[:size]))
            value = value[size:]
        return contents
