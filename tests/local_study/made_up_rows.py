"""Rows without a training."""

from __future__ import annotations

from tools.local_study.costs import BlockCost
from tools.local_study.study_rows import Boundary, Record, Row, RowKey, Similarity


def made_up_row(
    scheme: str, batch_size: int, seed: int = 0, last_loss: float = 0.5
) -> Row:
    """Returns a row of two layers and ten steps; backpropagation has one block."""
    is_plain = scheme == "backpropagation"
    halves = [BlockCost(10.0, 36.0), BlockCost(10.0, 30.0)]
    moments = [(0, 0.25), (9, 0.75)]
    return Row(
        key=RowKey(scheme, batch_size, seed),
        blocks=[BlockCost(20.0, 60.0)] if is_plain else halves,
        boundaries=[Boundary("in", 4096, 4096 if is_plain else 0, 0)],
        records=[
            Record(0, None, {"loss": 2.0, "accuracy": 0.1}),
            Record(5, 1.5, {"loss": 1.0, "accuracy": 0.5}),
            Record(10, 1.0, {"loss": last_loss, "accuracy": 0.8}),
        ],
        similarities=[]
        if is_plain
        else [
            Similarity(step, {"in": value, "drop": None, "out": 1.0})
            for step, value in moments
        ],
        seconds=1.5,
    )
