"""Storage of Keras variables on the devices of their stages.

deferred  a Keras model's variables have no values yet
placed    they move to the devices of a pipeline's stages
created   a task's own variables begin as a Keras model's would
"""

import contextlib
from collections.abc import Iterator

import keras
import tensorflow as tf

from lingvo_pipe.keras import private_names


@contextlib.contextmanager
def deferred_variables() -> Iterator[None]:
    """Builds Keras models whose variables take no memory until they are pipelined.

        with lp.keras.deferred_variables():
            model = build_model()
        pipelined = lp.keras.PipelinedModel(model, devices=8)
        pipelined.load_weights("model.weights.h5")

    PipelinedModel computes the initial values, the same as Keras's, on the devices of
    their stages. Until then the model can neither be run nor loaded.
    """
    before = len(private_names.uninitialized_variables())
    try:
        with keras.StatelessScope(initialize_variables=False):
            yield
    finally:
        # Else Keras would make them on the first device when another scope ends.
        del private_names.uninitialized_variables()[before:]


def placed(variable: keras.Variable, path: str) -> tf.Variable:
    """Returns the tf.Variable that stores a Keras variable on the current device.

    It is the present one if that is there and as trainable; else a new one, which Keras
    reads and writes from now on. A deferred variable's has its initial value.
    """
    if _is_scratch_graph():
        return _variable(variable, path, lambda: _zeros(variable))
    if private_names.stored_variable(variable) is None:
        private_names.initialize_variable(variable)
    stored = private_names.stored_variable(variable)
    with tf.init_scope():
        device = tf.zeros([]).device  # A new variable's.
    if (stored.device, stored.trainable) == (device, variable.trainable):
        return stored
    made = _variable(variable, path, stored)
    private_names.place_variable(variable, made)
    return made


def created(variable: keras.Variable, path: str) -> tf.Variable:
    """Returns a new tf.Variable that begins as a Keras variable, drawn on the host."""

    def initial() -> tf.Tensor:
        if _is_scratch_graph():  # It is never run, and constants cannot enter it.
            return _zeros(variable)
        with tf.device("/CPU:0"):
            return tf.convert_to_tensor(variable.value)

    return _variable(variable, path, initial)


def _variable(variable: keras.Variable, path: str, value: object) -> tf.Variable:
    return tf.Variable(
        value,
        trainable=variable.trainable,
        name=path,
        shape=variable.shape,
        dtype=variable.dtype,
    )


def _zeros(variable: keras.Variable) -> tf.Tensor:
    return tf.zeros(variable.shape, variable.dtype)


def _is_scratch_graph() -> bool:
    """Returns True in a graph that is only traced, whose variables take no memory."""
    return not tf.executing_eagerly() and not tf.inside_function()
