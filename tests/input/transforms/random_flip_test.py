"""The flip: the image or its mirror image, as often."""

from lingvo_pipe.input.transforms.random_flip import RandomFlip
from tests.input.transforms.many_seeds import apply_many, random_image


def test_half_of_the_images_are_mirrored_and_the_others_left():
    image = random_image(3, 4, 2)
    made = apply_many(RandomFlip.Params().Instantiate(), image, 1000)
    is_same = (made == image).all((1, 2, 3))
    is_mirrored = (made == image[:, ::-1]).all((1, 2, 3))
    assert (is_same ^ is_mirrored).all()
    # The standard deviation is 16.
    assert 430 < is_mirrored.sum() < 570
