"""One cell of AmoebaNet, as its genotype says.

Shapes: images are `[B, H, W, C]`; F filters.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.forward_cost import elementwise_cost
from lingvo_pipe.models.amoebanet.factorized_reduction import FactorizedReductionLayer
from lingvo_pipe.models.amoebanet.genotype import GENOTYPES, CellGenotype
from lingvo_pipe.models.amoebanet.operations import (
    Channels,
    conv_bn,
    operation,
    relu_conv_bn,
)
from lingvo_pipe.nested_map import NestedMap


class AmoebaCell(BaseLayer):
    """(last output, the one before) -> (new output, last output).

    Further inputs, such as labels for a layer behind, are handed on as they are.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: which cell, and what comes in."""
        p = super().Params()
        p.Define("genotype", "D", "Letter of the network's genotype.")
        p.Define("reduction", False, "Whether this is the cell that halves the image.")
        p.Define("num_filters", 0, "F.")
        p.Define("num_in", 0, "Channels of the last output.")
        p.Define(
            "num_in_before",
            None,
            "Channels of the output before; None: there is none, and the last output "
            "stands in for it, unprojected.",
        )
        p.Define("before_is_larger", False, "Whether its image is twice as large.")
        p.Define("norm_tpl", BatchNormLayer.Params(), "Of the batch norms.")
        p.Define("drop_path_tpl", None, "Of the DropPathLayers; None: nothing drops.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p = self.params
        self._cell = cell_genotype(p)
        self.CreateChild("project", _project(p))
        fit = _fit(p)
        if fit is not None:
            self.CreateChild("fit", fit)
        for i, (left, right) in enumerate(_operations(p)):
            self.CreateChild(f"left_{i + 2}", left)
            self.CreateChild(f"right_{i + 2}", right)
        for state, matched in _matched(p).items():
            self.CreateChild(f"match_{state}", matched)

    def FProp(
        self,
        theta: NestedMap,
        last: tf.Tensor,
        before: tf.Tensor | None,
        *handed_on: Any,
    ) -> tuple:
        """`[B, H, W, C]`, `[B, H', W', C']` -> `[B, H'', W'', C'']`, `[B, H, W, C]`."""

        def run(name: str, x: tf.Tensor) -> tf.Tensor:
            return self.children[name].FProp(theta[name], x)

        fitted = last if before is None else before
        if before is not None and "fit" in self.children:
            fitted = run("fit", before)
        states = [run("project", last), fitted]
        for i, (left, right) in enumerate(self._cell.pairs):
            states.append(
                run(f"left_{i + 2}", states[left.state])
                + run(f"right_{i + 2}", states[right.state])
            )
        output = [
            run(f"match_{i}", states[i]) if f"match_{i}" in self.children else states[i]
            for i in self._cell.concat
        ]
        return tf.concat(output, -1), last, *handed_on

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: Any) -> NestedMap:
        """All operations and the sums of pairs."""
        cell, fit = cell_genotype(p), _fit(p)
        last, before, *handed_on = shapes
        metas = [_cost(_project(p), last)]
        states = [metas[0].out_shapes[0], last if before is None else before]
        if before is not None and fit is not None:
            metas.append(_cost(fit, before))
            states[1] = metas[1].out_shapes[0]
        for pair, edges in zip(_operations(p), cell.pairs, strict=True):
            metas += [
                _cost(part, states[edge.state])
                for part, edge in zip(pair, edges, strict=True)
            ]
            states.append(metas[-1].out_shapes[0])
            metas.append(elementwise_cost(states[-1]))
        for state, matched in _matched(p).items():
            metas.append(_cost(matched, states[state]))
        return NestedMap(
            flops=sum(meta.flops for meta in metas),
            out_shapes=((*states[-1][:3], num_out(p)), last, *handed_on),
        )


def cell_genotype(p: InstantiableParams) -> CellGenotype:
    """The genotype that a cell's params name.

    Raises:
        ValueError: if there is none of that letter.
    """
    if p.genotype not in GENOTYPES:
        raise ValueError(
            f"genotype must be one of {sorted(GENOTYPES)}; got {p.genotype!r}."
        )
    network = GENOTYPES[p.genotype]
    return network.reduction if p.reduction else network.normal


def num_out(p: InstantiableParams) -> int:
    """Channels of the output of a cell of these params."""
    return p.num_filters * len(cell_genotype(p).concat)


def _cost(p: InstantiableParams, shape: tuple) -> NestedMap:
    return p.cls.FPropMeta(p, shape)


def _project(p: InstantiableParams) -> InstantiableParams:
    """What makes state 0 of the last output."""
    return relu_conv_bn(_channels(p, p.num_in))


def _widths(p: InstantiableParams) -> list[int]:
    """The channels of each state."""
    fitted = p.num_in if p.num_in_before is None else p.num_filters
    return [p.num_filters, fitted, *[p.num_filters] * len(cell_genotype(p).pairs)]


def _operations(p: InstantiableParams) -> list[list[InstantiableParams]]:
    """The two operations of each pair."""
    widths = _widths(p)
    return [
        [
            operation(
                edge.op,
                _channels(p, widths[edge.state]),
                stride=2 if p.reduction and edge.state < 2 else 1,
                drop_path_tpl=p.drop_path_tpl,
            )
            for edge in pair
        ]
        for pair in cell_genotype(p).pairs
    ]


def _fit(p: InstantiableParams) -> InstantiableParams | None:
    """What makes the output before look like the last one; None if it does already."""
    if p.num_in_before is None:
        return None
    if p.before_is_larger:
        return _halve(p, p.num_in_before, "RELU")
    if p.num_in_before != p.num_filters:
        return relu_conv_bn(_channels(p, p.num_in_before))
    return None


def _matched(p: InstantiableParams) -> dict[int, InstantiableParams]:
    """What makes states look like the others they are concatenated with, by number."""
    widths, found = _widths(p), {}
    for state in cell_genotype(p).concat:
        if p.reduction and state < 2:
            found[state] = _halve(p, widths[state], "NONE")
        elif widths[state] != p.num_filters:
            found[state] = conv_bn(_channels(p, widths[state]))
    return found


def _halve(p: InstantiableParams, num_in: int, activation: str) -> InstantiableParams:
    return FactorizedReductionLayer.Params().Set(
        num_in=num_in,
        num_filters=p.num_filters,
        activation=activation,
        norm_tpl=p.norm_tpl,
    )


def _channels(p: InstantiableParams, num_in: int) -> Channels:
    return Channels(num_in, p.num_filters, p.norm_tpl)
