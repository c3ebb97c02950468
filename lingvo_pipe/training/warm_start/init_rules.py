"""Rules for which variables of a model take initial values from which checkpoint.

    {"/runs/imagenet": (
        [("task/pipeline/(.*)", "task/pipeline/%s")],    variables to take
        [".*/softmax/"],                                 variables to exclude
    )}

A variable takes a value if its path begins with a match of an expression in the first
list. The format beside the expression, filled in with the match's groups, is the name
of the value in the checkpoint. The first expression that matches counts. A variable is
excluded if its path begins with a match of the second list. Lingvo has the same rules.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from lingvo_pipe.core.checks import is_sequence
from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.training.optim.frozen_variables import paths_with

PARAM = "task.train.init_from_checkpoint_rules"
SOURCE = "--init_from"  # Sets task.train.init_from_checkpoint_override.


class InitRules(NamedTuple):
    """Paths of variables that take values from one checkpoint, or are excluded."""

    checkpoint: str  # Its path or the run's directory, as given.
    names: dict[str, str]  # The taken variables' names in the checkpoint.
    excluded: dict[str, str]  # The expressions that exclude variables.
    param: str = PARAM  # The param or flag that names the checkpoint.
    by_path: bool = False  # Whether other variables take values of their own names.


def resolve_rules(rules: Any, paths: Sequence[str]) -> list[InitRules]:
    """Applies rules to a model's variables, whose paths are `paths`.

    Raises:
        ValueError: if rules are malformed, match nothing, or match a variable twice.
    """
    if not isinstance(rules, dict):
        raise _malformed(rules)
    resolved = [_resolve(key, value, paths) for key, value in rules.items()]
    counts = Counter(
        path for checkpoint_rules in resolved for path in checkpoint_rules.names
    )
    if several := [path for path, count in counts.items() if count > 1]:
        raise UserValueError(
            path=PARAM,
            expected="1 checkpoint for each variable",
            got=Words(f"more for {len(several)}, such as {several[0]}"),
            hint="Exclude them from all but one.",
        )
    return resolved


def with_checkpoint(rules: Any, checkpoint: str) -> dict[str, Any]:
    """Returns rules with another checkpoint in place of their only one.

    Raises:
        ValueError: unless the rules name exactly one checkpoint.
    """
    if not isinstance(rules, dict):
        raise _malformed(rules)
    if len(rules) != 1:
        raise UserValueError(
            path=PARAM,
            expected=f"1 checkpoint, for {SOURCE} to replace",
            got=list(rules),
        )
    (lists,) = rules.values()
    return {checkpoint: lists}


def _resolve(checkpoint: Any, value: Any, paths: Sequence[str]) -> InitRules:
    is_pair = isinstance(checkpoint, str) and is_sequence(value, 2)
    if not is_pair or not all(map(is_sequence, value)):
        raise _malformed({checkpoint: value})
    taken, left_out = value
    if not all(is_sequence(x, 2) and all(isinstance(y, str) for y in x) for x in taken):
        raise _malformed({checkpoint: value})
    names: dict[str, str] = {}
    for pattern, name_format in taken:
        for path in paths_with(pattern, paths, PARAM, at_start=True):
            names.setdefault(path, _name(pattern, name_format, path))
    excluded: dict[str, str] = {}
    for pattern in left_out:
        for path in paths_with(pattern, paths, PARAM, at_start=True):
            if names.pop(path, None) is not None:
                excluded[path] = pattern
    return InitRules(checkpoint, names, excluded)


def _name(pattern: str, name_format: str, path: str) -> str:
    match = re.match(pattern, path)
    groups = match.groups() if match else ()
    try:
        return name_format % groups
    except (TypeError, ValueError) as error:
        raise UserValueError(
            path=PARAM,
            expected=f"one %s for each group of {pattern!r}, {len(groups)}",
            got=Words(f"{name_format!r} ({error})"),
        ) from error


def _malformed(value: Any) -> ValueError:
    return UserValueError(
        path=PARAM,
        expected="{checkpoint: ([(expression, format)], [expression])}",
        got=value,
        hint="For all variables under their own names: {checkpoint: ([('(.*)', '%s')], "
        "[])}.",
    )
