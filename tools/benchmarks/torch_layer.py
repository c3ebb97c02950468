"""The Transformer layer of the benchmark, for PyTorch: see transformer_layer.py."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tools.benchmarks.workload import NORM_EPSILON, Workload


class TransformerLayer(nn.Module):
    """Attention and a feed-forward part, each behind a norm and around a residual."""

    def __init__(self, workload: Workload, index: int):
        super().__init__()
        self._num_heads = workload.num_heads
        for name, value in workload.weights(index).items():
            weight = torch.tensor(value)
            if weight.dim() == 1:
                module = nn.LayerNorm(len(weight), NORM_EPSILON, bias=False)
            else:
                module = nn.Linear(*weight.shape, bias=False)
            # PyTorch's matrices are transposed.
            module.weight = nn.Parameter(weight.t().contiguous())
            self.add_module(name, module)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[b, T, D]` to the same."""
        x = x + self._attention(self.attention_norm(x))
        hidden = self.expand(self.feed_forward_norm(x))
        return x + self.contract(torch.relu(hidden))

    def _attention(self, x: torch.Tensor) -> torch.Tensor:
        num_examples, length, dim = x.shape
        shape = num_examples, length, self._num_heads, dim // self._num_heads
        query, key, value = (
            part.reshape(shape).transpose(1, 2)
            for part in self.query_key_value(x).split(dim, -1)
        )
        logits = query @ key.transpose(-1, -2) * shape[-1] ** -0.5
        attended = torch.softmax(logits, -1) @ value
        return self.attention_output(attended.transpose(1, 2).reshape(x.shape))


class Stage(nn.Module):
    """Consecutive layers, recomputed in the backward pass if so wished."""

    def __init__(self, workload: Workload, layers: range, recompute: bool):
        super().__init__()
        self._layers = nn.Sequential(*(TransformerLayer(workload, i) for i in layers))
        self._recompute = recompute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[b, T, D]` to the same."""
        if self._recompute and torch.is_grad_enabled():
            return checkpoint(self._layers, x, use_reentrant=False)
        return self._layers(x)
