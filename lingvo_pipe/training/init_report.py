"""What was, and what was not, taken from other runs' checkpoints, as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import tensorflow as tf

from lingvo_pipe.training.checkpoint_names import NAMES_OF_RUNS, describe
from lingvo_pipe.training.init_source import InitSource


def used_text(source: InitSource, used: Sequence[str], num_variables: int) -> str:
    """Says how much was used of a checkpoint, and what was not.

    Args:
        source: the checkpoint.
        used: the name there of what each variable was given.
        num_variables: how many variables the model has.
    """
    averages, weights = source.averages, source.weights
    num_used = len(averages & set(used))
    num_learners = len(source.stored.keys() - averages - weights - NAMES_OF_RUNS)
    unused = weights - set(source.rules.names.values())
    heading = (
        f"Initialised {len(used)} of {num_variables} variables from {source.prefix}, "
        f"{num_used} of them by their moving averages; not used: "
        f"{len(averages) - num_used} of its moving averages, {num_learners} variables "
        f"of its learner, {len(unused)} others"
    )
    rows = _rows(unused, lambda name: source.stored[name])
    return "\n".join([heading, *rows])


def own_values_text(
    sources: Iterable[InitSource], variables: Mapping[str, tf.Variable]
) -> str:
    """Says which variables keep their own first values, and why.

    Args:
        sources: all checkpoints.
        variables: all variables of the model, by path.
    """
    taken: set[str] = set()
    excluded: dict[str, str] = {}
    for source in sources:
        taken.update(source.rules.names)
        excluded.update(source.rules.excluded)

    def why(path: str) -> str:
        shape = describe(variables[path].dtype, variables[path].shape)
        if path in excluded:
            return f"{shape}, left out by {excluded[path]!r}"
        return f"{shape}, matched by no rule"

    kept = variables.keys() - taken
    heading = f"{len(kept)} variables keep their own first values"
    return "\n".join([heading, *_rows(kept, why)])


def _rows(names: Iterable[str], text_of: Callable[[str], str]) -> list[str]:
    return [f"    {name}  {text_of(name)}" for name in sorted(names)]
