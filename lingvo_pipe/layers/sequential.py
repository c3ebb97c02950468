"""Layers in sequence, optionally with activations that are carried to the end.

    x, a --> [ sub_0 --> sub_1 --> sub_2 ] --> y, a, b      act_fetch_layers = ['sub_1']
                           '--------------------------b

The activations of a FeatureExtractionLayer come after its ordinary inputs and outputs.
First come the incoming activations (`a`), then the outputs of the layers that
`act_fetch_layers` names (`b`). So several such layers in sequence collect the
activations of all.
"""

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.checks import is_count
from lingvo_pipe.core.errors import UserValueError, Words, raise_problems
from lingvo_pipe.core.nests import as_args, map_present, one_or_all
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.checks import check_param
from lingvo_pipe.layers.core.forward_context import known_rows
from lingvo_pipe.layers.core.slicing import NumSlices, num_units, part_slices, slices_of
from lingvo_pipe.nested_map import NestedMap

_collections: contextvars.ContextVar[tuple[list, ...]] = contextvars.ContextVar(
    "_collections", default=()
)


def outputs_in_sequence(
    layers: Sequence[BaseLayer],
    thetas: Sequence[NestedMap],
    args: Sequence[Any],
    state_dtype: tf.DType | None = None,
) -> Iterator[Any]:
    """Yields the inputs, then each layer's outputs, which the next layer takes.

    `state_dtype` is for the outputs of all layers but the last. See `as_state`.
    """
    outputs = one_or_all(args)
    yield outputs
    for layer, theta in zip(layers, thetas, strict=True):
        outputs = layer.FProp(theta, *as_args(outputs))
        if layer is not layers[-1]:
            outputs = as_state(outputs, state_dtype)
        yield outputs


def as_state(outputs: Any, state_dtype: tf.DType | None) -> Any:
    """Returns a layer's outputs as a pipeline passes them to the next layer.

    If `state_dtype` is not None, floating-point outputs are cast to it.
    """
    if state_dtype is None:
        return outputs
    tensors = map_present(tf.convert_to_tensor, outputs)
    return map_present(
        lambda x: tf.cast(x, state_dtype) if x.dtype.is_floating else x, tensors
    )


class _InSequence(BaseLayer):
    """Base of layers that run lists of children in order. `_lists` names the lists."""

    _lists: tuple[str, ...]

    def FProp(self, theta: NestedMap, *args: Any) -> Any:
        outputs = one_or_all(args)
        for name in self._lists:
            if self.children[name]:
                outputs = self._run(name, theta, as_args(outputs))
        return outputs

    def _run(self, name: str, theta: NestedMap, args: tuple[Any, ...]) -> Any:
        *_, last = outputs_in_sequence(self.children[name], theta[name], args)
        return last


class SequentialLayer(_InSequence):
    """Layers in sequence. A tuple of outputs becomes several inputs of the next layer.

    The children are the list `sub` or, if `repeat` is above 1, the list `rep` of
    SequentialLayers, each with its own `sub`.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("sub", [], "Params of the layers, in order.")
        p.Define("repeat", 1, "Number of repetitions, each with its own weights.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p, hint = self.params, "Leave sub empty for no layers."
        check_param(self, "repeat", is_count, "an integer of at least 1", hint)
        self._lists = ("sub",) if p.repeat == 1 else ("rep",)
        once = p.Copy().Set(name="", repeat=1)
        subs = p.sub if p.repeat == 1 else [once] * p.repeat
        self.CreateChildren(self._lists[0], subs)

    @classmethod
    def SliceableParts(cls, p: InstantiableParams) -> dict[str, InstantiableParams]:
        """Returns the sliceable layers of `sub`, or {} if `repeat` is above 1."""
        subs = p.sub if p.repeat == 1 else []
        return {f"sub[{i}]": x for i, x in enumerate(subs) if num_units(x) > 1}

    @classmethod
    def Slices(
        cls, p: InstantiableParams, num_slices: NumSlices
    ) -> list[InstantiableParams]:
        """Returns params of cells: slices of layers in `sub`, and the other layers.

        Consecutive layers that are not cut form one cell.
        """
        sliceable, joins = cls.SliceableParts(p), False
        groups: list[list[InstantiableParams]] = []
        for i, sub in enumerate(p.sub):
            part = f"sub[{i}]"
            number = part_slices(num_slices, part) if part in sliceable else 1
            named = slices_of(sub, number)
            for cell in named:
                cell.name = sub.name or f"sub_{i}"
            if joins and len(named) == 1:
                groups[-1] += named
            else:
                groups += [[cell] for cell in named]
            joins = len(named) == 1
        return [p.Copy().Set(name="", sub=group) for group in groups]


class SeqLayer(_InSequence):
    """The cells of a PipeliningLayer in sequence, on one device.

    If its name is a PipeliningLayer's, their variables have the same paths, and each
    can use weights that the other has trained.
    """

    _lists = ("before", "cells")

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("before_tpl", [], "Params of the prologue's layers, in order.")
        p.Define("cell_tpl", [], "Params of the cells, in order.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateChildren("before", self.params.before_tpl)
        self.CreateChildren("cells", self.params.cell_tpl)

    def _run(self, name: str, theta: NestedMap, args: tuple[Any, ...]) -> Any:
        with known_rows(args):
            return super()._run(name, theta, args)


class FetchLayer(BaseLayer):
    """An identity that passes its inputs, under its name, to `saved_outputs`."""

    def FProp(self, theta: NestedMap, *args: Any) -> Any:
        _save(self._path.rpartition("/")[2], args)
        return one_or_all(args)


@contextlib.contextmanager
def saved_outputs() -> Iterator[list[tuple[str, tuple]]]:
    """Collects the names and outputs of the FetchLayers that run in this context."""
    saved: list[tuple[str, tuple]] = []
    token = _collections.set((*_collections.get(), saved))
    try:
        yield saved
    finally:
        _collections.reset(token)


def _save(name: str, values: tuple) -> None:
    for saved in _collections.get():
        saved.append((name, values))


class FeatureExtractionLayer(BaseLayer):
    """Layers in sequence that also return activations: see the module's picture."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("variable_name_prefix", "", "Prefix of the names of layers in `sub`.")
        p.Define("sub", [], "Params of the layers, in order.")
        p.Define("num_act_inputs", 0, "Number of inputs that are activations.")
        p.Define(
            "num_act_outputs",
            None,
            "Number of outputs that are activations. If None, num_act_inputs plus the "
            "number of act_fetch_layers.",
        )
        p.Define(
            "act_fetch_layers",
            [],
            "Names, prefix included, of the layers, such as FetchLayers, whose first "
            "output is an activation.",
        )
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p = self.params
        check_activations(p, self.path)
        named = zip(p.sub, sub_names(p), strict=True)
        self.CreateChildren("sub", [sub.Copy().Set(name=name) for sub, name in named])

    def FProp(self, theta: NestedMap, *args: Any) -> Any:
        """Maps (inputs, activations) to (outputs, activations, fetched activations)."""
        inputs, activations = _split(args, self.params, self._path)
        outputs = list(outputs_in_sequence(self.sub, theta.sub, inputs))
        activations += _fetched(self.params, outputs[1:])
        return (*as_args(outputs[-1]), *activations) if activations else outputs[-1]


def sub_names(p: InstantiableParams) -> list[str]:
    """Returns the names of the layers of a FeatureExtractionLayer."""
    return [
        p.variable_name_prefix + (sub.name or f"sub_{i}") for i, sub in enumerate(p.sub)
    ]


def check_activations(p: InstantiableParams, path: str) -> None:
    """Raises ValueError, with all problems, if params about activations are wrong."""
    num_outputs, names = p.num_act_inputs + len(p.act_fetch_layers), sub_names(p)
    wrong = []  # Triples of param, expected, got.
    if p.num_act_inputs < 0:
        wrong.append(("num_act_inputs", "at least 0", p.num_act_inputs))
    if p.num_act_outputs not in (None, num_outputs):
        total = f"None, or num_act_inputs plus the act_fetch_layers, {num_outputs}"
        wrong.append(("num_act_outputs", total, p.num_act_outputs))
    for name in p.act_fetch_layers:
        if name not in names:
            wrong.append(("act_fetch_layers", f"names of layers in sub, {names}", name))
    raise_problems(
        [
            UserValueError(path=f"{path}.{param}", expected=what, got=got, names=names)
            for param, what, got in wrong
        ]
    )


def _split(
    args: tuple[Any, ...], p: InstantiableParams, path: str
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    num_inputs = len(args) - p.num_act_inputs
    if num_inputs < 1:
        expected = f"at least one input and {p.num_act_inputs} activations"
        got = Words(f"{len(args)} inputs together")
        raise UserValueError(path=path, expected=expected, got=got)
    return args[:num_inputs], args[num_inputs:]


def _fetched(p: InstantiableParams, outputs: Sequence[Any]) -> tuple[Any, ...]:
    by_name = dict(zip(sub_names(p), outputs, strict=True))
    return tuple(as_args(by_name[name])[0] for name in p.act_fetch_layers)
