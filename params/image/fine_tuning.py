"""An AmoebaNet whose first values come from a run on another data set."""

from __future__ import annotations

from typing import Any

# Of the network and of its auxiliary head: they have a row for each class.
_SOFTMAXES = r".*/(head|auxiliary_head/classifier)/dense/"


def all_but_softmax(model: str) -> dict[str, Any]:
    """Rules for `init_from_checkpoint_rules`: all but the softmax layers.

    The run is not known here: `init_from_checkpoint_override` says which it is.

    Args:
        model: the name of the model that is to have been trained in it.
    """
    return {f"a run of {model}": ([("(.*)", "%s")], [_SOFTMAXES])}
