"""Auxiliary outputs of a forward pass over b rows: sums, losses and metrics."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.layers.core import forward_context
from lingvo_pipe.layers.core.accumulators import Accumulator
from lingvo_pipe.layers.core.checks import check_shape
from lingvo_pipe.nested_map import NestedMap


class AuxiliaryOutputs:
    """The methods by which a layer's FProp reports auxiliary outputs."""

    _path: str
    _accumulators: dict[str, tf.TensorSpec]
    _accumulator_objects: dict[str, Accumulator]
    _check_new: Callable[[str], None]
    _tree: Callable[[Callable[[Any], Mapping[str, Any]]], NestedMap]

    def RegisterAccumulator(
        self, name: str, shape: Sequence[int] | Accumulator, dtype: Any = None
    ) -> None:
        """Declares a sum over a step's micro-batches. It is float32 if `dtype` is None.

        `FProp` passes each micro-batch's value to `Accumulate`, and
        `PostTrainingStepUpdate` receives the sums. If an `Accumulator` is given instead
        of a shape and dtype, both methods use `self.accumulators.<name>`, as in Lingvo.
        """
        self._check_new(name)
        if isinstance(shape, Accumulator):
            if dtype is not None:
                raise UserValueError(
                    path=f"{self._path}/{name}",
                    expected="no dtype besides the one of Accumulator.DefaultValue",
                    got=dtype,
                )
            self._accumulators[name] = shape.bind(self, name)
            self._accumulator_objects[name] = shape
        else:
            check_shape(shape, f"{self._path}/{name}")
            self._accumulators[name] = tf.TensorSpec(shape, dtype or tf.float32)

    @property
    def own_accumulators(self) -> dict[str, tf.TensorSpec]:
        """Specs of the accumulators that this layer itself registered."""
        return self._accumulators

    @property
    def accumulators(self) -> NestedMap:
        """Accumulators' specs, or Lingvo's Accumulators, in the structure of `vars`."""
        return self._tree(lambda x: {**x._accumulators, **x._accumulator_objects})

    def AccumulatedTree(self, sums: Mapping[str, tf.Tensor]) -> NestedMap:
        """Returns the values of `sums`, a dict by path, in the structure of `vars`."""
        return self._tree(lambda x: {k: sums[f"{x.path}/{k}"] for k in x._accumulators})

    def Accumulate(self, name: str, value: tf.Tensor) -> None:
        """Adds this forward pass's value to the accumulator `name`.

        Padding rows must not contribute. See `ForwardContext.row_weights`.

        Raises:
            ValueError: if the accumulator is not registered, or has another shape.
        """
        specs = self._accumulators
        if name not in specs:
            raise UserValueError(
                path=self._path,
                expected=f"the name of an accumulator, one of {sorted(specs)}",
                got=name,
                names=specs,
                hint="Call RegisterAccumulator in __init__.",
            )
        spec, value = specs[name], tf.cast(value, specs[name].dtype)
        if not spec.shape.is_compatible_with(value.shape):
            expected = f"a value of the registered shape {spec.shape.as_list()}"
            got = value.shape.as_list()
            raise UserValueError(
                path=f"{self._path}/{name}", expected=expected, got=got
            )
        value = tf.ensure_shape(value, spec.shape)
        forward_context.current_context().accumulate(f"{self._path}/{name}", value)

    def AddLoss(self, name: str, values: tf.Tensor) -> None:
        """Adds an auxiliary loss: its mean over the mini-batch's examples is trained.

        The loss is reported as a metric `name`, apart from the task's own loss. The
        losses of layers that share a name add up. With an auxiliary loss, the weight of
        the task's own loss must depend only on the targets. Only `ComputeGradients`
        trains it: a tape's gradient of a pipeline's FProp raises an error.

        Raises:
            ValueError: if the values are not `[b]`, one for each row of the inputs.
        """
        self._check_identifier(name)
        values = tf.convert_to_tensor(values)
        context = forward_context.current_context()
        is_per_row = values.shape.rank == 1 and (
            context.num_rows in (None, values.shape[0])
        )
        if not is_per_row or not values.dtype.is_floating:
            rows = context.num_rows or "b"
            raise UserValueError(
                path=f"AddLoss {name!r} of {self._path}",
                expected=f"floating-point values [{rows}], one for each row",
                got=Words(f"{values.dtype.name} {values.shape}"),
                hint="Sum the values of one example, or repeat the micro-batch's value "
                "for each row.",
            )
        context.add_loss(name, values)

    def AddMetric(self, name: str, mean: tf.Tensor, weight: tf.Tensor) -> None:
        """Reports a metric that is not trained.

        The mean, [], is over this forward pass. The mean's weight, [], is usually the
        number of examples: the sum of `ForwardContext.row_weights`. Padding rows must
        contribute to neither.

        Raises:
            ValueError: if the mean or the weight is not a scalar.
        """
        self._check_identifier(name)
        mean, weight = tf.convert_to_tensor(mean), tf.convert_to_tensor(weight)
        if mean.shape.rank != 0 or weight.shape.rank != 0:
            raise UserValueError(
                path=f"AddMetric {name!r} of {self._path}",
                expected="a scalar mean and a scalar weight",
                got=Words(f"shapes {mean.shape} and {weight.shape}"),
            )
        forward_context.current_context().add_metric(name, mean, weight)

    def _check_identifier(self, name: Any) -> None:
        if not isinstance(name, str) or not name.isidentifier():
            expected = "letters, digits and underscores as a loss's or metric's name"
            raise UserValueError(path=self._path, expected=expected, got=name)
