"""A layer, or a whole pipeline, within a model of Keras.

    pipeline = PipeliningLayer.Params().Set(name="pipe", cell_tpl=cells).Instantiate()
    model = keras.Sequential([keras.Input([8]), KerasLayer(pipeline, batch_size=32)])

Keras trains, saves and loads the weights as those of its own layers. Where the layer is
not `trainable` it runs as in evaluation, as Keras's batch norm does.

Shapes: B examples in a batch.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from lingvo_pipe.layers.accumulators import accumulator_paths
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.forward_context import ForwardContext


class KerasLayer(keras.layers.Layer):
    """Runs a layer's FProp with weights that are Keras's.

    They begin with the values that the layer's variables have now, and are others from
    then on. A layer without sums over the mini-batch, which batch norm has, can be
    trained; any can be used.

    Args:
        layer: the layer; of a task it is `task.pipeline`.
        batch_size: B, which a pipeline must know and Keras does not say; None: any.
        name: Keras's name for it; None: the layer's own.
    """

    def __init__(
        self, layer: BaseLayer, batch_size: int | None = None, name: str | None = None
    ):
        super().__init__(name=name or layer.params.name)
        self._layer = layer
        self._batch_size = batch_size
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
        """The outputs of FProp.

        Args:
            *inputs: of FProp, structures of tensors `[B, ...]`.
            training: whether this is no evaluation.

        Raises:
            ValueError: if the layer can't be trained, and is; if there are not
                `batch_size` examples, such as in the last batch of `predict`; or as
                FProp.
        """
        training = bool(training) and self.trainable
        if training:
            self._check_trainable()
            self._step.assign_add(1)
        return self._fprop(inputs, training)

    @tf.autograph.experimental.do_not_convert
    def _fprop(self, inputs: Any, training: bool) -> Any:
        layer = self._layer
        values = tf.nest.map_structure(lambda w: w.value, self._weights_of_layer)
        theta = layer.CastTheta(layer.vars.Pack(tf.nest.flatten(values)))
        step = tf.cast(self._step.value, tf.int64)
        with ForwardContext(
            do_eval=not training, step=step, first_example=tf.constant(0, tf.int64)
        ) as context:
            outputs = layer.FProp(theta, *tf.nest.map_structure(self._sized, inputs))
        if context.losses:
            num_examples = tf.shape(tf.nest.flatten(inputs)[0])[0]
            for loss in context.losses.values():  # Sums; Keras's are means.
                self.add_loss(loss / tf.cast(num_examples, loss.dtype))
        return outputs

    def _sized(self, x: tf.Tensor) -> tf.Tensor:
        if self._batch_size is None:
            return x
        if x.shape[0] not in (None, self._batch_size):
            raise ValueError(
                f"Each batch must have the batch_size of KerasLayer {self.name}, "
                f"{self._batch_size} examples; this one has {x.shape[0]}. Leave out "
                "one that is not whole, or fill it up."
            )
        return tf.ensure_shape(x, [self._batch_size, *x.shape[1:]])

    def _copy(self, path: str, variable: tf.Variable) -> keras.Variable:
        value = variable.numpy()
        return self.add_weight(
            # Keras takes no slash in a name.
            name=path.replace("/", "."),
            shape=tuple(variable.shape),
            dtype=variable.dtype.name,
            initializer=lambda shape, dtype: tf.constant(value, dtype),
            trainable=variable.trainable,
        )

    def _check_trainable(self) -> None:
        sums = list(accumulator_paths(self._layer))
        if sums:
            raise ValueError(
                "A layer that Keras trains must have no sums over the mini-batch; "
                f"{self._layer.path} has {sums[0]}, and {len(sums) - 1} more. Train it "
                "by the trainer, or use it as it is: set trainable = False, or call it "
                "with training=False."
            )
