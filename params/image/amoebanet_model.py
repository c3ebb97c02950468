"""Base class of registered AmoebaNets, and rules to load another run's weights."""

import math
from typing import Any

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.images.image_input import ImageClassificationInput
from lingvo_pipe.input.transforms.recipes import Recipe
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.core.weights import WeightInit
from lingvo_pipe.layers.dropout import DropPathLayer
from lingvo_pipe.models.amoebanet.network import amoebanet
from lingvo_pipe.models.amoebanet.stem_and_head import AuxiliaryHeadLayer
from lingvo_pipe.models.images.auxiliary_classifier import AuxiliaryClassifierLayer
from lingvo_pipe.models.images.image_classifier import ImageClassifier
from params.staged_model import StagedModel

# variance_scaling_initializer of slim: variance 2 / fan, 1.3 for the truncation.
_INITIALIZER = WeightInit.TruncatedGaussianSqrtFanOut(scale=math.sqrt(1.3 * 2.0))

# Softmax layers of the network and of its auxiliary head, with a row for each class.
_SOFTMAXES = r".*/(head|auxiliary_head/classifier)/dense/"


class AmoebaNetModel(StagedModel):
    """An AmoebaNet with auxiliary head and drop-path, configured by constants."""

    TASK = ImageClassifier

    DATASET: str
    TEST_SPLIT = "test"  # The images used for the published accuracies.
    NUM_TRAIN_EXAMPLES: int
    NUM_CLASSES: int
    IMAGE_SIZE: int
    NUM_IMAGE_CHANNELS = 3

    GENOTYPE: str
    NUM_CELLS = 18
    NUM_FILTERS: int
    SMALL_IMAGES = False

    KEEP_FEATURES = 0.5
    KEEP_PATH = 0.7
    AUXILIARY_WEIGHT = 0.4
    LABEL_SMOOTHING = 0.0
    NORM_DECAY: float
    NORM_EPSILON: float

    BATCH_SIZE: int
    NUM_EPOCHS: int

    def Task(self) -> InstantiableParams:
        p = super().Task().Set(label_smoothing=self.LABEL_SMOOTHING, feed_targets=True)
        return p.Set(params_init=_INITIALIZER.Copy())

    def _Input(self, split: str) -> InstantiableParams:
        return ImageClassificationInput.Params().Set(
            dataset=self.DATASET,
            split=self.TEST_SPLIT if split == "test" else split,
            batch_size=self.BATCH_SIZE,
            num_logits=self.NUM_CLASSES,
            **self._Transforms(),
        )

    def _Transforms(self) -> Recipe:
        """Returns the transforms of images in training and in evaluation."""
        raise NotImplementedError(f"{type(self).__name__}._Transforms")

    def _MaxSteps(self) -> int:
        return self._Steps(self.NUM_EPOCHS)

    def _Steps(self, num_epochs: float) -> int:
        return round(num_epochs * self.NUM_TRAIN_EXAMPLES / self.BATCH_SIZE)

    def _Cells(self) -> list[InstantiableParams]:
        drop_path = DropPathLayer.Params().Set(
            keep_prob=self.KEEP_PATH, num_steps=self._Steps(self.NUM_EPOCHS)
        )
        auxiliary = AuxiliaryClassifierLayer.Params().Set(
            classifier=self._AuxiliaryHead(),
            loss_weight=self.AUXILIARY_WEIGHT,
            label_smoothing=self.LABEL_SMOOTHING,
        )
        return amoebanet(
            genotype=self.GENOTYPE,
            num_cells=self.NUM_CELLS,
            num_filters=self.NUM_FILTERS,
            num_classes=self.NUM_CLASSES,
            num_image_channels=self.NUM_IMAGE_CHANNELS,
            small_images=self.SMALL_IMAGES,
            keep_prob=self.KEEP_FEATURES,
            norm_tpl=BatchNormLayer.Params().Set(
                decay=self.NORM_DECAY, epsilon=self.NORM_EPSILON
            ),
            drop_path_tpl=drop_path if self.KEEP_PATH < 1.0 else None,
            auxiliary_tpl=auxiliary,
            image_shape=[self.IMAGE_SIZE, self.IMAGE_SIZE],
        )

    def _AuxiliaryHead(self) -> InstantiableParams:
        """Returns params of the auxiliary head, whose sizes the network sets."""
        return AuxiliaryHeadLayer.Params()


def all_but_softmax(model: str) -> dict[str, Any]:
    """Returns rules that load another run's weights, except in softmax layers.

    `model` is named in errors. The user names the run by --init_from.
    """
    return {f"a run of {model}": ([("(.*)", "%s")], [_SOFTMAXES])}
