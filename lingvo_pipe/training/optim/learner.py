"""The learner: updates weights from gradients."""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.checks import is_number
from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.hyperparams.param_rules import SWITCH, Rule, check_params
from lingvo_pipe.schedule import BaseSchedule, DevBasedSchedule
from lingvo_pipe.training.optim.gradient_clipping import (
    clip_by_each_norm,
    clip_by_global_norm,
)
from lingvo_pipe.training.optim.keras_optimizer import (
    LEARNING_RATE_NAME,
    OptimizerParams,
    make_optimizer,
    make_rate,
)
from lingvo_pipe.training.optim.weight_decay import (
    add_l2_gradients,
    define_weight_decay_params,
    l2_weights,
)

_UNNAMED = re.compile(r"^(variable)_\d+$")
_CLIPPINGS = {
    "clip_gradient_norm_to_value": clip_by_global_norm,
    "clip_gradient_single_norm_to_value": clip_by_each_norm,
}


def _is_positive(value: Any) -> bool:
    return is_number(value) and 0 < value < math.inf


_RULES = {
    "learning_rate": Rule(_is_positive, "a positive, finite number"),
    "offload_slots": SWITCH,
    **dict.fromkeys(
        _CLIPPINGS,
        Rule(
            lambda x: not x or _is_positive(x),
            "a positive, finite number, or 0 or None for no clipping",
        ),
    ),
}


def define_learner_params(p: Params) -> None:
    """Adds the params of a learner to a task's `train` params."""
    p.Define("learning_rate", None, "Constant rate, or lr_schedule's initial rate.")
    p.Define("optimizer", OptimizerParams("SGD"), "See OptimizerParams.")
    p.Define(
        "lr_schedule",
        None,
        "ScheduleParams, or params of a class in `lingvo_pipe.schedule`; if None, "
        "constant.",
    )
    p.Define(
        "offload_slots",
        False,
        "Whether the optimizer's slots, such as Adam's moments, are in the memory of "
        "each device's host. The weights are then updated there: the gradient goes to "
        "the host, and the change of the weight comes back.",
    )
    p.Define(
        "clip_gradient_norm_to_value",
        None,
        "Maximum global norm of the gradients; larger ones are scaled. If None or 0, "
        "any.",
    )
    p.Define(
        "clip_gradient_single_norm_to_value",
        None,
        "Maximum norm of each variable's gradient, instead of the global norm. If None "
        "or 0, any.",
    )
    define_weight_decay_params(p)


class Learner:
    """A learner: adds weight decay to gradients, clips, then applies the optimizer.

    All this runs on each variable's device, where its slots are too. With
    `offload_slots` the slots are on the device's host, and the optimizer runs there. A
    global norm is summed on the CPU.

    Args:
        variables: variables to train, by path, in the order of the model.
        all_paths: paths of all trained variables of the model, if other learners train
            some of them.
        undecayed: paths of variables without weight decay.

    Raises:
        ValueError: if a param is invalid.
    """

    def __init__(
        self,
        p: Params,
        variables: Mapping[str, tf.Variable],
        all_paths: Sequence[str] | None = None,
        undecayed: Collection[str] = (),
    ):
        check_params(p, _RULES, "task.train")
        if all(map(p.Get, _CLIPPINGS)):
            raise UserValueError(
                path="task.train",
                expected=f"at most one of {' and '.join(_CLIPPINGS)}",
                got=Words("both"),
                hint="Set one of them to 0.",
            )
        self._params = p
        self._variables = dict(variables)
        decayed = l2_weights(p, list(all_paths or variables), undecayed)
        self._l2_weights = {k: w for k, w in decayed.items() if k in variables}
        # Keras's schedules compute in the dtype of their initial rate.
        self._rate = make_rate(float(p.learning_rate), p.lr_schedule)
        self._optimizer = make_optimizer(p.optimizer, self._rate)
        self._check_accumulation()
        self._optimizer.has_host_slots = p.offload_slots
        try:
            self._optimizer.build(list(variables.values()))
        except (AttributeError, ValueError) as error:
            raise UserValueError(
                path="task.train.optimizer",
                expected="one for plain TensorFlow variables",
                got=Words(f"{p.optimizer.name}, which rejects them: {error}"),
            ) from error

    def _check_accumulation(self) -> None:
        steps = self._optimizer.gradient_accumulation_steps
        for name in _CLIPPINGS:
            if steps and self._params.Get(name):
                raise UserValueError(
                    path="task.train.optimizer.arguments",
                    expected=f"no gradient_accumulation_steps beside {name}, which "
                    "clips each step's gradient, while Keras clips their mean",
                    got=steps,
                    hint="Raise input.batch_size and task.pipeline.num_micro_batches "
                    "by this factor instead.",
                )

    @property
    def learning_rate(self) -> tf.Tensor:
        """Rate of the next step."""
        return tf.convert_to_tensor(self._optimizer.learning_rate)

    def DevBasedSchedules(self) -> list[DevBasedSchedule]:
        """Returns the parts of the schedule whose values depend on evaluations."""
        rate = self._rate  # LinearWarmup and Floor may contain another.
        while not isinstance(rate, BaseSchedule | None):
            rate = getattr(rate, "schedule", None)
        layers = () if rate is None else rate.Descendants()
        return [layer for layer in layers if isinstance(layer, DevBasedSchedule)]

    def Apply(self, gradients: Mapping[str, tf.Tensor]) -> None:
        """Updates the learner's variables. Ignores gradients of other variables."""
        decayed = add_l2_gradients(gradients, self._variables, self._l2_weights)
        ordered = [decayed[path] for path in self._variables]
        self._optimizer.apply(self._clipped(ordered))

    def State(self) -> dict[str, tf.Variable]:
        """Returns the optimizer's own variables by name, for checkpoints."""
        return learner_state([self])

    def OwnVariables(self) -> list[tuple[str, tf.Variable]]:
        """Returns (name, variable) for the optimizer's variables. Names may repeat.

        Keras's variable of a constant learning rate is left out, since the rate comes
        from the params even after a resume. A name such as `variable_3` loses its
        number, which only counts the variables that the process has made.
        """
        return [
            (_UNNAMED.sub(r"\1", variable.path), variable.value)
            for variable in self._optimizer.variables
            if variable.path != LEARNING_RATE_NAME
        ]

    def _clipped(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        p, variables = self._params, list(self._variables.values())
        for name, clip in _CLIPPINGS.items():
            if p.Get(name):
                gradients = clip(gradients, variables, p.Get(name))
        return gradients


def counters(learners: Sequence[Learner]) -> list[list[tf.Variable]]:
    """Returns each learner's step counter and the scalars that depend on it alone.

    These are the optimizer's scalars whose names all learners have, in the same order
    for each learner. All learners must have the same kind of optimizer.
    """
    scalars = [
        {
            path: variable
            for path, variable in learner.OwnVariables()
            if not variable.shape.rank
        }
        for learner in learners
    ]
    names = [path for path in scalars[0] if all(path in by_path for by_path in scalars)]
    return [[by_path[name] for name in names] for by_path in scalars]


def learner_state(learners: Sequence[Learner]) -> dict[str, tf.Variable]:
    """Returns the optimizers' own variables by name, for checkpoints.

    The learners are in the order of the model's variables. Only the first learner's
    counters are saved, since all learners' counters must be equal.
    """
    state: dict[str, tf.Variable] = {}
    seen: Counter[str] = Counter()
    for learner, own_counters in zip(learners, counters(learners), strict=True):
        omitted = [] if learner is learners[0] else own_counters
        for path, variable in learner.OwnVariables():
            if any(variable is counter for counter in omitted):
                continue
            number = seen[path]
            # Keras gives `a/b_c` and `a_b/c` the same name. Numbers tell them apart.
            state[f"{path}+{number}" if number else path] = variable
            seen[path] += 1
    return state


def dev_based_schedules(
    learners: Iterable[Learner], interval_steps: int | None, names: Sequence[str]
) -> list[DevBasedSchedule]:
    """Returns the learners' schedules that follow evaluations' metrics.

    Raises:
        ValueError: if evaluations have another interval, or lack a schedule's metric.
    """
    schedules = [x for learner in learners for x in learner.DevBasedSchedules()]
    for schedule in schedules:
        schedule.CheckEvaluations(interval_steps, names)
    return schedules
