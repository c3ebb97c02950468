"""Slices of a TransformerLayer: cells that each run one part, or a slice of a part.

    state, x, ... -> [ a slice of one part ] -> state, x, ...

Until the last slice, the state passes through unchanged, and so costs no message. Each
slice computes its own masks.
"""

from typing import Any

import tensorflow as tf

from lingvo_pipe.core.nests import as_args
from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.layers.attention import not_later, same_segment
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.models.transformer.streams import check_memory, with_hidden
from lingvo_pipe.nested_map import NestedMap


def part_inputs(p: Params, part: str, state: NestedMap) -> tuple[Any, ...]:
    """Returns a part's inputs after the hidden states: memory and mask, or none."""
    stream = state[p.stream]
    if part == "self_attention":
        mask = same_segment(stream.segment_ids, stream.segment_ids)
        if p.causal:
            mask = tf.logical_and(mask, not_later(mask.shape[-1]))
        return None, mask
    if part == "memory_attention":
        memory = state[p.memory]
        mask = same_segment(stream.segment_ids, memory.segment_ids)
        return memory.hidden, mask
    return ()


class TransformerSlice(BaseLayer):
    """A cell that runs one part of a TransformerLayer, or a slice of one part."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("stream", "", "The stream to change: source or target.")
        p.Define("memory", None, "The other stream, to attend to, or None.")
        p.Define("causal", False, "True if no token sees a later one.")
        p.Define("model_dim", 0, "D.")
        p.Define("part", "", "Name of the part.")
        p.Define("body", None, "Params of the part, or of its slice.")
        p.Define("is_first", False, "True for the layer's first slice.")
        p.Define("ends_part", False, "True for the part's last slice.")
        p.Define("is_last", False, "True for the layer's last slice.")
        p.Define("final_norm_tpl", None, "Params of the last slice's norm, or None.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        check_memory(self)
        p = self.params
        self.CreateChild(p.part, p.body)
        if p.final_norm_tpl is not None:
            self.CreateChild("final_norm", p.final_norm_tpl.Copy().Set(dim=p.model_dim))

    def FProp(self, theta: NestedMap, state: NestedMap, *passed_on: Any) -> Any:
        """Returns the state and, but for the last slice, the next slice's inputs."""
        p = self.params
        inputs = (state[p.stream].hidden,) if p.is_first else passed_on
        args = part_inputs(p, p.part, state)
        outputs = as_args(self.children[p.part].FProp(theta[p.part], *inputs, *args))
        if not p.ends_part:
            return (state, *outputs[: len(outputs) - len(args)])
        if not p.is_last:
            return state, outputs[0]
        x = outputs[0]
        if p.final_norm_tpl is not None:
            x = self.final_norm.FProp(theta.final_norm, x)
        return with_hidden(state, p.stream, x)
