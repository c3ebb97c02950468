"""The base of inputs of tokenized texts: their common params, and the vocabulary."""

from __future__ import annotations

import functools
from typing import ClassVar

from lingvo_pipe.core.checks import is_count
from lingvo_pipe.core.errors import raise_problems
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.text.vocabulary import Vocabulary, open_vocabulary


class TextInput:
    """The base of inputs of tokenized texts; subclasses define `data_dir`.

    Attributes:
        SIZES: names of the params that must be positive integers.
        params: the params.

    Raises:
        ValueError: if a param is unset or out of range.
    """

    SIZES: ClassVar[tuple[str, ...]]

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Returns the params of the input."""
        p = InstantiableParams(cls)
        p.Define("vocab_file", None, "Vocabulary file, from lingvo_pipe_train_vocab.")
        p.Define(
            "vocab_size", None, "Tokens in the vocabulary: the model's num_tokens."
        )
        p.Define("batch_size", None, "B, rows in a batch, over all micro-batches.")
        p.Define("random_seed", 0, "Seed of the training order.")
        return p

    def __init__(self, params: InstantiableParams) -> None:
        p = self.params = params
        problems = [
            f"{name}: expected a positive integer, got {p.Get(name)!r}"
            for name in self.SIZES
            if not is_count(p.Get(name))
        ]
        if not isinstance(p.vocab_file, str) or not p.vocab_file:
            problems.append(f"vocab_file: expected a file name, got {p.vocab_file!r}")
        if not is_count(p.random_seed, 0) or p.random_seed >= 2**64:
            problems.append(
                "random_seed: expected an integer from 0 to 2**64 - 1, got "
                f"{p.random_seed!r}"
            )
        raise_problems(problems, f"Set them in the params of {p.cls.__name__}.")

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary, opened."""
        p = self.params
        return open_vocabulary(p.vocab_file, p.data_dir, p.vocab_size)
