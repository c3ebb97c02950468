"""Preparing data sets: once, by many at a time, after a kill, or by command."""

import contextlib
import importlib
import json
import multiprocessing
import os
import shutil
import sys

import pytest
import tensorflow_datasets as tfds

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.input.prepared_dataset import (
    find_builder,
    open_records,
    prepare,
    prepared_builder,
)
from tests.support.errors import fails

FEATURES = "tensorflow_datasets.core.features"


def prepare_and_read(data_dir, barrier, queue):
    barrier.wait()
    builder = prepared_builder("optdigits", str(data_dir))
    source = builder.as_data_source("test")
    queue.put(sum(int(source[index]["image"].sum()) for index in range(len(source))))


def test_processes_may_prepare_the_same_data_set_at_once(tmp_path):
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["lingvo_pipe.input.prepared_dataset"])
    barrier, queue = server.Barrier(4), server.Queue()
    children = [
        server.Process(target=prepare_and_read, args=(tmp_path, barrier, queue))
        for _ in range(4)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 4
    assert len({queue.get() for _ in children}) == 1
    assert os.listdir(tmp_path / "optdigits" / "1.0.0")
    assert not list(tmp_path.glob("optdigits/incomplete*"))


def test_a_prepared_data_set_is_used_as_it_is(tmp_path):
    prepared_builder("optdigits", str(tmp_path))
    info = tmp_path / "optdigits" / "1.0.0" / "dataset_info.json"
    before = info.stat()
    prepared_builder("optdigits", str(tmp_path))
    assert info.stat() == before


class Killed(BaseException):
    """Stands for a kill."""


def test_a_killed_preparation_is_repeated(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:

        def kill(*args):
            raise Killed

        patch.setattr(tfds.core.DatasetInfo, "write_to_directory", kill)
        with pytest.raises(Killed):
            prepared_builder("optdigits", str(tmp_path))
    assert (
        len(open_records(prepared_builder("optdigits", str(tmp_path)), "test")) == 359
    )


def test_a_directory_without_its_last_file_is_prepared_again(tmp_path):
    prepared_builder("optdigits", str(tmp_path))
    directory = tmp_path / "optdigits" / "1.0.0"
    (directory / "dataset_info.json").unlink()
    (directory / "optdigits-test.array_record-00000-of-00001").unlink()
    assert (
        len(open_records(prepared_builder("optdigits", str(tmp_path)), "test")) == 359
    )


def test_others_are_prepared_on_command_alone(tmp_path):
    importlib.import_module("tests.input.example_images")  # Which defines `photos`.
    with fails(path="dataset") as info:
        prepared_builder("photos", str(tmp_path))
    assert "--dataset=photos " in info.value.hint
    assert not os.listdir(tmp_path)
    builders = [find_builder("photos", str(tmp_path)) for _ in range(2)]
    for builder in builders:
        prepare(builder)
    assert len(open_records(prepared_builder("photos", str(tmp_path)), "test")) == 10


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("optdigit", "Did you mean 'optdigits'"),
        ("optdigits:9.9.9", "1.0.0"),
        ("cldr_sentences/8_to_fr", "has no '8_to_fr'. Did you mean '8_to_en'"),
        ("cldr_sentences/qqq", "It has 8_to_en, en_to_8, all_to_en, en_to_all."),
        ("cldr_sentences/8_to_en:9.9.9", "9.9.9"),
        ("opt digits", "opt digits"),
        ("zzzzqqqq", "tfds.list_builders() lists them."),
        ("huggingface:mnist", "tfds.load"),
        ("optdigits/data_dir=/tmp", "tfds.load"),
    ],
)
def test_an_unknown_data_set_is_refused(tmp_path, name, hint):
    with fails(path="dataset", got=name) as info:
        prepared_builder(name, str(tmp_path))
    assert hint in info.value.hint
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("split", "hint"),
    [("tran", "Did you mean 'train'?"), ("train[", ""), ("train[:0]", "")],
)
def test_an_unknown_or_empty_split_is_refused(tmp_path, split, hint):
    builder = prepared_builder("optdigits", str(tmp_path))
    with fails(path="split", got=split, hint=hint) as info:
        open_records(builder, split)
    assert "test or train" in info.value.expected


def test_a_format_without_random_access_is_refused(tmp_path):
    builder = tfds.builder("optdigits", data_dir=str(tmp_path))
    builder.download_and_prepare(file_format="tfrecord")
    with fails(path="dataset") as info:
        open_records(prepared_builder("optdigits", str(tmp_path)), "train")
    assert info.value.got.startswith(f"tfrecord in {tmp_path}/optdigits/")


_TRAP = "trap.evil.Evil"
_EVIL = {"pythonClassName": _TRAP, "jsonFeature": {"json": "{}"}}
_TYPE: dict[str, object] = {"type": _TRAP, "content": {}}
_DICT = f"{FEATURES}.features_dict.FeaturesDict"


@pytest.fixture(scope="module")
def ready(tmp_path_factory):
    """The folder of a prepared data set, of which tests change copies."""
    data_dir = tmp_path_factory.mktemp("ready")
    tfds.builder("optdigits", data_dir=str(data_dir)).download_and_prepare()
    return data_dir / "optdigits"


def data_set_without_code(ready, data_dir, file, content):
    """Returns the name of a prepared data set with another content of a file."""
    shutil.copytree(ready, data_dir / "others")
    (data_dir / "others" / "1.0.0" / file).write_text(content)
    return "others"


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("features.json", _EVIL),
        ("features.json", _TYPE),
        (
            "features.json",
            {"pythonClassName": _DICT, "featuresDict": {"features": {"a": _EVIL}}},
        ),
        (
            "features.json",
            {
                "pythonClassName": _DICT,
                "jsonFeature": {"json": json.dumps({"a": _TYPE})},
            },
        ),
        (
            "dataset_info.json",
            {"name": "others", "version": "1.0.0", "features": _EVIL},
        ),
    ],
)
def test_a_data_set_names_no_code(ready, tmp_path, monkeypatch, file, content):
    """TensorFlow Datasets imported the module that a folder's files named."""
    name = data_set_without_code(ready, tmp_path, file, json.dumps(content))
    (tmp_path / "trap").mkdir()
    (tmp_path / "trap" / "evil.py").write_text("imported = True")
    monkeypatch.syspath_prepend(tmp_path)
    with fails(path="dataset", got=_TRAP):
        prepared_builder(name, str(tmp_path))
    assert _TRAP.rpartition(".")[0] not in sys.modules


@pytest.mark.parametrize("file", ["features.json", "dataset_info.json"])
@pytest.mark.parametrize("content", ["", "3", "[]", "{", "[" * 10**5, '{"type": 5}'])
def test_a_data_set_with_a_damaged_file_is_refused(ready, tmp_path, file, content):
    name = data_set_without_code(ready, tmp_path, file, content)
    with fails(path="dataset", got="others"):
        prepared_builder(name, str(tmp_path))


@pytest.mark.parametrize("name", ["optdigits", "optdigits:1.0.0"])
@pytest.mark.parametrize("file", ["features.json", "dataset_info.json"])
@pytest.mark.parametrize("content", ["", "3", "{", '{"type": 5}'])
def test_a_damaged_file_of_a_known_data_set_is_named_or_not_read(
    ready, tmp_path, name, file, content
):
    shutil.copytree(ready, tmp_path / "optdigits")
    (tmp_path / "optdigits" / "1.0.0" / file).write_text(content)
    with contextlib.suppress(UserValueError):
        assert prepared_builder(name, str(tmp_path)).name == "optdigits"


def test_a_data_set_names_no_script_of_its_library(ready, tmp_path):
    """Its scripts import packages that nobody has installed."""
    script = "tensorflow_datasets.scripts.cli.croissant"
    features = json.dumps({"type": f"{script}.X", "content": {}})
    name = data_set_without_code(ready, tmp_path, "features.json", features)
    with fails(path="dataset", got=f"{script}.X"):
        prepared_builder(name, str(tmp_path))
    assert script not in sys.modules


def test_a_class_that_is_imported_already_may_be_named(ready, tmp_path):
    content = {"type": f"{Mark.__module__}.Mark", "content": {}}
    features = {"type": _DICT, "content": {"mark": content}}
    text = json.dumps(features)
    name = data_set_without_code(ready, tmp_path, "features.json", text)
    restored = prepared_builder(name, str(tmp_path)).info.features
    assert isinstance(restored["mark"], Mark)


class Mark(tfds.features.Text):
    """A user's own feature."""


def test_a_lock_that_is_a_link_is_refused(tmp_path):
    """It was opened for writing, which emptied what it pointed to."""
    (tmp_path / "precious").write_text("content")
    (tmp_path / "optdigits").mkdir()
    (tmp_path / "optdigits" / ".prepare.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(ValueError, match=r"prepare\.lock"):
        prepared_builder("optdigits", str(tmp_path))
    assert (tmp_path / "precious").read_text() == "content"


@pytest.mark.parametrize(
    "data_dir", ["/dev/null", "/" + "x" * 300, "gs://folder/of/others"]
)
def test_a_folder_that_cannot_be_is_refused(data_dir):
    with fails(path="data_dir", got=data_dir):
        prepared_builder("optdigits", data_dir)
