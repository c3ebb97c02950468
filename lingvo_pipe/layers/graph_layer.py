"""GraphLayer: layers that are connected by the names of their inputs and outputs.

    input_endpoints = ['x', 'y'], output_endpoints = ['z']
    sub = [('x->h', a), ('h,y->z', b)]            z = b(a(x), y)

The inputs of a signature are names, lists of names `[x,y]` or NestedMaps of names
`(a=x,b=y)`. The outputs are names. A name `m.a` is a value in the NestedMap `m`.
"""

import re
from collections.abc import Sequence
from typing import Any

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.nests import as_args, one_or_all
from lingvo_pipe.core.trees import transform
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.nested_map import NestedMap

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class GraphLayer(BaseLayer):
    """Layers that run in order, and take earlier layers' outputs by name."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("input_endpoints", [], "Names of the inputs.")
        p.Define("output_endpoints", [], "Names of the outputs.")
        p.Define("sub", [], "Pairs (signature, layer's params), in order.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        subs = []
        for i, (signature, sub) in enumerate(self.params.sub):
            first = _parts(signature)[1][0].replace(".", "_")
            subs.append(sub.Copy().Set(name=sub.name or f"{first}_{i:02d}"))
        self.CreateChildren("sub", subs)

    def FProp(self, theta: NestedMap, *args: Any) -> Any:
        """Maps the inputs to the output, or a tuple of several outputs.

        Raises:
            ValueError: if a name has no value yet, or would get a second one.
        """
        p, path, values = self.params, self._path, _NamedValues()
        hint = "Pass one for each."
        values.store(p.input_endpoints, args, f"{path}.input_endpoints", hint)
        for i, (signature, _) in enumerate(p.sub):
            sub_path = f"{path}.sub[{i}] {signature!r}"
            inputs, names = _parts(signature)
            outputs = self.sub[i].FProp(theta.sub[i], *values.filled(inputs, sub_path))
            hint = "Name each of the layer's outputs."
            values.store(names, as_args(outputs), sub_path, hint)
        return one_or_all(values.filled(p.output_endpoints, f"{path}.output_endpoints"))


class _NamedValues:
    def __init__(self) -> None:
        self._values = NestedMap()

    def store(
        self, names: Sequence[str], values: Sequence[Any], path: str, hint: str
    ) -> None:
        if len(names) != len(values):
            expected, got = f"values for {names}", len(values)
            raise UserValueError(path=path, expected=expected, got=got, hint=hint)
        for name, value in zip(names, values, strict=True):
            if self._values.Has(name):
                expected = "a name for each value"
                raise UserValueError(path=path, expected=expected, got=name)
            # Copies, since values such as `m.a` are added to maps.
            self._values.Set(name, transform(value, lambda _, leaf: leaf))

    def filled(self, item: Any, path: str) -> Any:
        """Returns a nested structure of names with each name replaced by its value."""
        if isinstance(item, (list, tuple)):
            return [self.filled(x, path) for x in item]
        if isinstance(item, NestedMap):
            return item.Transform(lambda x: self.filled(x, path))
        if not self._values.Has(item):
            names = list(self._values)
            expected = f"a value computed before, one of {names}"
            raise UserValueError(path=path, expected=expected, got=item, names=names)
        return self._values.GetItem(item)


def _parts(signature: str) -> tuple[list[Any], list[str]]:
    inputs, _, outputs = signature.partition("->")
    names = [name.strip() for name in outputs.split(",")]
    tokens = [*re.findall(r"[\w.]+|\S", inputs), "]"]
    try:
        items = _items(tokens, "]")
    except (IndexError, SyntaxError):
        tokens = ["?"]
    if tokens or not all(map(_NAME.fullmatch, names)):
        expected = "a signature of inputs and outputs, such as 'x,(a=y,b=z)->u,v'"
        raise UserValueError(path="GraphLayer.sub", expected=expected, got=signature)
    return items, names


def _items(tokens: list[str], end: str) -> Any:
    """Parses and removes the tokens up to `end`. Returns a list or a NestedMap."""
    items: dict[Any, Any] = {}
    while tokens[0] != end:
        key: Any = len(items)
        if end == ")":
            key = tokens.pop(0)
            if tokens.pop(0) != "=" or not key.isidentifier() or key in items:
                raise SyntaxError(key)
        items[key] = _item(tokens)
        if tokens[0] != end and tokens.pop(0) != ",":
            raise SyntaxError(tokens)
    tokens.pop(0)
    return NestedMap(items) if end == ")" else list(items.values())


def _item(tokens: list[str]) -> Any:
    token = tokens.pop(0)
    if token in ("[", "("):
        return _items(tokens, "]" if token == "[" else ")")
    if not _NAME.fullmatch(token):
        raise SyntaxError(token)
    return token
