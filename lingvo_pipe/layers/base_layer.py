"""BaseLayer: a node of the tree of layers that Params declare.

    Params  --Instantiate-->  layer
                                |-- children   (CreateChild, CreateChildren)
                                |-- vars       (CreateVariable)
                                `-- FProp(theta, *inputs) -> outputs

`FProp` is a function of `theta` and its inputs alone. `theta` mirrors `vars`: a
NestedMap of tensors with the children's below their names. Everything a layer owns is
made in `__init__`; afterwards it does not change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe import hyperparams
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers import forward_context, names
from lingvo_pipe.layers.construction import (
    LayerType,
    check_devices,
    check_initialized,
    check_under_construction,
    make_child,
)
from lingvo_pipe.layers.inherited_params import resolve_params
from lingvo_pipe.layers.layer_tree import find_descendant, map_layers
from lingvo_pipe.layers.side_outputs import SideOutputs
from lingvo_pipe.layers.tied_variables import is_tied, named_places
from lingvo_pipe.layers.weight_params import check_shape, create_variable
from lingvo_pipe.nested_map import NestedMap


class BaseLayer(SideOutputs, metaclass=LayerType):
    """Base of all layers. Sub-classes define `Params`, `__init__` and `FProp`."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        """The params that every layer has."""
        p = InstantiableParams(cls)
        p.Define(
            "name",
            "",
            "Name of the layer, unique among its siblings: part of the path of its "
            "variables. A child without one takes the name it is created under.",
        )
        p.Define("dtype", None, "Of the variables. None: the parent's; else float32.")
        p.Define(
            "fprop_dtype",
            None,
            "Of theta and of what FProp computes. None: the parent's, unless this "
            "layer states a dtype of its own; then that.",
        )
        p.Define("random_seed", None, "None: the parent's; else 0.")
        p.Define("params_init", None, "None: the parent's; else WeightInit.Xavier().")
        return p

    _parent: BaseLayer | None
    _under_construction: bool

    def __init__(self, params: InstantiableParams):
        """Initialises the layer.

        Raises:
            ValueError: if `params.name` is empty or no valid name, or a dtype is none
                of floating-point numbers.
        """
        name = params.name
        names.check_layer_name(name, self, self._parent)
        self._params = resolve_params(params, self._parent)
        self._path = f"{self._parent.path}/{name}" if self._parent else name
        self._children: dict[str, Any] = {}
        self._variables: dict[str, tf.Variable] = {}
        self._tied: dict[str, bool] = {}
        self._accumulators: dict[str, tf.TensorSpec] = {}
        self._functions: dict[str, Callable] = {}

    # What the layer is.

    @property
    def params(self) -> InstantiableParams:
        """The layer's params, frozen, with inherited values filled in."""
        return self._params

    @property
    def parent(self) -> BaseLayer | None:
        """The layer that created this one."""
        return self._parent

    @property
    def path(self) -> str:
        """Names from the root to this layer, joined by `/`."""
        return self._path

    @property
    def do_eval(self) -> bool:
        """Whether the forward pass that runs now is an evaluation."""
        return forward_context.current().do_eval

    @property
    def fprop_dtype(self) -> tf.DType:
        """The dtype that FProp computes in."""
        return self._params.fprop_dtype

    # Construction.

    def CreateChild(self, name: str, params: InstantiableParams) -> None:
        """Creates a layer as `self.<name>`, named `name` if it has no name.

        Raises:
            ValueError: outside of `__init__`, or if the name is taken.
        """
        self._check_new(name)
        self._children[name] = self._make(name, params)

    def CreateChildren(
        self,
        name: str,
        params: Sequence[InstantiableParams] | Mapping[str, InstantiableParams],
        devices: Sequence[str] | None = None,
    ) -> None:
        """Creates a list or dict of layers as `self.<name>`; see `CreateChild`.

        Those without a name are named `<name>_<index or key>`.

        Args:
            name: of the list or dict.
            params: of the layers.
            devices: for a list, where each layer's variables go; None: the current one.

        Raises:
            ValueError: as `CreateChild`; or if `devices` is not one for each layer of a
                list.
        """
        self._check_new(name)
        check_devices(devices, params, f"{self.path}/{name}")
        if isinstance(params, Mapping):
            self._children[name] = NestedMap()
            for key in sorted(params):
                self._children[name][key] = self._make(f"{name}_{key}", params[key])
        else:
            self._children[name] = []
            for i, p in enumerate(params):
                with tf.device(devices[i]) if devices else contextlib.nullcontext():
                    self._children[name].append(self._make(f"{name}_{i}", p))

    def CreateVariable(self, name: str, params: hyperparams.Params) -> None:
        """Creates a variable as `self.vars.<name>` on the current device.

        Args:
            name: an identifier, unlike the names of this layer's children.
            params: see `WeightParams`.
        """
        self._check_new(name)
        path = f"{self.path}/{name}"
        self._variables[name] = create_variable(params, self.params, path)
        self._tied[name] = is_tied(path)

    def RegisterAccumulator(
        self, name: str, shape: Sequence[int], dtype: tf.DType = tf.float32
    ) -> None:
        """Declares a sum over the micro-batches of a step.

        `FProp` gives each micro-batch's share to `Accumulate`; the totals reach
        `PostTrainingStepUpdate`.
        """
        self._check_new(name)
        check_shape(shape, f"{self.path}/{name}")
        self._accumulators[name] = tf.TensorSpec(shape, dtype)

    def AddFunction(self, name: str, function: Callable, replace: bool = False) -> None:
        """Makes `function` callable as `self.fns.<name>`.

        Raises:
            ValueError: if there is one of this name and `replace` is False.
        """
        names.check_key(name, self)
        if name in self._functions and not replace:
            raise ValueError(
                f"A function's name must be new; {self.path} has {name!r}. "
                "Pass replace=True to put another in its place."
            )
        self._functions[name] = function

    # What the layer holds.

    @property
    def children(self) -> NestedMap:
        """The children by name: layers, lists of layers or NestedMaps of layers."""
        return NestedMap(self._children)

    @property
    def fns(self) -> NestedMap:
        """The functions added by `AddFunction`."""
        return NestedMap(self._functions)

    @property
    def vars(self) -> NestedMap:
        """The variables, with the children's below their names."""
        return self._tree(lambda layer: layer._variables)

    @property
    def theta(self) -> NestedMap:
        """The variables' values, in the structure of `vars`.

        What is trained comes in `fprop_dtype`, other state in its own dtype.
        """
        return self.CastTheta(self.vars)

    @property
    def own_variables(self) -> dict[str, tf.Variable]:
        """The variables that this layer itself created."""
        return self._variables

    @property
    def own_accumulators(self) -> dict[str, tf.TensorSpec]:
        """Specs of the accumulators that this layer itself registered."""
        return self._accumulators

    @property
    def accumulators(self) -> NestedMap:
        """Specs of the registered accumulators, in the structure of `vars`."""
        return self._tree(lambda layer: layer._accumulators)

    def CastTheta(self, values: NestedMap) -> NestedMap:
        """Values in the structure of `vars` -> theta, each in its layer's dtype."""
        cast = NestedMap({k: self._cast(k, values[k]) for k in self._variables})
        for name, child in self._children.items():
            cast[name] = map_layers(BaseLayer.CastTheta, child, values[name])
        return cast

    def GetDescendant(self, path: str) -> BaseLayer:
        """Returns the layer at a path such as `encoder.layers[1].attention`.

        Raises:
            KeyError: if there is none, naming the children where the path ends.
        """
        return find_descendant(self, path)

    def Descendants(self) -> Iterator[BaseLayer]:
        """This layer and all below it, in order of creation."""
        yield self
        for child in self._flat():
            yield from child.Descendants()

    def VariablePaths(self) -> dict[str, tf.Variable]:
        """All variables below this layer by path, in order of creation.

        One in several places has the path it was created for, or the first below here.
        """
        return named_places(
            (f"{layer.path}/{name}", variable, layer._tied[name])
            for layer in self.Descendants()
            for name, variable in layer._variables.items()
        )

    # What the layer does.

    def FProp(self, theta: NestedMap, *args: Any) -> Any:
        """Computes the outputs from theta and the inputs alone.

        In a pipeline layers of equal params share one trace, so what it computes must
        not depend on the layer's name or path.
        """
        raise NotImplementedError(f"{type(self).__name__}.FProp")

    def FPropDefaultTheta(self, *args: Any, **kwargs: Any) -> Any:
        """`FProp` with the variables' present values."""
        return self.FProp(self.theta, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """`FProp` with the variables' present values."""
        return self.FProp(self.theta, *args, **kwargs)

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: Any) -> NestedMap:
        """The cost of a forward pass, without building the layer.

        Args:
            p: the layer's params.
            *shapes: of the inputs, tuples of integers.

        Returns:
            NestedMap(flops, out_shapes): multiply-adds count as two; `out_shapes` is a
            tuple of shapes.
        """
        raise NotImplementedError(f"{cls.__name__}.FPropMeta")

    def AccumulatedTree(self, totals: Mapping[str, tf.Tensor]) -> NestedMap:
        """Totals by the accumulators' paths -> the structure of `accumulators`."""
        return self._tree(
            lambda layer: {
                name: totals[f"{layer.path}/{name}"] for name in layer._accumulators
            }
        )

    def PostTrainingStepUpdate(self, accumulated: NestedMap) -> None:
        """Updates state after a training step; by default the children's.

        The ForwardContext around it says which step that was, if it is known.

        Args:
            accumulated: the step's totals, in the structure of `accumulators`.
        """
        for name, child in self._children.items():
            map_layers(
                lambda layer, totals: layer.PostTrainingStepUpdate(totals),
                child,
                accumulated[name],
            )

    # Private.

    def __getattr__(self, name: str) -> Any:
        check_initialized(self, name)
        children = self._children
        if name in children:
            return children[name]
        raise AttributeError(
            f"{type(self).__name__} has neither an attribute nor a child {name!r}; "
            f"its children are {sorted(children)}."
        )

    def _cast(self, name: str, value: Any) -> tf.Tensor:
        value = tf.convert_to_tensor(value)
        trained = self._variables[name].trainable and value.dtype.is_floating
        return tf.cast(value, self.fprop_dtype) if trained else value

    def _tree(self, own: Callable[[BaseLayer], Mapping[str, Any]]) -> NestedMap:
        """What `own` finds in each layer, as a tree like `vars`."""
        tree = NestedMap(own(self))
        for name, child in self._children.items():
            tree[name] = map_layers(lambda layer: layer._tree(own), child)
        return tree

    def _make(self, name: str, params: InstantiableParams) -> BaseLayer:
        return make_child(self, name, params, self._flat())

    def _flat(self) -> list[BaseLayer]:
        return tf.nest.flatten(list(self._children.values()))

    def _check_new(self, name: str) -> None:
        check_under_construction(self, name)
        taken = {*self._children, *self._variables, *self._accumulators}
        names.check_part_name(name, taken, self)
