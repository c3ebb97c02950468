"""Classified images in a folder: ROOT/SPLIT/CLASS/IMAGE.jpg. Dotfiles are ignored."""

import itertools
import os

import tensorflow as tf
import tensorflow_datasets as tfds

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.input.example_order import permutation
from lingvo_pipe.input.images.image_source import ImageFormat
from lingvo_pipe.input.prepared_dataset import unknown_split

_FORMAT = ImageFormat((None, None, 3), is_encoded=True, dtype=tf.uint8)
_EXTENSIONS = (".jpg", ".jpeg", ".png", ".gif", ".bmp")
_LAYOUT = "a folder of SPLIT/CLASS/IMAGE.jpg, such as train/cat/1.jpg"
_REMEDY = "Put images there, or set another dataset or data_dir."


class ImageFolder:
    """An `ImageDataset` of RGB images of any size in a folder.

    Classes are sorted by name. Each split is shuffled, in the same order every time.
    """

    format = _FORMAT

    def __init__(self, root: str) -> None:
        self._root = os.path.expanduser(root)

    def has_folder(self, name: str) -> bool:
        """Returns whether the root has a folder `name`, where "" is the root itself."""
        return tf.io.gfile.isdir(os.path.join(self._root, name))

    def folders(self) -> list[str]:
        """Returns the names of the folders in the root, or [] if there is no root."""
        return [
            name
            for name in (_list(self._root) if self.has_folder("") else ())
            if self.has_folder(name)
        ]

    @property
    def class_names(self) -> list[str]:
        """The names of the classes, which are the folders within the splits, sorted."""
        folders = [os.path.join(self._root, split) for split in self.splits()]
        return sorted({name for folder in folders for name in _list(folder)})

    def Open(self, split: str) -> "ImageFolderSplit":
        """Returns a split such as `train`, or a slice such as `train[:90%]`."""
        splits = self.splits()
        labels = {name: label for label, name in enumerate(self.class_names)}
        examples = {name: self._examples(name, labels) for name in splits}
        chosen = _slice_of(examples, split)
        if not chosen:
            raise unknown_split(self._root, split, splits)
        return ImageFolderSplit(chosen)

    def splits(self) -> list[str]:
        """Returns the names of the splits: all folders in the root, at least one."""
        splits = _list(self._root)
        if not splits:
            got = Words(f"the empty folder {self._root}")
            raise UserValueError(
                path="dataset", expected=_LAYOUT, got=got, hint=_REMEDY
            )
        return splits

    def files(self, split: str) -> list[tuple[str, str]]:
        """Returns (path, class) of each file in a split, image or not."""
        folder = os.path.join(self._root, split)
        return [
            (os.path.join(folder, name, file), name)
            for name in _list(folder)
            for file in _list(os.path.join(folder, name))
        ]

    def _examples(self, split: str, labels: dict[str, int]) -> list[tuple[str, int]]:
        examples = [(path, labels[name]) for path, name in self.files(split)]
        for path, _ in examples:
            if not is_image_name(path):
                expected = f"{_LAYOUT}, with images only ({', '.join(_EXTENSIONS)})"
                raise UserValueError(path="dataset", expected=expected, got=Words(path))
        return [examples[i] for i in permutation(0, 0, len(examples))]


class ImageFolderSplit:
    """An `ImageSource` of image files, made from a list of (path, label)."""

    format = _FORMAT

    def __init__(self, examples: list[tuple[str, int]]) -> None:
        paths, labels = zip(*examples, strict=True)
        self._paths = tf.constant(paths)
        self.labels = tf.constant(labels, tf.int32)
        self.num_examples = len(examples)

    def Fetch(self, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the paths, string `[K]`, and labels, int32 `[K]`, of examples."""
        return tf.gather(self._paths, indices), tf.gather(self.labels, indices)

    def Read(self, record: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        path, label = record
        return tf.io.read_file(path), label

    def Name(self, index: int) -> str:
        """Returns the path of an example's image."""
        return self._paths[index].numpy().decode()


def is_image_name(path: str) -> bool:
    """Returns whether a path has the ending of an image, such as .jpg."""
    return path.lower().endswith(_EXTENSIONS)


def _list(folder: str) -> list[str]:
    if not tf.io.gfile.isdir(folder):
        got, hint = Words(f"no folder {folder}"), _REMEDY
        if tf.io.gfile.exists(folder):
            got, parent = Words(f"the file {folder}"), os.path.dirname(folder)
            hint = (
                f"Move it into the folder of its class in {parent}, or elsewhere. If "
                f"{parent} is a class, move that into the folder of a split."
            )
        raise UserValueError(path="dataset", expected=_LAYOUT, got=got, hint=hint)
    # Remote file systems add a slash to names of folders.
    names = [name.rstrip("/") for name in tf.io.gfile.listdir(folder)]
    return sorted(name for name in names if not name.startswith("."))


def _slice_of(examples: dict[str, list], split: str) -> list:
    """Returns the examples of a split or slice such as `train[:90%]`, [] if unknown."""
    infos = {
        name: tfds.core.SplitInfo(
            name=name, shard_lengths=[len(split_examples)], num_bytes=0
        )
        for name, split_examples in examples.items()
    }
    try:
        parts = tfds.core.ReadInstruction.from_spec(split).to_absolute(infos)
    except ValueError:
        return []
    chosen = (examples[part.splitname][part.from_ : part.to] for part in parts)
    return list(itertools.chain.from_iterable(chosen))
