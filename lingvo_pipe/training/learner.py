"""The learner: from gradients to new weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import tensorflow as tf

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.training.checkpoint_names import LEARNING_RATE_NAME
from lingvo_pipe.training.gradient_clipping import (
    clip_by_each_norm,
    clip_by_global_norm,
)
from lingvo_pipe.training.keras_optimizer import OptimizerParams, make_optimizer
from lingvo_pipe.training.weight_decay import (
    add_l2_gradients,
    define_weight_decay_params,
    l2_weights,
)


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
    p.Define(
        "clip_gradient_single_norm_to_value",
        None,
        "Largest norm of each variable's gradient, in place of the global norm.",
    )
    define_weight_decay_params(p)


class Learner:
    """Updates variables with one of Keras's optimizers.

    A gradient -> with that of weight decay -> clipped -> the optimizer. All of it runs
    on the device of the variable's stage, where the optimizer's slots are too.
    """

    def __init__(
        self,
        p: Params,
        variables: Mapping[str, tf.Variable],
        all_paths: Sequence[str] | None = None,
    ):
        """Creates the optimizer's slots.

        Args:
            p: as of `define_learner_params`.
            variables: those to train, by path, in the order of the model.
            all_paths: of all variables of the model that are trained, if there are
                other learners for the others.

        Raises:
            ValueError: if a param can't be used.
        """
        if p.learning_rate is None or not p.learning_rate > 0:
            raise ValueError(
                f"learning_rate must be positive; got {p.learning_rate}. Set "
                "task.train.learning_rate."
            )
        _check_clipping(p)
        self._params = p
        self._variables = dict(variables)
        decayed = l2_weights(p, list(variables if all_paths is None else all_paths))
        self._l2_weights = {k: w for k, w in decayed.items() if k in variables}
        self._optimizer = make_optimizer(p.optimizer, p.learning_rate, p.lr_schedule)
        try:
            self._optimizer.build(list(variables.values()))
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
        """Updates the variables from gradients by path, of those trained or more."""
        decayed = add_l2_gradients(gradients, self._variables, self._l2_weights)
        ordered = [decayed[path] for path in self._variables]
        self._optimizer.apply(self._clipped(ordered))

    def State(self) -> dict[str, tf.Variable]:
        """The optimizer's own variables by name, for checkpoints."""
        return learner_state([self])

    def OwnVariables(self) -> list[tuple[str, tf.Variable]]:
        """Returns the optimizer's state with its names, which may repeat.

        A constant learning rate is a variable of Keras's, but no state: it comes from
        the params, also after a resume.
        """
        return [
            (each.path, each.value)
            for each in self._optimizer.variables
            if each.path != LEARNING_RATE_NAME
        ]

    def _clipped(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        p, variables = self._params, list(self._variables.values())
        for name, clip in _CLIPPINGS.items():
            if p.Get(name) is not None:
                gradients = clip(gradients, variables, p.Get(name))
        return gradients


def counters(learners: Sequence[Learner]) -> list[list[tf.Variable]]:
    """For each learner what belongs to no single variable, in one order.

    It is the number of steps, and what else follows from that alone.

    Args:
        learners: of one kind, each for some of a model's variables.
    """
    of_learners = [
        {path: own for path, own in learner.OwnVariables() if not own.shape.rank}
        for learner in learners
    ]
    names = [p for p in of_learners[0] if all(p in others for others in of_learners)]
    return [[of_one[name] for name in names] for of_one in of_learners]


def learner_state(learners: Sequence[Learner]) -> dict[str, tf.Variable]:
    """The optimizers' own variables by name, for checkpoints.

    Args:
        learners: for the variables of a model, in its order. Counters are those of the
            first; the others' must be the same.
    """
    state: dict[str, tf.Variable] = {}
    seen: Counter[str] = Counter()
    for learner, own_counters in zip(learners, counters(learners), strict=True):
        left_out = [] if learner is learners[0] else own_counters
        for path, variable in learner.OwnVariables():
            if any(variable is counter for counter in left_out):
                continue
            number = seen[path]
            # Keras writes `a/b_c` and `a_b/c` alike; the order is the model's.
            state[f"{path}+{number}" if number else path] = variable
            seen[path] += 1
    return state


_CLIPPINGS = {
    "clip_gradient_norm_to_value": clip_by_global_norm,
    "clip_gradient_single_norm_to_value": clip_by_each_norm,
}


def _check_clipping(p: Params) -> None:
    given = [name for name in _CLIPPINGS if p.Get(name) is not None]
    for name in given:
        if not p.Get(name) > 0:
            raise ValueError(
                f"{name} must be positive; got {p.Get(name)}. None leaves gradients "
                "as they are."
            )
    if len(given) > 1:
        raise ValueError(
            f"Gradients are clipped by one norm; got {' and '.join(given)}. Set one of "
            "them to None."
        )
