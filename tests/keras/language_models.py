"""Small language models of KerasHub without preprocessors, and their prompts.

Shapes: B prompts, L tokens.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from lingvo_pipe.keras.pipelined_model import PipelinedModel

hub = pytest.importorskip("keras_hub")  # It needs Python 3.11.

B, L, VOCABULARY = 5, 14, 40
LENGTHS = np.array([3, 4, 5, 8, 7])
MASK = np.arange(L) < LENGTHS[:, None]
TOKENS = np.random.default_rng(1).integers(1, VOCABULARY, (B, L)) * MASK

SIZES = {"vocabulary_size": VOCABULARY, "hidden_dim": 16, "intermediate_dim": 24}
GROUPED = {"num_query_heads": 2, "num_key_value_heads": 1, "num_layers": 3}
FAMILIES: dict[str, dict[str, Any]] = {
    "GPT2": {"num_layers": 3, "num_heads": 2, "max_sequence_length": L},
    "Gemma": {**GROUPED, "head_dim": 8},
    "Llama": GROUPED,
    "Llama3": GROUPED,
    "Mistral": GROUPED,
    "Mixtral": {**GROUPED, "num_experts": 2},
    "OPT": {"num_layers": 3, "num_heads": 2, "max_sequence_length": L},
    "Qwen": GROUPED,
    "Qwen3": {**GROUPED, "head_dim": 8},
}


def language_model(family: str = "GPT2") -> Any:
    """Returns a language model of three layers with random weights."""
    keras.utils.set_random_seed(1)
    backbone = getattr(hub.models, f"{family}Backbone")(**SIZES, **FAMILIES[family])
    return getattr(hub.models, f"{family}CausalLM")(backbone, preprocessor=None)


def prompts(num_rows: int = B, length: int = L) -> dict[str, np.ndarray]:
    tokens, mask = (x[:num_rows, :length].astype("int32") for x in (TOKENS, MASK))
    return {"token_ids": tokens, "padding_mask": mask}


class TinyLanguageModel(keras.Model):
    """A model that generates as KerasHub's do, but is traced in no time.

    In each layer, a token takes the sum of the tokens up to it.
    """

    def __init__(self, sampler: Any) -> None:
        keras.utils.set_random_seed(1)
        self.sampler = hub.samplers.get(sampler)
        self.embedding = keras.layers.Embedding(VOCABULARY, 8)
        self.blocks = [keras.layers.Dense(8, activation="tanh") for _ in range(2)]
        self.head = keras.layers.Dense(VOCABULARY, kernel_initializer="normal")
        x = tokens = keras.Input((None,), dtype="int32")
        for layer in (self.embedding, *self.blocks, self.head):
            x = layer(x)
        super().__init__(tokens, x)

    def call_with_cache(self, token_ids: Any, cache: Any, index: Any) -> Any:
        x, caches = self.embedding(token_ids), []
        for i, block in enumerate(self.blocks):
            read = keras.ops.slice_update(cache[:, i], [0, index, 0], x)
            caches.append(read)
            sums = keras.ops.matmul(keras.ops.tri(read.shape[1]), read)
            x = block(keras.ops.slice(sums, [0, index, 0], x.shape))
        return self.head(x), x, keras.ops.stack(caches, 1)

    def generate_step(self, inputs: Any, stop_token_ids: Any = None) -> Any:
        tokens, mask = inputs["token_ids"], inputs["padding_mask"]
        num_rows, length = tokens.shape
        cache = keras.ops.zeros([num_rows, len(self.blocks), length, 8])
        *_, cache = self.call_with_cache(tokens, cache, 0)

        def next_token(prompt: Any, cache: Any, index: Any) -> Any:
            token = keras.ops.slice(prompt, [0, index - 1], [num_rows, 1])
            logits, x, cache = self.call_with_cache(token, cache, index - 1)
            return logits[:, 0], x[:, 0], cache

        first = keras.ops.min(keras.ops.sum(mask, -1))
        return {
            "token_ids": self.sampler(
                next_token, tokens, cache, first, mask, stop_token_ids
            )
        }

    generate_function = generate_step

    def generate(self, inputs: Any, stop_token_ids: Any = None) -> Any:
        tensors = keras.tree.map_structure(keras.ops.convert_to_tensor, inputs)
        return self.generate_function(tensors, stop_token_ids)


def eager_language_model(sampler: Any) -> Any:
    model = language_model()
    model.compile(loss="mse", sampler=sampler, run_eagerly=True)
    return model


def pipelined_of(model: Any) -> Any:
    return PipelinedModel(model, devices=2)


def tokens_of(model: Any, *sizes: int, **options: Any) -> list[list[int]]:
    generated = model.generate(prompts(*sizes), stop_token_ids=None, **options)
    return np.asarray(generated["token_ids"]).tolist()
