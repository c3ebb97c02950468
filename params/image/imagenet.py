"""AmoebaNets on ImageNet, from GPipe (1811.06965) and Real et al. (1802.01548).

`AmoebaNetD_18_208` is an AmoebaNet-D of 18 normal cells and 208 filters, trained as in
tensorflow/tpu, models/official/amoeba_net. The models' stages have nearly equal flops.
`staged_model` describes how to choose other stages.
"""

import model_registry
from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.input.transforms.recipes import Recipe, imagenet
from lingvo_pipe.training.optim.keras_optimizer import OptimizerParams, ScheduleParams
from params.image.amoebanet_model import AmoebaNetModel
from params.staged_model import warm_up


class AmoebaNetImageNet(AmoebaNetModel):
    """An AmoebaNet on ImageNet's 1.28 million images of 2012."""

    DATASET = "imagenet2012"
    TEST_SPLIT = "validation"  # Labels of the test images are not public.
    NUM_TRAIN_EXAMPLES = 1_281_167
    # The data set has 1000; published sizes include one more, for the background.
    NUM_CLASSES = 1001
    IMAGE_SIZE = 224

    LABEL_SMOOTHING = 0.1
    NORM_DECAY = 0.9997
    NORM_EPSILON = 1e-3

    # One stage, or boundaries of stages with nearly equal flops.
    SPLITS: int | tuple[int, ...] = 1
    NUM_MICRO_BATCHES = 32
    BATCH_SIZE = 128
    NUM_EPOCHS = 100

    def _Transforms(self) -> Recipe:
        return imagenet(self.IMAGE_SIZE)

    def _Splits(self, cells: list[InstantiableParams]) -> int | list[int]:
        if self.NUM_STAGES != 1:
            raise UserValueError(
                path=f"{type(self).__name__}.NUM_STAGES",
                expected="1: these models give their stages by SPLITS",
                got=self.NUM_STAGES,
            )
        return self.SPLITS if isinstance(self.SPLITS, int) else [*self.SPLITS]

    def _SetLearner(self, train: Params) -> None:
        decay = ScheduleParams(
            "ExponentialDecay",
            decay_steps=self._Steps(2.4),
            decay_rate=0.97,
            staircase=True,
        )
        warm = warm_up(self._Steps(3), decay)
        train.Set(
            learning_rate=0.015 * self.BATCH_SIZE / 32,
            lr_schedule=ScheduleParams("Floor", fraction=1e-4, schedule=warm),
            # tf/tpu's epsilon for this rate. The paper has 0.1 for a rate of 0.001.
            optimizer=OptimizerParams(
                "RMSpropFromOnes", rho=0.9, momentum=0.9, epsilon=1.0
            ),
            clip_gradient_norm_to_value=10.0,
            l2_regularizer_weight=4e-5,
            l2_regularizer_scales=[("/(b|beta|gamma)$", 0.0)],
            ema_decay=0.9999,
            ema_decay_moving_vars=True,
        )


@model_registry.RegisterSingleTaskModel
class AmoebaNetB557M(AmoebaNetImageNet):
    """The model of GPipe's table 4, on images of 480 x 480, in four stages."""

    GENOTYPE = "B"
    NUM_FILTERS = 512
    IMAGE_SIZE = 480
    SPLITS = (8, 13, 19, 25)


@model_registry.RegisterSingleTaskModel
class AmoebaNetA_18_190(AmoebaNetImageNet):
    """An AmoebaNet-A with 86.7 million parameters, on images of 331 x 331."""

    GENOTYPE = "A"
    NUM_FILTERS = 190
    IMAGE_SIZE = 331


@model_registry.RegisterSingleTaskModel
class AmoebaNetC_18_228(AmoebaNetImageNet):
    """An AmoebaNet-C with 155.3 million parameters, on images of 331 x 331."""

    GENOTYPE = "C"
    NUM_FILTERS = 228
    IMAGE_SIZE = 331


class AmoebaNetD(AmoebaNetImageNet):
    """An AmoebaNet-D in GPipe's tables 1 and 2, without drop-path as in public code."""

    GENOTYPE = "D"
    KEEP_PATH = 1.0


@model_registry.RegisterSingleTaskModel
class AmoebaNetD_18_208(AmoebaNetD):
    """The model with 82 million parameters in GPipe's table 1, without a pipeline."""

    NUM_FILTERS = 208
    NUM_MICRO_BATCHES = 1


@model_registry.RegisterSingleTaskModel
class AmoebaNetD_18_416(AmoebaNetD):
    """The model with 318 million parameters in GPipe's table 1, in one stage."""

    NUM_FILTERS = 416


@model_registry.RegisterSingleTaskModel
class AmoebaNetD_18_544(AmoebaNetD):
    """The model with 542 million parameters in GPipe's table 1, in two stages."""

    NUM_FILTERS = 544
    SPLITS = (13, 25)


@model_registry.RegisterSingleTaskModel
class AmoebaNetD_36_544(AmoebaNetD):
    """The model with 1.05 billion parameters in GPipe's table 1, in four stages."""

    NUM_CELLS = 36
    NUM_FILTERS = 544
    SPLITS = (13, 22, 32, 43)


@model_registry.RegisterSingleTaskModel
class AmoebaNetD_72_512(AmoebaNetD):
    """The model with 1.8 billion parameters in GPipe's table 1, in eight stages."""

    NUM_CELLS = 72
    NUM_FILTERS = 512
    SPLITS = (13, 22, 31, 40, 49, 59, 69, 79)


@model_registry.RegisterSingleTaskModel
class AmoebaNetD_18_256(AmoebaNetD):
    """The model of GPipe's table 2, which has speeds for two, four and eight stages."""

    NUM_FILTERS = 256
    SPLITS = (6, 8, 10, 13, 15, 18, 21, 25)
