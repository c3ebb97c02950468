"""The pieces that slices' variables and slots are."""

from __future__ import annotations

from lingvo_pipe.training.checkpoint import whole_weights
from lingvo_pipe.training.checkpoint.whole_weights import Piece


def test_a_slot_is_of_the_weight_with_the_longest_name() -> None:
    """The names of two weights may begin alike."""
    short, long = Piece(0, 0, 4), Piece(1, 2, 8)
    pieces = {"learner/a>0_": short, "learner/a>0_b>0_": long}
    for name, piece in {"learner/a>0_m": short, "learner/a>0_b>0_m": long}.items():
        assert whole_weights._piece_of(name, pieces) == piece
