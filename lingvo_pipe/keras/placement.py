"""Moves the storage of Keras variables to the devices of their stages."""

from __future__ import annotations

import keras
import tensorflow as tf

from lingvo_pipe.keras.private_names import (
    place_variable,
    stored_variable,
)


def placed(variable: keras.Variable, path: str) -> tf.Variable:
    """Returns the tf.Variable that stores a Keras variable on the current device.

    It is the one that stores it already, if that is on this device and as trainable as
    the Keras variable; else a new one, and Keras reads and writes this one from now on.

    Args:
        variable: the Keras variable.
        path: name of a new tf.Variable.
    """
    stored = stored_variable(variable)
    device = _current_device()
    if (stored.device, stored.trainable) == (device, variable.trainable):
        return stored
    made = tf.Variable(
        stored,
        trainable=variable.trainable,
        name=path,
        shape=variable.shape,
        dtype=variable.dtype,
    )
    place_variable(variable, made)
    return made


def shared(variable: keras.Variable, path: str) -> tf.Variable:
    """Returns the tf.Variable that an earlier cell has placed."""
    return stored_variable(variable)


def _current_device() -> str:
    """Returns the full name of the device that a new variable would be on."""
    with tf.init_scope():
        return tf.zeros([]).device
