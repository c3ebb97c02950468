"""The description of a model: every layer, every variable, and sums that agree."""

import re

import pytest
import tensorflow as tf

from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.models.image_classifier import ImageClassifier
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline import devices  # noqa: F401  Asks for several of them.
from lingvo_pipe.training.inspect_model import describe


class Input:
    element_spec = NestedMap(
        image=tf.TensorSpec([8, 6], tf.float32),
        label=tf.TensorSpec([8], tf.int32),
        weight=tf.TensorSpec([8], tf.float32),
    )


def dense(input_dim, output_dim):
    return FCLayer.Params().Set(input_dim=input_dim, output_dim=output_dim)


def described(splits, *cells):
    p = ImageClassifier.Params().Set(name="task")
    p.pipeline.Set(cell_tpl=list(cells), splits=splits)
    return describe(p, Input())


def count(line):
    return int(line.split()[-1].replace(",", ""))


@pytest.mark.parametrize("splits", [1, 2, [1, 3]])
def test_counts_agree_however_the_model_is_split(splits):
    norm = BatchNormLayer.Params().Set(dim=10)
    text = described(splits, dense(6, 10), norm, dense(10, 3))
    lines = text.splitlines()
    rows = {line.split()[1]: line.split() for line in lines if re.match(r"\d", line)}
    assert [row[-1] for row in rows.values()] == ["70", "20", "33"]
    trained = [count(line) for line in lines if " trained " in line]
    assert sum(trained) == 6 * 10 + 10 + 10 + 10 + 10 * 3 + 3
    stages = [int(n) for n in re.findall(r"stage \d on .* (\d+) parameters", text)]
    assert len(stages) == (splits if isinstance(splits, int) else len(splits))
    assert sum(stages) == sum(trained)
    assert lines[-1] == f"total: {sum(trained)} parameters"


def test_what_is_not_trained_is_shown_and_not_counted():
    text = described(1, BatchNormLayer.Params().Set(dim=6), dense(6, 3))
    assert re.search(r"moving_mean +state +\[6\] +6\n", text)
    assert re.search(r"cells_0 +BatchNormLayer +\[8, 6\] +12\n", text)


def test_allocates_nothing():
    huge = 10**8
    text = described(1, dense(6, huge), dense(huge, huge), dense(huge, 3))
    assert f"[{huge}, {huge}] {huge**2:,}" in " ".join(text.split())
    assert f"total: {6 * huge + huge + huge**2 + huge + 3 * huge + 3:,} param" in text
