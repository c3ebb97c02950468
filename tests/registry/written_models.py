"""Files with models for tests of the registry."""

from __future__ import annotations

import importlib
import textwrap
from pathlib import Path

MODEL = """
    from types import SimpleNamespace

    import model_registry

    @model_registry.RegisterSingleTaskModel
    class NAME:
        SIZE = 3

        def Train(self):
            return f"train {self.SIZE}"

        def Test(self):
            return "test"

        def Task(self):
            return SimpleNamespace(input=None)

        def Model(self):
            return self.Task()
    """

TOY = MODEL.replace("NAME", "Toy")


def write(folder: Path, name: str, text: str) -> None:
    """Writes a module; the folders that lead to it become packages."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    for parent in list(Path(name).parents)[:-1]:
        (folder / parent / "__init__.py").touch()
    importlib.invalidate_caches()


def write_model(folder: Path, name: str, class_name: str) -> None:
    write(folder, name, MODEL.replace("NAME", class_name))
