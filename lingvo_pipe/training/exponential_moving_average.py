"""Exponential moving averages of the weights, to evaluate with.

They follow the weights at the rates of `averaging_rate`, and start as the weights do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.layers.averaging_rate import averaging_rate


def define_averaging_params(p: Params) -> None:
    """Defines averages among the params of a task's training."""
    p.Define(
        "ema_decay",
        0.0,
        "What a step leaves of the weights' moving averages, with which evaluations "
        "run. 0: there are none.",
    )
    p.Define(
        "ema_decay_moving_vars",
        None,
        "Whether what is not trained, such as batch norm's moving averages, is "
        "averaged too, for which it lags behind twice. To be stated where there is "
        "any.",
    )


def average_name(path: str) -> str:
    """The name in checkpoints of the average of the variable at a path."""
    return f"{path}/ema"


def make_averages(
    p: Params, trained: Mapping[str, tf.Variable], every: Mapping[str, tf.Variable]
) -> ExponentialMovingAverage | None:
    """The averages that params ask for, or None.

    Args:
        p: as of `define_averaging_params`.
        trained: the variables that are trained, by path.
        every: all variables of the model, by path.

    Raises:
        ValueError: if the decay is none, or ema_decay_moving_vars is needed.
    """
    decay = p.ema_decay
    if not isinstance(decay, (int, float)) or not 0 <= decay < 1:
        raise ValueError(
            f"ema_decay must lie in [0, 1); got {decay!r}. With 0 there are no "
            "averages; usual are 0.999 to 0.9999."
        )
    if not decay:
        return None
    moving = {
        path: variable
        for path, variable in every.items()
        if not variable.trainable and variable.dtype.is_floating
    }
    if moving and p.ema_decay_moving_vars not in (True, False):
        raise ValueError(
            "ema_decay_moving_vars must be True or False where ema_decay is set and "
            f"there are variables that are not trained, here {len(moving)} such as "
            f"{next(iter(moving))}; got {p.ema_decay_moving_vars!r}. True averages "
            "them as weights are, False evaluates with them as they are."
        )
    averaged = {**trained, **(moving if p.ema_decay_moving_vars else {})}
    return ExponentialMovingAverage(
        float(decay), {path: averaged[path] for path in every if path in averaged}
    )


class ExponentialMovingAverage:
    """An average of each of some variables, on the variable's device.

    Averages of variables of 16 bits have 32: small changes would be lost.
    """

    def __init__(self, decay: float, variables: Mapping[str, tf.Variable]):
        """Creates the averages, equal to the variables.

        Args:
            decay: what a step leaves of an average, in the long run.
            variables: those to average, by path.
        """
        self._decay = decay
        self._variables = dict(variables)
        self._averages = {
            path: _like(variable, average_name(path))
            for path, variable in variables.items()
        }
        self._paths = {variable.ref(): path for path, variable in variables.items()}

    def Reset(self) -> None:
        """Makes the averages equal to the variables again."""
        for path, average in self._averages.items():
            average.assign(tf.cast(self._variables[path], average.dtype))

    def Update(
        self, num_steps: tf.Tensor, paths: Collection[str] | None = None
    ) -> None:
        """Moves the averages towards the variables.

        Args:
            num_steps: n, [] integer: how many steps were trained, the last included.
            paths: of some variables, for their averages alone; None: of all.
        """
        with tf.device("/CPU:0"):
            rate = averaging_rate(self._decay, num_steps)
        for path, average in self._averages.items():
            if paths is not None and path not in paths:
                continue
            with tf.device(average.device):
                weight = tf.cast(self._variables[path].read_value(), average.dtype)
                change = weight - average.read_value()
                average.assign_add(tf.cast(rate, average.dtype) * change)

    def Value(self, variable: tf.Variable) -> tf.Tensor:
        """A variable's average, or its value if it has none, in the variable's dtype.

        It is read on the variable's device.
        """
        path = self._paths.get(variable.ref())
        source = variable if path is None else self._averages[path]
        with tf.device(variable.device):
            return tf.cast(source.read_value(), variable.dtype)

    def State(self) -> dict[str, Any]:
        """The averages by name, for checkpoints."""
        return {average_name(path): a for path, a in self._averages.items()}


def _like(variable: tf.Variable, name: str) -> tf.Variable:
    dtype = variable.dtype if variable.dtype.size > 2 else tf.float32
    with tf.device(variable.device):
        value = tf.cast(variable.read_value(), dtype)
        return tf.Variable(value, trainable=False, name=name)
