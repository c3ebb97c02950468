"""A model's description has every layer, every variable, and consistent sums."""

import re

import pytest
import tensorflow as tf

from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.core.model_size import layer_sizes, parameter_counts
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.models.amoebanet.network import amoebanet
from lingvo_pipe.models.images.image_classifier import ImageClassifier
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices import stage_devices  # noqa: F401  Asks for several.
from lingvo_pipe.training.profiling.inspect_model import describe


class Input:
    element_spec = NestedMap(
        image=tf.TensorSpec([8, 6], tf.float32),
        label=tf.TensorSpec([8], tf.int32),
        weight=tf.TensorSpec([8], tf.float32),
    )


def dense(input_dim, output_dim):
    return FCLayer.Params().Set(input_dim=input_dim, output_dim=output_dim)


def described(splits, *cells, **pipeline_params):
    p = ImageClassifier.Params().Set(name="task")
    p.pipeline.Set(cell_tpl=list(cells), splits=splits, **pipeline_params)
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
    assert f"total: {sum(trained)} parameters" in lines


def test_state_is_shown_and_not_counted():
    text = described(1, BatchNormLayer.Params().Set(dim=6), dense(6, 3))
    assert re.search(r"moving_mean +state +\[6\] +6\n", text)
    assert re.search(r"cells_0 +BatchNormLayer +\[8, 6\] +[\d,]+ +12\n", text)


@pytest.mark.parametrize(
    ("recompute", "idle", "total"),
    # Stages of 1 and 3 units forward, twice that backward: from 0 to 1 the first
    # forward pass of device 0, and so on, drawn on paper.
    [("never", 18, 42), ("always", 22, 54), ([0], 16, 42)],
    ids=["never", "always", "cell 0"],
)
def test_the_bubble_follows_from_the_work_of_each_layer(recompute, idle, total):
    layers = [dense(6, 6)] * 4
    text = described([1, 4], *layers, num_micro_batches=2, recompute=recompute)
    assert re.search("stage 0 on .*: 1 layers, 25.0% of the flops, 42 para", text)
    assert re.search("stage 1 on .*: 3 layers, 75.0% of the flops, 126 para", text)
    assert f"bubble: {idle / total:.1%} " in text


def macs(line):
    return int(line.split()[-2].replace(",", ""))


@pytest.mark.parametrize(("splits", "micro_batches"), [(1, 1), (2, 3), ([1, 4], 2)])
def test_macs_are_those_of_an_example(splits, micro_batches):
    sizes = [(6, 40), (40, 5), (5, 5), (5, 3)]
    layers = [dense(*size) for size in sizes]
    text = described(splits, *layers, num_micro_batches=micro_batches)
    rows = [line for line in text.splitlines() if " FCLayer " in line]
    products = [m * n for m, n in sizes]
    assert [macs(row) for row in rows] == products
    flops = sum(2 * m * n + n for m, n in sizes)
    assert re.search(rf"\nMACs: {sum(products)} [^\d\n]*\b{flops:,} flops\n", text)


@pytest.mark.parametrize(
    ("splits", "flops", "parameters"),
    [([1, 3], 2 / 1.5, 84 / 63), ([2, 3], 2 / 1.5, 84 / 63), ([1, 2, 3], 1.0, 1.0)],
)
def test_the_balance_is_the_largest_stage_over_the_mean(splits, flops, parameters):
    lines = described(splits, *[dense(6, 6)] * 3).splitlines()
    (balance,) = [line for line in lines if line.startswith("balance: ")]
    assert re.findall(r"\d\.\d\d", balance) == [f"{flops:.2f}", f"{parameters:.2f}"]
    assert "balance" not in described(1, dense(6, 6))


@pytest.mark.parametrize("splits", [1, 2])
def test_layers_before_the_stages_are_shown_and_counted(splits):
    before = [dense(6, 4), BatchNormLayer.Params().Set(dim=4)]
    lines = described(splits, dense(4, 5), dense(5, 3), before_tpl=before).splitlines()
    rows = [line.split() for line in lines if " before_" in line]
    assert [row[:3] for row in rows] == [
        ["before", "before_0", "FCLayer"],
        ["before", "before_1", "BatchNormLayer"],
    ]
    assert all("[8, 4]" in line for line in lines if " before_" in line)
    assert [row[-1] for row in rows] == ["28", "8"]
    assert any(re.match(r" +w +trained +\[6, 4\] +24$", line) for line in lines)
    assert "before: 2 layers, 36 parameters" in lines
    text = "\n".join(lines)
    stages = [int(n) for n in re.findall(r"stage \d on .* (\d+) parameters", text)]
    assert 36 + sum(stages) == 36 + (4 * 5 + 5) + (5 * 3 + 3)
    assert f"total: {36 + sum(stages)} parameters" in lines


class Unpriced(FCLayer):
    """A layer that refuses to say its costs."""

    @classmethod
    def FPropMeta(cls, p, *args):
        raise NotImplementedError(f"{cls.__name__}.FPropMeta")


def test_layers_without_costs_replace_the_bubble():
    unpriced = Unpriced.Params().Set(input_dim=6, output_dim=3)
    text = described(2, dense(6, 6), unpriced)
    assert "%" not in text
    assert "MACs: " not in text
    assert re.search(r"cells_1 +Unpriced +\[8, 3\] +unknown +21\n", text)
    assert re.search(r"(?m)^balance: \D*1\.33\D*$", text)
    assert re.search(r"\nbubble: [^%\n]*\b1\b.*\bUnpriced\b.*'cells_1'", text)


def test_micro_batches_that_cannot_be_cut_replace_the_bubble():
    text = described(1, dense(6, 3), num_micro_batches=9)
    assert re.search(r"\nbubble: [^%\n]*\b8\b.*\b9\b", text)


class LargeImages:
    """An input of large images."""

    element_spec = NestedMap(
        image=tf.TensorSpec([8, 224, 224, 3], tf.float32),
        label=tf.TensorSpec([8], tf.int32),
        weight=tf.TensorSpec([8], tf.float32),
    )


@pytest.mark.exhaustive
def test_an_amoebanet_is_shown_cell_by_cell_without_being_allocated():
    """It has 6.1 billion parameters."""
    cells = amoebanet("D", 3, 4096, 1001)
    p = ImageClassifier.Params().Set(name="task")
    p.pipeline.Set(cell_tpl=cells, splits=3, num_micro_batches=4)
    lines = describe(p, LargeImages()).splitlines()
    rows = [line for line in lines if re.match(r"\d", line)]
    assert [row.split()[1] for row in rows] == [cell.name for cell in cells]
    assert list(map(count, rows)) == parameter_counts(cells)
    sizes = layer_sizes(cells, tf.TensorSpec([1, 224, 224, 3]))
    assert list(map(macs, rows)) == [size.multiply_adds for size in sizes]
