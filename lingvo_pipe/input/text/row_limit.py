"""How many tokens a sentence may have to fit into a row."""

from __future__ import annotations

from typing import NamedTuple


class RowLimit(NamedTuple):
    """The room that a row has for one sentence.

    Attributes:
        param: The param that says how long rows are.
        length: Tokens in a row.
        added: How many of them are added to a sentence, such as that of its end.
    """

    param: str
    length: int
    added: int

    @property
    def most(self) -> int:
        """The most tokens of a sentence, without those added."""
        return self.length - self.added

    def __str__(self) -> str:
        return f"{self.param} {self.length:,}"

    def check(self) -> None:
        """Raises a ValueError if no sentence fits."""
        if self.most < 1:
            raise ValueError(
                f"{self.param} must have room for a sentence of one token and "
                f"{self.added} more, such as that of its end; got {self.length}. Usual "
                "are 32 to 256."
            )
