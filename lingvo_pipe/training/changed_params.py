"""Whether a run may go on, or be used, with other params than it was begun with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lingvo_pipe.hyperparams.entries import Entry
from lingvo_pipe.hyperparams.suggest import did_you_mean
from lingvo_pipe.hyperparams.text_diff import entries_by_path

# These place, report or bound what is computed, use what was trained, or decide about
# steps that go wrong. A step that goes well leaves the same bytes, whatever they are.
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
    "task.pipeline.recompute",
    "task.pipeline.schedule",
    "task.pipeline.splits",
    "task.pipeline.stages_per_device",
    "task.train.histogram_interval_steps",
    "task.train.init_from_checkpoint_override",
    "task.train.init_from_checkpoint_rules",
    "task.train.keep_checkpoints",
    "task.train.loss_spike_factor",
    "task.train.max_rollbacks",
    "task.train.max_skipped_steps",
    "task.train.max_steps",
    "task.train.report_interval_steps",
    "task.train.save_interval_steps",
    "task.train.steps_per_loop",
)
# How weights came about, and from what data: whatever uses them depends on neither.
_OF_TRAINING = ("input", "task.local", "task.train")
_PARTS = "task.pipeline.num_parts"
_ABOUT_PARTS = (
    f"Several replicas set {_PARTS} to their number; --model_params_override='{_PARTS} "
    ": {}' goes on with another number of them."
)
_ABSENT = "(none)"
_MAX_SHOWN = 20
_MAX_NAMED = 8
_PARENT_DEPTH = 3


def check_allowed(allowed: Sequence[str], *texts: str | None) -> None:
    """Checks that what may differ is there at all.

    Args:
        allowed: paths of params, or of what params lie below.
        texts: of params; None: there are none.

    Raises:
        ValueError: if one is none in any of the texts; it names near ones.
    """
    paths = {path for text in texts for path in entries_by_path(text or "")}
    known = {path.split("[")[0] for path in paths} | paths
    known |= {path.rpartition(".")[0] for path in known}
    wrong = [name for name in allowed if not any(_is_below(p, [name]) for p in known)]
    if wrong:
        raise ValueError(
            "--allow_params_change takes paths of params; "
            + " ".join(
                f"there is no {name!r}.{did_you_mean(name, known)}" for name in wrong
            )
        )


def check_changes(before: str, now: str, allowed: Sequence[str]) -> None:
    """Checks that params differ only where those of a run that goes on may.

    Where a model runs and how long, how often it is saved and evaluated, what is done
    when a step goes wrong, and where its data lie may always change.

    Args:
        before: the params' text when the run was begun, or last gone on with.
        now: their text now.
        allowed: paths that may differ, and all below them, such as
            `task.train.optimizer`.

    Raises:
        ValueError: if others do, with all of them.
    """
    _check(
        before,
        now,
        allowed,
        "A run must go on with the params that it was begun with; these have changed:",
        "Set them back, use another --logdir",
    )


def check_use(trained: str, now: str, allowed: Sequence[str]) -> None:
    """Checks that weights are used in the model that they were trained in.

    Params of another model may well have variables of the same names and shapes, and
    give wrong results. How it was trained, and on what, may differ.

    Args:
        trained: the text of the run's params.
        now: that of those the weights are used with.
        allowed: as of `check_changes`.

    Raises:
        ValueError: as of `check_changes`.
    """
    _check(
        trained,
        now,
        (*_OF_TRAINING, *allowed),
        "Weights must be used with the params of the model that they were trained in; "
        "these differ:",
        "Set them as the run's params.txt has them",
    )


def _check(
    before: str, now: str, allowed: Sequence[str], rule: str, remedy: str
) -> None:
    if before == now:
        return
    old, new = entries_by_path(before), entries_by_path(now)
    changed = [
        path
        for path in sorted({*old, *new})
        if old.get(path) != new.get(path) and not _is_below(path, (*FREE, *allowed))
    ]
    if not changed:
        return
    if _PARTS in changed:
        remedy = f"{_ABOUT_PARTS.format(_shown(old.get(_PARTS)))} {remedy}"
    lines = [
        f"  {path} : {_shown(old.get(path))} -> {_shown(new.get(path))}"
        for path in changed[:_MAX_SHOWN]
    ]
    if len(changed) > _MAX_SHOWN:
        lines.append(f"  and {len(changed) - _MAX_SHOWN} more")
    raise ValueError(
        "\n".join([rule, *lines]) + f"\n{remedy}, or accept the change by "
        f"--allow_params_change={','.join(_names(changed))}."
    )


def _shown(entry: Entry | None) -> str:
    return _ABSENT if entry is None else entry.text


def _is_below(path: str, parents: Iterable[str]) -> bool:
    return any(path == p or path.startswith((f"{p}.", f"{p}[")) for p in parents)


def _names(changed: Sequence[str]) -> list[str]:
    """What to allow: the paths, or where there are very many, what they lie below."""
    if len(changed) <= _MAX_NAMED:
        return list(changed)
    parents = (
        ".".join(path.split("[")[0].split(".")[:_PARENT_DEPTH]) for path in changed
    )
    return list(dict.fromkeys(parents))
