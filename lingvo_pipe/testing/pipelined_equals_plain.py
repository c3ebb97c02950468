"""A check that pipelines train a Keras model as plain Keras does.

    plain Keras   --- close --- M=1, one device  --- same bytes --- M=1, other layouts
                  --- close --- M=4, one device  --- same bytes --- M=4, other layouts

M is the number of micro-batches.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import keras
import numpy as np
from keras import tree

from lingvo_pipe.core.errors import (
    UserAssertionError,
    UserValueError,
    Words,
    raise_problems,
)
from lingvo_pipe.keras.pipelined_model import PipelinedModel

# Arrays of smaller numbers hold only rounding errors, such as gradients of 0.
_SMALL = 1e-4
_DIGITS = re.compile(r"(\d+)")

Arguments = Callable[[], Mapping[str, Any]] | Mapping[str, Any]


@dataclass(frozen=True)
class TrainedModel:
    """The results of one training, as pairs of a description and an array."""

    name: str  # How it was trained.
    values: list[tuple[str, np.ndarray]]
    outputs: Any = "array"  # How the outputs of predict are nested.


@dataclass(frozen=True)
class Difference:
    """The largest difference between the numbers of two arrays."""

    what: str  # What the arrays are.
    size: float
    largest: float  # The largest of the expected numbers, by size.

    @property
    def relative(self) -> float:
        """Ratio of `size` to `largest`, or to `_SMALL` if `largest` is smaller."""
        return self.size / max(self.largest, _SMALL)


def assert_pipelined_equals_plain(
    make_model: Callable[[], keras.Model],
    data: Sequence[Any],
    compile_args: Arguments,
    fit_args: Arguments = MappingProxyType({}),
    *,
    batch_size: int = 8,
    epochs: int = 2,
    devices: Sequence[int] = (1, 2),
    num_micro_batches: Sequence[int] = (1, 4),
    schedules: Sequence[str] = ("1f1b",),
    recompute: Sequence[str] = ("always",),
    tolerance: float = 1e-4,
    seed: int = 0,
    **params: Any,
) -> None:
    """Trains a model by plain Keras and by pipelines, and raises if results differ.

    Compares weights, state, slots of the optimizer, the history of `fit`, and the
    results of evaluate and predict. A layout is a number of devices, a schedule and a
    recompute mode. For each number of micro-batches, the first layout may differ from
    plain Keras by at most `tolerance`. All other layouts must give the same bytes as
    the first layout.

    An optimizer that divides by the size of gradients, as Adam does, enlarges rounding
    errors of gradients that should be 0, such as the gradient of an attention's key
    bias. If only such weights differ, choose a larger epsilon, or SGD.

    Args:
        make_model: returns a new model. Keras's random seed is set before each call.
        data: (x, y) or (x, y, sample_weight), arrays as `fit` takes them.
        compile_args: arguments of `compile`, or a function that returns them. If
            optimizer, loss or metrics are objects, give a function.
        fit_args: more arguments of `fit`, such as class_weight, or a function that
            returns them. Callbacks need a function.
        batch_size: B, the examples of a mini-batch.
        epochs: number of epochs.
        devices: numbers of devices, K.
        num_micro_batches: numbers of micro-batches, M.
        schedules: schedules for more than one device.
        recompute: recompute modes for more than one device.
        tolerance: the largest difference from plain Keras, as a part of the largest
            number of the same array.
        seed: the random seed.
        **params: other params of `PipelinedModel`.

    Raises:
        AssertionError: for the first array that differs, in the model's order.
        ValueError: if an argument is invalid, such as an optimizer in `compile_args`.
    """
    lists = {
        "devices": devices,
        "num_micro_batches": num_micro_batches,
        "schedules": schedules,
        "recompute": recompute,
    }
    raise_problems(
        [
            UserValueError(path=name, expected="at least one", got=values)
            for name, values in lists.items()
            if not values
        ]
    )
    if "schedule" in params:
        raise UserValueError(
            path="schedule",
            expected="a list, by the name schedules",
            got=params["schedule"],
        )

    def train(name: str, **layout: Any) -> TrainedModel:
        keras.utils.set_random_seed(seed)
        model = make_model()
        trained: Any = PipelinedModel(model, **layout) if layout else model
        trained.compile(**_arguments(compile_args))
        options = {"batch_size": batch_size, "verbose": 0}
        more = fit_args() if callable(fit_args) else fit_args
        more = {"shuffle": False, "epochs": epochs, **options, **more}
        named_data = dict(zip(("x", "y", "sample_weight"), data, strict=False))
        history = trained.fit(**named_data, **more).history
        evaluation = trained.evaluate(**named_data, return_dict=True, **options)
        outputs = trained.predict(data[0], **options)
        predictions = tree.flatten(outputs)
        variables = [*model.variables, *trained.optimizer.variables]
        values = {
            **{f"fit's {key}": history[key] for key in _in_order(history)},
            **{f"evaluate's {key}": evaluation[key] for key in _in_order(evaluation)},
            **{f"output {i} of predict": x for i, x in enumerate(predictions)},
        }
        arrays = [*((f"variable {v.path!r}", v.numpy()) for v in variables)]
        arrays += [(what, np.array(x)) for what, x in values.items()]
        nested = tree.map_structure(lambda x: "array", outputs)
        return TrainedModel(name, arrays, nested)

    plain = train("plain Keras")
    for number in num_micro_batches:
        first = None
        for k, schedule, mode in itertools.product(
            sorted(devices), schedules, recompute
        ):
            options = {"devices": k, "num_micro_batches": number, **params}
            if k > 1:
                options.update(schedule=schedule, recompute=mode)
            elif (schedule, mode) != (schedules[0], recompute[0]):
                continue  # One device has no schedule.
            name = ", ".join(f"{key}={value!r}" for key, value in options.items())
            pipelined = train(name, **options)
            if first is None:
                first = pipelined
                _check(plain, pipelined, tolerance)
            else:
                _check(first, pipelined, 0.0)


def differences(expected: TrainedModel, got: TrainedModel) -> Iterator[Difference]:
    """Yields a Difference for each array in `expected` and its counterpart in `got`."""
    for (what, a), (_, b) in zip(expected.values, got.values, strict=True):
        if a.shape != b.shape:
            yield Difference(what, float("inf"), 1.0)
            continue
        a, b = a.astype("float64"), b.astype("float64")
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        apart = np.abs(np.subtract(a, b, where=~same, out=np.zeros_like(a)))
        largest = np.max(np.abs(a), initial=0.0, where=np.isfinite(a))
        size = np.nan_to_num(np.max(apart, initial=0.0), nan=np.inf)
        yield Difference(what, float(size), float(largest))


def _check(expected: TrainedModel, got: TrainedModel, tolerance: float) -> None:
    if expected.outputs != got.outputs:
        raise UserAssertionError(
            path="predict",
            expected=f"{expected.outputs}, the outputs of {expected.name}",
            got=Words(f"{got.outputs}"),
        )
    unequal = [x for x in differences(expected, got) if x.relative > tolerance]
    if unequal:
        first, worst = unequal[0], max(unequal, key=lambda x: x.relative)
        within = f"within {tolerance:g} of the largest" if tolerance else "in each byte"
        raise UserAssertionError(
            path=first.what,
            expected=f"the numbers of {expected.name}, {within}, by {got.name}",
            got=Words(f"a difference of {first.size:.2g} of {first.largest:.2g}"),
            hint=f"{len(unequal)} of {len(expected.values)} arrays differ; most of all "
            f"{worst.what}, by {worst.size:.2g} of {worst.largest:.2g}.",
        )


def _arguments(compile_args: Any) -> Mapping[str, Any]:
    if callable(compile_args):
        return compile_args()
    if isinstance(compile_args.get("optimizer"), keras.Optimizer):
        raise UserValueError(
            path="compile_args",
            expected="a function, because an optimizer can train only one model",
            got=compile_args["optimizer"],
            hint="Give compile_args=lambda: {...}.",
        )
    return compile_args


def _in_order(names: Iterable[str]) -> list[str]:
    """Sorts names so that `dense_1000_loss` follows `dense_999_loss`, unlike Keras.

    Keras numbers the layers of a process, so each model has other numbers.
    """

    def key(name: str) -> list[int | str]:
        return [int(x) if x.isdigit() else x for x in _DIGITS.split(name)]

    return sorted(names, key=key)
