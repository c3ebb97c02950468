"""One cell of AmoebaNet, defined by its genotype.

Drop-path grows with a cell's depth: its number over the number of all cells. The
network counts the cells as it runs. With a param, cells at
different depths would differ, and a pipeline could not share one trace among them.

Shapes: images are `[B, H, W, C]`; F filters.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.checks import check_choice, check_param
from lingvo_pipe.layers.core.forward_cost import elementwise_cost
from lingvo_pipe.models.amoebanet.genotype import GENOTYPES, CellGenotype, Edge
from lingvo_pipe.models.amoebanet.operations import (
    IDENTITY,
    Channels,
    FactorizedReductionLayer,
    conv_bn,
    operation,
    relu_conv_bn,
)
from lingvo_pipe.nested_map import NestedMap

_SIDES = ("left", "right")


class AmoebaCell(BaseLayer):
    """(last output, previous output, number of cells) -> the same after this cell.

    Further inputs, such as labels for a later layer, pass unchanged.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("genotype", "D", "Letter of the network's genotype.")
        p.Define("reduction", False, "True for the cell that halves the image.")
        p.Define("num_filters", 0, "F.")
        p.Define("num_in", 0, "Channels of the last output.")
        p.Define(
            "num_in_before",
            None,
            "Channels of the previous output. If None, there is none, and the last "
            "output, unprojected, replaces it.",
        )
        p.Define("before_is_larger", False, "True if that image is twice as large.")
        p.Define("norm_tpl", BatchNormLayer.Params(), "Params of the batch norms.")
        p.Define(
            "drop_path_tpl",
            None,
            "Params of the DropPathLayers after every operation except `none`. If "
            "None, nothing drops.",
        )
        p.Define("num_cells", None, "Cells of the network; needed for drop-path.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p = self.params
        self._cell = cell_genotype(p)
        if p.drop_path_tpl is not None:
            expected = "the network's number of cells with a drop_path_tpl"
            check_param(self, "num_cells", lambda x: x and x > 0, expected)
        self.CreateChild("project", _project(p))
        fit = _fit(p)
        if fit is not None:
            self.CreateChild("fit", fit)
        for i, pair in enumerate(self._cell.pairs, 2):
            for side, edge in zip(_SIDES, pair, strict=True):
                self.CreateChild(f"{side}_{i}", _operation(p, edge))
                if _drops(p, edge):
                    self.CreateChild(f"drop_{side}_{i}", p.drop_path_tpl)
        for state, matched in _matched(p).items():
            self.CreateChild(f"match_{state}", matched)

    def FProp(
        self,
        theta: NestedMap,
        last: tf.Tensor,
        before: tf.Tensor | None,
        num_before: tf.Tensor | None,
        *passed_on: Any,
    ) -> tuple:
        """Returns the output `[B, H'', W'', C'']`, `last`, the count and `*passed_on`.

        Args:
            theta: weights.
            last: `[B, H, W, C]`, the last output.
            before: `[B, H', W', C']`, the previous output; None if there is none.
            num_before: `[B]` integers, all equal: number of cells so far; None if
                nothing drops.
            *passed_on: anything.
        """
        num = None if num_before is None else num_before + 1

        def run(name: str, x: tf.Tensor) -> tf.Tensor:
            return self.children[name].FProp(theta[name], x)

        def operate(name: str, x: tf.Tensor) -> tf.Tensor:
            y, drop = run(name, x), f"drop_{name}"
            if drop not in self.children or self.do_eval:
                return y
            return self.children[drop].FProp(theta[drop], y, self._depth(num))

        fitted = last if before is None else before
        if before is not None and "fit" in self.children:
            fitted = run("fit", before)
        states = [run("project", last), fitted]
        for i, (left, right) in enumerate(self._cell.pairs, 2):
            states.append(
                operate(f"left_{i}", states[left.state])
                + operate(f"right_{i}", states[right.state])
            )
        output = [
            run(f"match_{i}", states[i]) if f"match_{i}" in self.children else states[i]
            for i in self._cell.concat
        ]
        return tf.concat(output, -1), last, num, *passed_on

    def _depth(self, num: tf.Tensor | None) -> tf.Tensor:
        """Returns the cell's number over the number of all cells, [] float64."""
        if num is None:
            raise UserValueError(
                f"{self._path}: expected the number of cells so far as third input, "
                "for drop-path, got None. Set counts_cells of the stem."
            )
        return tf.cast(num[0], tf.float64) / self.params.num_cells

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: Any) -> NestedMap:
        """Counts all operations, drop-path, and the sums of pairs."""
        cell, fit = cell_genotype(p), _fit(p)
        last, before, num_before, *passed_on = shapes
        metas = [_cost(_project(p), last)]
        states = [metas[0].out_shapes[0], last if before is None else before]
        if before is not None and fit is not None:
            metas.append(_cost(fit, before))
            states[1] = metas[1].out_shapes[0]
        for pair in cell.pairs:
            metas += [_cost(_operation(p, edge), states[edge.state]) for edge in pair]
            states.append(metas[-1].out_shapes[0])
            metas += [_cost(p.drop_path_tpl, states[-1]) for e in pair if _drops(p, e)]
            metas.append(elementwise_cost(states[-1]))
        for state, matched in _matched(p).items():
            metas.append(_cost(matched, states[state]))
        return NestedMap(
            flops=sum(meta.flops for meta in metas),
            out_shapes=((*states[-1][:3], num_out(p)), last, num_before, *passed_on),
        )


def cell_genotype(p: InstantiableParams) -> CellGenotype:
    """Returns the genotype that a cell's params name.

    Raises:
        ValueError: if there is none of that letter.
    """
    check_choice(p.genotype, sorted(GENOTYPES), "genotype")
    network = GENOTYPES[p.genotype]
    return network.reduction if p.reduction else network.normal


def num_out(p: InstantiableParams) -> int:
    """Returns the number of channels that a cell with these params outputs."""
    return p.num_filters * len(cell_genotype(p).concat)


def _cost(p: InstantiableParams, shape: tuple) -> NestedMap:
    return p.cls.FPropMeta(p, shape)


def _project(p: InstantiableParams) -> InstantiableParams:
    """Returns params of the layer from the last output to state 0."""
    return relu_conv_bn(_channels(p, p.num_in))


def _widths(p: InstantiableParams) -> list[int]:
    """Returns the channels of each state."""
    fitted = p.num_in if p.num_in_before is None else p.num_filters
    return [p.num_filters, fitted, *[p.num_filters] * len(cell_genotype(p).pairs)]


def _operation(p: InstantiableParams, edge: Edge) -> InstantiableParams:
    return operation(
        edge.op,
        _channels(p, _widths(p)[edge.state]),
        stride=2 if p.reduction and edge.state < 2 else 1,
    )


def _drops(p: InstantiableParams, edge: Edge) -> bool:
    """Returns True if drop-path follows an operation."""
    return p.drop_path_tpl is not None and edge.op != IDENTITY


def _fit(p: InstantiableParams) -> InstantiableParams | None:
    """Returns params of the layer from the previous output to state 1, or None."""
    if p.num_in_before is None:
        return None
    if p.before_is_larger:
        return _halve(p, p.num_in_before, "RELU")
    if p.num_in_before != p.num_filters:
        return relu_conv_bn(_channels(p, p.num_in_before))
    return None


def _matched(p: InstantiableParams) -> dict[int, InstantiableParams]:
    """Returns params of the layers that match states for concatenation, by state."""
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
