"""Checks of text inputs' params, and the limit of a sentence's length."""

from __future__ import annotations

from typing import NamedTuple

from lingvo_pipe.core.checks import is_count
from lingvo_pipe.core.errors import UserValueError, raise_problems
from lingvo_pipe.hyperparams import InstantiableParams


def check_sizes(p: InstantiableParams, *sizes: str) -> None:
    """Raises a ValueError that names every param that is unset or out of range.

    Args:
        p: the params, with `vocab_file` and `random_seed`.
        *sizes: names of the params that must be positive integers.
    """
    problems = [
        f"{name}: expected a positive integer, got {p.Get(name)!r}"
        for name in sizes
        if not is_count(p.Get(name), 1)
    ]
    if not isinstance(p.vocab_file, str) or not p.vocab_file:
        problems.append(f"vocab_file: expected a file name, got {p.vocab_file!r}")
    if not is_count(p.random_seed, 0) or p.random_seed >= 2**64:
        problems.append(
            "random_seed: expected an integer from 0 to 2**64 - 1, got "
            f"{p.random_seed!r}"
        )
    raise_problems(problems, f"Set them in the params of {_name(p)}.")


def check_data(p: InstantiableParams) -> None:
    """Raises a ValueError unless `data` are params of data sets."""
    is_list = isinstance(p.data, list | tuple) and len(p.data) > 0
    if not is_list or not all(isinstance(x, InstantiableParams) for x in p.data):
        raise UserValueError(
            "data: expected a list of params of data sets, such as [TfdsPairs.Params()"
            f".Set(dataset='wmt14_translate/de-en')], got {p.data!r}. Set it in the "
            f"params of {_name(p)}."
        )


def _name(p: InstantiableParams) -> str:
    return p.cls.__name__


class RowLimit(NamedTuple):
    """The room that a row has for one sentence.

    Attributes:
        param: name of the param with the rows' length.
        length: tokens in a row.
        added: tokens added to each sentence, such as the end token.
    """

    param: str
    length: int
    added: int

    @property
    def max_tokens(self) -> int:
        """The largest number of tokens of a sentence, without added tokens."""
        return self.length - self.added

    def __str__(self) -> str:
        return f"{self.param} {self.length:,}"

    def check(self) -> None:
        """Raises a ValueError if no sentence fits."""
        if self.max_tokens < 1:
            raise UserValueError(
                f"{self.param}: expected at least {self.added + 1} tokens (one of a "
                f"sentence, {self.added} added, such as the end token), got "
                f"{self.length}. Usual lengths are 32 to 256."
            )
