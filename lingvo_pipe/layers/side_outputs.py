"""What a forward pass may hand over beside its outputs: sums, losses and metrics.

Shapes: b rows in the inputs of a forward pass.
"""

from __future__ import annotations

import tensorflow as tf

from lingvo_pipe.layers import forward_context
from lingvo_pipe.layers.accumulators import checked_share


def check_identifier(name: str, what: str, path: str) -> None:
    """Raises ValueError unless `name` can be that of a metric."""
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(
            f"{what} must be named by letters, digits and underscores; {path} has "
            f"{name!r}."
        )


class SideOutputs:
    """The methods by which a layer's FProp hands something over."""

    @property
    def path(self) -> str:
        """Names from the root to this layer, joined by `/`."""
        raise NotImplementedError

    @property
    def own_accumulators(self) -> dict[str, tf.TensorSpec]:
        """Specs of the accumulators that this layer itself registered."""
        raise NotImplementedError

    def Accumulate(self, name: str, value: tf.Tensor) -> None:
        """Adds this forward pass's share to the accumulator `name`.

        Where `ForwardContext.row_weights` says that rows are no examples, they must
        have no share.

        Raises:
            ValueError: if none of this name was registered, or the value has not the
                shape it was registered with.
        """
        share = checked_share(self.own_accumulators, name, value, self.path)
        forward_context.current().accumulate(f"{self.path}/{name}", share)

    def AddLoss(self, name: str, values: tf.Tensor) -> None:
        """Adds a loss to what is trained: its mean over the mini-batch's examples.

        It is reported as a metric, apart from the task's own loss. Layers may share a
        name; their losses add up. The weight of the task's own loss must follow from
        the targets alone then. `ComputeGradients` trains with it; a gradient tape
        around FProp does not see it, and is refused.

        Args:
            name: of the metric.
            values: `[b]`, each example's.

        Raises:
            ValueError: if the values have another rank, or another number of rows than
                the inputs.
        """
        check_identifier(name, "A loss", self.path)
        values = tf.convert_to_tensor(values)
        if values.shape.rank != 1 or not values.dtype.is_floating:
            raise ValueError(
                "AddLoss takes a floating value for each example, [b]; that of "
                f"{self.path} called {name!r} is {values.dtype.name} {values.shape}. "
                "Reduce the other dimensions, or repeat the micro-batch's value for "
                "each row."
            )
        context = forward_context.current()
        if context.num_rows not in (None, values.shape[0]):
            raise ValueError(
                "AddLoss takes a value for each row of the micro-batch; that of "
                f"{self.path} called {name!r} has {values.shape[0]} for "
                f"{context.num_rows} rows. Sum over what belongs to one example."
            )
        context.add_loss(name, values)

    def AddMetric(self, name: str, mean: tf.Tensor, weight: tf.Tensor) -> None:
        """Reports a metric; nothing is trained by it.

        Rows that are no examples must have no share in either, as in `Accumulate`.

        Args:
            name: of the metric.
            mean: [], over this forward pass.
            weight: [], by which it counts, such as the number of examples: the sum of
                `ForwardContext.row_weights`.

        Raises:
            ValueError: if one of them is no scalar.
        """
        check_identifier(name, "A metric", self.path)
        mean, weight = tf.convert_to_tensor(mean), tf.convert_to_tensor(weight)
        if mean.shape.rank != 0 or weight.shape.rank != 0:
            raise ValueError(
                "AddMetric takes a scalar mean and a scalar weight; those of "
                f"{self.path} called {name!r} have shapes {mean.shape} and "
                f"{weight.shape}. Reduce the mean over the examples."
            )
        forward_context.current().add_metric(name, mean, weight)
