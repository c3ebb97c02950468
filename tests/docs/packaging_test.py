"""The wheel has what pip users need, and the files beside it agree with it."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lingvo_pipe.tools.commands import COMMANDS
from lingvo_pipe.version import VERSION
from tests.docs.pages import PACKAGES, PAGES, README, SOURCE_ROOT, relative_links

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


@pytest.mark.exhaustive
def test_the_pages_and_what_they_link_are_in_it(site: Path) -> None:
    names = [name for name in PAGES if name.startswith("lingvo_pipe/")]
    assert "lingvo_pipe/docs/pipelines.md" in names
    for name in names:
        assert (site / name).read_text("utf-8") == PAGES[name]
        for path, _ in relative_links(PAGES[name]):
            assert (site / name).parent.joinpath(path).exists(), f"{name}: {path}"
    for name in ("step.png", "first_run.ipynb"):
        assert (site / "lingvo_pipe/docs" / name).exists()


@pytest.mark.exhaustive
def test_the_packages_that_it_needs_take_as_much_disk_as_the_readme_says(
    site: Path,
) -> None:
    (metadata,) = site.glob("*.dist-info")
    distribution: importlib.metadata.Distribution = importlib.metadata.Distribution.at(
        metadata
    )
    needed, size = [distribution], 0
    seen: set[str] = set()
    while needed:
        for text in needed.pop().requires or ():
            requirement = Requirement(text)
            marker, name = requirement.marker, canonicalize_name(requirement.name)
            if name in seen or (marker and not marker.evaluate({"extra": ""})):
                continue
            seen.add(name)
            needed.append(importlib.metadata.distribution(name))
            files = {Path(str(x.locate())) for x in needed[-1].files or ()}
            size += sum(x.stat().st_size for x in files if x.exists())
    assert "tensorflow" in seen
    (stated,) = re.findall(r"\b([\d.]+) GB of disk", README)
    assert size / 1e9 == pytest.approx(float(stated), rel=0.1)


def test_links_of_the_readme_become_absolute_for_a_package_index(
    tmp_path: Path,
) -> None:
    """By the commands under "Publishing", which change no other file."""
    (tmp_path / "README.md").write_text(README, encoding="utf-8")
    _, _, section = PAGES["CONTRIBUTING.md"].partition("\n## Publishing\n")
    commands = re.findall(r"^    (.*)$", section, re.MULTILINE)
    assert len(commands) == 2
    subprocess.run(["bash", "-ec", "\n".join(commands)], cwd=tmp_path, check=True)
    text = (tmp_path / "README.md").read_text("utf-8")
    assert relative_links(text) == []
    address = r"\]\(https://github\.com/OWNER/NAME/(blob|raw)/HEAD/([^)#]*)[^)]*\)"
    links = re.findall(address, text)
    assert {path for _, path in links} == {path for path, _ in relative_links(README)}
    assert all((kind == "raw") == path.endswith(".png") for kind, path in links)
    assert (
        text.replace("https://github.com/OWNER/NAME/blob/HEAD/", "").replace(
            "https://github.com/OWNER/NAME/raw/HEAD/", ""
        )
        == README
    )


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
