"""Values for pipeline params that are `auto`, from a run or from the planner."""

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lingvo_pipe.core.regular_file import damaged
from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.hyperparams.literals import read_plain
from lingvo_pipe.hyperparams.text_entries import entries_by_path
from lingvo_pipe.planner.measured.resolve_auto import extract_auto, resolve_auto
from lingvo_pipe.training.profiling.step_profile import PlannedStep
from lingvo_pipe.training.run.run_directory import RunDirectory

_NUM_MICRO_BATCHES = "num_micro_batches"
_PIPELINE = "task.pipeline"
# Params that the planner may set as well.
_STAGES = ("splits", "stages_per_device")
# Types that these params have in a run's params.txt.
_TYPES = {
    _NUM_MICRO_BATCHES: (int,),
    "schedule": (str,),
    "recompute": (type(None), str, list, tuple),
    "offload": (type(None), str, float, list, tuple),
    "splits": (int, str, list, tuple),
    "stages_per_device": (int,),
    "devices": (type(None), list, tuple),
}


class AutoParams:
    """The params of `pipeline` that are `auto`, which `resolve` sets.

    If the directory from `open_run` has a run, the number of micro-batches is the same
    as in this run, because another number can change the bytes of results. The planner
    chooses the other params again.
    """

    def __init__(
        self,
        pipeline: InstantiableParams,
        open_run: Callable[[], RunDirectory] | None = None,
    ):
        self._names = extract_auto(pipeline)
        self.planned: PlannedStep | None = None  # Once resolved by the planner.
        if open_run is None or _NUM_MICRO_BATCHES not in self._names:
            return
        directory = open_run()
        if directory.params_path.exists():
            _set_from_run(pipeline, [_NUM_MICRO_BATCHES], directory)
            self._names.remove(_NUM_MICRO_BATCHES)

    def resolve(self, model: Params, data: Any, devices: Sequence[str]) -> str:
        """Sets params that are `auto`. Returns a line about the plan, or ""."""
        if not self._names:
            return ""
        line, self.planned = resolve_auto(
            model.task,
            self._names,
            data.element_spec,
            model.input.batch_size,
            devices,
            functools.partial(print, file=sys.stderr, flush=True),
        )
        return line


def extract_from_run(
    pipeline: InstantiableParams,
    open_run: Callable[[], RunDirectory],
    flag: int | Sequence[str] | None,
) -> None:
    """Sets params that are `auto` to their values in the run from `open_run`.

    `flag` is the value of --devices (see `place_stages`). If `flag` gives another
    number of devices than the run had, only the number of micro-batches is taken.
    """
    names = extract_auto(pipeline)
    if not names:
        return
    before = pipeline.Copy()
    _set_from_run(before, [*names, *_STAGES, "devices"], open_run())
    number = flag if flag is None or isinstance(flag, int) else len(flag)
    if number in (None, len(before.devices or ())):
        names |= set(_STAGES)
    else:
        names &= {_NUM_MICRO_BATCHES}
    pipeline.Set(**{name: before.Get(name) for name in names})


def _set_from_run(
    pipeline: InstantiableParams, names: Iterable[str], directory: RunDirectory
) -> None:
    entries = entries_by_path(directory.read_params() or "")
    for name in names:
        entry = entries.get(f"{_PIPELINE}.{name}")
        try:
            if entry is None:
                raise ValueError("no value")
            value = read_plain(entry.text)
            items = value if isinstance(value, (list, tuple)) else [0]
            if type(value) not in _TYPES[name] or not {*map(type, items)} <= {int, str}:
                raise ValueError(entry.text)
        except ValueError as error:
            kinds = ", ".join(kind.__name__ for kind in _TYPES[name])
            expected = f"{_PIPELINE}.{name} of type {kinds}"
            raise damaged(directory.params_path, expected, error) from error
        pipeline.Set(**{name: value})
