"""Variables that are another's: one weight in two places of a model.

with tying({"softmax/w": "emb/w"}, "model"):
    ...                                     # creates emb and softmax
model.softmax.vars.w is model.emb.vars.w    # and is called model/emb/w

Where softmax comes first, the variable is created on its device, and called the same.
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
            place; both below `root`.
        root: the path of the layer that they are in.

    Raises:
        ValueError: if a variable was not created, is itself to be another, or they
            have not the same shape, dtype or trainability.
    """
    before = getattr(_local, "ties", None)
    _local.ties = _Ties(ties, root)
    try:
        yield
        _local.ties.check_all_there()
    finally:
        _local.ties = before


def created_or_tied(path: str, create: Callable[[str], tf.Variable]) -> tf.Variable:
    """The variable at a path: a new one, or the one it is tied to.

    Args:
        path: of the variable.
        create: from a path to a variable with the name and the value that belong there.
    """
    ties: _Ties | None = getattr(_local, "ties", None)
    return create(path) if ties is None else ties.variable(path, create)


def is_tied(path: str) -> bool:
    """Whether the variable at a path is one that belongs to another path."""
    ties: _Ties | None = getattr(_local, "ties", None)
    return ties is not None and ties.owner(path) is not None


def named_places(
    places: Iterable[tuple[str, tf.Variable, bool]],
) -> dict[str, tf.Variable]:
    """Each variable under its own path; or the first, if that is not among them.

    Args:
        places: paths, variables, and whether it is tied to one of another path.
    """
    known = list(places)
    names: dict[Any, str] = {}
    for path, variable, _ in sorted(known, key=lambda place: place[2]):
        names.setdefault(variable.ref(), path)
    return {
        path: variable for path, variable, _ in known if names[variable.ref()] == path
    }


class _Ties:
    def __init__(self, ties: Mapping[str, str], root: str):
        self._ties = dict(ties)
        self._root = root
        self._created: dict[str, tf.Variable] = {}
        self._used: set[str] = set()
        self._ahead: dict[str, str] = {}

    def owner(self, path: str) -> str | None:
        """The path, below the root, that the variable at this path belongs to."""
        return self._ties.get(path.removeprefix(f"{self._root}/"))

    def variable(
        self, full_path: str, create: Callable[[str], tf.Variable]
    ) -> tf.Variable:
        path, owner = full_path.removeprefix(f"{self._root}/"), self.owner(full_path)
        if owner is None:
            if path in self._ahead:
                self._check_alike(path, self._created[path], self._ahead[path], create)
                del self._ahead[path]
            else:
                self._created[path] = create(full_path)
            return self._created[path]
        self._used.add(path)
        if owner in self._created:
            self._check_alike(path, self._created[owner], owner, create)
        else:
            self._created[owner] = create(f"{self._root}/{owner}")
            self._ahead[owner] = path
        return self._created[owner]

    def check_all_there(self) -> None:
        """Raises ValueError if a tie had no variable at one of its ends."""
        own = sorted(set(self._created) - set(self._ahead))
        for owner, path in self._ahead.items():
            raise ValueError(
                "A weight can be tied to one that a layer creates and that is tied to "
                f"no other; in {self._root}, {path} is tied to {owner}, and there are "
                f"{own}. Name one of these.{did_you_mean(owner, own)}"
            )
        unused = sorted(set(self._ties) - self._used)
        if unused:
            below = [path.removeprefix(f"{self._root}/") for path in unused]
            hints = "".join(did_you_mean(path, own) for path in below)
            raise ValueError(
                f"Tied weights must exist; {unused} do not, among those of "
                f"{self._root}: {own}.{hints}"
            )

    def _check_alike(
        self,
        path: str,
        variable: tf.Variable,
        made_at: str,
        create: Callable[[str], tf.Variable],
    ) -> None:
        """Checks what would be created at a place that has a variable already."""
        with tf.Graph().as_default():
            own = create(path)
            described = [
                (tuple(v.shape), v.dtype, v.trainable) for v in (own, variable)
            ]
        if described[0] != described[1]:
            raise ValueError(
                "Tied weights must have the same shape, dtype and trainability; "
                f"{path} has {described[0]}, {made_at} {described[1]}."
            )
