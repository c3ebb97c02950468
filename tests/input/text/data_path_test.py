"""Paths of files: in data_dir, in full or at home; near names where there is none."""

import pytest

from lingvo_pipe.input.text.data_path import data_path


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "train.de").write_text("x")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("data_dir", ["/nowhere", None, "~"])
def test_a_file_is_found_wherever_its_name_says(folder, data_dir):
    path = str(folder / "train.de")
    assert data_path(path, data_dir) == path
    assert data_path("~/train.de", data_dir) == path


def test_relative_names_begin_at_data_dir(folder):
    assert data_path("train.de", str(folder)) == str(folder / "train.de")
    assert data_path("train.de", "~") == str(folder / "train.de")
    assert data_path("train.de", None) == "train.de"


@pytest.mark.parametrize("data_dir", ["~", None])
def test_near_names_are_told(folder, data_dir):
    message = r"'tran\.de'.*[ /]tran\.de\b.*'train\.de'"
    with pytest.raises(ValueError, match=message):
        data_path("tran.de", data_dir)


@pytest.mark.parametrize("name", ["", "texts"])
def test_a_folder_is_no_file(folder, name):
    (folder / "texts").mkdir()
    message = f"^[^?]*'{name}'[^?]*{folder}/{name}[^?]*--data_dir[^?]*$"
    with pytest.raises(ValueError, match=message):
        data_path(name, str(folder))
