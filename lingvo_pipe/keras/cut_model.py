"""CutModel: a Keras model in cells on devices, which are made again if it changes."""

from collections.abc import Callable
from typing import Any

from lingvo_pipe.keras import pipelines
from lingvo_pipe.keras.cells import placement
from lingvo_pipe.keras.cells.model_cells import (
    ModelCells,
    model_cells,
    structure_of,
    trainable_flags,
)
from lingvo_pipe.keras.cells.refusals import check_model, check_strategy, check_summary
from lingvo_pipe.keras.plain_attributes import PlainAttributes
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer


class CutModel(PlainAttributes):
    """The cells of a plain model, its attribute `model`, and their pipelines."""

    _cells: ModelCells
    _pipes: pipelines.Pipelines
    _offload_slots: bool
    _made_for_cells: dict[tuple[Any, ...], Any]  # What new cells need anew.
    _takes_turns = False  # Whether another PipelinedModel has moved the variables.

    @property
    def pipeline(self) -> PipeliningLayer:
        """The pipeline that full mini-batches run through."""
        return self._pipes.of_full_size

    def summary(
        self, *args: Any, print_fn: Callable[[str], Any] = print, **options: Any
    ) -> None:
        """Prints the cells' stages, devices, layers and parameters by `print_fn`.

        Raises:
            TypeError: if other options of Keras's summary are given.
        """
        check_summary([*args, *options])
        cells = list(self._cells.cells.values())
        for line in pipelines.summary_lines(self.name, self.pipeline, cells):
            print_fn(line)

    def _cut(self, cells: ModelCells) -> None:
        self._place(cells)
        # Set so that Keras does not track them.
        self.__dict__.update(
            _weights=self.model.trainable_variables,
            _trained=trainable_flags(self.model),
            _structure=structure_of(self.model),
        )

    def _cut_again(self) -> None:
        """Makes new cells of the model as it is now."""
        check_model(self.model)
        self._cut(model_cells(self.model))

    def _cut_if_new(self, trains: bool = False) -> None:
        """Makes new cells if layers or variables were replaced, such as by LoRA.

        If the model `trains`, also makes them if other variables are trainable. Moves
        the variables back if another PipelinedModel has moved them.
        """
        check_strategy(self.model)
        is_new = self._structure != structure_of(self.model)
        if is_new and self._made_for_cells:
            self._pipes.warn_of_change(self.name)
        if is_new or (trains and self._trained != trainable_flags(self.model)):
            self._cut_again()
        self._place_again()

    def _place(self, cells: ModelCells) -> None:
        """Makes the pipelines. This moves variables to the devices of their stages."""
        variables = [v.variable for v in cells.variables]
        before = placement.Storage(variables)
        self._pipes.make(cells)
        storage = placement.Storage(variables)
        self.__dict__.update(_cells=cells, _made_for_cells={}, _storage=storage)
        if before.has_moved:
            placement.forget_functions(self.model)

    def _place_again(self) -> None:
        """Moves the variables back if another PipelinedModel has moved them."""
        if self._storage.has_moved:
            if not self._takes_turns:
                placement.warn_of_turns(self.name)
            self.__dict__["_takes_turns"] = True
            self._place(self._cells)
            if self.compiled:
                self._place_slots()

    def _place_slots(self) -> None:
        placement.place_slots(self.optimizer, self.model.variables, self._offload_slots)
