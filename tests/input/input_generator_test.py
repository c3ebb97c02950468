"""The protocol: what it names is enough to train, evaluate and inspect a model."""

import numpy as np
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.images.image_input import ImageClassificationInput
from lingvo_pipe.input.input_generator import InputGenerator
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.models.images.image_classifier import ImageClassifier
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.loop.training_loop import train
from lingvo_pipe.training.profiling.inspect_model import describe
from lingvo_pipe.training.run.run_directory import RunDirectory


class Points:
    """Points of a plane; the class is the side of a line."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = InstantiableParams(cls)
        p.Define("batch_size", 8, "")
        return p

    def __init__(self, params: InstantiableParams) -> None:
        self._params = params

    @property
    def params(self) -> InstantiableParams:
        return self._params

    @property
    def element_spec(self) -> NestedMap:
        return self.EvalBatches().element_spec

    def TrainBatches(self, start_step: int = 0) -> tf.data.Dataset:
        return self.EvalBatches().repeat()

    def EvalBatches(self) -> tf.data.Dataset:
        size = self._params.batch_size
        points = np.random.default_rng(0).normal(size=[size, 2]).astype(np.float32)
        batch = NestedMap(
            image=points, label=np.int32(points[:, 0] > 0), weight=np.ones(size, "f4")
        )
        return tf.data.Dataset.from_tensors(batch)


def test_a_class_with_no_more_than_it_names_will_do(tmp_path):
    named = {name for name in vars(InputGenerator) if not name.startswith("_")}
    theirs = {name for name in vars(Points) if not name.startswith("_")}
    assert theirs == named | {"Params"}
    p = ImageClassifier.Params().Set(name="task")
    p.pipeline.cell_tpl = [FCLayer.Params().Set(input_dim=2, output_dim=2)]
    p.train.Set(learning_rate=0.5, max_steps=30)
    points: InputGenerator = Points.Params().Instantiate()
    assert "total: 6 parameters" in describe(p, points)
    directory = RunDirectory(tmp_path / "run", "points")
    metrics = train(p.Instantiate(), points, points, directory, "", lambda _: None)
    assert metrics["accuracy"] == 1


def test_the_input_of_images_has_what_it_names():
    images: InputGenerator = ImageClassificationInput(
        ImageClassificationInput.Params().Set(batch_size=2)
    )
    assert images.element_spec.image.shape == (2, 8, 8, 1)
