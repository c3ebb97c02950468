"""Rules for which variables of a model take initial values from which checkpoint.

    {"/runs/imagenet": (
        [("task/pipeline/(.*)", "task/pipeline/%s")],    variables to take
        [".*/softmax/"],                                 variables to exclude
    )}

A variable whose path begins with a match of an expression in the first list takes the
value of the variable named by the expression's format, filled in with the expression's
groups; the first matching expression counts. A variable that matches an expression of
the second list is excluded. Lingvo has the same rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.training.optim.frozen_variables import (
    compile_pattern,
    paths_beginning_with,
)

PARAM = "task.train.init_from_checkpoint_rules"


class InitRules(NamedTuple):
    """The variables taken from one checkpoint.

    Attributes:
        checkpoint: the checkpoint or the run's directory, as given.
        names: name in the checkpoint of each variable that is taken, by path.
        excluded: expression of the second list that excludes a variable, by path, for
            variables that the first list matches.
    """

    checkpoint: str
    names: dict[str, str]
    excluded: dict[str, str]


def resolve_rules(rules: Any, paths: Sequence[str]) -> list[InitRules]:
    """Applies rules to the variables of a model.

    Args:
        rules: see the module's docstring.
        paths: paths of all variables of the model.

    Raises:
        ValueError: if the rules have another form, an expression matches no variable, a
            format does not fit its expression, or several checkpoints have a variable.
    """
    if not isinstance(rules, dict):
        raise _malformed(rules)
    resolved = [_resolve(key, value, paths) for key, value in rules.items()]
    counts = Counter(path for each in resolved for path in each.names)
    if several := [path for path, count in counts.items() if count > 1]:
        raise UserValueError(
            f"{PARAM}: expected 1 checkpoint for each variable, got more for "
            f"{len(several)}, such as {several[0]}. Exclude them from all but one."
        )
    return resolved


def with_checkpoint(rules: Any, checkpoint: str) -> dict[str, Any]:
    """Returns rules with another checkpoint instead of the only one that they name.

    Raises:
        ValueError: if they name none, or several.
    """
    if not isinstance(rules, dict):
        raise _malformed(rules)
    if len(rules) != 1:
        raise UserValueError(
            "task.train.init_from_checkpoint_override: expected 1 checkpoint in "
            f"{PARAM} to replace by {checkpoint!r}, got {len(rules)}, {list(rules)}. "
            "Name it in the rules."
        )
    (lists,) = rules.values()
    return {checkpoint: lists}


def _resolve(checkpoint: Any, value: Any, paths: Sequence[str]) -> InitRules:
    if not isinstance(checkpoint, str) or not _is_sequence(value, 2):
        raise _malformed({checkpoint: value})
    taken, left_out = value
    if not _is_sequence(taken) or not _is_sequence(left_out):
        raise _malformed({checkpoint: value})
    names: dict[str, str] = {}
    for rule in taken:
        if not _is_sequence(rule, 2) or not all(isinstance(x, str) for x in rule):
            raise _malformed({checkpoint: value})
        for path in paths_beginning_with(rule[0], paths, PARAM):
            names.setdefault(path, _name(rule[0], rule[1], path))
    excluded: dict[str, str] = {}
    for pattern in left_out:
        for path in paths_beginning_with(pattern, paths, PARAM):
            if names.pop(path, None) is not None:
                excluded[path] = pattern
    return InitRules(checkpoint, names, excluded)


def _name(pattern: str, name_format: str, path: str) -> str:
    match = compile_pattern(pattern, PARAM).match(path)
    groups = match.groups() if match else ()
    try:
        return name_format % groups
    except (TypeError, ValueError) as error:
        raise UserValueError(
            f"{PARAM}: expected one %s for each group of an expression; {pattern!r} "
            f"has {len(groups)}, and its format is {name_format!r} ({error})."
        ) from error


def _is_sequence(value: Any, length: int | None = None) -> bool:
    return isinstance(value, (list, tuple)) and length in (None, len(value))


def _malformed(value: Any) -> ValueError:
    return UserValueError(
        path=PARAM,
        expected="{checkpoint: ([(expression, format)], [expression])}",
        got=value,
        hint="For all variables under their own names: {checkpoint: ([('(.*)', '%s')], "
        "[])}.",
    )
