"""The command that prepares data sets: what it prepares, and what it says if not."""

import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from lingvo_pipe.input.prepare import main
from lingvo_pipe.input.prepared_dataset import prepared_builder
from tests.input.example_images import CLASSES, SIZES, example, jpeg, write_folder

BIRDS = """
import numpy as np
import tensorflow_datasets as tfds


class Birds(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {
            "image": tfds.features.Image(shape=(4, 4, 3)),
            "label": tfds.features.ClassLabel(names=["crow", "finch"]),
        }
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features)
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        yield 0, {"image": np.zeros([4, 4, 3], np.uint8), "label": "finch"}
"""


def test_it_prepares_a_builder_of_the_users_own(tmp_path, monkeypatch):
    (tmp_path / "my_birds.py").write_text(BIRDS)
    monkeypatch.syspath_prepend(tmp_path)
    data = tmp_path / "data"
    main(["--dataset=birds", "--imports=my_birds", f"--data_dir={data}"])
    # Once it is prepared, its code is not needed.
    builder = prepared_builder("birds", str(data))
    (example,) = builder.as_data_source("train")
    assert example["label"] == 1


def test_it_prepares_what_is_embedded_and_says_where(tmp_path, capsys):
    main(["--dataset=optdigits", f"--data_dir={tmp_path}"])
    said = capsys.readouterr().out
    assert re.fullmatch(rf".*\boptdigits\b.* {tmp_path}/optdigits/1\.0\.0\b.*\n", said)
    builder = prepared_builder("optdigits", str(tmp_path))
    assert len(builder.as_data_source("test")) == 359


def test_an_unknown_data_set_is_one_line(tmp_path):
    with pytest.raises(SystemExit, match="^error: .*dataset.*'cifar_10'.*'cifar10'.*$"):
        main(["--dataset=cifar_10", f"--data_dir={tmp_path}"])


def test_a_module_that_is_not_there_is_one_line(tmp_path):
    flags = ["--dataset=birds", f"--data_dir={tmp_path}", "--imports=no_birds"]
    with pytest.raises(SystemExit, match="^error: .*'no_birds'.*$"):
        main(flags)


def test_files_to_download_manually_are_named(tmp_path):
    manual = tmp_path / "mine"
    flags = [f"--data_dir={tmp_path}", f"--manual_dir={manual}"]
    with pytest.raises(SystemExit) as raised:
        main(["--dataset=imagenet2012", *flags])
    (line,) = str(raised.value).splitlines()
    assert line.startswith("error: ")
    assert "imagenet2012" in line
    for part in (str(manual), "ILSVRC2012_img_train.tar", "https://image-net.org"):
        assert part in line


def test_what_fails_in_the_catalog_is_one_line(tmp_path, monkeypatch):
    def refuse(self, **kwargs):
        raise ConnectionError("no\nroute")

    cls = tfds.builder_cls("cifar10")
    monkeypatch.setattr(cls, "download_and_prepare", refuse)
    message = r"^error: .*\bcifar10\b.*ConnectionError: no route$"
    with pytest.raises(SystemExit, match=message):
        main(["--dataset=cifar10", f"--data_dir={tmp_path}"])


def test_what_fails_in_the_users_code_keeps_its_traceback(tmp_path, monkeypatch):
    def fail(self, **kwargs):
        raise ValueError("mine")

    monkeypatch.setattr(tfds.builder_cls("optdigits"), "download_and_prepare", fail)
    with pytest.raises(ValueError, match="mine"):
        main(["--dataset=optdigits", f"--data_dir={tmp_path}"])


@pytest.fixture
def folder(tmp_path):
    write_folder(tmp_path / "pets")
    return tmp_path / "pets"


def check(folder):
    main([f"--dataset={folder.name}", f"--data_dir={folder.parent}", "--check"])


def test_a_folder_without_problems_is_counted(folder, capsys):
    check(folder)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["class", "test", "train"]
    labels = {
        split: [example(split, i)[1] for i in range(SIZES[split])] for split in SIZES
    }
    for label, name in enumerate(CLASSES):
        counts = [str(labels[split].count(label)) for split in ("test", "train")]
        assert rows[1 + label] == [name, *counts]
    assert rows[4] == ["total", "10", "37"]
    shapes = [example(s, i)[0].shape for s in SIZES for i in range(SIZES[s])]
    areas = [height * width for height, width, _ in shapes]
    for row, area in zip(rows[5:7], (min(areas), max(areas)), strict=True):
        height, width = (int(word) for word in row if word.isdigit())
        assert height * width == area
        image = tf.io.decode_image(Path(row[-1].rstrip(".")).read_bytes())
        assert image.shape == (height, width, 3)
    assert rows[7][-3:] == ["47", "of", "3."]


def test_all_problems_of_a_folder_are_named(folder, capsys):
    (folder / "train" / "ant" / "000.jpg").write_bytes(b"")
    (folder / "train" / "bee" / "001.jpg").write_bytes(
        jpeg(example("train", 1)[0])[:200]
    )
    (folder / "train" / "bee" / "notes.txt").touch()
    gray = tf.io.encode_png(np.zeros([2, 90, 1], np.uint8)).numpy()
    (folder / "train" / "bee" / "gray.png").write_bytes(gray)
    (folder / "train" / "dog").mkdir()
    (folder / "train" / "dog" / "1.png").write_bytes(gray)
    (folder / "test").rename(folder / "val")
    with pytest.raises(SystemExit) as raised:
        check(folder)
    first, *problems = str(raised.value).splitlines()
    assert first.startswith("error: ")
    names = ["ant/000.jpg", "bee/001.jpg", "bee/notes.txt"]
    for name, problem in zip(names, problems, strict=False):
        assert problem.startswith(f"{folder}/train/{name}: ")
    assert [re.findall(r"\b(?:test|val|dog)\b", x) for x in problems[3:]] == [
        ["test"], ["val", "dog"],
    ]  # fmt: skip
    assert "2 of 1, 45 of 3" in capsys.readouterr().out


def test_a_check_refuses_a_folder_of_downloads(tmp_path):
    flags = ["--dataset=pets", f"--data_dir={tmp_path}", "--check", "--manual_dir=mine"]
    with pytest.raises(SystemExit, match=r"^error: --manual_dir\b.*'mine'.*$"):
        main(flags)


def test_only_some_of_many_bad_files_are_named(folder):
    for i in range(60):
        (folder / "test" / "ant" / f"{i}.txt").touch()
    with pytest.raises(SystemExit, match=r"\n.*\b10\b.*$"):
        check(folder)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("optdigits", r"--check\b.*\boptdigits\b"),
        ("flatt", r"dataset\b.*'flatt'.*'flat'\?"),
        ("flat", r"SPLIT/CLASS.*/flat/a/1\.jpg\b"),
    ],
)
def test_what_is_no_folder_is_one_line(tmp_path, name, message):
    (tmp_path / "flat" / "a").mkdir(parents=True)
    (tmp_path / "flat" / "a" / "1.jpg").touch()
    with pytest.raises(SystemExit, match=f"^error: .*{message}.*$"):
        check(tmp_path / name)
