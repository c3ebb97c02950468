"""The streams of tokens that a Transformer's layers hand on from one to the next.

    state = NestedMap(
        source=NestedMap(ids, segment_ids, segment_pos, hidden),
        target=NestedMap(ids, segment_ids, segment_pos, hidden),
    )

    ids          the tokens, [B, S] of the source, [B, T] of the target
    segment_ids  1 for a sentence's tokens; 1, 2, ... where several are packed into a
                 row; 0 for padding
    segment_pos  the token's place in its sentence, from 0
    hidden       [B, S, D] or [B, T, D], from the stream's embedding on

A layer works on one stream and hands all else on as it is, which costs no message. A
language model has a target alone.

Shapes: B examples, S source tokens, T target tokens, D channels.
"""

from __future__ import annotations

from typing import Any

from lingvo_pipe.nested_map import NestedMap

SOURCE = "source"
TARGET = "target"


def as_stream(batch: NestedMap) -> NestedMap:
    """What of a batch, or of a part of one, goes into the first layer."""
    return NestedMap(
        ids=batch.ids, segment_ids=batch.segment_ids, segment_pos=batch.segment_pos
    )


def has_hidden(state: Any, stream: str) -> bool:
    """Whether this is a state in which a stream has its hidden states."""
    return isinstance(state, NestedMap) and "hidden" in state.get(stream, {})


def with_hidden(state: NestedMap, stream: str, hidden: Any) -> NestedMap:
    """The state in which a stream's hidden states, or their shape, are others."""
    return NestedMap(state, **{stream: NestedMap(state[stream], hidden=hidden)})


def check_stream(stream: str, where: str) -> None:
    """Raises ValueError unless there is a stream of that name."""
    if stream not in (SOURCE, TARGET):
        raise ValueError(
            f"A stream must be {SOURCE!r} or {TARGET!r}; {where} has {stream!r}."
        )
