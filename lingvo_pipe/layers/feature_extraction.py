"""Layers one after another, some of whose outputs travel along to the end.

    x, a --> [ sub_0 --> sub_1 --> sub_2 ] --> y, a, b      act_fetch_layers = ['sub_1']
                           '--------------------------b

Activations follow the ordinary inputs and outputs: those that come in (`a`) are handed
on, then come those of the layers here that `act_fetch_layers` names (`b`). So several
FeatureExtractionLayers in turn collect the activations of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.hyperparams.suggest import did_you_mean
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.forward_cost import costs_in_sequence
from lingvo_pipe.layers.sequential import as_args, outputs_in_sequence
from lingvo_pipe.nested_map import NestedMap


class FetchLayer(BaseLayer):
    """Hands on what it is given: a name for a place in a sequence."""

    def FProp(self, theta: NestedMap, *args: Any) -> Any:
        """Returns the inputs."""
        return args[0] if len(args) == 1 else args

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: Any) -> NestedMap:
        """Nothing."""
        return NestedMap(flops=0, out_shapes=shapes)


class FeatureExtractionLayer(BaseLayer):
    """Feeds each layer's outputs to the next, and carries activations along."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: the layers, and the activations."""
        p = super().Params()
        p.Define(
            "variable_name_prefix", "", "Put before the names of the layers in `sub`."
        )
        p.Define("sub", [], "Params of the layers, in order.")
        p.Define("num_act_inputs", 0, "How many of the inputs are activations.")
        p.Define(
            "num_act_outputs",
            None,
            "How many of the outputs are; None: num_act_inputs, and one for each of "
            "act_fetch_layers.",
        )
        p.Define(
            "act_fetch_layers",
            [],
            "Names, prefix included, of the layers whose output, the first of several, "
            "is handed on as an activation: FetchLayers or others.",
        )
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p = self.params
        check_activations(p, self.path)
        self.CreateChildren(
            "sub",
            [
                sub.Copy().Set(name=name)
                for sub, name in zip(p.sub, sub_names(p), strict=True)
            ],
        )

    def FProp(self, theta: NestedMap, *args: Any) -> Any:
        """Runs the layers in order: inputs, activations -> outputs, activations."""
        inputs, activations = _split(args, self.params, self.path)
        outputs = list(outputs_in_sequence(self.sub, theta.sub, inputs))
        activations += _fetched(self.params, outputs[1:])
        return (*as_args(outputs[-1]), *activations) if activations else outputs[-1]

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: Any) -> NestedMap:
        """The sum of the layers' costs."""
        shapes, activations = _split(shapes, p, p.name or cls.__name__)
        metas = list(costs_in_sequence(p.sub, *shapes))
        out_shapes = [meta.out_shapes for meta in metas]
        activations += _fetched(p, out_shapes)
        last = tuple(out_shapes[-1]) if out_shapes else shapes
        return NestedMap(
            flops=sum(meta.flops for meta in metas), out_shapes=last + activations
        )


def sub_names(p: InstantiableParams) -> list[str]:
    """The names that the layers of a FeatureExtractionLayer get."""
    return [
        p.variable_name_prefix + (sub.name or f"sub_{i}") for i, sub in enumerate(p.sub)
    ]


def _split(
    args: tuple[Any, ...], p: InstantiableParams, where: str
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Inputs and activations; raises ValueError unless there is one input or more."""
    num_inputs = len(args) - p.num_act_inputs
    if num_inputs < 1:
        raise ValueError(
            f"The last num_act_inputs, {p.num_act_inputs}, of the inputs are "
            f"activations and one more at least is needed; {where} got {len(args)}."
        )
    return args[:num_inputs], args[num_inputs:]


def _fetched(p: InstantiableParams, outputs: Sequence[Any]) -> tuple[Any, ...]:
    """The first of the outputs of each layer that act_fetch_layers names."""
    by_name = dict(zip(sub_names(p), outputs, strict=True))
    return tuple(as_args(by_name[name])[0] for name in p.act_fetch_layers)


def check_activations(p: InstantiableParams, where: str) -> None:
    """Raises ValueError, naming all faults, unless the activations add up."""
    faults = []
    if p.num_act_inputs < 0:
        faults.append(f"num_act_inputs must not be negative; it is {p.num_act_inputs}.")
    num_outputs = p.num_act_inputs + len(p.act_fetch_layers)
    if p.num_act_outputs not in (None, num_outputs):
        faults.append(
            "num_act_outputs must be num_act_inputs and one for each of "
            f"act_fetch_layers, {num_outputs}; it is {p.num_act_outputs}. Set it None."
        )
    names = sub_names(p)
    for name in p.act_fetch_layers:
        if name not in names:
            faults.append(
                f"act_fetch_layers must name layers of sub, {names}; {name!r} is none."
                f"{did_you_mean(name, names)}"
            )
    if faults:
        raise ValueError(f"{where}: {' '.join(faults)}")
