"""Translations do not depend on the devices of the model's stages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.models.decoding.beam_search import Hypotheses
from lingvo_pipe.models.transformer.translation_task import TranslationTask
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices import stage_devices  # noqa: F401  Asks for several.
from tests.models.transformer.small_models import (
    NUM_TOKENS,
    alone,
    packed,
    sentences,
    translation_task,
)
from tests.support.cases import exhaustive
from tests.support.errors import fails

EOS = 1
SOURCES = sentences([3, 5, 8, 1, 0])
EMPTY = 4
FIRST = [2, 3, 2, 4, 2]
LENGTHS = {"max_length_ratio": 0.5, "max_extra_length": 3}
MAX_LENGTHS = [4, 5, 7, 3]


def task_of(
    num_stages: Any = 1,
    dtype: tf.DType = tf.float64,
    num_layers: int = 1,
    **params: Any,
) -> TranslationTask:
    """Sets large weights, so that translations differ."""
    p = translation_task(tied=True, num_layers=num_layers).Set(dtype=dtype)
    p.pipeline.splits = num_stages
    p.decode.Set(**LENGTHS).Set(**params)
    task = p.Instantiate()
    draw = np.random.default_rng(4)
    for variable in task.VariablePaths().values():
        variable.assign(draw.normal(size=variable.shape) * 0.7)
    return task


def decode(
    task: TranslationTask, rows: Any, num_tokens: int = 8, first: Any = None
) -> Hypotheses:
    """Translates some of the sources."""
    source = packed(alone([SOURCES[row] for row in rows]), num_tokens)
    batch = NestedMap(source=source.Transform(tf.constant))
    first_ids = tf.constant(first or [FIRST[row] for row in rows])

    @tf.function(autograph=False)
    def run(batch: NestedMap) -> Hypotheses:
        with ForwardContext(do_eval=True):
            return task.Decode(task.Values(), batch, first_ids, EOS)

    return Hypotheses(*(value.numpy() for value in run(batch)))


class WholeModel:
    """The model's log probabilities, for which all of the target runs each time."""

    def __init__(self, task: TranslationTask, row: int):
        self._task = task
        self._row = row
        self._known: dict[tuple[int, ...], np.ndarray] = {}

    def of(self, prefixes: list[list[int]]) -> None:
        """Computes those behind prefixes of one length, and behind all before."""
        read = [[FIRST[self._row], *prefix] for prefix in prefixes]
        num_tokens = len(read[0])
        sources = packed(alone([SOURCES[self._row]] * len(read)), 8)
        batch = NestedMap(source=sources, target=packed(alone(read), num_tokens))
        with ForwardContext(do_eval=True):
            batch = batch.Transform(tf.constant)
            logits = self._task.ComputePredictions(self._task.theta, batch)
        rows = tf.nn.log_softmax(logits).numpy()
        for prefix, row in zip(prefixes, rows, strict=True):
            for t, log_probs in enumerate(row):
                self._known[tuple(prefix[:t])] = log_probs

    def log_prob(self, ids: list[int]) -> float:
        """Returns the log probability of a translation."""
        self.of([ids])
        sums = (self._known[tuple(ids[:t])][token] for t, token in enumerate(ids))
        return float(sum(sums))

    def search(self, width: int, alpha: float) -> list[tuple[list[int], float]]:
        """Beam search by lists, to the greatest length."""
        max_length, ended = MAX_LENGTHS[self._row], []
        live: list[tuple[list[int], float]] = [([], 0.0)]
        for t in range(1, max_length + 1):
            self.of([ids for ids, _ in live])
            extended = [
                ([*ids, v], log_prob + float(self._known[tuple(ids)][v]))
                for ids, log_prob in live
                for v in ([EOS] if t == max_length else range(NUM_TOKENS))
            ]
            best = sorted(extended, key=lambda e: -e[1])[:width]
            live = [e for e in best if e[0][-1] != EOS]
            penalty = ((5 + t) / 6) ** alpha
            ended += [(ids, x / penalty) for ids, x in best if ids[-1] == EOS]
            if not live:
                break
        return sorted(ended, key=lambda e: -e[1])[:width]


@pytest.mark.parametrize(
    ("width", "alpha", "rows"),
    [exhaustive(1, 0.6, [1, 3]), (3, 0.0, [3]), exhaustive(4, 1.0, [1, 3])],
)
def test_it_is_the_search_with_the_whole_model(
    width: int, alpha: float, rows: list[int]
) -> None:
    task = task_of(width=width, num_hypotheses=width, length_penalty=alpha)
    found = decode(task, range(4))
    for row in rows:
        want = WholeModel(task, row).search(width, alpha)
        for i, (ids, score) in enumerate(want):
            assert found.ids[row, i, : found.lengths[row, i]].tolist() == ids
            np.testing.assert_allclose(found.scores[row, i], score, rtol=1e-9)
    assert len({tuple(ids) for ids in found.ids[:, 0].tolist()}) == 4


@pytest.mark.exhaustive
def test_scores_are_those_of_the_whole_model_in_float32() -> None:
    task = task_of(dtype=tf.float32, width=3, num_hypotheses=3)
    found = decode(task, range(4))
    for row in (1, 3):
        model = WholeModel(task, row)
        for ids, length, log_prob in zip(
            found.ids[row], found.lengths[row], found.log_probs[row], strict=True
        ):
            want = model.log_prob(ids[:length].tolist())
            np.testing.assert_allclose(log_prob, want, atol=1e-5)


def test_a_batch_is_its_sentences_one_by_one() -> None:
    """Padding has no effect."""
    task = task_of(width=3, num_hypotheses=2)
    together = decode(task, range(4))
    for row in (1, 3):
        alone_found = decode(task, [row], num_tokens=12)
        num_tokens = together.ids.shape[-1]
        np.testing.assert_array_equal(
            alone_found.ids[0, :, :num_tokens], together.ids[row]
        )
        np.testing.assert_array_equal(alone_found.lengths[0], together.lengths[row])
        np.testing.assert_allclose(
            alone_found.scores[0], together.scores[row], rtol=1e-9
        )


def test_rows_without_a_sentence_change_nothing() -> None:
    """The last batch of a data set may be smaller."""
    task = task_of(width=2)
    found, padded = decode(task, [0, 1]), decode(task, [0, EMPTY, 1])
    np.testing.assert_array_equal(padded.ids[[0, 2]], found.ids)
    assert np.all(np.isfinite(padded.scores))
    assert padded.lengths[1, 0] <= 3


def test_the_first_token_says_what_to_translate_to() -> None:
    task = task_of()
    one, other = decode(task, [1], first=[2]), decode(task, [1], first=[3])
    assert one.scores.tolist() != other.scores.tolist()


def test_bytes_do_not_depend_on_the_stages() -> None:
    params = {"dtype": tf.float32, "width": 4, "num_hypotheses": 4}
    want = decode(task_of(1, **params), range(4))
    for num_stages in (2, [1, 2, 3, 4, 5]):
        got = decode(task_of(num_stages, **params), range(4))
        for ours, theirs in zip(got, want, strict=True):
            assert ours.tobytes() == theirs.tobytes()


def test_states_of_tokens_stay_on_their_device() -> None:
    """The loop passes on every key and value from its layer's device."""
    task = task_of([1, 2, 3, 4, 5, 6, 7], num_layers=2)
    batch = NestedMap(source=packed(alone(SOURCES), 8).Transform(tf.constant))

    @tf.function(autograph=False)
    def run() -> Any:
        with ForwardContext(do_eval=True):
            return task.Decode(task.Values(), batch, tf.constant(FIRST), EOS)

    library = run.get_concrete_function().graph.as_graph_def().library.function
    functions = {function.signature.name: function for function in library}
    loops = [n for f in library for n in f.node_def if "While" in n.op]
    body = functions[loops[0].attr["body"].func.name]
    arguments = [argument.name for argument in body.signature.input_arg]
    devices = {node.name: node.device for node in body.node_def}
    assert len(loops) == 1

    # Keys and values of the two layers, of past tokens and of the source.
    passed_on = {
        body.ret[argument.name].split(":")[0]: argument.name
        for argument, shape in zip(
            body.signature.output_arg,
            loops[0].attr["output_shapes"].list.shape,
            strict=True,
        )
        if len(shape.dim) == 4
    }
    changed = sorted(devices[name] for name in passed_on if name not in arguments)
    first, second = task.pipeline.devices[4:6]
    assert changed == [first, first, second, second]
    assert sum(name in arguments for name in passed_on) >= 4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("max_extra_length", 0), ("max_extra_length", 1.5)],
        *[("max_length_ratio", -1.0), ("max_length_ratio", float("inf"))],
    ],
)
def test_params_out_of_range_are_refused(name: str, value: Any) -> None:
    with fails(path=name, got=value):
        decode(task_of(**{name: value}), [0])


def test_layers_that_see_later_tokens_are_refused() -> None:
    p = translation_task().Set(dtype=tf.float64)
    p.pipeline.cell_tpl[4].causal = False
    with fails(path="task/pipeline/decoder_0.causal", got=False):
        decode(p.Instantiate(), [0])


def test_layers_of_other_kinds_are_refused() -> None:
    p = translation_task()
    p.pipeline.cell_tpl[1] = DropoutLayer.Params().Set(name="other")
    with fails(path="task/pipeline/other", got="DropoutLayer"):
        decode(p.Instantiate(), [0])


def test_the_number_of_sentences_need_not_be_known_when_tracing() -> None:
    task = task_of(dtype=tf.float32, width=3, num_hypotheses=2)
    want = decode(task, range(4))
    stream = tf.TensorSpec([None, 8], tf.int32)
    names = ("ids", "segment_ids", "segment_pos")

    @tf.function(autograph=False)
    def run(source: NestedMap, first_ids: tf.Tensor) -> Hypotheses:
        with ForwardContext(do_eval=True):
            batch = NestedMap(source=source)
            return task.Decode(task.Values(), batch, first_ids, EOS)

    traced = run.get_concrete_function(
        NestedMap(dict.fromkeys(names, stream)), tf.TensorSpec([None], tf.int32)
    )
    for rows in (range(4), [2]):
        source = packed(alone([SOURCES[row] for row in rows]), 8)
        fed = [tf.constant(source[name]) for name in names]
        found = traced(*fed, tf.constant([FIRST[row] for row in rows]))
        for a, b in zip(found, want, strict=True):
            np.testing.assert_allclose(a, b[list(rows)], rtol=1e-5)
