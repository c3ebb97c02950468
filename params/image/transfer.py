r"""Transfer of an AmoebaNet-B of 557 million parameters from ImageNet to other data.

After Y. Huang et al., "GPipe" (1811.06965v5), section 4 and table 4. Images are resized
to 480 x 480, flipped and partly painted over (cutout). The softmax layer is new, and
all other layers start with the weights of a run on ImageNet:

    trainer --model=image.transfer.Cifar10 --data_dir=/data --logdir=/runs/cifar10 \
        --init_from=/runs/b557m

The published text gives neither the length of training nor its learning rate.
"""

import model_registry
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.input.transforms.recipes import Recipe, transfer
from params.image.amoebanet_model import all_but_softmax
from params.image.imagenet import AmoebaNetB557M


class Transfer(AmoebaNetB557M):
    """The network of table 4, fine-tuned on another data set than ImageNet."""

    TEST_SPLIT = "test"

    def _Transforms(self) -> Recipe:
        return transfer(self.IMAGE_SIZE)

    def _SetLearner(self, train: Params) -> None:
        super()._SetLearner(train)
        train.init_from_checkpoint_rules = all_but_softmax(
            "image.imagenet.AmoebaNetB557M"
        )


@model_registry.RegisterSingleTaskModel
class Cifar10(Transfer):
    """The network on CIFAR-10. Its accuracy in the paper is 99.0 %."""

    DATASET = "cifar10"
    NUM_TRAIN_EXAMPLES = 50_000
    NUM_CLASSES = 10


@model_registry.RegisterSingleTaskModel
class Cifar100(Transfer):
    """The network on CIFAR-100. Its accuracy in the paper is 91.3 %."""

    DATASET = "cifar100"
    NUM_TRAIN_EXAMPLES = 50_000
    NUM_CLASSES = 100


@model_registry.RegisterSingleTaskModel
class StanfordCars(Transfer):
    """The network on Stanford Cars. Its accuracy in the paper is 94.6 %."""

    DATASET = "cars196"
    NUM_TRAIN_EXAMPLES = 8_144
    NUM_CLASSES = 196


@model_registry.RegisterSingleTaskModel
class OxfordPets(Transfer):
    """The network on Oxford Pets. Its accuracy in the paper is 95.9 %."""

    DATASET = "oxford_iiit_pet"
    NUM_TRAIN_EXAMPLES = 3_680
    NUM_CLASSES = 37


@model_registry.RegisterSingleTaskModel
class Food101(Transfer):
    """The network on Food-101. Its accuracy in the paper is 93.0 %."""

    DATASET = "food101"
    TEST_SPLIT = "validation"
    NUM_TRAIN_EXAMPLES = 75_750
    NUM_CLASSES = 101


@model_registry.RegisterSingleTaskModel
class FgvcAircraft(Transfer):
    """The network on FGVC Aircraft, from folders. Accuracy in the paper: 92.7 %."""

    DATASET = "image_folder:fgvc_aircraft"
    NUM_TRAIN_EXAMPLES = 6_667
    NUM_CLASSES = 100


@model_registry.RegisterSingleTaskModel
class Birdsnap(Transfer):
    """The network on Birdsnap, from folders. Accuracy in the paper: 83.6 %."""

    DATASET = "image_folder:birdsnap"
    NUM_TRAIN_EXAMPLES = 47_386
    NUM_CLASSES = 500
