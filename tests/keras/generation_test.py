"""Generation by PipelinedModel, against KerasHub's own on one device.

Shapes: B prompts, L tokens.
"""

from __future__ import annotations

import itertools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.core.errors import UserTypeError, UserValueError
from lingvo_pipe.keras.generation import Generation, _first_place as first_place
from lingvo_pipe.keras.pipelined_model import PipelinedModel
from lingvo_pipe.keras.placed_call import _slice_read as slice_read, operation_devices
from tests.support.errors import fails

hub = pytest.importorskip("keras_hub")  # It needs Python 3.11.

B, L, VOCABULARY = 5, 14, 40
LENGTHS = np.array([3, 4, 5, 8, 7])
MASK = np.arange(L) < LENGTHS[:, None]
TOKENS = np.random.default_rng(1).integers(1, VOCABULARY, (B, L)) * MASK
STOPS = [7, 9]

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
_STACK: dict[str, Any] = {
    "hidden_dim": 16,
    "intermediate_dim": 24,
    "num_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "layer_types": ["full_attention"] * 3,
}
T5_GEMMA: dict[str, Any] = {
    "dropout_rate": 0.0,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 8,
    "tie_word_embeddings": True,
    "cross_attention_hidden_size": 16,
    **{f"encoder_{name}": value for name, value in _STACK.items()},
    **{f"decoder_{name}": value for name, value in _STACK.items()},
}
SAMPLERS: dict[str, Any] = {
    "greedy": lambda: "greedy",
    "random": lambda: hub.samplers.RandomSampler(seed=3),
    "top_k": lambda: hub.samplers.TopKSampler(k=5, seed=4),
    "top_p": lambda: hub.samplers.TopPSampler(p=0.8, temperature=0.7, seed=5),
    "beam": lambda: hub.samplers.BeamSampler(num_beams=3),
}


def language_model(family: str = "GPT2") -> Any:
    """Returns a language model of three layers with random weights."""
    keras.utils.set_random_seed(1)
    backbone = getattr(hub.models, f"{family}Backbone")(**SIZES, **FAMILIES[family])
    return getattr(hub.models, f"{family}CausalLM")(backbone, preprocessor=None)


def prompts() -> dict[str, np.ndarray]:
    return {"token_ids": TOKENS.astype("int32"), "padding_mask": MASK.astype("int32")}


def translator(family: str) -> Any:
    """Returns a model of three encoder and three decoder layers with random weights."""
    keras.utils.set_random_seed(1)
    sizes: dict[str, Any] = {**SIZES, "num_layers": 3, "num_heads": 2}
    if family == "Bart":
        sizes["max_sequence_length"] = L
    elif family == "T5":
        sizes["tie_embedding_weights"] = True
    else:
        sizes = {"vocabulary_size": VOCABULARY, **T5_GEMMA}
    backbone = getattr(hub.models, f"{family}Backbone")(**sizes)
    return getattr(hub.models, f"{family}Seq2SeqLM")(backbone, preprocessor=None)


def sources() -> dict[str, np.ndarray]:
    """Returns sentences in reverse order, each with the start of its translation."""
    return {
        **{f"encoder_{name}": x[::-1] for name, x in prompts().items()},
        **{f"decoder_{name}": x for name, x in prompts().items()},
    }


def assert_same(generated: dict[str, np.ndarray], plain: dict[str, np.ndarray]) -> None:
    """Checks tokens up to the stop token. What comes after it is no result."""
    tokens, mask = sorted(plain, reverse=True)
    np.testing.assert_array_equal(generated[mask], plain[mask])
    is_result = plain[mask].astype(bool)
    np.testing.assert_array_equal(
        generated[tokens][is_result], plain[tokens][is_result]
    )


def assert_generates_alike(
    plain: Any,
    task: Any,
    inputs: dict[str, np.ndarray],
    sampler: str,
    num_devices: int,
    num_groups: int | None,
) -> Any:
    """Compares a plain task's tokens and a pipelined one's. Returns the latter."""
    plain.compile(sampler=SAMPLERS[sampler](), jit_compile=False)
    pipelined: Any = PipelinedModel(task, devices=num_devices)
    pipelined.compile(loss="mse", sampler=SAMPLERS[sampler]())
    for stops in (None, STOPS):
        expected = plain.generate(inputs, stop_token_ids=stops)
        generated = pipelined.generate(
            inputs, stop_token_ids=stops, num_groups=num_groups
        )
        assert_same(generated, expected)
    return pipelined


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("family", "sampler", "num_devices", "num_groups"),
    [
        ("GPT2", "random", 2, None),
        *(("GPT2", x, 2, 3) for x in SAMPLERS if x != "beam"),
        ("GPT2", "beam", 2, None),
        *(("GPT2", "top_p", k, g) for k in (1, 3) for g in (1, 2, 9)),
        *((family, "top_k", 2, 2) for family in FAMILIES),
    ],
)
def test_tokens_are_those_of_one_device(
    family: str, sampler: str, num_devices: int, num_groups: int | None
) -> None:
    """They are, call after call, and the sampler's seeds end where they would."""
    plain, pipelined = language_model(family), language_model(family)
    assert_generates_alike(
        plain, pipelined, prompts(), sampler, num_devices, num_groups
    )
    for seed, same in zip(
        pipelined.sampler.variables, plain.sampler.variables, strict=True
    ):
        np.testing.assert_array_equal(seed.numpy(), same.numpy())


@pytest.mark.exhaustive
@pytest.mark.parametrize("num_groups", [1, 3])
@pytest.mark.parametrize(
    ("family", "sampler"),
    [*itertools.product(("Bart", "T5", "T5Gemma"), ("greedy", "top_k"))],
)
def test_translations_are_those_of_one_device(
    family: str, sampler: str, num_groups: int
) -> None:
    plain, task = translator(family), translator(family)
    pipelined = assert_generates_alike(plain, task, sources(), sampler, 2, num_groups)
    generation = pipelined._traced["generate", num_groups]
    _, layouts = generation._caches["call_decoder_with_cache"]
    assert [len(layout.slices) for layout in layouts] == [3, 3], (
        "a slice for each layer"
    )


@pytest.mark.exhaustive
def test_beams_of_a_translation_are_those_of_one_device() -> None:
    plain, task = translator("Bart"), translator("Bart")
    assert_generates_alike(plain, task, sources(), "beam", 2, None)


@pytest.mark.exhaustive
def test_it_follows_training_and_keeps_the_sampler() -> None:
    model = language_model()
    model.compile(sampler="greedy", jit_compile=False)
    pipelined = PipelinedModel(model, devices=2, num_micro_batches=2)
    pipelined.compile(
        keras.optimizers.SGD(1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    before = pipelined.generate(prompts(), stop_token_ids=None)
    pipelined.fit(prompts(), np.full((B, L), 11), batch_size=B, epochs=3, verbose=0)
    after = pipelined.generate(prompts(), stop_token_ids=None)
    assert not np.array_equal(before["token_ids"], after["token_ids"])
    assert_same(after, model.generate(prompts(), stop_token_ids=None))


@pytest.mark.exhaustive
def test_caches_are_on_the_devices_of_their_layers() -> None:
    pipelined = PipelinedModel(language_model(), devices=3, splits=[2, 4, 6])
    pipelined.compile(loss="mse", sampler="greedy")
    pipelined.generate(prompts(), stop_token_ids=None)
    layers = pipelined.model.backbone.transformer_layers
    # Each has keys and values.
    expected = [layer.weights[0].value.device for layer in layers for _ in range(2)]
    assert len(set(expected)) > 1
    graphs = _graphs(pipelined)
    loops = [op for graph in graphs for op in graph.get_operations() if _is_loop(op)]
    assert len(loops) == 3
    for loop in loops:
        caches = [x for x in loop.inputs if x.shape.rank == 4]
        assert [x.op.device for x in caches] == expected


def _graphs(pipelined: Any) -> list[Any]:
    generation = pipelined._traced["generate", 3]
    return [function.graph for function in generation._functions.values()]


def _is_loop(op: tf.Operation) -> bool:
    return op.type in ("While", "StatelessWhile") and any(
        x.shape.rank == 4 for x in op.inputs
    )


def test_operations_are_where_their_weights_are() -> None:
    graph = tf.Graph()
    with graph.as_default():
        a, b, x = (tf.compat.v1.placeholder(tf.float32, [2, 2], n) for n in "abx")
        first = tf.matmul(x, a * 2.0, name="first")
        second = tf.matmul(tf.nn.relu(first), b, name="second")
        tied = tf.matmul(second, a, name="tied")
        tf.add(first, tied, name="sum")
        tf.add(second, first, name="later")
    devices = operation_devices(graph, {"a": "0", "b": "1"})
    names = ("mul", "first", "Relu", "second", "tied", "sum", "later")
    assert [devices[x] for x in names] == ["0", "0", "0", "1", "0", "0", "1"]


def test_draws_begin_after_the_shortest_prompt() -> None:
    masks = {"encoder_padding_mask": MASK[:, :1], "padding_mask": MASK}
    assert first_place(masks) == min(LENGTHS)
    with fails(path="generate"):
        first_place({"token_ids": TOKENS})


def test_a_slice_of_a_cache_is_told_from_other_reads() -> None:
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, [4, 3, 5])
        i = tf.compat.v1.placeholder(tf.int32, [])
        reads = [x[2], x[:, 1], x[:, :, 4], x[1:3], x[:, i], x[1, 2], x[1:, 2], x + 1]
    expected = [(0, 2), (1, 1), (2, 4), *[None] * 5]
    assert [slice_read(x.op) for x in reads] == expected


@pytest.mark.parametrize(("sampler", "num_groups"), [("greedy", 2), ("beam", 1)])
def test_there_is_a_group_for_each_stage_if_the_sampler_allows(
    sampler: str, num_groups: int
) -> None:
    task = language_model()
    task.compile(loss="mse", sampler=sampler)
    assert Generation(task, None, num_stages=2).num_groups == num_groups


def two_draws() -> Any:
    """Returns a sampler that draws twice for each token."""

    def get_next_token(sampler: Any, probabilities: Any) -> Any:
        random = hub.samplers.RandomSampler
        random.get_next_token(sampler, probabilities)
        return random.get_next_token(sampler, probabilities)

    kind = type(
        "Two", (hub.samplers.RandomSampler,), {"get_next_token": get_next_token}
    )
    return kind(seed=1)


def test_a_model_without_caches_cannot_generate() -> None:
    classifier = PipelinedModel(
        keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    )
    with pytest.raises(UserTypeError) as error:
        classifier.generate(prompts())
    assert "call_with_cache" in str(error.value.hint)


@pytest.mark.exhaustive
def test_what_groups_would_change_is_refused() -> None:
    pipelined = PipelinedModel(language_model(), devices=2)
    pipelined.compile(loss="mse", sampler=two_draws())
    with pytest.raises(UserValueError) as number:
        pipelined.generate(prompts(), stop_token_ids=None, num_groups=0)
    assert number.value.path == "num_groups"
    with pytest.raises(UserValueError) as draws:
        pipelined.generate(prompts(), stop_token_ids=None, num_groups=2)
    assert draws.value.path == "sampler"
    pipelined.compile(loss="mse", sampler="beam")
    with pytest.raises(UserValueError) as beams:
        pipelined.generate(prompts(), stop_token_ids=None, num_groups=2)
    assert beams.value.path == "num_groups"
