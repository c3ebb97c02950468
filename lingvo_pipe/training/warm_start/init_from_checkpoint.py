"""Initial values of a new run's weights from other runs. See `init_rules`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from lingvo_pipe.core.errors import UserDamageError, UserValueError, Words
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.training.checkpoint import checkpoint_files
from lingvo_pipe.training.checkpoint.checkpoint_contents import (
    NAMES_OF_RUNS,
    describe,
    mismatches,
    stored_variables,
)
from lingvo_pipe.training.checkpoint.restored_weights import assign_weights
from lingvo_pipe.training.optim.exponential_moving_average import average_name
from lingvo_pipe.training.optim.keras_optimizer import LEARNER_NAME
from lingvo_pipe.training.warm_start.init_rules import (
    PARAM,
    InitRules,
    resolve_rules,
    with_checkpoint,
)


def define_initialization_params(p: Params) -> None:
    """Adds the params of initial values from checkpoints to the `train` params."""
    p.Define(
        "init_from_checkpoint_rules",
        {},
        "{checkpoint or directory of a run: ([(regular expression, format)], [regular "
        "expression])}: initial values of the variables that match one of the first "
        "list and none of the second come from the variables that the formats name.",
    )
    p.Define(
        "init_from_checkpoint_override",
        "",
        "Replaces the checkpoint of the rules, which must name only one. If empty, the "
        "rules' own.",
    )
    p.Define(
        "init_from_checkpoint_ema",
        True,
        "Whether to take moving averages if the checkpoint has some.",
    )


def init_from_checkpoint(
    p: Params, variables: Mapping[str, tf.Variable], log: Callable[[str], None]
) -> None:
    """Assigns initial values from checkpoints to a model's variables.

    `variables` has all variables of the model by path. `log` gets texts that list the
    unused variables of each checkpoint, and the model's variables that keep their own
    initial values, with reasons.

    Raises:
        ValueError: if rules are wrong, or a checkpoint is missing or damaged, or lacks
            a variable. In this case no variable is changed.
    """
    rules = p.init_from_checkpoint_rules
    if p.init_from_checkpoint_override:
        rules = with_checkpoint(rules, p.init_from_checkpoint_override)
    sources = [
        _open(checkpoint_rules, log)
        for checkpoint_rules in resolve_rules(rules, list(variables))
    ]
    for source in sources:
        _check(source, variables)
    for source in sources:
        names, use_averages = source.rules.names, p.init_from_checkpoint_ema
        used = assign_weights(variables, names, source.reader, use_averages)
        log(_used_text(source, used, len(variables)))
    log(_own_values_text(sources, variables))


@dataclass
class _Source:
    rules: InitRules
    prefix: str  # The checkpoint's path without `.index`.
    reader: tf.train.CheckpointReader
    stored: dict[str, str]  # Dtype and shape of all variables, by name.

    def __post_init__(self) -> None:
        names = self.stored.keys()
        self.averages = {average_name(name) for name in names} & names
        self.learners = {name for name in names if name.startswith(f"{LEARNER_NAME}/")}
        # The variables of the checkpoint's model.
        self.weights = names - self.averages - self.learners - NAMES_OF_RUNS


def _open(rules: InitRules, log: Callable[[str], None]) -> _Source:
    path = Path(rules.checkpoint).expanduser()
    hint = "task.train.init_from_checkpoint_override replaces the checkpoint of rules."
    prefix = str(checkpoint_files.prefixes_at(path, PARAM, hint)[-1])
    try:
        if prefix == str(path):
            reader = checkpoint_files.read_through(prefix)
        else:
            newest = checkpoint_files.read_newest(Path(prefix).parent, log, hint)
            assert newest is not None  # There was a prefix.
            prefix, reader = newest.prefix, newest.reader
    except UserDamageError as error:  # Of the other run.
        got = Words(f"{error.path or prefix} with {error.got}")
        expected = "an undamaged checkpoint"
        raise UserValueError(
            path=PARAM, expected=expected, got=got, hint=hint
        ) from error
    stored = stored_variables(reader)
    if "global_step" not in stored:
        got = Words(f"{prefix}, which is another program's: {sorted(stored)[:3]}")
        expected = "a checkpoint of lingvo_pipe"
        raise UserValueError(path=PARAM, expected=expected, got=got)
    return _Source(rules, prefix, reader, stored)


def _check(source: _Source, variables: Mapping[str, tf.Variable]) -> None:
    names = source.rules.names
    taken = {path: variables[path] for path in names}
    here = {path: describe(v.dtype, v.shape) for path, v in taken.items()}
    if wrong := [p for p in names if source.stored.get(names[p]) != here[p]]:
        problems = mismatches(taken, source.stored, source.weights, names)
        layer = min(wrong).rpartition("/")[0]
        raise UserValueError(
            path=PARAM,
            expected=f"variables of the same shape and dtype in {source.prefix}",
            got=Words("\n".join(["", *problems, ""])),
            hint="Correct the formats, or exclude variables by an expression in the "
            f"second list, such as {re.escape(layer) + '/'!r}.",
        )


def _used_text(source: _Source, used: Sequence[str], num_variables: int) -> str:
    averages, weights = source.averages, source.weights
    num_used = len(averages & set(used))
    unused = weights - set(source.rules.names.values())
    heading = (
        f"Initialized {len(used)} of {num_variables} variables from {source.prefix}, "
        f"{num_used} of them from moving averages. Not used: "
        f"{len(averages) - num_used} moving averages, {len(source.learners)} variables "
        f"of the learner, {len(unused)} others"
    )
    rows = [f"    {name}  {source.stored[name]}" for name in sorted(unused)]
    return "\n".join([heading, *rows])


def _own_values_text(
    sources: Sequence[_Source], variables: Mapping[str, tf.Variable]
) -> str:
    kept_paths = variables.keys() - {
        path for source in sources for path in source.rules.names
    }
    excluded = {k: v for source in sources for k, v in source.rules.excluded.items()}
    lines = [f"{len(kept_paths)} variables keep their own initial values"]
    for path in sorted(kept_paths):
        shape = describe(variables[path].dtype, variables[path].shape)
        reason = "matched by no rule"
        if path in excluded:
            reason = f"excluded by {excluded[path]!r}"
        lines.append(f"    {path}  {shape}, {reason}")
    return "\n".join(lines)
