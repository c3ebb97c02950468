"""Exponential moving averages of the weights, used by evaluations."""

from collections.abc import Collection, Mapping
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.checks import is_number
from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.nests import wide_dtype
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.hyperparams.param_rules import Rule, check_params
from lingvo_pipe.layers.batch_norm import averaging_rate
from lingvo_pipe.pipeline.execution.shared_updates import SharedUpdates, by_device

_RULES = {
    "ema_decay": Rule(
        lambda x: is_number(x) and 0 <= x < 1,
        "a number in [0, 1)",
        "Use 0 for no averages; 0.999 to 0.9999 is common.",
    )
}


def define_averaging_params(p: Params) -> None:
    """Adds the params of moving averages to a task's `train` params."""
    p.Define(
        "ema_decay",
        0.0,
        "Fraction of the weights' moving averages that a step keeps; evaluations use "
        "the averages. If 0, there are none.",
    )
    p.Define(
        "ema_decay_moving_vars",
        None,
        "Whether variables that are not trained, such as batch norm's moving averages, "
        "are averaged too, which doubles their lag. Required if there are any.",
    )


def average_name(path: str) -> str:
    """Returns the name in checkpoints of the moving average of a variable."""
    return f"{path}/ema"


def make_averages(
    p: Params, trained: Mapping[str, tf.Variable], every: Mapping[str, tf.Variable]
) -> "ExponentialMovingAverage | None":
    """Creates the averages of `averaged_variables`, or None if `ema_decay` is 0."""
    averaged = averaged_variables(p, trained, every)
    if not p.ema_decay:
        return None
    return ExponentialMovingAverage(float(p.ema_decay), averaged)


def averaged_variables(
    p: Params, trained: Mapping[str, tf.Variable], every: Mapping[str, tf.Variable]
) -> dict[str, tf.Variable]:
    """Returns the variables that have moving averages, by path.

    Raises:
        ValueError: if the decay is wrong, or ema_decay_moving_vars is needed but None.
    """
    check_params(p, _RULES, "task.train")
    if not p.ema_decay:
        return {}
    moving = {
        path: variable
        for path, variable in every.items()
        if not variable.trainable and variable.dtype.is_floating
    }
    if moving and p.ema_decay_moving_vars not in (True, False):
        raise UserValueError(
            path="task.train.ema_decay_moving_vars",
            expected=f"True or False, since {len(moving)} variables such as "
            f"{next(iter(moving))} are not trained",
            got=p.ema_decay_moving_vars,
            hint="True averages them like weights, False evaluates with their values.",
        )
    averaged = {**trained, **(moving if p.ema_decay_moving_vars else {})}
    return {path: averaged[path] for path in every if path in averaged}


def average_spec(variable: tf.Variable) -> tf.TensorSpec:
    """Returns the spec of a variable's moving average."""
    return tf.TensorSpec(variable.shape, wide_dtype(variable.dtype))


class ExponentialMovingAverage:
    """Moving averages of variables, each on the variable's device.

    An average starts equal to its variable, and follows it at the rate that
    `averaging_rate` returns. Averages of 16-bit variables have 32 bits, since 16 bits
    would lose small changes.
    """

    def __init__(self, decay: float, variables: Mapping[str, tf.Variable]):
        self._decay = decay
        self._variables = dict(variables)
        self._averages = {path: _average_of(v, path) for path, v in variables.items()}
        self._paths = {variable.ref(): path for path, variable in variables.items()}
        self._updates = SharedUpdates()

    def Update(
        self, num_steps: tf.Tensor, paths: Collection[str] | None = None
    ) -> None:
        """Moves the averages of the variables at `paths` towards the variables.

        If `paths` is None, moves all averages. `num_steps`, integer `[]`, is the number
        of trained steps, including the current step.
        """
        with tf.device("/CPU:0"):
            rate = averaging_rate(self._decay, num_steps)
        pairs = [
            (average, self._variables[path])
            for path, average in self._averages.items()
            if paths is None or path in paths
        ]
        for device, indices in by_device([average for average, _ in pairs]).items():
            variables = [variable for i in indices for variable in pairs[i]]
            with tf.device(device):
                self._updates.call("all", self._update_all, [rate], variables)

    def _update_all(
        self, tensors: list[tf.Tensor], variables: list[tf.Variable]
    ) -> list[tf.Tensor]:
        for pair in zip(variables[::2], variables[1::2], strict=True):
            self._updates.call("one", _update_one, tensors, pair)
        return []

    def Value(self, variable: tf.Variable) -> tf.Tensor:
        """Returns a variable's average, or the variable's value if it has no average.

        The result is on the variable's device and has the variable's dtype.
        """
        path = self._paths.get(variable.ref())
        source = variable if path is None else self._averages[path]
        with tf.device(variable.device):
            return tf.cast(source.value(), variable.dtype)

    def State(self) -> dict[str, Any]:
        """Returns the averages by their names in checkpoints."""
        return {average_name(path): a for path, a in self._averages.items()}


def _update_one(tensors: list[tf.Tensor], pair: list[tf.Variable]) -> list[tf.Tensor]:
    (rate,), (average, variable) = tensors, pair
    change = tf.cast(variable.read_value(), average.dtype) - average.read_value()
    average.assign_add(tf.cast(rate, average.dtype) * change)
    return []


def _average_of(variable: tf.Variable, path: str) -> tf.Variable:
    with tf.device(variable.device):
        value = tf.cast(variable.read_value(), average_spec(variable).dtype)
        return tf.Variable(value, trainable=False, name=average_name(path))
