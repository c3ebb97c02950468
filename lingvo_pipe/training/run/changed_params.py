"""Checks that a run is resumed, or used, with the params that it was started with."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from lingvo_pipe.core.errors import UserValueError, raise_problems
from lingvo_pipe.hyperparams.text_entries import Entry, entries_by_path, is_below

# Params of devices, reports, limits, evaluation, decoding and bad steps. The bytes
# after a good step do not depend on them, with three exceptions: a GPU's slots on the
# host change last digits, slices change last digits, and the interval of evaluations
# changes a learning rate that follows them. These changes are recorded.
FREE = (
    "input.data_dir",
    "input.num_parallel_calls",
    "task.decode",
    "task.eval",
    "task.pipeline.cell_costs",
    "task.pipeline.devices",
    "task.pipeline.input_dtypes",
    "task.pipeline.input_shapes",
    "task.pipeline.memory_limit",
    "task.pipeline.num_replicas",
    "task.pipeline.offload",
    "task.pipeline.recompute",
    "task.pipeline.schedule",
    "task.pipeline.slices",
    "task.pipeline.splits",
    "task.pipeline.stages_per_device",
    "task.train.histogram_interval_steps",
    "task.train.init_from_checkpoint_ema",
    "task.train.init_from_checkpoint_names",
    "task.train.init_from_checkpoint_override",
    "task.train.init_from_checkpoint_rules",
    "task.train.keep_checkpoints",
    "task.train.loss_spike_factor",
    "task.train.max_rollbacks",
    "task.train.max_skipped_steps",
    "task.train.max_steps",
    "task.train.offload_slots",
    "task.train.report_interval_steps",
    "task.train.save_interval_seconds",
    "task.train.save_interval_steps",
    "task.train.steps_per_loop",
)
# Params of training and its data, on which the use of weights does not depend.
_OF_TRAINING = ("input", "task.local", "task.train")
# Params that change results when weights are used, except those in `_OF_BATCHES`.
_OF_USE = ("input", "task.decode")
_OF_BATCHES = (
    "input.batch_size",
    "input.data_dir",
    "input.num_parallel_calls",
    "input.random_seed",
    "input.shuffle",
)
_REPLICAS, _SHARDS = "task.pipeline.num_replicas", "task.pipeline.num_batch_shards"
_SLICES, _INTERVAL = "task.pipeline.slices", "task.eval.interval_steps"
_HOST_SLOTS = "task.train.offload_slots"
# The metric of a DevBasedSchedule, which may be a part of another schedule.
_FOLLOWED = re.compile(r"task\.train\.lr_schedule\b.*\.metric")
_EXACT_INT = re.compile(r"-?\d{1,15}")  # Different ones are different floats.
_MAX_SHOWN = 20
_MAX_NAMED = 8
_MAX_TEXT = 300
_PARENT_DEPTH = 3


def check_allowed(allowed: Sequence[str], *texts: str | None) -> None:
    """Raises ValueError if a path in `allowed` is in none of the texts of params."""
    paths = {path for text in texts for path in entries_by_path(text or "")}
    known_paths = {path.split("[")[0] for path in paths} | paths
    known_paths |= {path.rpartition(".")[0] for path in known_paths}
    flag, expected = "--allow_params_change", "paths of params"
    raise_problems(
        [
            UserValueError(path=flag, expected=expected, got=name, names=known_paths)
            for name in allowed
            if not any(is_below(path, [name]) for path in known_paths)
        ]
    )


def check_changes(before: str, now: str, allowed: Sequence[str]) -> list[str]:
    """Returns the allowed changes of a run's params since the run was started.

    `before` and `now` are all params as text. Devices, duration, intervals, the
    treatment of bad steps, and the folder of the data may always change, and are not in
    the result. Slices, whether slots are on the host, the interval of evaluations that
    a learning rate follows, and params at or below `allowed` paths, may change too, and
    are returned as texts `path : before -> now`.

    Raises:
        ValueError: if any other params have changed. The error names them.
    """
    return _check(
        before,
        now,
        allowed,
        "Cannot resume: these params differ from the original run:",
        "Set them back, use another --logdir",
    )


def check_use(trained: str, now: str, allowed: Sequence[str]) -> None:
    """Checks that weights are used in the model that they were trained in.

    Another model may have the same variables, and give wrong results. Params of
    training and of data may differ, and so may the params that `check_changes` accepts.

    Raises:
        ValueError: if any other params differ.
    """
    _check(
        trained,
        now,
        (*_OF_TRAINING, *allowed),
        "Cannot use the weights: these params differ from the model they were trained "
        "in:",
        "Set them as in the run's params.txt",
    )


def unused_params(trained: str, registered: str, now: str) -> str:
    """Returns a line about a run's params of input and decoding that differ now, or "".

    `trained`, `registered` and `now` are all params as text: of the run, of the model's
    class for training, and in use. The line leaves out params that the run has from its
    class, which may set others by data set, such as the split.
    """
    by_class, in_use = map(entries_by_path, (registered, now))
    lines = [
        f"{path} : {_shown(entry)} -> {_shown(in_use.get(path))}"
        for path, entry in entries_by_path(trained).items()
        if is_below(path, _OF_USE)
        and not is_below(path, _OF_BATCHES)
        and not _same(entry, by_class.get(path))
        and not _same(entry, in_use.get(path))
    ]
    if not lines:
        return ""
    return (
        f"warning: the run has other params: {'; '.join(lines[:_MAX_SHOWN])}. Give the "
        "same changes as in training, or set them in the model's class, unless you "
        "want others."
    )


def _check(
    before: str, now: str, allowed: Sequence[str], problem: str, hint: str
) -> list[str]:
    if before == now:
        return []
    old, new = entries_by_path(before), entries_by_path(now)
    recorded = [_SLICES] + [_INTERVAL] * any(map(_FOLLOWED.fullmatch, new))
    recorded += [_HOST_SLOTS] * (_HOST_SLOTS in old)  # Old versions lack it.
    lines = {
        path: f"{path} : {_shown(old.get(path))} -> {_shown(new.get(path))}"
        for path in sorted({*old, *new})
        if not _same(old.get(path), new.get(path))
        and (path in recorded or not is_below(path, FREE))
        # Ignores a param of a later version that is not set.
        and (path in old or new[path].text != "None")
    }
    changed = [path for path in lines if not is_below(path, (*allowed, *recorded))]
    if not changed:
        return list(lines.values())
    if _SHARDS in changed:
        hint = f"{_shards_hint(old, new)} {hint}"
    shown = [f"  {lines[path]}" for path in changed[:_MAX_SHOWN]]
    if len(changed) > _MAX_SHOWN:
        shown.append(f"  and {len(changed) - _MAX_SHOWN} more")
    raise UserValueError(
        "\n".join([problem, *shown, ""]),
        path=changed[0],
        hint=f"{hint}, or accept the change by "
        f"--allow_params_change={','.join(_names(changed))}.",
    )


def _same(entry: Entry | None, other: Entry | None) -> bool:
    """Returns whether two entries have the same value.

    A param of floats may hold 0, set in Python, or 0.0, read from the command line. An
    entry names the type of a value that is not of its default's type. It names none if
    the default is None: of such a param 8 and 8.0 count as the same, too.
    """
    return _as_float(entry) == _as_float(other)


def _as_float(entry: Entry | None) -> Entry | None:
    """Returns an entry with its integer as a float, if that is exact for all."""
    if entry is None or not _EXACT_INT.fullmatch(entry.text):
        return entry
    return replace(entry, text=repr(float(entry.text)))


def _shards_hint(old: Mapping[str, Entry], new: Mapping[str, Entry]) -> str:
    shards, replicas = (_count(old.get(path)) for path in (_SHARDS, _REPLICAS))
    advice = f"Keep {_REPLICAS} at {replicas}."
    if shards % _count(new.get(_REPLICAS)) == 0:
        before = old[_SHARDS].text if _SHARDS in old else None
        advice = (
            "To resume with another number of replicas, pass "
            f"--model_params_override='{_SHARDS} : {before}'."
        )
    return f"Several replicas set {_SHARDS} to their number. {advice}"


def _count(entry: Entry | None) -> int:
    """Returns a number of replicas or shards, which is 1 unless it is set."""
    return int(entry.text) if entry is not None and entry.text.isdecimal() else 1


def _shown(entry: Entry | None) -> str:
    return "(none)" if entry is None else entry.text[:_MAX_TEXT]


def _names(changed: Sequence[str]) -> list[str]:
    if len(changed) <= _MAX_NAMED:
        return list(changed)
    parents = (
        ".".join(path.split("[")[0].split(".")[:_PARENT_DEPTH]) for path in changed
    )
    return list(dict.fromkeys(parents))
