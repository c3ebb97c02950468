"""The learner: from gradients to new weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.training.keras_optimizer import OptimizerParams, make_optimizer


def define_learner_params(p: Params) -> None:
    """Defines a learner's params among those of a task's training."""
    p.Define("learning_rate", None, "Constant, or where lr_schedule starts.")
    p.Define("optimizer", OptimizerParams("SGD"), "See OptimizerParams.")
    p.Define("lr_schedule", None, "See ScheduleParams; None: constant.")
    p.Define(
        "clip_gradient_norm_to_value",
        None,
        "Largest global norm of the gradients; larger ones are scaled. None: any.",
    )


class Learner:
    """Updates variables with one of Keras's optimizers.

    An optimizer's slots lie beside their variable, on the device of its stage, and the
    update runs there.
    """

    def __init__(self, p: Params, variables: Mapping[str, tf.Variable]):
        """Creates the optimizer's slots.

        Args:
            p: as of `define_learner_params`.
            variables: those to train, by path, in the order of the model.

        Raises:
            ValueError: if a param can't be used.
        """
        if p.learning_rate is None or not p.learning_rate > 0:
            raise ValueError(
                f"learning_rate must be positive; got {p.learning_rate}. Set "
                "task.train.learning_rate."
            )
        clip_norm = p.clip_gradient_norm_to_value
        if clip_norm is not None and not clip_norm > 0:
            raise ValueError(
                f"clip_gradient_norm_to_value must be positive; got {clip_norm}. None "
                "leaves gradients as they are."
            )
        self._paths = list(variables)
        self._variables = list(variables.values())
        self._optimizer = make_optimizer(
            p.optimizer, p.learning_rate, p.lr_schedule, clip_norm
        )
        try:
            self._optimizer.build(self._variables)
        except (AttributeError, ValueError) as error:
            raise ValueError(
                "optimizer must be one that trains plain TensorFlow variables; "
                f"{p.optimizer.name} does not: {error} Choose another."
            ) from error

    @property
    def learning_rate(self) -> tf.Tensor:
        """Of the next step."""
        return tf.convert_to_tensor(self._optimizer.learning_rate)

    def Apply(self, gradients: Mapping[str, tf.Tensor]) -> None:
        """Updates the variables from gradients by path."""
        self._optimizer.apply([gradients[path] for path in self._paths])

    def State(self) -> dict[str, Any]:
        """The optimizer's own variables by name, for checkpoints."""
        state: dict[str, Any] = {}
        seen: Counter[str] = Counter()
        for variable in self._optimizer.variables:
            path, number = variable.path, seen[variable.path]
            # Keras writes `a/b_c` and `a_b/c` alike; the order is the model's.
            state[f"{path}+{number}" if number else path] = variable.value
            seen[path] += 1
        return state
