"""PartitionSequentialLayers: a sequence of layers as partitions of equal cost."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.model_size import layer_sizes
from lingvo_pipe.layers.sequential import (
    FeatureExtractionLayer,
    SequentialLayer,
    check_activations,
    sub_names,
)
from lingvo_pipe.pipeline.splitting.balance import balanced_boundaries


def PartitionSequentialLayers(
    params: InstantiableParams | Sequence[InstantiableParams],
    num_partitions: int,
    *shapes: Any,
) -> list[InstantiableParams]:
    """Cuts a sequence of layers into partitions whose costs are as equal as possible.

    The partitions compute what the sequence does. Their layers have new names,
    `cell_000` and so on, so their weights have other paths and initial values. For
    paths that do not depend on the partitions, give a PipeliningLayer the layers
    themselves and let `splits` group them.

    `params` is a list of layers, which stay whole, or the params of a SequentialLayer
    or FeatureExtractionLayer. Such a layer is flattened recursively, except for an
    inner FeatureExtractionLayer with activations. `shapes` are shapes or tf.TensorSpecs
    of the inputs, with the activations last (see `layer_sizes`).

    Returns:
        Params of FeatureExtractionLayers named `d0`, `d1` and so on. Among cuts of
        equal cost, the one that passes on the smallest outputs is chosen.

    Raises:
        ValueError: if there are fewer layers than partitions, or layers do not fit.
    """
    chain = _chain(params)
    sizes = layer_sizes(_cut(chain, range(1, len(chain.layers) + 1)), *shapes)
    flops = [size.flops for size in sizes]
    passed_on = [size.output_elements for size in sizes]
    return _cut(chain, balanced_boundaries(flops, num_partitions, passed_on))


class _Chain(NamedTuple):
    """Consecutive layers. `fetched` are the indices of layers with fetched outputs."""

    layers: list[InstantiableParams]
    num_act_inputs: int = 0
    fetched: Sequence[int] = ()


def _chain(params: Any) -> _Chain:
    params_list = params if isinstance(params, (list, tuple)) else [params]
    if not all(isinstance(p, InstantiableParams) for p in params_list):
        raise UserValueError(
            path="params", expected="a layer's Params, or a list of them", got=params
        )
    if params_list is params:
        return _Chain([p.Copy() for p in params])
    if params.cls is not FeatureExtractionLayer:
        return _Chain(_flattened(params))
    check_activations(params, params.name or params.cls.__name__)
    layers: list[InstantiableParams] = []
    last = {}
    for name, sub in zip(sub_names(params), params.sub, strict=True):
        layers += _flattened(params.cls.CopyBaseParams(params, sub.Copy()))
        last[name] = len(layers) - 1
    fetched = [last[name] for name in params.act_fetch_layers]
    if fetched != sorted(fetched):
        raise UserValueError(
            path="act_fetch_layers",
            expected=f"the order of the layers, {sub_names(params)}",
            got=list(params.act_fetch_layers),
            hint="Partitions pass on activations in the order of their layers.",
        )
    return _Chain(layers, params.num_act_inputs, fetched)


def _flattened(p: InstantiableParams) -> list[InstantiableParams]:
    """Returns copies of all layers inside a sequence `p`, or of any other layer `p`."""
    is_plain = p.cls is FeatureExtractionLayer and not (
        p.num_act_inputs or p.act_fetch_layers
    )
    if p.cls is not SequentialLayer and not is_plain:
        return [p.Copy()]
    subs = [p.cls.CopyBaseParams(p, sub.Copy()) for sub in p.sub]
    once = [layer for sub in subs for layer in _flattened(sub)]
    repeat = p.repeat if p.cls is SequentialLayer else 1
    return [layer.Copy() for _ in range(repeat) for layer in once] or [p.Copy()]


def _cut(chain: _Chain, boundaries: Sequence[int]) -> list[InstantiableParams]:
    names = [f"cell_{i:03d}" for i in range(len(chain.layers))]
    layers = [p.Copy().Set(name=x) for p, x in zip(chain.layers, names, strict=True)]
    partitions = []
    num_activations = chain.num_act_inputs
    for i, (start, end) in enumerate(itertools.pairwise([0, *boundaries])):
        fetched = [names[j] for j in chain.fetched if start <= j < end]
        partitions.append(
            FeatureExtractionLayer.Params().Set(
                name=f"d{i}",
                sub=layers[start:end],
                num_act_inputs=num_activations,
                num_act_outputs=num_activations + len(fetched),
                act_fetch_layers=fetched,
            )
        )
        num_activations += len(fetched)
    return partitions
