"""The command that prepares data sets: what it prepares, and what it says if not."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow_datasets as tfds

import lingvo_pipe
from lingvo_pipe.input.prepare import main
from lingvo_pipe.input.prepared_dataset import open_split, prepared_builder

ROOT = Path(lingvo_pipe.__file__).parents[1]

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


def test_it_prepares_a_builder_of_the_users_own(tmp_path):
    (tmp_path / "my_birds.py").write_text(BIRDS)
    command = "-m lingvo_pipe.input.prepare --dataset=birds --imports=my_birds"
    subprocess.run(
        [sys.executable, *command.split(), "--data_dir=data"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1"},
        check=True,
        capture_output=True,
    )
    # Once it is prepared, its code is not needed.
    builder = prepared_builder("birds", str(tmp_path / "data"))
    (example,) = open_split(builder, "train")
    assert example["label"] == 1


def test_it_prepares_what_is_embedded_and_says_where(tmp_path, capsys):
    main(["--dataset=optdigits", f"--data_dir={tmp_path}"])
    said = capsys.readouterr().out
    assert re.fullmatch(rf".*\boptdigits\b.* {tmp_path}/optdigits/1\.0\.0\b.*\n", said)
    assert len(open_split(prepared_builder("optdigits", str(tmp_path)), "test")) == 359


def test_an_unknown_data_set_is_one_line(tmp_path):
    with pytest.raises(SystemExit, match="^error: .*dataset.*'cifar_10'.*'cifar10'.*$"):
        main(["--dataset=cifar_10", f"--data_dir={tmp_path}"])


def test_files_to_download_manually_are_named(tmp_path):
    manual = tmp_path / "mine"
    with pytest.raises(SystemExit) as raised:
        main(
            [
                "--dataset=imagenet2012",
                f"--data_dir={tmp_path}",
                f"--manual_dir={manual}",
            ]
        )
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
