"""How much memory PyTorch's tensors take."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary


class LiveBytes(TorchDispatchMode):
    """While entered, follows the memory of all tensors that are made.

    Attributes:
        peak: the most bytes that they took at a time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._bytes = WeakIdKeyDictionary()  # by storage, as long as it lives
        self.peak = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        results = function(*args, **(kwargs or {}))
        for result in tree_leaves(results):
            if isinstance(result, torch.Tensor) and result.device.type != "meta":
                storage = result.untyped_storage()
                self._bytes[storage] = storage.nbytes()
        self.peak = max(self.peak, sum(self._bytes.values()))
        return results
