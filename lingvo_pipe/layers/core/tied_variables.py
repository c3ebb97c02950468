"""Tied variables: one weight at two paths of a model.

with tying({"softmax/w": "emb/w"}, "model"):
    ...                                     # creates emb and softmax
model.softmax.vars.w is model.emb.vars.w    # and is called model/emb/w

If softmax is created first, the variable lies on its device, and is still called
model/emb/w.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError, raise_problems
from lingvo_pipe.core.near_names import did_you_mean

_local = threading.local()


@contextlib.contextmanager
def tying(ties: Mapping[str, str], root: str) -> Iterator[None]:
    """Ties variables that are created in this context to variables at other paths.

    `ties` maps a tied variable's path to its owner's path. Both are relative to the
    layer at `root`.

    Raises:
        ValueError: if a variable of a tie is missing, or differs from its owner.
    """
    outer = getattr(_local, "ties", None)
    _local.ties = _Ties(ties, root)
    try:
        yield
        _local.ties.check_all_created()
    finally:
        _local.ties = outer


def created_or_tied(
    path: str, create: Callable[[str], tf.Variable]
) -> tuple[tf.Variable, bool]:
    """Returns the variable for a path, and True if it is tied to another path."""
    ties: _Ties | None = getattr(_local, "ties", None)
    return (create(path), False) if ties is None else ties.variable(path, create)


class _Ties:
    def __init__(self, ties: Mapping[str, str], root: str):
        self._ties = dict(ties)
        self._root = root
        self._created: dict[str, tf.Variable] = {}
        self._used: set[str] = set()
        # Owners whose variable was created earlier -> the tied path it was created for.
        self._ahead: dict[str, str] = {}

    def _below_root(self, path: str) -> str:
        return path.removeprefix(f"{self._root}/")

    def variable(
        self, full_path: str, create: Callable[[str], tf.Variable]
    ) -> tuple[tf.Variable, bool]:
        path = self._below_root(full_path)
        owner = self._ties.get(path)
        if owner is None:
            if path in self._ahead:
                self._check_same(path, path, self._ahead.pop(path), create)
            else:
                self._created[path] = create(full_path)
            return self._created[path], False
        self._used.add(path)
        if owner in self._created:
            self._check_same(path, owner, owner, create)
        else:
            self._created[owner] = create(f"{self._root}/{owner}")
            self._ahead[owner] = path
        return self._created[owner], True

    def check_all_created(self) -> None:
        created = sorted(set(self._created) - set(self._ahead))
        for owner, path in self._ahead.items():
            raise UserValueError(
                path=f"{self._root}.tied[{path!r}]",
                expected=f"a weight that is created and not tied, one of {created}",
                got=owner,
                names=created,
            )
        raise_problems(
            [
                UserValueError(
                    path=f"{self._root}.tied",
                    expected=f"a weight, one of {created}",
                    got=path,
                    hint=did_you_mean(self._below_root(path), created).strip(),
                )
                for path in sorted(set(self._ties) - self._used)
            ]
        )

    def _check_same(
        self, path: str, owner: str, created_at: str, create: Callable
    ) -> None:
        with tf.Graph().as_default():
            variables = create(path), self._created[owner]
            new_traits, owner_traits = [
                (tuple(v.shape), v.dtype, v.trainable) for v in variables
            ]
        if new_traits != owner_traits:
            raise UserValueError(
                path=f"{self._root}/{path}",
                expected=f"the shape, dtype and trainability of {created_at}, to which "
                f"it is tied, {owner_traits}",
                got=new_traits,
            )
