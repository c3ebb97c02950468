"""Params of a pipeline that a job leaves to the planner, being `auto`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.hyperparams.entries import Entry
from lingvo_pipe.hyperparams.text_diff import entries_by_path
from lingvo_pipe.planner.settle_auto import settle_auto, take_auto
from lingvo_pipe.training.run_directory import RunDirectory

_NUM_MICRO_BATCHES = "num_micro_batches"
_WHERE = "task.pipeline"
# What the planner settles beside what is asked of it.
_STAGES = ("splits", "stages_per_device")


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
        opened: Callable[[], RunDirectory] | None = None,
    ):
        self._names = take_auto(pipeline)
        if opened is None or _NUM_MICRO_BATCHES not in self._names:
            return
        text = opened().read_params()
        if text is not None:
            _take(pipeline, [_NUM_MICRO_BATCHES], entries_by_path(text))
            self._names.remove(_NUM_MICRO_BATCHES)

    def settle(self, model: Params, data: Any, devices: Sequence[str]) -> str:
        """Has the planner settle them; returns a line for the user, or nothing.

        Args:
            model: of which the task's pipeline is changed.
            data: its input.
            devices: full names.

        Raises:
            ValueError: as of `settle_auto`.
        """
        if not self._names:
            return ""
        return settle_auto(
            model.task,
            self._names,
            data.element_spec,
            model.input.batch_size,
            devices,
            functools.partial(print, file=sys.stderr, flush=True),
        )


def take_from_run(
    pipeline: InstantiableParams,
    opened: Callable[[], RunDirectory],
    asked: int | Sequence[str] | None,
) -> None:
    """Has what is `auto` be as it was in a run whose weights are used.

    With another number of devices the stages are made anew for these, and the weights
    run through them by a schedule that goes with any.

    Args:
        pipeline: params of a PipeliningLayer.
        opened: returns the directory of the run, which has begun.
        asked: see `place_stages`.
    """
    names = take_auto(pipeline)
    if not names:
        return
    before, entries = pipeline.Copy(), entries_by_path(opened().read_params() or "")
    _take(before, [*names, *_STAGES, "devices"], entries)
    number = asked if asked is None or isinstance(asked, int) else len(asked)
    if number in (None, len(before.devices or ())):
        names |= set(_STAGES)
    else:
        names &= {_NUM_MICRO_BATCHES}
    pipeline.Set(**{name: before.Get(name) for name in names})


def _take(
    pipeline: InstantiableParams, names: Sequence[str], entries: Mapping[str, Entry]
) -> None:
    """Sets params to what they are in a text."""
    for name in names:
        # They have other types there than `auto` and what stands for it.
        pipeline.Set(**{name: None})
        pipeline.FromText(f"{name} : {entries[f'{_WHERE}.{name}'].text}")
