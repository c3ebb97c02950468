r"""Initial values by path: variables take the tensors of the same path and shape.

    /head/=/classifier/;task/pipeline/(.*)/w=\1.weight;/dense/=-

Such text maps other names, in the form PATTERN=NAME. PATTERN is a regular expression.
The first one with a match in a variable's path counts. NAME replaces the match, which
gives the name in the source, and `\1` is the match's first group. If NAME is `-`, the
variable keeps its initial values. A mapped name must fit. A variable that is not mapped
takes its own name's value if that fits.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.core.near_names import first_names
from lingvo_pipe.training.optim.frozen_variables import paths_with
from lingvo_pipe.training.warm_start.init_rules import SOURCE, InitRules

NAMES = "--init_names"
NO_RULE = "matched by no rule"
_NO_NAME = "-"
_FLOATS = {"bfloat16", "float16", "float32", "float64"}
_MAX_NAMED = 3


class Match(NamedTuple):
    """The variables that take a source's values, and what is left on either side."""

    names: dict[str, str]  # Names in the source of the values taken, by path.
    kept: dict[str, str]  # Why the other variables keep their initial values, by path.
    unused: set[str]  # The other names in the source.


def rules_by_path(source: str, mapping: str, paths: Sequence[str]) -> InitRules:
    """Returns the rules that `mapping` gives for a model's variables, at `paths`.

    Raises:
        ValueError: if an entry has another form, or a pattern matches no path.
    """
    names: dict[str, str] = {}
    excluded: dict[str, str] = {}
    for entry in filter(None, map(str.strip, mapping.split(";"))):
        pattern, _, name = entry.rpartition("=")
        if not (pattern and name):
            raise UserValueError(
                path=NAMES,
                expected="PATTERN=NAME, separated by ;",
                got=entry,
                hint=r"For example: '/head/=/classifier/;old/(.*)=new/\1'. "
                "PATTERN=- keeps initial values.",
            )
        for path in paths_with(pattern, paths, NAMES):
            if path in names or path in excluded:
                continue
            if name == _NO_NAME:
                excluded[path] = pattern
            else:
                names[path] = _name(pattern, name, path)
    return InitRules(source, names, excluded, SOURCE, by_path=True)


def _name(pattern: str, name: str, path: str) -> str:
    try:
        return re.sub(pattern, name, path, count=1)
    except (re.error, IndexError) as error:
        raise UserValueError(
            path=NAMES,
            expected=f"a replacement for matches of {pattern!r}",
            got=Words(f"{name!r} ({error})"),
        ) from error


def fits(variable: str, tensor: str) -> bool:
    """Returns whether a variable can take a tensor's value.

    The shapes must be equal, and so must the dtypes, unless both are floating. Both
    arguments are dtype and shape as text, such as `float32 [3, 4]`.
    """
    dtype, _, shape = variable.partition(" ")
    other_dtype, _, other_shape = tensor.partition(" ")
    return shape == other_shape and (
        dtype == other_dtype or {dtype, other_dtype} <= _FLOATS
    )


def match(
    rules: InitRules, variables: Mapping[str, str], stored: Mapping[str, str]
) -> Match:
    """Returns which variables take which values from one source.

    All names in `rules` fit. `variables` and `stored` have the dtypes and shapes of
    the model's variables, by path, and of the source's tensors, by name.

    Raises:
        ValueError: if two variables that match by path take the same value.
    """
    names, kept = {}, {}
    for path, described in variables.items():
        if path in rules.names:
            names[path] = rules.names[path]
        elif path in rules.excluded:
            kept[path] = f"excluded by {rules.excluded[path]!r}"
        elif not rules.by_path:
            kept[path] = NO_RULE
        elif path not in stored:
            kept[path] = "not in the source"
        elif not fits(described, stored[path]):
            kept[path] = f"{stored[path]} in the source"
        else:
            names[path] = path
    if rules.by_path:
        _check_different(names)
    return Match(names, kept, stored.keys() - names.values())


def _check_different(names: Mapping[str, str]) -> None:
    paths: dict[str, list[str]] = {}
    for path, name in names.items():
        paths.setdefault(name, []).append(path)
    for name, several in paths.items():
        if len(several) > 1:
            raise UserValueError(
                path=NAMES,
                expected=f"1 variable for {name}",
                got=Words(first_names(several, _MAX_NAMED)),
                hint="Leave out the others. The first match counts, so begin with "
                f"'{re.escape(several[-1])}$=-;'.",
            )
