"""The declaration of one variable."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from lingvo_pipe.hyperparams import Params


def WeightParams(
    shape: Sequence[int],
    init: Params | None = None,
    dtype: tf.DType | None = None,
    trainable: bool = True,
) -> Params:
    """Declares a variable for `BaseLayer.CreateVariable`.

    Args:
        shape: every dimension, known and at least 1.
        init: one of `WeightInit`'s rules; None: the layer's `params_init`.
        dtype: None: the layer's `dtype`.
        trainable: False for state that no gradient touches, such as moving averages.
    """
    p = Params()
    p.Define("shape", list(shape), "Every dimension.")
    p.Define("init", init, "One of WeightInit's rules.")
    p.Define("dtype", dtype, "None: the layer's dtype.")
    p.Define("trainable", trainable, "Whether the learner updates it.")
    return p


def check_shape(shape: Sequence[int], where: str) -> None:
    """Raises ValueError unless every dimension is a positive integer."""
    if not all(isinstance(n, int) and n >= 1 for n in shape):
        raise ValueError(
            f"Every dimension of a variable must be an integer of at least 1; {where} "
            f"has shape {list(shape)}. Check the layer's params."
        )
