"""An empty registry and an empty folder of models for each test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from model_registry import registry


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yields an empty folder on Python's path, where `params` is found."""
    modules = dict(sys.modules)
    for name in [m for m in modules if m.partition(".")[0] == "params"]:
        del sys.modules[name]
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - set(modules):
        del sys.modules[name]
    sys.modules.update(modules)
