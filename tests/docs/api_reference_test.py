"""The API reference has every public name, and no dead link."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

from tools.api_reference import PUBLIC_PACKAGES, write_api_reference


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The HTML of all pages by their path."""
    folder = tmp_path_factory.mktemp("api")
    write_api_reference(folder)
    return {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8")
        for path in folder.rglob("*.html")
    }


@pytest.mark.parametrize("package", PUBLIC_PACKAGES)
def test_every_public_name_has_a_section(pages: dict[str, str], package: str) -> None:
    text = pages[f"{package.replace('.', '/')}.html"]
    module = importlib.import_module(package)
    names = [n for n in module.__all__ if not inspect.ismodule(getattr(module, n))]
    assert names
    assert [name for name in names if f'id="{name}"' not in text] == []


def test_no_link_is_dead(pages: dict[str, str]) -> None:
    dead = []
    for path, text in pages.items():
        for link in re.findall(r'href="([^"]*)"', text):
            target, _, anchor = link.partition("#")
            if "://" in target or "${" in target:  # The search's template.
                continue
            file = str(Path(path).parent / target) if target else path
            file = re.sub(r"[^/]+/\.\./", "", file)
            if file not in pages or (anchor and f'id="{anchor}"' not in pages[file]):
                dead.append(f"{path}: {link}")
    assert dead == []
