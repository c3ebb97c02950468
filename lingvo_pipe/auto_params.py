"""Params of a pipeline that a job leaves to the planner, being `auto`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.hyperparams.text_diff import entries_by_path
from lingvo_pipe.planner.auto_params import settle_auto, take_auto
from lingvo_pipe.training.run_directory import RunDirectory

_NUM_MICRO_BATCHES = "num_micro_batches"


class AutoParams:
    """What is left to the planner; settled once devices are known.

    The number of micro-batches, on which bytes depend, stays what it was in a run that
    goes on. Schedule and recomputation are chosen anew, as it may go on elsewhere.

    Args:
        pipeline: params of a PipeliningLayer, whose `auto` are taken out.
        opened: returns the directory of the run, if there is one.
    """

    def __init__(
        self,
        pipeline: InstantiableParams,
        opened: Callable[[], RunDirectory] | None,
    ):
        self._names = take_auto(pipeline)
        if opened is None or _NUM_MICRO_BATCHES not in self._names:
            return
        before = _trained_with(opened())
        if before is not None:
            pipeline.num_micro_batches = before
            self._names.remove(_NUM_MICRO_BATCHES)

    def settle(self, model: Params, devices: Sequence[str]) -> str:
        """Has the planner settle them; returns a line for the user, or nothing.

        Args:
            model: of which the task's pipeline is changed.
            devices: full names.

        Raises:
            ValueError: as of `settle_auto`.
        """
        if not self._names:
            return ""
        data = model.input.Instantiate()
        return settle_auto(
            model.task, self._names, data.element_spec, model.input.batch_size, devices
        )


def _trained_with(directory: RunDirectory) -> int | None:
    """The number of micro-batches that a run has been trained with, if it has begun."""
    text = directory.read_params()
    if text is None:
        return None
    return int(entries_by_path(text)[f"task.pipeline.{_NUM_MICRO_BATCHES}"].text)
