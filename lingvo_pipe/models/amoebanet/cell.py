"""A cell of AmoebaNet, made from its genotype: images `[B, H, W, C]`, F filters.

The probability of drop-path grows with a cell's depth, which the cells count as they
run. If the depth were a param, a pipeline could not share one trace among cells.
"""

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import CopyFieldsTo, InstantiableParams
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.core.checks import check_choice, check_param
from lingvo_pipe.layers.core.composite_layer import CompositeLayer
from lingvo_pipe.layers.core.slicing import NumSlices, unit_edges
from lingvo_pipe.models.amoebanet import operations
from lingvo_pipe.models.amoebanet.genotype import GENOTYPES, CellGenotype
from lingvo_pipe.nested_map import NestedMap

_SIDES = ("left", "right")


class AmoebaCell(CompositeLayer):
    """A cell, whose inputs are the outputs of the two layers before it."""

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

    @classmethod
    def Parts(cls, p: InstantiableParams) -> dict[str, InstantiableParams]:
        parts = {"project": operations.operation("1x1", _channels(p, p.num_in))}
        if (fit := _fit(p)) is not None:
            parts["fit"] = fit
        for i, pair in enumerate(cell_genotype(p).pairs, 2):
            for side, edge in zip(_SIDES, pair, strict=True):
                stride = 2 if p.reduction and edge.state < 2 else 1
                channels = _channels(p, _widths(p)[edge.state])
                parts[f"{side}_{i}"] = operations.operation(edge.op, channels, stride)
                if p.drop_path_tpl is not None and edge.op != operations.IDENTITY:
                    parts[f"drop_{side}_{i}"] = p.drop_path_tpl
        for state in cell_genotype(p).concat:
            if (matched := _matched(p, state)) is not None:
                parts[f"match_{state}"] = matched
        return parts

    @classmethod
    def Range(cls, p: InstantiableParams) -> tuple[int, int]:
        """Returns (begin, end) of the cell's operations that this layer runs."""
        return 0, len(_flow(p).sources)

    @classmethod
    def NumUnits(cls, p: InstantiableParams) -> int:
        return len(_flow(p).sources)

    @classmethod
    def Slices(
        cls, p: InstantiableParams, num_slices: NumSlices
    ) -> list[InstantiableParams]:
        """Returns params of slices: consecutive groups of the cell's operations."""
        if not isinstance(num_slices, int):  # No part is cut within.
            return super().Slices(p, num_slices)
        tpl = CopyFieldsTo(p, _CellSlice.Params()).Set(name="")
        edges = unit_edges(cls.NumUnits(p), num_slices)
        return [tpl.Copy().Set(begin=a, end=b) for a, b in itertools.pairwise(edges)]

    def CheckParams(self) -> None:
        if self.params.drop_path_tpl is not None:
            expected = "the network's number of cells with a drop_path_tpl"
            check_param(self, "num_cells", lambda x: x and x > 0, expected)

    def FProp(self, theta: NestedMap, *inputs: Any) -> tuple:
        """Runs the cell on (last output, output before it, number of cells, ...).

        The last output is `[B, H, W, C]`, and the one before it `[B, H', W', C']` or
        None. The number of cells so far is `[B]` equal integers, or None if nothing
        drops. Further inputs are passed on. Returns this cell's output `[B, H'', W'',
        C'']`, the last output, the new number of cells and the further inputs. A slice
        that does not end the cell instead passes on the values that later slices need.
        """
        values, num_before, passed_on = _entering(self.params, inputs)
        num = None if num_before is None else num_before + 1

        def run(name: str, x: tf.Tensor) -> tf.Tensor:
            y, drop = self.children[name].FProp(theta[name], x), f"drop_{name}"
            if drop not in self.children or self.do_eval:
                return y
            return self.children[drop].FProp(theta[drop], y, self._depth(num))

        outputs = _run_cell(self.params, values, run, operator.add)
        if outputs is None:
            return *values.values(), num_before, *passed_on
        return tf.concat(outputs, -1), values["last"], num, *passed_on

    def _depth(self, num: tf.Tensor | None) -> tf.Tensor:
        if num is None:
            expected = "the number of cells so far as third input, for drop-path"
            hint = "Set counts_cells of the stem."
            raise UserValueError(path=self.path, expected=expected, got=None, hint=hint)
        return tf.cast(num[0], tf.float64) / self.params.num_cells


class _CellSlice(AmoebaCell):
    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("begin", 0, "Number of the cell's operations in the slices before.")
        p.Define("end", 0, "The number with this slice's.")
        return p

    @classmethod
    def Range(cls, p: InstantiableParams) -> tuple[int, int]:
        return p.begin, p.end

    @classmethod
    def Parts(cls, p: InstantiableParams) -> dict[str, InstantiableParams]:
        operation_names = list(_flow(p).sources)[p.begin : p.end]
        parts = super().Parts(p).items()
        return {
            name: x
            for name, x in parts
            if name.removeprefix("drop_") in operation_names
        }


class _Flow(NamedTuple):
    """The data flow in a cell.

    `sources` maps each operation, in order, to its input: `last`, `before` or another
    operation. `outputs` form the cell's output. `right_i` also names the sum of
    `left_i` and `right_i`.
    """

    sources: dict[str, str]
    outputs: list[str]

    def live(self, number: int) -> list[str]:
        """Returns the names of the values that operations from `number` on need."""
        names = list(self.sources)
        later = names[number:]
        needed = {"last", *self.outputs, *map(self.sources.get, later)}
        needed |= {f"left_{x[6:]}" for x in later if x.startswith("right_")}
        candidates = ["last", "before", *names[:number]]
        return [x for x in candidates if x in needed or not number]


def _flow(p: InstantiableParams) -> _Flow:
    cell, fits = cell_genotype(p), _fit(p) is not None
    sources = {"project": "last"} | ({"fit": "before"} if fits else {})
    states = ["project", "fit" if fits else "before"]
    for i, pair in enumerate(cell.pairs, 2):
        edges = zip(_SIDES, pair, strict=True)
        sources |= {f"{side}_{i}": states[edge.state] for side, edge in edges}
        states.append(f"right_{i}")
    matched = {f"match_{i}": i for i in cell.concat if _matched(p, i) is not None}
    sources |= {name: states[i] for name, i in matched.items()}
    names = ((f"match_{i}", states[i]) for i in cell.concat)
    return _Flow(sources, [x if x in matched else state for x, state in names])


def _entering(
    p: InstantiableParams, inputs: Sequence[Any]
) -> tuple[dict[str, Any], Any, Sequence[Any]]:
    """Splits FProp's inputs into values by name, the number of cells, and the rest."""
    names = _flow(p).live(p.cls.Range(p)[0])
    values = dict(zip(names, inputs, strict=False))
    if values.get("before", 0) is None:
        values["before"] = values["last"]
    return values, inputs[len(names)], inputs[len(names) + 1 :]


def _run_cell(
    p: InstantiableParams, values: dict[str, Any], run: Callable, add: Callable
) -> list | None:
    """Runs a layer's operations by `run(name, x)`, and sums pairs by `add`.

    Returns the values that form the cell's output. If a later slice computes that,
    returns None, and leaves in `values` only what later slices need.
    """
    flow, (begin, end) = _flow(p), p.cls.Range(p)
    for name, source in list(flow.sources.items())[begin:end]:
        values[name] = run(name, values[source])
        if name.startswith("right_"):
            values[name] = add(values[f"left_{name[6:]}"], values[name])
    if end == len(flow.sources):
        return [values[name] for name in flow.outputs]
    live = flow.live(end)
    for name in values.keys() - live:
        del values[name]
    return None


def cell_genotype(p: InstantiableParams) -> CellGenotype:
    """Returns the genotype that a cell's params name.

    Raises:
        ValueError: if there is no such genotype.
    """
    check_choice(p.genotype, sorted(GENOTYPES), "genotype")
    network = GENOTYPES[p.genotype]
    return network.reduction if p.reduction else network.normal


def num_out(p: InstantiableParams) -> int:
    """Returns the number of channels that a cell with these params outputs."""
    return p.num_filters * len(cell_genotype(p).concat)


def _widths(p: InstantiableParams) -> list[int]:
    fitted = p.num_in if p.num_in_before is None else p.num_filters
    return [p.num_filters, fitted, *[p.num_filters] * len(cell_genotype(p).pairs)]


def _fit(p: InstantiableParams) -> InstantiableParams | None:
    """Returns params of the layer that fits the earlier input to F filters, or None."""
    if p.num_in_before is None:
        return None
    if p.before_is_larger:
        return _halve(p, p.num_in_before, "RELU")
    if p.num_in_before != p.num_filters:
        return operations.operation("1x1", _channels(p, p.num_in_before))
    return None


def _matched(p: InstantiableParams, state: int) -> InstantiableParams | None:
    """Returns params of the layer that a state needs before concatenation, or None."""
    width = _widths(p)[state]
    if p.reduction and state < 2:
        return _halve(p, width, "NONE")
    return operations.conv_bn(_channels(p, width)) if width != p.num_filters else None


def _halve(p: InstantiableParams, num_in: int, activation: str) -> InstantiableParams:
    layer = operations.FactorizedReductionLayer.Params().Set(
        num_in=num_in, activation=activation
    )
    return layer.Set(num_filters=p.num_filters, norm_tpl=p.norm_tpl)


def _channels(p: InstantiableParams, num_in: int) -> operations.Channels:
    return operations.Channels(num_in, p.num_filters, p.norm_tpl)
