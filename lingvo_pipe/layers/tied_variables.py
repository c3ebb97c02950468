"""Variables that are another's: one weight in two places of a model.

with tying({"softmax/w": "emb/w"}, "model"):
    ...                                     # creates emb, then softmax
model.softmax.vars.w is model.emb.vars.w
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams.suggest import did_you_mean

_local = threading.local()


@contextlib.contextmanager
def tying(ties: Mapping[str, str], root: str) -> Iterator[None]:
    """Has the variables at some paths be those at others.

    Args:
        ties: the path of each variable that is not to exist, and of the one in its
            place, which must be created first; both below `root`.
        root: the path of the layer that they are in.

    Raises:
        ValueError: if a variable was not created, or they have not the same shape,
            dtype or trainability.
    """
    before = getattr(_local, "ties", None)
    _local.ties = _Ties(ties, root)
    try:
        yield
        _local.ties.check_all_used()
    finally:
        _local.ties = before


def created_or_tied(path: str, create: Callable[[], tf.Variable]) -> tf.Variable:
    """The variable at a path: a new one, or the one it is tied to."""
    ties: _Ties | None = getattr(_local, "ties", None)
    return create() if ties is None else ties.variable(path, create)


def first_places(places: Iterable[tuple[str, tf.Variable]]) -> dict[str, tf.Variable]:
    """Each variable under the first of its paths."""
    found: dict[Any, str] = {}
    return {
        path: variable
        for path, variable in places
        if found.setdefault(variable.ref(), path) == path
    }


class _Ties:
    def __init__(self, ties: Mapping[str, str], root: str):
        self._ties = dict(ties)
        self._root = root
        self._created: dict[str, tf.Variable] = {}
        self._used: set[str] = set()

    def variable(self, path: str, create: Callable[[], tf.Variable]) -> tf.Variable:
        path = path.removeprefix(f"{self._root}/")
        if path not in self._ties:
            self._created[path] = create()
            return self._created[path]
        self._used.add(path)
        owner = self._ties[path]
        if owner not in self._created:
            raise ValueError(
                "A weight can be tied to one of a layer before it; "
                f"in {self._root}, {path} is tied to {owner}, and so far there are "
                f"{sorted(self._created)}. Swap the two if {owner} comes later."
                f"{did_you_mean(owner, self._created)}"
            )
        variable = self._created[owner]
        with tf.Graph().as_default():
            own = create()
            described = [
                (tuple(v.shape), v.dtype, v.trainable) for v in (own, variable)
            ]
        if described[0] != described[1]:
            raise ValueError(
                "Tied weights must have the same shape, dtype and trainability; "
                f"{path} has {described[0]}, {owner} {described[1]}."
            )
        return variable

    def check_all_used(self) -> None:
        unused = sorted(set(self._ties) - self._used)
        if unused:
            below = [path.removeprefix(f"{self._root}/") for path in unused]
            hints = "".join(did_you_mean(path, self._created) for path in below)
            raise ValueError(
                f"Tied weights must exist; {unused} do not, among those of "
                f"{self._root}: {sorted(self._created)}.{hints}"
            )
