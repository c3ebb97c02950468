r"""AmoebaNet-B of 557 million parameters, from ImageNet to other data sets.

After Y. Huang et al., "GPipe" (1811.06965v5), section 4 and table 4. Images are resized
to 480 x 480, flipped and partly painted over (cutout). The softmax layer is new, and
all other layers start with the weights of a run on ImageNet:

    trainer --model=image.transfer.Cifar10 --data_dir=/data --logdir=/runs/cifar10 \
        --model_params_override='task.train.init_from_checkpoint_override : /runs/b557m'

The published text gives neither the length of training nor its learning rate.
"""

import model_registry
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.input.transforms.recipes import Recipe, transfer
from params.image.amoebanet_model import all_but_softmax
from params.image.imagenet import AmoebaNetB557M


class Transfer(AmoebaNetB557M):
    """The network on another data set, with the sizes of table 4."""

    def _Transforms(self) -> Recipe:
        return transfer(self.IMAGE_SIZE)

    def _SetLearner(self, train: Params) -> None:
        super()._SetLearner(train)
        train.init_from_checkpoint_rules = all_but_softmax(
            "image.imagenet.AmoebaNetB557M"
        )


@model_registry.RegisterSingleTaskModel
class Cifar10(Transfer):
    """Accuracy 99.0 % in the paper."""

    DATASET = "cifar10"
    NUM_TRAIN_EXAMPLES = 50_000
    NUM_CLASSES = 10


@model_registry.RegisterSingleTaskModel
class Cifar100(Transfer):
    """Accuracy 91.3 % in the paper."""

    DATASET = "cifar100"
    NUM_TRAIN_EXAMPLES = 50_000
    NUM_CLASSES = 100


@model_registry.RegisterSingleTaskModel
class StanfordCars(Transfer):
    """Accuracy 94.6 % in the paper."""

    DATASET = "cars196"
    NUM_TRAIN_EXAMPLES = 8_144
    NUM_CLASSES = 196


@model_registry.RegisterSingleTaskModel
class OxfordPets(Transfer):
    """Accuracy 95.9 % in the paper."""

    DATASET = "oxford_iiit_pet"
    NUM_TRAIN_EXAMPLES = 3_680
    NUM_CLASSES = 37


@model_registry.RegisterSingleTaskModel
class Food101(Transfer):
    """Accuracy 93.0 % in the paper."""

    DATASET = "food101"
    TEST_SPLIT = "validation"
    NUM_TRAIN_EXAMPLES = 75_750
    NUM_CLASSES = 101


@model_registry.RegisterSingleTaskModel
class FgvcAircraft(Transfer):
    """Accuracy 92.7 % in the paper. Read from folders, as no catalog includes it."""

    DATASET = "image_folder:fgvc_aircraft"
    NUM_TRAIN_EXAMPLES = 6_667
    NUM_CLASSES = 100


@model_registry.RegisterSingleTaskModel
class Birdsnap(Transfer):
    """Accuracy 83.6 % in the paper. Read from folders, as no catalog includes it."""

    DATASET = "image_folder:birdsnap"
    NUM_TRAIN_EXAMPLES = 47_386
    NUM_CLASSES = 500
