"""Errors of operations that name the layer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tensorflow as tf


@contextlib.contextmanager
def naming(where: str) -> Iterator[None]:
    """Says where it was in the error of an operation that runs eagerly.

    Args:
        where: as in "the forward pass of model/dense".
    """
    try:
        yield
    except tf.errors.OpError as error:
        message = f"In {where}: {error.message}"
        raise type(error)(error.node_def, error.op, message) from error
