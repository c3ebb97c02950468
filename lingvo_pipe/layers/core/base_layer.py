"""BaseLayer: a node of the tree of layers that Params declare.

    Params  --Instantiate-->  layer
                                |-- children   (CreateChild, CreateChildren)
                                |-- vars       (CreateVariable)
                                `-- FProp(theta, *inputs) -> outputs

`FProp` is a function of only `theta` and its inputs. `theta` mirrors `vars`: a
NestedMap of tensors, with each child's tensors below the child's name. A layer creates
everything it owns in `__init__` or `_CreateLayerVariables`, and does not change later.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe import hyperparams
from lingvo_pipe.core.errors import UserAttributeError
from lingvo_pipe.core.nests import as_tensors, map_present
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core import construction, forward_context, place_reads
from lingvo_pipe.layers.core.auxiliary_outputs import AuxiliaryOutputs
from lingvo_pipe.layers.core.construction import LayerType
from lingvo_pipe.layers.core.layer_tree import (
    find_descendant,
    map_layers,
    variables_by_path,
)
from lingvo_pipe.layers.core.slicing import Sliceable
from lingvo_pipe.layers.core.tied_variables import created_or_tied
from lingvo_pipe.layers.core.weights import SKIP_LP_REGULARIZATION, create_variable
from lingvo_pipe.nested_map import NestedMap


class BaseLayer(AuxiliaryOutputs, Sliceable, metaclass=LayerType):
    """Base of all layers. Subclasses define `Params`, `__init__` and `FProp`."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Returns the params that every layer has."""
        p = InstantiableParams(cls)
        p.Define(
            "name",
            "",
            "Part of its variables' paths. By default a child's name in its parent.",
        )
        p.Define("dtype", None, "Variables' dtype. If None, the parent's, or float32.")
        p.Define(
            "fprop_dtype",
            None,
            "Dtype of theta and of FProp. If None, the layer's own dtype if that is "
            "set, else the parent's fprop_dtype.",
        )
        p.Define("random_seed", None, "If None, the parent's, or else 0.")
        p.Define(
            "params_init", None, "Rule of WeightInit. If None, the parent's, or Xavier."
        )
        p.Define(
            "skip_lp_regularization",
            None,
            "True to leave its variables out of L2 penalties. If None, the parent's.",
        )
        return p

    _parent: BaseLayer | None
    _under_construction: bool
    _disable_create_child = True  # False in Lingvo's tests, to create parts later.

    def __init__(self, params: InstantiableParams):
        name = params.name
        construction.check_layer_name(name, self, self._parent)
        self._params = construction.resolve_params(params, self._parent)
        self._params.ObserveReads("name", lambda: place_reads.note_path(self, True))
        self._path = f"{self._parent.path}/{name}" if self._parent else name
        self._children: dict[str, Any] = {}
        self._variables: dict[str, tf.Variable] = {}
        self._tied: dict[str, bool] = {}
        self._trained: dict[str, bool] = {}
        self._unregularized: set[str] = set()
        self._accumulators = {}
        self._accumulator_objects = {}
        self._functions: dict[str, Callable] = {}

    def _CreateLayerVariables(self) -> None:
        """Creates variables, after `__init__` of this class and subclasses has run."""

    @staticmethod
    def CopyBaseParams(
        from_params: InstantiableParams, to_params: InstantiableParams
    ) -> InstantiableParams:
        """Copies inherited params to `to_params`, and returns `to_params`.

        A param that is None, such as random_seed, is inherited. A layer that sets only
        `dtype` also computes in that dtype, whatever the parent's fprop_dtype is.
        """
        inherited = ["random_seed", "params_init", "skip_lp_regularization"]
        if to_params.dtype is None:
            inherited += ["dtype", "fprop_dtype"]
        for name in inherited:
            if to_params.Get(name) is None:
                to_params.Set(**{name: from_params.Get(name)})
        return to_params

    @property
    def params(self) -> InstantiableParams:
        """The layer's params, with inherited values, frozen after construction."""
        return self._params

    @property
    def parent(self) -> BaseLayer | None:
        """The layer that created this one."""
        place_reads.note_path(self)
        return self._parent

    @property
    def path(self) -> str:
        """The names from the root to this layer, joined by `/`."""
        place_reads.note_path(self)
        return self._path

    @property
    def do_eval(self) -> bool:
        """True while the forward pass is an evaluation."""
        return forward_context.current_context().do_eval

    @property
    def fprop_dtype(self) -> tf.DType:
        """The dtype of the computation in FProp."""
        return self._params.fprop_dtype

    def CreateChild(self, name: str, params: InstantiableParams) -> None:
        """Creates a layer as `self.<name>`, named `name` if its params have no name.

        Raises ValueError if the layer is already constructed, or the name is taken.
        """
        self._check_new(name)
        taken = self._names_of_children()
        self._children[name] = construction.make_child(self, name, params, taken)

    def CreateChildren(
        self,
        name: str,
        params: Sequence[Any] | Mapping[str, Any],
        devices: Sequence[str] | None = None,
    ) -> None:
        """Creates a nest of layers as `self.<name>`, like `CreateChild`.

        The nest has lists and dicts, at any depth. A layer without a name is named
        `<name>_<index or key>`, and in an inner nest for example `<name>_0_1`.
        `devices` has a device for each item of a list. If None, the current device has
        all layers. Raises ValueError like `CreateChild`, or if `devices` do not fit.
        """
        self._check_new(name)
        construction.check_devices(devices, params, f"{self.path}/{name}")
        self._children[name] = construction.make_children(
            self, name, params, self._names_of_children(), devices
        )

    def CreateVariable(
        self,
        name: str,
        params: hyperparams.Params,
        trainable: bool = True,
        aggregation: Any = tf.VariableAggregation.NONE,
    ) -> None:
        """Creates a variable as `self.vars.<name>` on the current device.

        The name is an identifier that no other part has. `params`, from `WeightParams`,
        may exclude the variable from training, too. `aggregation` is tf.Variable's.
        """
        options = {"trainable": trainable, "aggregation": aggregation}
        piece = self.PieceOf(name)
        create = functools.partial(create_variable, params, self.params, options, piece)
        self.AddVariable(name, create)
        if SKIP_LP_REGULARIZATION in params.collections:
            self._unregularized.add(name)

    def AddVariable(self, name: str, create: Callable[[str], tf.Variable]) -> None:
        """Adds the result of `create(path)`, or the variable that `path` is tied to."""
        self._check_new(name)
        variable, is_tied = created_or_tied(f"{self.path}/{name}", create)
        self._variables[name], self._tied[name] = variable, is_tied
        self._trained[name] = variable.trainable

    def AddFunction(self, name: str, function: Callable, replace: bool = False) -> None:
        """Makes `function` callable as `self.fns.<name>`.

        Raises AttributeError if the name is taken and `replace` is False.
        """
        construction.check_key(name, self)
        if name in self._functions and not replace:
            path, expected = f"{self.path}.fns", "a new name, or replace=True"
            raise UserAttributeError(path=path, expected=expected, got=name)
        self._functions[name] = function

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
        """The variables, with each child's variables below the child's name."""
        place_reads.note_path(self)
        return self._tree(lambda layer: layer._variables)

    @property
    def trained(self) -> NestedMap:
        """Booleans in the structure of `vars`: True for variables that are trained."""
        return self._tree(lambda layer: layer._trained)

    @property
    def theta(self) -> NestedMap:
        """The variables' values in the structure of `vars`, in FProp's dtypes."""
        return self.CastTheta(self.vars)

    @property
    def own_variables(self) -> dict[str, tf.Variable]:
        """The variables that this layer itself created, by name."""
        place_reads.note_path(self)
        return self._variables

    def CastTheta(self, values: NestedMap) -> NestedMap:
        """Returns `values`, nested like `vars`, with trained ones in `fprop_dtype`."""
        cast = NestedMap()
        for name, variable in self._variables.items():
            to_tensor = self._cast if variable.trainable else tf.convert_to_tensor
            cast[name] = to_tensor(values[name])
        for name, child in self._children.items():
            cast[name] = map_layers(BaseLayer.CastTheta, child, values[name])
        return cast

    def GetDescendant(self, path: str) -> Any:
        """Returns what a path like `encoder.layers[1]` names. See NestedMap.GetItem."""
        return find_descendant(self, path)

    def Descendants(self) -> Iterator[BaseLayer]:
        """Yields this layer and all layers below it, in order of creation."""
        yield self
        for child in tf.nest.flatten(list(self._children.values())):
            yield from child.Descendants()

    def VariablePaths(self) -> dict[str, tf.Variable]:
        """Returns the variables of all `Descendants` by path, in order of creation.

        A tied variable has one path: its owner's or, if not listed, its first.
        """
        return variables_by_path(
            (f"{layer.path}/{name}", variable, layer._tied[name])
            for layer in self.Descendants()
            for name, variable in layer._variables.items()
        )

    def FProp(self, theta: NestedMap, *args: Any) -> Any:
        """Computes the outputs from only theta and the inputs.

        Layers with equal params share one trace in a pipeline, so the result must not
        depend on the layer's name or path.
        """
        raise NotImplementedError(f"{type(self).__name__}.FProp")

    def FPropDefaultTheta(self, *args: Any, **kwargs: Any) -> Any:
        """Runs `FProp` with the variables' present values. Arrays become tensors."""
        return self.FProp(self.theta, *as_tensors(args), **as_tensors(kwargs))

    __call__ = FPropDefaultTheta

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: Any) -> NestedMap:
        """Returns NestedMap(flops, out_shapes) of a traced forward pass in training.

        Shapes are tf.TensorSpecs or tuples of integers. A tuple stands for
        floating-point numbers or, if the layer raises an error for them, int32. As in
        Lingvo, a class may define FPropMeta to give other flops.

        Raises:
            ValueError: if the layer does not take the inputs.
        """
        from lingvo_pipe.layers.core.model_size import traced_meta

        return traced_meta(p, *shapes)

    @property
    def updates_after_step(self) -> bool:
        """True if PostTrainingStepUpdate may change the layer's own state."""
        update = type(self).PostTrainingStepUpdate
        return update is not BaseLayer.PostTrainingStepUpdate

    def PostTrainingStepUpdate(self, accumulated: NestedMap) -> None:
        """Updates state after a training step. By default updates the children's state.

        `accumulated` has the step's sums in the structure of `accumulators`. The
        surrounding ForwardContext holds the step's number, if it is known. A subclass
        may leave out the argument, and may read the sums from its `Accumulator`s.
        """
        for name, child in self._children.items():
            map_layers(
                lambda layer, sums: layer.PostTrainingStepUpdate(sums),
                child,
                accumulated[name],
            )

    def __getattr__(self, name: str) -> Any:
        if hasattr(type(self), name):  # A property: shows its own AttributeError.
            return object.__getattribute__(self, name)
        children = vars(self).get("_children", {})
        if name in children:
            return children[name]
        raise construction.unknown_attribute(self, name)

    def _cast(self, value: Any) -> tf.Tensor:
        value = tf.convert_to_tensor(value)
        return tf.cast(value, self.fprop_dtype) if value.dtype.is_floating else value

    def _tree(self, own: Callable[[BaseLayer], Mapping[str, Any]]) -> NestedMap:
        """Returns the values that `own` gives for each layer, as a tree like `vars`."""
        tree = NestedMap(own(self))
        for name, child in self._children.items():
            tree[name] = map_layers(lambda layer: layer._tree(own), child)
        return tree

    def _CastToFPropDtype(self, value: Any) -> Any:
        return map_present(self._cast, value)

    def _names_of_children(self) -> set[str]:
        return {x.params.name for x in tf.nest.flatten(list(self._children.values()))}

    def _check_new(self, name: str) -> None:
        taken = *self._children, *self._variables, *self._accumulators
        construction.check_new_part(name, taken, self)


def IsLayerParams(x: Any) -> bool:
    """Returns True for the Params of a layer."""
    return isinstance(x, InstantiableParams) and isinstance(x.cls, LayerType)
