"""The base of inputs of tokenized texts: their common params, and the vocabulary."""

import functools
from typing import ClassVar

from absl import logging

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.hyperparams.param_rules import NAME, SEED, check_params, count
from lingvo_pipe.input.text.vocabulary import Vocabulary, open_vocabulary


class TextInput:
    """The base of inputs of tokenized texts. Subclasses define the param `data_dir`."""

    SIZES: ClassVar[tuple[str, ...]]  # params that must be positive integers

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Returns the params of the input."""
        p = InstantiableParams(cls)
        p.Define("vocab_file", None, "Vocabulary file, from lingvo_pipe vocab.")
        p.Define(
            "vocab_size", None, "Tokens in the vocabulary: the model's num_tokens."
        )
        p.Define("batch_size", None, "B, rows in a batch, over all micro-batches.")
        p.Define("random_seed", 0, "Seed of the training order.")
        return p

    def __init__(self, params: InstantiableParams) -> None:
        p = self.params = params
        sizes = dict.fromkeys(self.SIZES, count())
        check_params(p, {**sizes, "vocab_file": NAME, "random_seed": SEED})

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary, opened at first use."""
        p = self.params
        return open_vocabulary(p.vocab_file, p.data_dir, p.vocab_size)

    def _warn_of_repeats(self, num_rows: int) -> None:
        size = self.params.batch_size
        if num_rows < size:
            logging.warning(
                "The training data fill %s rows, so each batch of %s repeats rows. "
                "Lower input.batch_size, or add data.",
                f"{num_rows:,}",
                f"{size:,}",
            )
