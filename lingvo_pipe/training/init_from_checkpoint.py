"""A new run's first values of weights, taken from the checkpoints of other runs.

What is taken is said by rules; see `init_rules`. A run that has checkpoints of its own
goes on from them and takes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tensorflow as tf

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.training.exponential_moving_average import average_name
from lingvo_pipe.training.init_report import own_values_text, used_text
from lingvo_pipe.training.init_rules import resolve_rules, with_checkpoint
from lingvo_pipe.training.init_source import InitSource, check_source, open_source


def define_initialization_params(p: Params) -> None:
    """Defines where first values come from, among the params of a task's training."""
    p.Define(
        "init_from_checkpoint_rules",
        {},
        "{checkpoint or directory of a run: ([(regular expression, format)], [regular "
        "expression])}: first values of the variables that match one of the first list "
        "and none of the second come from the variables that the formats name.",
    )
    p.Define(
        "init_from_checkpoint_override",
        "",
        "Stands for the checkpoint of the rules, which must be the only one. Empty: "
        "what they name.",
    )
    p.Define(
        "init_from_checkpoint_ema",
        True,
        "Whether they are the moving averages, where the checkpoint has some.",
    )


def init_from_checkpoint(
    p: Params, variables: Mapping[str, tf.Variable], log: Callable[[str], None]
) -> None:
    """Gives variables their first values from checkpoints.

    Args:
        p: as of `define_initialization_params`.
        variables: all variables of the model, by path.
        log: takes a text that says which variables keep their own first values and why,
            and what of the checkpoints is not used.

    Raises:
        ValueError: as of `resolve_rules`, `with_checkpoint`, `open_source` and
            `check_source`. No variable is changed then.
    """
    rules = p.init_from_checkpoint_rules
    if p.init_from_checkpoint_override:
        rules = with_checkpoint(rules, p.init_from_checkpoint_override)
    sources = [open_source(each, log) for each in resolve_rules(rules, list(variables))]
    for source in sources:
        check_source(source, variables)
    for source in sources:
        used = _assign(source, variables, p.init_from_checkpoint_ema)
        log(used_text(source, used, len(variables)))
    log(own_values_text(sources, variables))


def _assign(
    source: InitSource, variables: Mapping[str, tf.Variable], takes_averages: bool
) -> list[str]:
    """Changes the variables, and returns the names of what was used for it."""
    used = []
    for path, name in source.rules.names.items():
        average = average_name(name)
        has_average = takes_averages and average in source.stored
        used.append(average if has_average else name)
        value = source.reader.get_tensor(used[-1])
        variable = variables[path]
        with tf.device(variable.device):
            variable.assign(tf.cast(value, variable.dtype))
    return used
