"""Pictures of an evaluation of images: some of them, and which classes are confused.

Shapes: B examples in a batch, images of H x W pixels in C channels, N classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from lingvo_pipe.models.classified_image import ClassifiedImage
from lingvo_pipe.models.confusion import Confusion
from lingvo_pipe.nested_map import NestedMap

_NUM_IMAGES = 16
# Beyond them the counts alone would take more than 16 MiB.
_MOST_CLASSES_COUNTED = 2048
_MOST_CLASSES_SHOWN = 20  # Whose names and counts can be read.


class ClassificationPictures:
    """As of EvalPictures: the first images, and a matrix of confused classes.

    Examples of weight 0 are left out. What is no image is not shown. Of too many
    classes for a matrix those are shown that are most confused.
    """

    def __init__(self, class_names: Sequence[str] = ()):
        """Initialises the pictures.

        Args:
            class_names: in the order of the labels; labels beyond them are shown as
                numbers.
        """
        self._names = class_names
        self._images: list[ClassifiedImage] = []
        self._confusion: Confusion | None = None

    def Add(self, input_batch: NestedMap, predictions: tf.Tensor) -> None:
        """Looks at images `[B, H, W, C]`, label and weight `[B]`, logits `[B, N]`."""
        counts = np.asarray(input_batch.weight) > 0
        labels = np.asarray(input_batch.label)[counts]
        predicted = tf.argmax(predictions, -1).numpy()[counts]
        num_classes = predictions.shape[-1]
        if num_classes <= _MOST_CLASSES_COUNTED:
            if self._confusion is None:
                self._confusion = Confusion(num_classes)
            self._confusion.add(labels, predicted)
        num_missing = _NUM_IMAGES - len(self._images)
        if num_missing and len(input_batch.image.shape) == 4:
            places = np.flatnonzero(counts)[:num_missing]
            pixels = tf.gather(input_batch.image, places).numpy()
            triples = zip(pixels, labels.tolist(), predicted.tolist(), strict=False)
            self._images += [ClassifiedImage(*each) for each in triples]

    def Draw(self) -> dict[str, bytes]:
        """`images` and `confusion`, as far as there is something to show."""
        # Imported here: it takes half a second, and not every evaluation draws.
        from lingvo_pipe.models.draw_classification import draw_confusion, draw_images

        found = {}
        if self._images:
            found["images"] = draw_images(self._images, self._name)
        if self._confusion is not None:
            classes = self._confusion.most_confused(_MOST_CLASSES_SHOWN)
            if len(classes):
                found["confusion"] = draw_confusion(
                    self._confusion, classes, [self._name(c) for c in classes]
                )
        return found

    def _name(self, label: int) -> str:
        return self._names[label] if label < len(self._names) else str(label)
