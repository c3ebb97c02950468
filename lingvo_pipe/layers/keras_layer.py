"""A Keras layer that runs a layer of this project, or a whole pipeline.

    pipeline = PipeliningLayer.Params().Set(name="pipe", cell_tpl=cells).Instantiate()
    model = keras.Sequential([keras.Input([8]), KerasLayer(pipeline, batch_size=32)])

Keras trains, saves and loads the weights like its own layers' weights. A layer that is
not `trainable` runs as in evaluation, like Keras's batch norm.
"""

import contextlib
from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.core.near_names import first_names
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext, known_rows
from lingvo_pipe.layers.core.layer_tree import accumulator_paths
from lingvo_pipe.layers.local_loss import LocalLossLayer
from lingvo_pipe.layers.sequential import SeqLayer


class KerasLayer(keras.layers.Layer):
    """A Keras layer that runs a layer's FProp with weights that belong to Keras.

    The initial weights are copies of the layer's variables. Inputs and weights keep
    their dtypes: Keras's policies do not cast them. Keras can train only layers without
    accumulators over the mini-batch, updates after a step or losses of blocks, so it
    cannot train batch norm. It can run any layer in evaluation. Metrics do not reach
    Keras: a warning names them, except where a pipeline's cells report them. A pipeline
    must know the `batch_size`, B, which Keras does not provide.
    """

    def __init__(
        self, layer: BaseLayer, batch_size: int | None = None, name: str | None = None
    ):
        super().__init__(name=name or layer.params.name, autocast=False)
        self._layer = layer
        self._batch_size = batch_size
        self._lost_metrics: set[str] = set()
        by_variable = {
            variable.ref(): self._copy(path, variable)
            for path, variable in layer.VariablePaths().items()
        }
        self._weights_of_layer = tf.nest.map_structure(
            lambda variable: by_variable[variable.ref()], dict(layer.vars)
        )
        self._step = self.add_weight(
            name="step", shape=(), dtype="int64", initializer="zeros", trainable=False
        )
        self.built = True

    def call(self, *inputs: Any, training: bool | None = None) -> Any:
        """Returns the outputs of FProp for structures of tensors `[B, ...]`.

        Raises:
            ValueError: if Keras cannot train the layer, or a batch has another size.
        """
        training = bool(training) and self.trainable
        if training:
            self._check_trainable()
            self._step.assign_add(1)
        return self._fprop(inputs, training)

    @tf.autograph.experimental.do_not_convert
    def _fprop(self, inputs: Any, training: bool) -> Any:
        layer = self._layer
        values = [weight.value for weight in tf.nest.flatten(self._weights_of_layer)]
        theta = layer.CastTheta(layer.vars.Pack(values))
        step, first = tf.cast(self._step.value, tf.int64), tf.constant(0, tf.int64)
        inputs = tf.nest.map_structure(self._sized, inputs)
        is_sequence = isinstance(layer, SeqLayer)  # It sets the rows itself.
        with (
            ForwardContext(
                do_eval=not training, step=step, first_example=first
            ) as context,
            contextlib.nullcontext() if is_sequence else known_rows(inputs),
        ):
            outputs = layer.FProp(theta, *inputs)
        self._warn_of_metrics(context.metric_pairs)
        if context.losses:
            num_examples = tf.shape(tf.nest.flatten(inputs)[0])[0]
            for loss in context.losses.values():  # Sums; Keras's are means.
                self.add_loss(loss / tf.cast(num_examples, loss.dtype))
        return outputs

    def _check_trainable(self) -> None:
        layers = list(self._layer.Descendants())
        lost = {
            "accumulators": list(accumulator_paths(self._layer)),
            "PostTrainingStepUpdate": [x.path for x in layers if x.updates_after_step],
            "LocalLossLayer": [x.path for x in layers if isinstance(x, LocalLossLayer)],
        }
        for kind, paths in lost.items():
            if paths:
                raise UserValueError(
                    path=self._layer.path,
                    expected=f"no {kind} in a layer that Keras trains",
                    got=Words(first_names(paths, 1)),
                    hint="Use the trainer, or set trainable = False, or call the layer "
                    "with training=False.",
                )

    def _warn_of_metrics(self, names: Iterable[str]) -> None:
        new = sorted(set(names) - self._lost_metrics)
        if new:
            self._lost_metrics.update(new)
            text = "%s: Keras does not get what AddMetric reports as %s."
            tf.get_logger().warning(text, self._layer.path, ", ".join(new))

    def _sized(self, x: tf.Tensor) -> tf.Tensor:
        if self._batch_size is None:
            return x
        if x.shape[0] not in (None, self._batch_size):
            raise UserValueError(
                path=f"{self.name}.batch_size",
                expected=f"{self._batch_size} examples",
                got=x.shape[0],
                hint="Drop the last batch, or pad it.",
            )
        return tf.ensure_shape(x, [self._batch_size, *x.shape[1:]])

    def _copy(self, path: str, variable: tf.Variable) -> keras.Variable:
        value = variable.numpy()
        return self.add_weight(
            # Keras accepts no slash in a name.
            name=path.replace("/", "."),
            shape=tuple(variable.shape),
            dtype=variable.dtype.name,
            initializer=lambda shape, dtype: tf.constant(value, dtype),
            trainable=variable.trainable,
            autocast=False,
        )
