"""The pipelines of a Keras model: one for each number of micro-batches, same stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.keras.keras_cell import KerasCell
from lingvo_pipe.keras.model_cells import ModelCells
from lingvo_pipe.keras.private_names import Functional
from lingvo_pipe.keras.stages import set_inputs
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer

# Only the first pipeline's stages are chosen by these.
_CHOOSING = ("cell_costs", "memory_limit", "input_shapes", "input_dtypes")


class Pipelines:
    """Pipelines that share the model's variables."""

    def __init__(
        self,
        graph: Functional,
        num_micro_batches: int,
        batch_size: int | None,
        params: Mapping[str, Any],
    ):
        """Takes M and, to choose stages by, B; see PipelinedModel."""
        self._graph, self._params = graph, dict(params)
        self._num_micro_batches, self._batch_size = num_micro_batches, batch_size
        self._made: dict[int, PipeliningLayer] = {}
        self._cells: ModelCells | None = None

    def make(self, cells: ModelCells) -> None:
        """Makes new pipelines of a model's cells; their stages stay where they are."""
        self._cells = cells
        self._made.clear()
        self._make(self._num_micro_batches)

    @property
    def of_full_size(self) -> PipeliningLayer:
        """The pipeline of M micro-batches."""
        return self._made[self._num_micro_batches]

    def for_examples(self, num_examples: int) -> PipeliningLayer:
        """Returns the pipeline for B examples; see `number_for`."""
        number = self.number_for(num_examples)
        return self._made.get(number) or self._make(number)

    def number_for(self, num_examples: int) -> int:
        """Returns the number of micro-batches of B examples, at most B.

        Raises:
            ValueError: if there are fewer examples than batch shards.
        """
        shards = self.of_full_size.spec.num_batch_shards
        if num_examples < shards:
            raise UserValueError(
                path="fit(x)",
                expected=f"mini-batches of at least {shards} examples, one for each "
                "batch shard",
                got=num_examples,
                hint="Leave the last, smaller mini-batch out, or choose another "
                "batch_size.",
            )
        return min(self._num_micro_batches, num_examples // shards * shards)

    def _make(self, num_micro_batches: int) -> PipeliningLayer:
        assert self._cells is not None
        p = PipeliningLayer.Params().Set(
            name="pipeline",
            cell_tpl=[
                KerasCell.Params().Set(name=name, calls=calls)
                for name, calls in self._cells.cells.items()
            ],
            tied=self._cells.tied,
            num_micro_batches=num_micro_batches,
            **self._params,
        )
        set_inputs(p, self._graph, self._batch_size)
        pipe = self._made[num_micro_batches] = p.Instantiate()
        self._params["splits"], self._batch_size = pipe.boundaries, None
        for name in _CHOOSING:
            self._params.pop(name, None)
        return pipe
