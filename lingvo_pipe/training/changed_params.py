"""Whether a run may go on with params other than those it was begun with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lingvo_pipe.hyperparams.entries import Entry
from lingvo_pipe.hyperparams.suggest import did_you_mean
from lingvo_pipe.hyperparams.text_diff import entries_by_path

# These place, report or bound what is computed, and leave the model what it is.
_FREE = (
    "input.data_dir",
    "input.num_parallel_calls",
    "task.eval",
    "task.pipeline.cell_costs",
    "task.pipeline.devices",
    "task.pipeline.memory_limit",
    "task.pipeline.num_micro_batches",
    "task.pipeline.recompute",
    "task.pipeline.schedule",
    "task.pipeline.splits",
    "task.pipeline.stages_per_device",
    "task.train.init_from_checkpoint_override",
    "task.train.init_from_checkpoint_rules",
    "task.train.keep_checkpoints",
    "task.train.max_steps",
    "task.train.report_interval_steps",
    "task.train.save_interval_steps",
)
_ABSENT = "(none)"
_MAX_SHOWN = 20
_MAX_NAMED = 8
_PARENT_DEPTH = 3


def check_changes(before: str, now: str, allowed: Sequence[str]) -> None:
    """Checks that params differ only where they may.

    Where a model runs and how long, how often it is saved and evaluated and where its
    data lies may always change.

    Args:
        before: the params' text when the run was begun, or last gone on with.
        now: their text now.
        allowed: paths that may differ, and all below them, such as
            `task.train.optimizer`.

    Raises:
        ValueError: if others do, with all of them; or if one that is allowed is the
            path of no param.
    """
    if before == now:
        return
    old, new = entries_by_path(before), entries_by_path(now)
    _check_known(allowed, {*old, *new})
    changed = [
        path
        for path in sorted({*old, *new})
        if old.get(path) != new.get(path) and not _is_below(path, (*_FREE, *allowed))
    ]
    if not changed:
        return
    lines = [
        f"  {path} : {_shown(old.get(path))} -> {_shown(new.get(path))}"
        for path in changed[:_MAX_SHOWN]
    ]
    if len(changed) > _MAX_SHOWN:
        lines.append(f"  and {len(changed) - _MAX_SHOWN} more")
    raise ValueError(
        "A run must go on with the params that it was begun with; these have changed:\n"
        + "\n".join(lines)
        + "\nSet them back, use another --logdir, or accept the change by "
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


def _check_known(allowed: Sequence[str], paths: Iterable[str]) -> None:
    known = {path.split("[")[0] for path in paths} | set(paths)
    known |= {path.rpartition(".")[0] for path in known}
    wrong = [name for name in allowed if not any(_is_below(p, [name]) for p in known)]
    if wrong:
        raise ValueError(
            "--allow_params_change takes paths of params; "
            + " ".join(
                f"there is no {name!r}.{did_you_mean(name, known)}" for name in wrong
            )
        )
