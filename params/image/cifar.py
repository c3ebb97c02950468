"""AmoebaNets on CIFAR-10 (1802.01548): `A_18_32` has 18 normal cells and 32 filters."""

import model_registry
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.input.transforms.recipes import Recipe, cifar
from lingvo_pipe.training.optim.keras_optimizer import OptimizerParams, ScheduleParams
from params.image.amoebanet_model import AmoebaNetModel


class AmoebaNetCifar10(AmoebaNetModel):
    """An AmoebaNet on 32 x 32 images of ten classes."""

    DATASET = "cifar10"
    NUM_TRAIN_EXAMPLES = 50_000
    NUM_CLASSES = 10
    IMAGE_SIZE = 32
    SMALL_IMAGES = True

    AUXILIARY_WEIGHT = 0.5
    # From NASNet (Zoph et al., 1707.07012), whose training this follows.
    KEEP_FEATURES = 1.0
    NORM_DECAY = 0.9
    NORM_EPSILON = 1e-5

    BATCH_SIZE = 128
    NUM_EPOCHS = 600

    def _Transforms(self) -> Recipe:
        return cifar()

    def _SetLearner(self, train: Params) -> None:
        train.Set(
            learning_rate=0.024,
            lr_schedule=ScheduleParams(
                "CosineDecay", decay_steps=self._Steps(self.NUM_EPOCHS)
            ),
            optimizer=OptimizerParams("SGD", momentum=0.9),
            l2_regularizer_weight=5e-4,
            l2_regularizer_scales=[("/(b|beta|gamma)$", 0.0)],
        )


@model_registry.RegisterSingleTaskModel
class AmoebaNetA_18_32(AmoebaNetCifar10):
    """An AmoebaNet-A with 2.6 million parameters."""

    GENOTYPE = "A"
    NUM_FILTERS = 32


@model_registry.RegisterSingleTaskModel
class AmoebaNetA_18_36(AmoebaNetCifar10):
    """An AmoebaNet-A with 3.2 million parameters."""

    GENOTYPE = "A"
    NUM_FILTERS = 36


@model_registry.RegisterSingleTaskModel
class AmoebaNetB_18_36(AmoebaNetCifar10):
    """An AmoebaNet-B with 2.8 million parameters."""

    GENOTYPE = "B"
    NUM_FILTERS = 36


@model_registry.RegisterSingleTaskModel
class AmoebaNetB_18_80(AmoebaNetCifar10):
    """An AmoebaNet-B with 13.7 million parameters."""

    GENOTYPE = "B"
    NUM_FILTERS = 80


@model_registry.RegisterSingleTaskModel
class AmoebaNetB_18_128(AmoebaNetCifar10):
    """An AmoebaNet-B with 34.9 million parameters."""

    GENOTYPE = "B"
    NUM_FILTERS = 128
