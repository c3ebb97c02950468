"""A sequence of layers as several, of equal cost."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.feature_extraction import (
    FeatureExtractionLayer,
    check_activations,
    sub_names,
)
from lingvo_pipe.layers.inherited_params import hand_down
from lingvo_pipe.layers.sequential import SequentialLayer
from lingvo_pipe.pipeline.splitting.balance import balanced_ends
from lingvo_pipe.pipeline.splitting.cell_costs import cell_costs


def PartitionSequentialLayers(
    params: InstantiableParams | Sequence[InstantiableParams],
    num_partitions: int,
    *shapes: Any,
) -> list[InstantiableParams]:
    """Cuts a sequence of layers into partitions that cost as equal as can be.

    The partitions in turn compute what the sequence does. Their layers have names of
    their own, `cell_000` and so on, so their weights have other paths and first values.
    To have paths that do not depend on the partitions, give a PipeliningLayer the
    layers themselves and let `splits` group them.

    Args:
        params: of a SequentialLayer or FeatureExtractionLayer, whose layers and theirs
            in turn are dealt out, though not those of a FeatureExtractionLayer within
            that has activations; or a list of layers, which stay whole.
        num_partitions: at least 1, at most the number of layers.
        *shapes: of the inputs, activations last; see `cell_costs`.

    Returns:
        Params of FeatureExtractionLayers named `d0`, `d1` and so on. A cut goes where
        the least is handed on, if the costs leave a choice.

    Raises:
        ValueError: if there are fewer layers than partitions, a layer has no FPropMeta,
            or activations that are not fetched in the order of their layers.
    """
    chain = _chain(params)
    costs = cell_costs(_cut(chain, range(1, len(chain.layers) + 1)), *shapes)
    return _cut(chain, balanced_ends(costs.flops, num_partitions, costs.handed_on))


class _Chain(NamedTuple):
    """Layers in turn, and which of them activations are fetched from, ascending."""

    layers: list[InstantiableParams]
    num_act_inputs: int = 0
    fetched: Sequence[int] = ()


def _chain(params: Any) -> _Chain:
    given = params if isinstance(params, (list, tuple)) else [params]
    if not all(isinstance(p, InstantiableParams) for p in given):
        raise ValueError(
            "What is partitioned must be the Params of a layer, or a list of such; got "
            f"{params!r}."
        )
    if given is params:
        return _Chain([p.Copy() for p in params])
    if params.cls is not FeatureExtractionLayer:
        return _Chain(_dissolved(params))
    check_activations(params, params.name or params.cls.__name__)
    layers: list[InstantiableParams] = []
    last = {}
    for name, sub in zip(sub_names(params), params.sub, strict=True):
        layers += _dissolved(hand_down(sub, params))
        last[name] = len(layers) - 1
    fetched = [last[name] for name in params.act_fetch_layers]
    if fetched != sorted(fetched):
        raise ValueError(
            "Partitions hand on activations in the order of their layers; "
            f"act_fetch_layers, {list(params.act_fetch_layers)}, must have it too. The "
            f"layers are {sub_names(params)}."
        )
    return _Chain(layers, params.num_act_inputs, fetched)


def _dissolved(p: InstantiableParams) -> list[InstantiableParams]:
    """The layers in a sequence, in those in it, and so on; another layer as it is."""
    is_plain = p.cls is FeatureExtractionLayer and not (
        p.num_act_inputs or p.act_fetch_layers
    )
    if p.cls is not SequentialLayer and not is_plain:
        return [p.Copy()]
    once = [layer for sub in p.sub for layer in _dissolved(hand_down(sub, p))]
    repeat = p.repeat if p.cls is SequentialLayer else 1
    return [layer.Copy() for _ in range(repeat) for layer in once] or [p.Copy()]


def _cut(chain: _Chain, ends: Sequence[int]) -> list[InstantiableParams]:
    """A FeatureExtractionLayer up to each of `ends`."""
    partitions = []
    num_activations = chain.num_act_inputs
    for i, (start, end) in enumerate(itertools.pairwise([0, *ends])):
        fetched = [_name(j) for j in chain.fetched if start <= j < end]
        partitions.append(
            FeatureExtractionLayer.Params().Set(
                name=f"d{i}",
                sub=[
                    chain.layers[j].Copy().Set(name=_name(j)) for j in range(start, end)
                ],
                num_act_inputs=num_activations,
                num_act_outputs=num_activations + len(fetched),
                act_fetch_layers=fetched,
            )
        )
        num_activations += len(fetched)
    return partitions


def _name(index: int) -> str:
    return f"cell_{index:03d}"
