"""Generation by PipelinedModel, against KerasHub's own on one device.

Shapes: B prompts, L tokens.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.core.errors import UserTypeError
from lingvo_pipe.keras.generation import Generation
from lingvo_pipe.keras.pipelined_model import PipelinedModel
from lingvo_pipe.keras.placed_call import _slice_read as slice_read, operation_devices
from tests.keras.language_models import (
    FAMILIES,
    SIZES,
    VOCABULARY,
    B,
    L,
    TinyLanguageModel,
    eager_language_model,
    hub,
    language_model,
    pipelined_of,
    prompts,
    tokens_of,
)
from tests.support.cases import exhaustive
from tests.support.errors import fails

STOPS = [7, 9]
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
TRANSLATORS = ("Bart", "T5", "T5Gemma")
SAMPLERS: dict[str, Any] = {
    "greedy": lambda: "greedy",
    "random": lambda: hub.samplers.RandomSampler(seed=3),
    "top_k": lambda: hub.samplers.TopKSampler(k=5, seed=4),
    "top_p": lambda: hub.samplers.TopPSampler(p=0.8, temperature=0.7, seed=5),
    "beam": lambda: hub.samplers.BeamSampler(num_beams=3),
}


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
        *(("GPT2", "top_p", k, g) for k in (1, 4) for g in (1, 2, 9)),
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
@pytest.mark.parametrize(
    ("family", "sampler", "num_groups"),
    [
        ("Bart", "greedy", 1),
        ("Bart", "top_k", 3),
        *((family, "top_k", 3) for family in TRANSLATORS[1:]),
    ],
)
def test_translations_are_those_of_one_device(
    family: str, sampler: str, num_groups: int
) -> None:
    plain, task = translator(family), translator(family)
    pipelined = assert_generates_alike(plain, task, sources(), sampler, 2, num_groups)
    generation = pipelined._made_for_cells["generate", num_groups, num_groups]
    calls = generation._calls.items()
    of_decoder = [x for (name, *_), x in calls if name == "call_decoder_with_cache"]
    assert of_decoder
    for call in of_decoder:  # A slice for each layer.
        assert [len(layout.slices) for layout in call.layouts] == [3, 3]


@pytest.mark.exhaustive
def test_beams_of_a_translation_are_those_of_one_device() -> None:
    plain, task = translator("Bart"), translator("Bart")
    assert_generates_alike(plain, task, sources(), "beam", 2, None)


@pytest.mark.exhaustive
def test_it_follows_training_and_has_the_samplers_of_compile() -> None:
    model = language_model()
    model.compile(sampler="greedy", jit_compile=False)
    pipelined = PipelinedModel(model, devices=2, num_micro_batches=2)
    assert isinstance(pipelined.model.sampler, hub.samplers.GreedySampler)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    pipelined.compile(keras.optimizers.SGD(1.0), loss=loss)
    assert isinstance(pipelined.model.sampler, hub.samplers.TopKSampler)
    pipelined.compile(keras.optimizers.SGD(1.0), loss=loss, sampler="greedy")
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
    # No device has held an empty cache for all layers.
    empty = [x for graph in graphs for x in graph.get_operations() if x.type == "Fill"]
    assert not [
        y for x in empty for y in x.outputs[0].consumers() if y.type == "Unpack"
    ]
    placed = {x.device for x in empty if x.outputs[0].shape.rank == 4}
    assert set(expected) <= placed


def _graphs(pipelined: Any) -> list[Any]:
    generation = pipelined._made_for_cells["generate", None, 3]
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
    task = TinyLanguageModel(sampler)
    assert Generation(task, None, num_devices=2).num_groups == num_groups


@pytest.mark.parametrize("num_groups", [1, None])
@pytest.mark.parametrize("make", [TinyLanguageModel, exhaustive(eager_language_model)])
def test_prompts_of_any_number_and_length_follow_one_another(
    make: Any, num_groups: int | None
) -> None:
    plain, pipelined = make("greedy"), pipelined_of(make("greedy"))
    for sizes in ((2, 10), (2, 6), (5, 8), (2, 10)):
        expected = tokens_of(plain, *sizes)
        assert tokens_of(pipelined, *sizes, num_groups=num_groups) == expected


def test_it_follows_a_change_of_variables() -> None:
    plain, model = TinyLanguageModel("greedy"), TinyLanguageModel("greedy")
    pipelined = pipelined_of(model)
    before = tokens_of(pipelined, 2, 6)
    for changed in (plain, model):
        changed.head.quantize("int8")
        changed.head.kernel_scale.assign(-changed.head.kernel_scale)
    after = tokens_of(pipelined, 2, 6)
    assert after == tokens_of(plain, 2, 6) != before


class Counting:
    """A task with a recurrent state: how often a text has each token.

    Its cache is in a list, and some of its results are None.
    """

    name = "counting"

    def __init__(self) -> None:
        self.sampler = hub.samplers.GreedySampler()
        weights = np.random.default_rng(0).normal(size=[VOCABULARY, VOCABULARY])
        self.weights = tf.Variable(weights, dtype=tf.float32)

    def generate(self, inputs: Any) -> Any:
        return self.generate_function(inputs)

    def call_with_cache(self, token_ids: Any, cache: Any) -> Any:
        counts = cache[0] + tf.reduce_sum(tf.one_hot(token_ids, VOCABULARY), 1)
        return tf.matmul(counts, self.weights), None, [counts]

    def generate_step(self, inputs: Any, stop_token_ids: Any = None) -> Any:
        tokens, mask = inputs["token_ids"], inputs["padding_mask"]
        cache = [tf.zeros([tokens.shape[0], VOCABULARY])]
        *_, cache = self.call_with_cache(tokens, cache)

        def next_token(prompt: Any, cache: Any, index: Any) -> Any:
            return self.call_with_cache(prompt[:, index - 1 : index], cache)

        first = tf.reduce_min(tf.reduce_sum(mask, -1))
        tokens = self.sampler(next_token, tokens, cache, first, mask, stop_token_ids)
        return {"token_ids": tokens, "images": inputs["images"]}

    generate_function = generate_step


def test_a_state_without_a_place_for_each_token_takes_one_group() -> None:
    """Also inputs and results that are None, as the images of a text."""
    task, inputs = Counting(), {**prompts(), "images": None}
    expected = task.generate(
        {k: x if x is None else tf.constant(x) for k, x in inputs.items()}
    )
    generated = Generation(task, None, num_devices=2)(inputs)
    np.testing.assert_array_equal(generated["token_ids"], expected["token_ids"])
    assert generated["images"] is None
    with fails(path="num_groups", got=2):
        Generation(task, 2, num_devices=2)(inputs)
    with fails(path="generate", got=[1, B]):
        Generation(task, 2, num_devices=2)({**inputs, "images": np.zeros([1, 2])})


class Assisted(Counting):
    def generate(self, inputs: Any, assistant_model: Any = None) -> Any:
        raise AssertionError(inputs, assistant_model)


def test_an_assistant_is_refused_by_position_too() -> None:
    with fails(path="assistant_model"):
        Generation(Assisted(), 1, num_devices=1)(prompts(), Counting())


def test_a_model_without_caches_cannot_generate() -> None:
    classifier = PipelinedModel(
        keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    )
    with pytest.raises(UserTypeError) as error:
        classifier.generate(prompts())
    assert "call_with_cache" in str(error.value.hint)


def test_a_number_of_groups_that_is_not_allowed_is_refused() -> None:
    task = TinyLanguageModel("beam")
    for number in (0, 2):
        with fails(path="num_groups", got=number):
            Generation(task, number, num_devices=2)
