"""The program that checks Lingvo's files says what it found, and ends with a status."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from lingvo_pipe.tools.port_check import port_check
from tests.layers.lingvo import ported_layers

IMPORTS = """\
import lingvo.compat as tf
from lingvo.core import base_layer
from lingvo.core import layers, py_utils, schedule
"""


def lingvo_source() -> str:
    """Returns layers that port by their imports, with the imports of Lingvo."""
    source = inspect.getsource(ported_layers)
    ours = "import tensorflow as tf\n\nfrom lingvo_pipe import base_layer"
    assert ours in source
    theirs = "from lingvo import compat as tf\nfrom lingvo.core import base_layer"
    return source.replace(ours, theirs)


def test_layers_that_port_have_nothing_to_change_but_imports(
    tmp_path: Path, capsys: Any
) -> None:
    file = tmp_path / "layers.py"
    file.write_text(lingvo_source())
    assert port_check.main([str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"{file}: nothing to change but imports"
    written = [line.partition(": import: ")[2] for line in lines]
    assert "lingvo.compat: import tensorflow as tf" in written
    assert "lingvo.core.py_utils: from lingvo_pipe import py_utils" in written
    assert not any(": change: " in line for line in lines)


def test_a_file_with_changes_ends_with_1(tmp_path: Path, capsys: Any) -> None:
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(IMPORTS)
    bad.write_text(f"{IMPORTS}\ntf.placeholder(tf.float32)\n")
    assert port_check.main([str(good), str(bad)]) == 1
    out = capsys.readouterr().out
    assert f"{good}: nothing to change but imports\n" in out
    assert f"{bad}:5: change: tf.placeholder: " in out


@pytest.mark.parametrize("text", [None, "def f(:\n", "\0"])
def test_a_file_that_cannot_be_read_ends_with_2(
    text: str | None, tmp_path: Path, capsys: Any
) -> None:
    """Once it hid the files after it."""
    file, after = tmp_path / "x.py", tmp_path / "after.py"
    after.write_text(IMPORTS)
    if text is not None:
        file.write_text(text)
    assert port_check.main([str(file), str(after)]) == 2
    shown = capsys.readouterr()
    assert str(file) in shown.err
    assert f"{after}: nothing to change but imports\n" in shown.out


@pytest.mark.parametrize(("argv", "code"), [([], 2), (["--all"], 2), (["--help"], 0)])
def test_its_usage_is_shown(argv: list[str], code: int, capsys: Any) -> None:
    with pytest.raises(SystemExit) as info:
        port_check.main(argv)
    assert info.value.code == code
    shown = capsys.readouterr()
    assert "port_check [-h] FILE" in (shown.err if code else shown.out)
