"""The wheel has what pip users need, and the files beside it agree with it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from lingvo_pipe.tools.commands import COMMANDS
from lingvo_pipe.version import VERSION
from tests.docs.pages import SOURCE_ROOT

PACKAGES = ("lingvo_pipe", "model_registry", "params")
OTHERS = ("LICENSE", "README.md", "pyproject.toml", "tests", "tools")
_BUILD = "import setuptools.build_meta as b, sys; b.build_wheel(sys.argv[1])"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of an unpacked wheel, which is all that pip installs."""
    source, wheels = (tmp_path_factory.mktemp(name) for name in ("source", "wheels"))
    for name in (*PACKAGES, *OTHERS):
        path, left_out = SOURCE_ROOT / name, shutil.ignore_patterns("__pycache__")
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=left_out)
        else:
            shutil.copy(path, source / name)
    command = [sys.executable, "-c", _BUILD, str(wheels)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (wheel,) = wheels.glob("*.whl")
    assert wheel.name == f"lingvo_pipe-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as file:
        file.extractall(wheels)
    wheel.unlink()
    return wheels


@pytest.mark.exhaustive
def test_the_wheel_has_our_packages_and_no_other(site: Path) -> None:
    information = f"lingvo_pipe-{VERSION}.dist-info"
    assert {path.name for path in site.iterdir()} == {*PACKAGES, information}
    assert all((site / name / "py.typed").exists() for name in PACKAGES)
    for module, _ in COMMANDS.values():
        assert (site / f"{module.replace('.', '/')}.py").exists()
    metadata = (site / information / "METADATA").read_text("utf-8")
    assert re.search(
        r"^License-Expression: Apache-2\.0 AND Unicode-3\.0$", metadata, re.MULTILINE
    )
    licenses = {p.name for p in (site / information).rglob("LICENSE*")}
    assert licenses == {"LICENSE", "LICENSE.unicode"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", COMMANDS)
def test_its_commands_start(site: Path, tmp_path: Path, name: str) -> None:
    """Each imports what it needs from the wheel alone, and shows its help."""
    code = "from lingvo_pipe.tools.commands import run; run()"
    help_flag = "--helpshort" if name == "train" else "--help"
    result = subprocess.run(
        [sys.executable, "-c", code, name, help_flag],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )
    shown = result.stdout + result.stderr
    assert "Traceback" not in shown
    assert re.search("usage: lingvo_pipe|flags:|--help", shown), shown


def test_the_version_is_one() -> None:
    changes = (SOURCE_ROOT / "CHANGELOG.md").read_text("utf-8")
    assert re.findall(r"^## (\S+)", changes, re.MULTILINE)[0] == VERSION
    citation = (SOURCE_ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\nversion: {VERSION}\n" in citation
    assert "\nlicense: Apache-2.0\n" in citation


def test_the_license_is_the_whole_text() -> None:
    text = (SOURCE_ROOT / "LICENSE").read_text("utf-8")
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
