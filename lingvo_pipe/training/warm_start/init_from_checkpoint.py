"""Initial values from other runs or files (see `init_names` and `init_rules`)."""

import re
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.hyperparams.text_entries import entries_by_path
from lingvo_pipe.training.checkpoint.checkpoint_contents import describe, mismatches
from lingvo_pipe.training.checkpoint.restored_weights import assign_weights
from lingvo_pipe.training.warm_start.init_names import (
    NAMES,
    NO_RULE,
    Match,
    fits,
    match,
    rules_by_path,
)
from lingvo_pipe.training.warm_start.init_rules import (
    PARAM,
    SOURCE,
    InitRules,
    resolve_rules,
    with_checkpoint,
)
from lingvo_pipe.training.warm_start.init_source import InitSource, open_source

_REPORT = "initial_weights.txt"  # In a run's directory.
_MAX_SHOWN = 5
_EMA = "task.train.init_from_checkpoint_ema"
_SOURCES = [
    f"task.train.init_from_checkpoint_{name}" for name in ("names", "override", "rules")
]
_UNSET = ("None", "''", "{}")


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
        f"Run, checkpoint or file of weights, set by {SOURCE}. It replaces the "
        "checkpoint of the rules, which must name only one. Without rules, variables "
        "take the values of the same path and shape.",
    )
    p.Define(
        "init_from_checkpoint_names",
        None,
        f"PATTERN=NAME;PATTERN=NAME, set by {NAMES}: other names in the override, "
        "without rules; see `init_names`.",
    )
    p.Define(
        "init_from_checkpoint_ema",
        True,
        "Whether to take moving averages if the checkpoint has some.",
    )


def init_from_checkpoint(
    p: Params, variables: Mapping[str, tf.Variable], log: Callable[[str], None]
) -> str:
    """Assigns initial values from checkpoints and files to a model's variables.

    `variables` has all variables of the model by path. `log` gets texts that name the
    first variables that take values, those that keep their own initial values, with
    reasons, and the unused variables of each source. Returns a text that names all, or
    "" if the params `p` name no source.

    Raises:
        ValueError: if rules are wrong, or a source is unusable. Nothing changes then.
    """
    here = {path: describe(v.dtype, v.shape) for path, v in variables.items()}
    rules = _resolve(p, list(variables))
    if not rules:
        return ""
    sources = [open_source(r.checkpoint, r.param, log) for r in rules]
    matches = [
        _match(r, source, variables, here)
        for r, source in zip(rules, sources, strict=True)
    ]
    taken, unused = [], []
    for matched, source in zip(matches, sources, strict=True):
        names, use_averages = matched.names, p.init_from_checkpoint_ema
        used = assign_weights(variables, names, source.reader, use_averages)
        taken.append(_taken(names, source, used, here))
        unused.append(_unused(matched, source, used))
    sections = [*taken, _kept(matches, here), *unused]
    for heading, *rows in sections:
        if (more := len(rows) - _MAX_SHOWN) > 0:
            rows[_MAX_SHOWN:] = [f"    and {more} more, in {_REPORT}"]
        log("\n".join([heading, *rows]))
    return "\n".join(row for section in sections for row in section) + "\n"


def keep_source(before: str, now: str, log: Callable[[str], None]) -> str:
    """Returns the text of a resumed run's params, with the source of its weights.

    `before` has all params of the run, and `now` those to resume with. `log` gets a
    line for each param that names another source, since the run does not use it.
    """
    old, new = entries_by_path(before), entries_by_path(now)
    for path in (_EMA, *_SOURCES):
        kept, entry = old.get(path), new.get(path)
        if kept is None or entry is None or kept == entry:
            continue
        now = now.replace(f"{entry}\n", f"{kept}\n")
        if path != _EMA and entry.text not in _UNSET:
            log(
                f"Not used, since the run resumes from its checkpoint: {entry}. To "
                "start from there, use another --logdir."
            )
    return now


def _resolve(p: Params, paths: Sequence[str]) -> list[InitRules]:
    rules, source = p.init_from_checkpoint_rules, p.init_from_checkpoint_override
    mapping = p.init_from_checkpoint_names
    if mapping and (rules or not source):
        raise UserValueError(
            path=NAMES,
            expected=f"no {PARAM}" if rules else SOURCE,
            hint="Set them to {}, or write the names into them." if rules else "",
        )
    if not source:
        return resolve_rules(rules, paths)
    if not rules:
        return [rules_by_path(source, mapping or "", paths)]
    (resolved,) = resolve_rules(with_checkpoint(rules, source), paths)
    return [resolved._replace(param=SOURCE)]


def _match(
    rules: InitRules,
    source: InitSource,
    variables: Mapping[str, tf.Variable],
    here: Mapping[str, str],
) -> Match:
    names, stored = rules.names, source.stored
    wrong = [
        path
        for path, name in names.items()
        if name not in stored or not fits(here[path], stored[name])
    ]
    if wrong:
        misfits = {path: variables[path] for path in wrong}
        raise UserValueError(
            path=NAMES if rules.by_path else PARAM,
            expected=f"variables of the same shape and dtype in {source.path}",
            got=_listed(mismatches(misfits, stored, source.weights, names)),
            hint=_hint(rules, wrong),
        )
    matched = match(rules, here, stored)
    if rules.by_path and not matched.names:
        stored_names = sorted(source.weights)
        raise UserValueError(
            path=SOURCE,
            expected=f"variables of the same path and shape in {source.path}",
            got=_listed(mismatches(variables, stored, stored_names)),
            hint=f"It has {len(stored_names)}, such as {stored_names[:_MAX_SHOWN]}. "
            f"Map them by {NAMES}='PATTERN=NAME'.",
        )
    return matched


def _listed(problems: Sequence[str]) -> Words:
    return Words("\n".join(["", *problems, ""]))


def _hint(rules: InitRules, wrong: Sequence[str]) -> str:
    layer = re.escape(min(wrong).rpartition("/")[0]) + "/"
    if rules.by_path:
        return f"Correct NAME, or begin with '{layer}=-;' to keep initial values."
    hint = (
        "Correct the formats, or exclude variables by an expression in the second "
        f"list, such as {layer!r}."
    )
    if rules.param == SOURCE:
        hint += f" Or set {PARAM} to {{}}, to take what fits."
    return hint


def _taken(
    names: Mapping[str, str],
    source: InitSource,
    used: Sequence[str],
    here: Mapping[str, str],
) -> list[str]:
    rows, num_cast = [], 0
    for (path, name), tensor in zip(names.items(), used, strict=True):
        row, dtype = f"    {path}  {here[path]}", source.stored[tensor].split()[0]
        if name != path:
            row += f", from {name}"
        if dtype != here[path].split()[0]:
            row += f", cast from {dtype}"
            num_cast += 1
        rows.append(row)
    return [
        f"Initialized {len(rows)} of {len(here)} variables from {source.path}, "
        f"{len(source.averages & set(used))} of them from moving averages, "
        f"{num_cast} cast to another dtype",
        *rows,
    ]


def _kept(matches: Sequence[Match], here: Mapping[str, str]) -> list[str]:
    rows = []
    for path in sorted(here):
        reasons = [matched.kept.get(path) for matched in matches]
        if all(reasons):
            reason = next((x for x in reasons if x != NO_RULE), NO_RULE)
            rows.append(f"    {path}  {here[path]}, {reason}")
    return [f"{len(rows)} variables keep their own initial values", *rows]


def _unused(matched: Match, source: InitSource, used: Sequence[str]) -> list[str]:
    names = sorted(matched.unused & source.weights)
    return [
        f"Not used of {source.path}: {len(source.averages - set(used))} moving "
        f"averages, {len(source.learners)} variables of the learner, {len(names)} "
        "others",
        *(f"    {name}  {source.stored[name]}" for name in names),
    ]
