"""Whole variables, joined from the pieces of sliced layers, for checkpoints.

    logits>0/w [0:50, :], logits>1/w [50:100, :]   ->   logits/w, a JoinedVariable

Slices divide a layer into several cells. Checkpoints hold whole weights, optimizer
slots and averages, so a run may resume with other slices, or none.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError, raise_problems
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.layers.core.slicing import (
    Piece,
    cut_whole,
    pieces_by_path,
    whole_path,
    whole_shape,
)
from lingvo_pipe.training.optim.exponential_moving_average import average_name
from lingvo_pipe.training.optim.keras_optimizer import LEARNER_NAME

# Optimizers that update each number of a weight by itself.
_ELEMENTWISE = {
    *("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lion", "Nadam"),
    *("RMSprop", "RMSpropFromOnes", "SGD"),
}


class JoinedVariable:
    """A whole variable whose pieces are variables on their own devices."""

    def __init__(self, pieces: Sequence[tf.Variable], first: Piece):
        self._pieces, self._axis = list(pieces), first.axis
        self.dtype = pieces[0].dtype
        self.shape = tf.TensorShape(whole_shape(pieces[0].shape, first))

    @property
    def device(self) -> str:
        """The first piece's device."""
        return self._pieces[0].device

    def value(self) -> tf.Tensor:
        """Returns the pieces joined, on this process's CPU."""
        with tf.device("/CPU:0"):
            return tf.concat(
                [variable.value() for variable in self._pieces], self._axis
            )

    def numpy(self) -> Any:
        """Returns the value as an array."""
        return self.value().numpy()

    def assign(self, value: Any) -> None:
        """Assigns to each piece its part of the whole value."""
        value, begin = tf.convert_to_tensor(value, self.dtype), 0
        for variable in self._pieces:
            size = variable.shape[self._axis]
            piece = Piece(self._axis, begin, self.shape[self._axis])
            with tf.device(variable.device):
                variable.assign(cut_whole(value, piece, size))
            begin += size


def whole_variables(layer: Any) -> dict[str, Any]:
    """Returns a layer's whole variables, by their paths in the unsliced layer."""
    return join_pieces(layer, layer.VariablePaths())


def join_pieces(layer: Any, named: Mapping[str, tf.Variable]) -> dict[str, Any]:
    """Returns the variables in `named` by their names in the unsliced layer.

    Pieces of one variable are joined. `named` has variables of `layer`, and their
    optimizer slots and moving averages, by name.

    Raises:
        ValueError: if variables that get the same name are not pieces of one variable.
    """
    pieces: dict[str, Piece] = {}
    for path, layer_piece in pieces_by_path(layer).items():
        slot_prefix = f"{LEARNER_NAME}/{path.replace('/', '_')}_"
        pieces |= dict.fromkeys((path, average_name(path), slot_prefix), layer_piece)
    groups: dict[str, list[str]] = {}
    for name in named:
        groups.setdefault(whole_path(name), []).append(name)
    joined: dict[str, Any] = {}
    for joined_name, names in groups.items():
        piece = _piece_of(names[0], pieces)
        variables = [named[name] for name in names]
        if piece is None and len(names) == 1:
            joined[joined_name] = variables[0]
            continue
        if piece is None or piece.whole != sum(v.shape[piece.axis] for v in variables):
            raise UserValueError(
                path=joined_name,
                expected="one variable, since checkpoints have names without slices",
                got=names,
                hint="Give the layers other names.",
            )
        joined[joined_name] = JoinedVariable(variables, piece)
    return joined


def problems_with_pieces(p: Params) -> list[UserValueError]:
    """Returns errors about training params that do not work for pieces of weights."""
    problems = []
    if p.optimizer.name not in _ELEMENTWISE:
        problems.append(
            UserValueError(
                path="task.train.optimizer.name",
                expected=f"one of {sorted(_ELEMENTWISE)}, whose updates do not depend "
                "on whole weights",
                got=p.optimizer.name,
            )
        )
    if p.clip_gradient_single_norm_to_value:
        problems.append(
            UserValueError(
                path="task.train.clip_gradient_single_norm_to_value",
                expected="None, since norms of pieces are smaller",
                got=p.clip_gradient_single_norm_to_value,
                hint="Use clip_gradient_norm_to_value.",
            )
        )
    return problems


def check_elementwise(p: Params, layer: Any) -> None:
    """Raises ValueError if `layer` has slices, and `p` has `problems_with_pieces`."""
    if pieces_by_path(layer):
        hint = "Or set task.pipeline.slices to None: slices train pieces of weights."
        raise_problems(problems_with_pieces(p), hint)


def _piece_of(name: str, pieces: Mapping[str, Piece]) -> Piece | None:
    """Returns which piece a variable, average or slot is, or None if it is whole."""
    if name in pieces or whole_path(name) == name:
        return pieces.get(name)
    prefixes = [k for k in pieces if k.endswith("_") and name.startswith(k)]
    return pieces[max(prefixes, key=len)] if prefixes else None
