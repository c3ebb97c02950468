"""A call of a layer or another operation, tried on random examples.

The call mixes examples if the results for two parts, put together, are not the results
for all, or if an example changes another one's results.
"""

import contextlib
import functools
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from lingvo_pipe.keras.cells.calls import KerasCall
from lingvo_pipe.keras.cells.state import CellScope, RandomDraws
from lingvo_pipe.keras.mixing.call_graph import rows_in, run_call, values_of
from lingvo_pipe.keras.mixing.random_rows import (
    EXACT,
    ROUNDED,
    ROWS,
    Rows,
    are_others_equal,
    is_close,
    is_joined,
    is_mean,
    row_axis,
    with_another_first,
)

_LARGE = 30.0
_OTHERS = (np.nan, 1e6, -1e6)  # Numbers of another first example.


def call_mixes(
    call: KerasCall, draws: RandomDraws, training: bool, with_gradients: bool
) -> bool | None:
    """Returns whether a call mixes random examples, or None if it accepts none."""

    def at(change: Callable[[np.ndarray], np.ndarray], scale: float) -> bool | None:
        for rows in ROWS:
            try:
                trial = _Trial(call, draws, training, rows, change, scale)
            except Exception:  # Whatever a user's layer raises.
                continue
            try:
                return (
                    trial.differs()
                    or trial.changes_others()
                    or (with_gradients and trial.gradients_differ())
                )
            except Exception:  # The call accepts all examples, but not a part.
                return True
        return None

    # Small values may not reach a threshold, and initial weights may be 0.
    results = [at(lambda x: x, 1.0), at(lambda x: x * _LARGE, _LARGE)]
    if results == [None, None]:  # Perhaps the call accepts only probabilities.
        return at(lambda x: 1 / (1 + np.exp(-x)), 1.0)
    return True in results


class _Trial:
    def __init__(
        self,
        call: KerasCall,
        draws: RandomDraws,
        training: bool,
        rows: Rows,
        change: Callable[[np.ndarray], np.ndarray],
        scale: float,
    ):
        self._call, self._draws, self._training = call, draws, training
        self._rows, self._scale = rows, scale
        self._values = {
            number: change(x).astype(x.dtype) if _is_floating(x) else x
            for number, x in values_of(call, rows).items()
        }
        self._weights = {id(v): tf.convert_to_tensor(v.value) for v in call.variables}
        if scale != 1.0:
            self._weights = _changed(self._weights)
        self._outputs, self._sums = self._run(self._values, rows.everything)

    @functools.cached_property
    def _results_of_parts(self) -> list[tuple[list[tf.Tensor], list[tf.Tensor]]]:
        return [self._run(self._values, part) for part in self._rows.parts]

    def differs(self) -> bool:
        """Returns whether the parts' joined results differ from the whole batch's."""
        (first, first_sums), (second, second_sums) = self._results_of_parts
        dtype = getattr(self._call.operation, "compute_dtype", None)
        tolerance = ROUNDED if dtype in ("float16", "bfloat16") else EXACT
        outputs = zip(self._outputs, first, second, strict=True)
        # The pipeline takes the means of losses and of the state that layers write.
        sums = zip(self._sums, first_sums, second_sums, strict=True)
        return not all(is_joined(*map(_array, x)) for x in outputs) or not all(
            is_mean([*map(_array, x)], self._rows, tolerance) for x in sums
        )

    def changes_others(self) -> bool:
        """Returns whether other numbers of the first example change the other results.

        NaN shows what a factor of 0 hides. Layers may refuse such numbers.
        """
        rows, results = self._rows, []
        for number in _OTHERS:
            values = {
                x.number: with_another_first(self._values[x.number], x.row_axis, number)
                for x in self._call.taken
            }
            with contextlib.suppress(Exception):
                results.append(self._run(values, rows.everything)[0])
        shapes = [x.shape for x in self._results_of_parts[0][0]]
        axes = [
            row_axis(x.shape, shape)
            for x, shape in zip(self._outputs, shapes, strict=True)
        ]
        return not all(
            are_others_equal(_array(x), _array(y), axis, rows)
            for changed in results
            for x, y, axis in zip(self._outputs, changed, axes, strict=True)
            if axis is not None
        )

    def gradients_differ(self) -> bool:
        """Returns whether gradients of the parts do not add up to the whole's."""
        of_all, *of_parts = (
            self._gradients(part) for part in (self._rows.everything, *self._rows.parts)
        )
        return not all(
            is_close(whole, sum((x[i] for x in of_parts if i in x), 0.0 * whole))
            for i, whole in of_all.items()
        )

    def _gradients(self, part: slice) -> dict[int, np.ndarray]:
        values = {number: tf.constant(x) for number, x in self._values.items()}
        sources = [values[x.number] for x in self._call.taken if x.row_axis is not None]
        sources += [self._weights[id(v)] for v in self._call.variables if v.trainable]
        sources = [x for x in sources if x.dtype.is_floating]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            outputs, _ = self._run(values, part)
            total = self._random_sum(outputs, part)
        gradients = tape.gradient(total, sources)
        return {i: _array(x) for i, x in enumerate(gradients) if x is not None}

    def _random_sum(self, outputs: list[tf.Tensor], part: slice) -> tf.Tensor:
        """Returns outputs' weighted sum. An example's weights are equal in any part."""
        random = np.random.default_rng(1)
        total = tf.zeros([], tf.float64)
        for whole, output in zip(self._outputs, outputs, strict=True):
            factors = self._scale**2 * random.normal(size=whole.shape)
            if (axis := row_axis(whole.shape, output.shape)) is not None:
                start = part.start * whole.shape[axis] // self._rows.number
                factors = np.take(
                    factors, range(start, start + output.shape[axis]), axis
                )
            if output.dtype.is_floating:
                total += tf.reduce_sum(tf.cast(output, tf.float64) * factors)
        return total

    def _run(
        self, values: Mapping[int, object], part: slice
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        first, num_rows = tf.constant(part.start, tf.int64), part.stop - part.start
        scope = CellScope(self._weights, self._call.variables, first, num_rows)
        return run_call(
            self._call,
            self._draws,
            self._training,
            scope,
            lambda x: tf.convert_to_tensor(rows_in(values[x.number], x, part)),
        )


def _changed(weights: Mapping[int, tf.Tensor]) -> dict[int, tf.Tensor]:
    random = np.random.default_rng(2)
    return {
        key: x + tf.cast(random.uniform(0.1, 1.0, x.shape), x.dtype)
        if x.dtype.is_floating
        else x
        for key, x in weights.items()
    }


def _is_floating(values: np.ndarray) -> bool:
    return tf.as_dtype(values.dtype).is_floating


def _array(value: object) -> np.ndarray:
    return tf.cast(tf.convert_to_tensor(value), tf.float64).numpy()
