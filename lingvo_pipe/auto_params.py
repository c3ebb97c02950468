"""Params of a pipeline that a job leaves to the planner, being `auto`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.hyperparams.entries import Entry
from lingvo_pipe.hyperparams.literals import read_plain
from lingvo_pipe.hyperparams.text_diff import entries_by_path
from lingvo_pipe.planner.settle_auto import settle_auto, take_auto
from lingvo_pipe.training.run_directory import RunDirectory

_NUM_MICRO_BATCHES = "num_micro_batches"
_WHERE = "task.pipeline"
# What the planner settles beside what is asked of it.
_STAGES = ("splits", "stages_per_device")
# Types that these params have in a run's params.txt.
_TYPES = {
    _NUM_MICRO_BATCHES: (int,),
    "schedule": (str,),
    "recompute": (type(None), str, list, tuple),
    "splits": (int, str, list, tuple),
    "stages_per_device": (int,),
    "devices": (type(None), list, tuple),
}


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
        directory = opened()
        text = directory.read_params()
        if text is not None:
            _take(pipeline, [_NUM_MICRO_BATCHES], text, directory)
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
    before, directory = pipeline.Copy(), opened()
    text = directory.read_params() or ""
    _take(before, [*names, *_STAGES, "devices"], text, directory)
    number = asked if asked is None or isinstance(asked, int) else len(asked)
    if number in (None, len(before.devices or ())):
        names |= set(_STAGES)
    else:
        names &= {_NUM_MICRO_BATCHES}
    pipeline.Set(**{name: before.Get(name) for name in names})


def _take(
    pipeline: InstantiableParams,
    names: Sequence[str],
    text: str,
    directory: RunDirectory,
) -> None:
    """Sets params to their values in a run's params.txt, which are plain values.

    Raises:
        ValueError: if one is missing there, or of a type that the param cannot have.
    """
    entries = entries_by_path(text)
    problems = []
    for name in names:
        path = f"{_WHERE}.{name}"
        try:
            pipeline.Set(**{name: _read(entries, path, _TYPES[name])})
        except ValueError as error:
            problems.append(f"{path}: {error}")
    if problems:
        raise ValueError(
            f"{directory.params_path} must be as it was written; {'; '.join(problems)}."
            " Put back a copy, or use another --logdir."
        )


def _read(entries: Mapping[str, Entry], path: str, types: tuple[type, ...]) -> Any:
    """Returns a param's value; the items of a list are numbers or strings."""
    if path not in entries:
        raise ValueError("expected a value, got none")
    value = read_plain(entries[path].text)
    items = value if isinstance(value, (list, tuple)) else [0]
    if type(value) not in types or not {*map(type, items)} <= {int, str}:
        names = ", ".join(each.__name__ for each in types)
        raise ValueError(f"expected a value of type {names}, got {value!r}")
    return value
