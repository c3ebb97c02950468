"""What goes in and out of a stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lingvo_pipe.pipeline.loops.channel import Channel


class Traffic(NamedTuple):
    """What goes in and out of a stage, by the number of the value.

    Attributes:
        inputs: values that are inputs of the mini-batch.
        receives: channels of other values that come in, forward.
        sends: channels of values that go out, forward.
        gradient_receives: channels of gradients that come in, backward.
        gradient_sends: channels of gradients that go out, backward.
        outputs: values that are kept as the pipeline's outputs.
        seeded: values whose gradients are given, as inputs of the mini-batch are.
        input_gradients: values whose gradients are kept as the pipeline's results.
        leave: by which the next stage gives leave to begin another step; None where a
            stage needs none.
        gives_leave: by which this stage gives it to the one before.
    """

    inputs: Sequence[int]
    receives: Mapping[int, Channel]
    sends: Mapping[int, Channel]
    gradient_receives: Mapping[int, Channel]
    gradient_sends: Mapping[int, Channel]
    outputs: Sequence[int]
    seeded: Sequence[int]
    input_gradients: Sequence[int]
    leave: Channel | None = None
    gives_leave: Channel | None = None
