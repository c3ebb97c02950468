r"""Small models of handwritten digits, on real data that come with the library.

An image has 8 x 8 pixels. Weights of a run on some digits can start a run on others:

    trainer --model=image.digits.AmoebaNetDigits0To4 --logdir=/tmp/low
    trainer --model=image.digits.AmoebaNetDigits5To9 --logdir=/tmp/high \
        --init_from=/tmp/low
"""

import model_registry
from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.input.transforms.recipes import Recipe
from lingvo_pipe.models.amoebanet.stem_and_head import AuxiliaryHeadLayer
from lingvo_pipe.training.optim.keras_optimizer import OptimizerParams, ScheduleParams
from params.image.amoebanet_model import AmoebaNetModel, all_but_softmax
from params.staged_model import warm_up


@model_registry.RegisterSingleTaskModel
class AmoebaNetDigits(AmoebaNetModel):
    """A small AmoebaNet-D, in two stages with four micro-batches."""

    DATASET = "optdigits"
    NUM_TRAIN_EXAMPLES = 1438  # Four fifths; every fifth is a test image.
    LABELS: list[int] | None = None
    NUM_CLASSES = 10
    IMAGE_SIZE = 8
    NUM_IMAGE_CHANNELS = 1

    GENOTYPE = "D"
    NUM_CELLS = 3
    NUM_FILTERS = 16
    SMALL_IMAGES = True

    KEEP_PATH = 0.9  # Only five cells have paths to drop.
    LABEL_SMOOTHING = 0.1
    # Runs are short, so averages cover about ten steps.
    NORM_DECAY = 0.9
    NORM_EPSILON = 1e-3

    NUM_STAGES = 2
    NUM_MICRO_BATCHES = 4
    BATCH_SIZE = 64
    NUM_EPOCHS = 24

    def _Input(self, split: str) -> InstantiableParams:
        return super()._Input(split).Set(pixel_max=16, labels=self.LABELS)

    def _Transforms(self) -> Recipe:
        return {}

    def _AuxiliaryHead(self) -> InstantiableParams:
        # The inputs have 4 x 4 pixels, less than the published window of 5 x 5.
        return AuxiliaryHeadLayer.Params().Set(scale=0.1, pool_window=3, pool_stride=2)

    def _SetLearner(self, train: Params) -> None:
        decay = ScheduleParams("CosineDecay", decay_steps=self._Steps(self.NUM_EPOCHS))
        train.Set(
            learning_rate=0.05,
            optimizer=OptimizerParams("SGD", momentum=0.9, nesterov=True),
            lr_schedule=warm_up(self._Steps(2), decay),
            ema_decay=0.99,
            ema_decay_moving_vars=False,
        )


@model_registry.RegisterSingleTaskModel
class AmoebaNetDigitsLocal(AmoebaNetDigits):
    """AmoebaNetDigits in two blocks, each with a local loss and a device of its own."""

    NUM_BLOCKS = 2


@model_registry.RegisterSingleTaskModel
class AmoebaNetDigits0To4(AmoebaNetDigits):
    """AmoebaNetDigits for the digits 0 to 4."""

    LABELS = [0, 1, 2, 3, 4]
    NUM_CLASSES = 5
    NUM_TRAIN_EXAMPLES = 733


@model_registry.RegisterSingleTaskModel
class AmoebaNetDigits5To9(AmoebaNetDigits):
    """AmoebaNetDigits for the digits 5 to 9, with weights of a run on 0 to 4."""

    LABELS = [5, 6, 7, 8, 9]
    NUM_CLASSES = 5
    NUM_TRAIN_EXAMPLES = 705

    def _SetLearner(self, train: Params) -> None:
        super()._SetLearner(train)
        train.init_from_checkpoint_rules = all_but_softmax(
            "image.digits.AmoebaNetDigits0To4"
        )
