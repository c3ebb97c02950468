"""Params that know the class they configure."""

from __future__ import annotations

from typing import Any

from lingvo_pipe.hyperparams.params import Params


class InstantiableParams(Params):
    """Params of a class, in `cls`; Instantiate makes an object of it."""

    def __init__(self, cls: Any = None) -> None:
        super().__init__()
        self.Define("cls", cls, "The class that these Params configure.")

    def Instantiate(self, **kwargs: Any) -> Any:
        """Returns `cls(self, **kwargs)`.

        Raises:
          ValueError: `cls` is None.
        """
        if self.cls is None:
            raise ValueError(
                "Params must know their class to be instantiated; got cls = None. "
                "Create them as InstantiableParams(TheClass), or set cls."
            )
        return self.cls(self, **kwargs)
