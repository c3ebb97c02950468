"""A stage's operations as out-of-line functions, which alike stages share.

Stages of alike layers differ only in the numbers of their values, and in the hashes of
their layers' paths. So the functions are traced for the first of them, whose numbers
replace the others', and the hashes are arguments.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.nests import map_present, spec_of
from lingvo_pipe.pipeline.loops.packed_phases import out_of_line
from lingvo_pipe.pipeline.loops.stage import Stage
from lingvo_pipe.pipeline.loops.stage_call import PhaseInputs, Values
from lingvo_pipe.pipeline.loops.stash import Handles, StashSlot


@dataclasses.dataclass(frozen=True)
class _Kind:
    """The first stage of its kind, the numbers of its values, and the functions."""

    stage: Stage
    numbers: list[int]
    functions: dict[Any, Callable] = dataclasses.field(default_factory=dict)


class SharedStage:
    """The operations of a stage; see `Stage` for arguments and results."""

    def __init__(self, stage: Stage, known: dict[Any, _Kind]):
        """Initializes the stage; alike stages with the same `known` share functions."""
        calls = [call.call for call in stage.calls]
        values = (v for call in calls for v in (*call.args, *call.made))
        self._numbers = list(dict.fromkeys(values))
        self._position = {value: i for i, value in enumerate(self._numbers)}
        key = tuple(
            (
                call.functions,
                call.path_hash is None,
                is_recomputed,
                *(tuple(map(self._position.get, own)) for own in (io.args, io.made)),
            )
            for call, io, is_recomputed in zip(
                stage.calls, calls, stage.recomputed, strict=True
            )
        )
        self._kind = known.setdefault(key, _Kind(stage, self._numbers))

    def forward(
        self,
        given: PhaseInputs,
        values: Values,
        sums: Handles,
        slot: StashSlot | None,
        will_recompute: bool,
        wanted: Iterable[int],
    ) -> tuple[Handles, Handles]:
        """Runs forward; adds only the `wanted` outputs to `values`."""
        made = [value for value in wanted if value not in values]
        return self._run(
            lambda stage, values, given, *args: stage.forward(
                given, values, *args, will_recompute
            ),
            "forward_to_recompute" if will_recompute else "forward",
            values,
            made,
            (given, sums, slot),
        )

    def recompute(
        self,
        given: PhaseInputs,
        values: Values,
        stashed: StashSlot,
        residuals: StashSlot,
    ) -> tuple[Handles, Handles]:
        """Runs the recomputation."""
        return self._run(
            lambda stage, values, given, *args: stage.recompute(given, values, *args),
            "recompute",
            values,
            [],
            (given, stashed, residuals),
        )

    def backward(
        self,
        given: PhaseInputs,
        residuals: StashSlot,
        gradients: Values,
        into: Handles | StashSlot,
        wanted: Iterable[int],
    ) -> list[Handles]:
        """Runs backward; adds only the `wanted` gradients to `gradients`."""
        return self._run(
            lambda stage, gradients, given, residuals, into: stage.backward(
                given, residuals, gradients, into
            ),
            "backward",
            gradients,
            list(wanted),
            (given, residuals, into),
        )

    def weight_backward(
        self, given: PhaseInputs, late: StashSlot, accumulators: Handles
    ) -> list[Handles]:
        """Computes the weights' gradients."""
        return self._run(
            lambda stage, values, *args: stage.weight_backward(*args),
            "weight_backward",
            {},
            [],
            (given, late, accumulators),
        )

    def _run(
        self,
        run: Callable,
        name: str,
        values: Values,
        wanted: list[int],
        args: tuple[Any, ...],
    ) -> Any:
        """Calls `run(stage, values, *args)` out of line; adds `wanted` to `values`."""
        positions = [i for i, value in enumerate(self._numbers) if value in values]
        own_wanted = [self._position[v] for v in wanted if v in self._position]
        tensors = [values[self._numbers[i]] for i in positions]
        specs = map_present(spec_of, (tensors, args))
        kind, key = self._kind, (name, *positions, None, *own_wanted, repr(specs))

        def body(tensors: list[tf.Tensor], args: tuple[Any, ...]) -> Any:
            numbers = [kind.numbers[i] for i in positions]
            found = dict(zip(numbers, tensors, strict=True))
            results = run(kind.stage, found, *args)
            return [found.get(kind.numbers[i]) for i in own_wanted], results

        body.__name__ = f"stage_{name}"
        if key not in kind.functions:
            kind.functions[key] = out_of_line(body, *specs)
        made, results = kind.functions[key](tensors, args)
        pairs = zip(own_wanted, made, strict=True)
        values.update((self._numbers[i], x) for i, x in pairs if x is not None)
        return results
