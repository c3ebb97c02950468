"""Sums over a training step's micro-batches, and Lingvo's class Accumulator."""

import contextvars
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.errors import UserRuntimeError, UserValueError, Words

_sums: contextvars.ContextVar[Mapping[str, tf.Tensor] | None] = contextvars.ContextVar(
    "step_sums", default=None
)


class Accumulator:
    """A sum over a step's micro-batches, in Lingvo's form. See `RegisterAccumulator`.

    Subclasses define `DefaultValue`. The sum adds `value - DefaultValue()` for each
    value that FProp sets, so it cannot be, for example, a maximum.
    """

    _layer: Any = None
    _name = ""

    def DefaultValue(self) -> tf.Tensor:
        """Returns the value at the start of every step."""
        raise NotImplementedError(f"{type(self).__name__}.DefaultValue")

    def GetValue(self) -> tf.Tensor:
        """Returns the initial value. In PostTrainingStepUpdate, adds the step's sum."""
        sums = _sums.get()
        if sums is None:
            return self.DefaultValue()
        return self.DefaultValue() + sums[f"{self._layer._path}/{self._name}"]

    def SetValue(self, value: tf.Tensor) -> None:
        """Adds `value - DefaultValue()` to the step's sum. Call it once per FProp."""
        self._layer.Accumulate(self._name, value - self.DefaultValue())

    def Reset(self) -> None:
        """Does nothing: the next step begins with the initial value anyway."""

    def bind(self, layer: Any, name: str) -> tf.TensorSpec:
        """Makes this object a layer's accumulator `name`. Returns the value's spec."""
        if self._layer is not None:
            raise UserValueError(
                path=f"{layer._path}/{name}",
                expected="an Accumulator of its own",
                got=Words(f"the one of {self._layer._path}/{self._name}"),
            )
        self._layer, self._name = layer, name
        with tf.Graph().as_default():
            return tf.TensorSpec.from_tensor(tf.convert_to_tensor(self.DefaultValue()))


def with_step_sums(update: Callable) -> Callable:
    """Wraps a PostTrainingStepUpdate so that callers can always pass `accumulated`.

    `accumulated` has the sums of the layer's accumulators over the step's
    micro-batches. `update` can also read them from the layer's Accumulators, and need
    not have a parameter for them. It may call the updates of other layers without the
    argument. The other layers then get the sums of the same step. Anywhere else, a call
    without the argument raises RuntimeError.

    Raises:
        ValueError: if `update` has the parameter `global_step` of older Lingvo.
    """
    parameters = inspect.signature(update).parameters
    if "global_step" in parameters:
        raise UserValueError(
            path=update.__qualname__,
            expected="no parameter global_step",
            hint="Leave it out, and call py_utils.GetGlobalStep().",
        )

    takes_sums = len(parameters) > 1

    @functools.wraps(update)
    def wrapped(self: Any, accumulated: Any = None) -> Any:
        if accumulated is None:
            if _sums.get() is None:
                raise UserRuntimeError(
                    path=f"{self._path}.PostTrainingStepUpdate",
                    expected="the step's sums",
                    hint="Only the update of another layer may omit them.",
                )
            accumulated = self.AccumulatedTree(_sums.get())
        token = _sums.set(_by_path(self, accumulated))
        try:
            return update(self, accumulated) if takes_sums else update(self)
        finally:
            _sums.reset(token)

    return wrapped


def _by_path(layer: Any, sums: Any) -> dict[str, tf.Tensor]:
    paths = layer._tree(
        lambda x: {name: f"{x._path}/{name}" for name in x._accumulators}
    )
    tf.nest.assert_same_structure(paths, sums)
    return dict(zip(tf.nest.flatten(paths), tf.nest.flatten(sums), strict=True))
