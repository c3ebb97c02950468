"""CompositeLayer: a layer that consists of other layers, its parts."""

from typing import Any

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.nested_map import NestedMap


class CompositeLayer(BaseLayer):
    """Base of layers whose children are parts. By default the parts run in order.

    Subclasses define `Params` and `Parts`, and `FProp` for another order.
    """

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CheckParams()
        parts = self.Parts(self.params)
        # A subclass may create further children. Only its own FProp can run them.
        self._part_names = tuple(parts)
        for name, part in parts.items():
            self.CreateChild(name, part)

    @classmethod
    def Parts(cls, p: InstantiableParams) -> dict[str, InstantiableParams]:
        """Returns the parts' params by name, in the order in which the parts run."""
        raise NotImplementedError(f"{cls.__name__}.Parts")

    def CheckParams(self) -> None:
        """Raises ValueError for a wrong param that no part checks."""

    def FProp(self, theta: NestedMap, *args: Any) -> Any:
        """Maps the first part's inputs `[B, ...]` to the last part's outputs."""
        for name in self._part_names:
            args = (self._children[name].FProp(theta[name], *args),)
        return args[0]
