"""Rules that say which variables of a model come from which checkpoint.

    {"/runs/imagenet": (
        [("task/pipeline/(.*)", "task/pipeline/%s")],    what is taken
        [".*/softmax/"],                                 what is not
    )}

A variable whose path matches a regular expression of the first list, from the path's
beginning, is taken from the variable that the format beside it names, filled in with
the expression's groups; the first expression that matches counts. A variable that
matches one of the second list is not taken at all. So it is in Lingvo.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from lingvo_pipe.training.variable_patterns import (
    compile_pattern,
    paths_beginning_with,
)

_PARAM = "init_from_checkpoint_rules"
_OVERRIDE = "init_from_checkpoint_override"


class InitRules(NamedTuple):
    """What is taken from one checkpoint.

    Attributes:
        checkpoint: the checkpoint or the run's directory, as given.
        names: the name in the checkpoint of each variable that is taken, by its path.
        excluded: the expression by which each other is left out, by its path; only
            those that one of the first list matches too.
    """

    checkpoint: str
    names: dict[str, str]
    excluded: dict[str, str]


def resolve_rules(rules: Any, paths: Sequence[str]) -> list[InitRules]:
    """Applies rules to the variables of a model.

    Args:
        rules: see above.
        paths: of all the model's variables.

    Raises:
        ValueError: if the rules have another form, an expression matches no variable, a
            format does not fit its expression, or a variable would be taken from two
            checkpoints.
    """
    if not isinstance(rules, dict):
        raise _malformed(rules)
    resolved = [_resolve(key, value, paths) for key, value in rules.items()]
    counts = Counter(path for each in resolved for path in each.names)
    if several := [path for path, count in counts.items() if count > 1]:
        raise ValueError(
            f"A variable must come from 1 checkpoint; by {_PARAM} {len(several)} would "
            f"come from more, such as {several[0]}. Leave them out of all but one."
        )
    return resolved


def with_checkpoint(rules: Any, checkpoint: str) -> dict[str, Any]:
    """Rules with another checkpoint in place of the only one that they name.

    Args:
        rules: as of `resolve_rules`.
        checkpoint: the other.

    Raises:
        ValueError: if they name none, or several.
    """
    if not isinstance(rules, dict):
        raise _malformed(rules)
    if len(rules) != 1:
        raise ValueError(
            f"{_OVERRIDE} stands for the one checkpoint of {_PARAM}; got "
            f"{checkpoint!r} for {len(rules)}, {list(rules)}. Name it in the rules."
        )
    (what,) = rules.values()
    return {checkpoint: what}


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
        for path in paths_beginning_with(rule[0], paths, _PARAM):
            names.setdefault(path, _name(rule[0], rule[1], path))
    excluded: dict[str, str] = {}
    for pattern in left_out:
        for path in paths_beginning_with(pattern, paths, _PARAM):
            if names.pop(path, None) is not None:
                excluded[path] = pattern
    return InitRules(checkpoint, names, excluded)


def _name(pattern: str, name_format: str, path: str) -> str:
    match = compile_pattern(pattern, _PARAM).match(path)
    groups = match.groups() if match else ()
    try:
        return name_format % groups
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"In {_PARAM} a format must have one %s for each group of its expression; "
            f"{pattern!r} has {len(groups)}, and beside it stands {name_format!r} "
            f"({error})."
        ) from error


def _is_sequence(value: Any, length: int | None = None) -> bool:
    return isinstance(value, (list, tuple)) and length in (None, len(value))


def _malformed(value: Any) -> ValueError:
    return ValueError(
        f"{_PARAM} must be {{checkpoint: ([(expression, format)], [expression])}}; got "
        f"{value!r}. For all variables under their own names: {{checkpoint: "
        "([('(.*)', '%s')], [])}."
    )
