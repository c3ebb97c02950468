"""A report about a folder of images. All images are read, to find problems.

class  test  train
cat       2      8
total     2      8
Smallest image: 20 x 30 pixels (height x width), data/pets/train/cat/3.jpg.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import tensorflow as tf

from lingvo_pipe.core.tables import text_table
from lingvo_pipe.input.images.image_errors import reason_of
from lingvo_pipe.input.images.image_folder import ImageFolder, is_image_name

_MAX_NAMED = 50
_REQUIRED = ("train", "test")


class FolderReport(NamedTuple):
    """A report as text: what is in the folder, and which problems must be mended."""

    lines: list[str]
    problems: list[str]


class _File(NamedTuple):
    path: str
    shape: tuple[int, ...] = ()  # [H, W, C] as stored; () if it is no image
    problem: str = ""


def report_folder(folder: ImageFolder) -> FolderReport:
    """Reads and decodes all images of a folder, and reports counts and problems.

    Raises:
        ValueError: if the images do not lie in SPLIT/CLASS folders.
    """
    classes = folder.class_names
    files_by_split = {split: folder.files(split) for split in folder.splits()}
    counts = {
        split: Counter(name for _, name in split_files)
        for split, split_files in files_by_split.items()
    }
    with ThreadPoolExecutor() as pool:
        files = list(
            pool.map(
                _read,
                [x for split_files in files_by_split.values() for x, _ in split_files],
            )
        )
    images = [file for file in files if file.shape]
    unread = [f"{file.path}: {file.problem}" for file in files if file.problem]
    more = len(unread) - _MAX_NAMED
    problems = [*unread[:_MAX_NAMED], *([f"and {more} other files"] * (more > 0))]
    return FolderReport(
        [*_table(classes, counts), *_sizes(images)],
        [*problems, *_missing(classes, counts)],
    )


def _read(path: str) -> _File:
    if not is_image_name(path):
        return _File(path, problem="not an image by its name's ending")
    try:
        encoded = tf.io.read_file(path)
        image = tf.io.decode_image(encoded, expand_animations=False)
        if image.shape[-1] != 3:  # Training decodes all as RGB.
            tf.io.decode_image(encoded, 3, expand_animations=False)
        return _File(path, tuple(image.shape))
    except tf.errors.OpError as error:
        return _File(path, problem=reason_of(error))


def _table(classes: Sequence[str], counts: dict[str, Counter[str]]) -> list[str]:
    rows = [["class", *counts]]
    rows += [[name, *(f"{n[name]:,}" for n in counts.values())] for name in classes]
    rows.append(["total", *(f"{n.total():,}" for n in counts.values())])
    return text_table(rows, right=range(1, len(counts) + 1))


def _sizes(images: Sequence[_File]) -> Iterator[str]:
    by_area = sorted(images, key=lambda x: x.shape[0] * x.shape[1])
    for name, some in (("Smallest", by_area[:1]), ("Largest", by_area[-1:])):
        for path, (height, width, _), _ in some:
            yield f"{name} image: {height} x {width} pixels (height x width), {path}."
    channels = sorted(Counter(image.shape[-1] for image in images).items())
    if channels:
        parts = (f"{number:,} of {c}" for c, number in channels)
        yield f"Images by number of channels: {', '.join(parts)}."


def _missing(classes: Sequence[str], counts: dict[str, Counter[str]]) -> Iterator[str]:
    for split in dict.fromkeys((*_REQUIRED, *counts)):
        if split not in counts:
            yield f"no split {split}, which models expect unless their params differ"
            continue
        absent = [name for name in classes if not counts[split][name]]
        if absent:
            yield f"classes without images in {split}: {', '.join(absent)}"
