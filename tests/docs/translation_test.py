"""The page's own model that translates learns to."""

from __future__ import annotations

import importlib
import itertools
from pathlib import Path
from typing import Any

import pytest

import model_registry
from lingvo_pipe.input.text.vocabulary import train_vocabulary
from lingvo_pipe.pipeline.devices import stage_devices  # noqa: F401  Asks for several.
from lingvo_pipe.training.loop.training_loop import train
from lingvo_pipe.training.run.run_directory import RunDirectory
from tests.docs.pages import page, python_blocks

WORDS = {"a": "un", "no": "pas", "dog": "chien", "tree": "arbre", "red": "rouge"}
VOCAB_SIZE = 30


def _write_data(folder: Path) -> None:
    """Translations word by word, in `folder`, and the vocabulary."""
    sources = [" ".join(each) for each in itertools.product(WORDS, repeat=3)]
    targets = [" ".join(WORDS[word] for word in each.split()) for each in sources]
    for split, chosen in (("test", slice(3, None, 7)), ("train", slice(None))):
        for language, lines in (("en", sources), ("fr", targets)):
            text = "\n".join(lines[chosen])
            (folder / f"{split}.{language}").write_text(text)
    texts = [*sources, *targets]
    vocabulary = train_vocabulary(texts, VOCAB_SIZE, ["en", "fr"])
    (folder / "en-fr.vocab").write_bytes(vocabulary)


@pytest.fixture
def model_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the model, with a vocabulary as small as the data."""
    _, (path, code), *_ = python_blocks(page("text"))
    assert code.count("VOCAB_SIZE = 4000\n") == 1
    (tmp_path / path).parent.mkdir()
    (tmp_path / path).write_text(code.replace("= 4000", f"= {VOCAB_SIZE}"))
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return "my_models.translate.EnglishToFrench"


@pytest.mark.exhaustive
def test_the_model_that_translates_learns(tmp_path: Path, model_name: str) -> None:
    _write_data(tmp_path)
    model = model_registry.GetParams(model_name, "Train")
    overrides = "task.train.max_steps : 150; input.batch_size : 8"
    model.FromText(overrides, separator=";")
    model.input.data_dir = str(tmp_path)
    model.task.pipeline.devices = ["cpu:0", "cpu:1"]
    test_input = model_registry.GetParams(model_name, "Test").input
    test_input.data_dir = str(tmp_path)
    metrics: Any = train(
        model.task.Instantiate(),
        model.input.Instantiate(),
        test_input.Set(batch_size=8).Instantiate(),
        RunDirectory(tmp_path / "run", model_name),
        model.ToText(),
        lambda _: None,
    )
    assert metrics["accuracy"] > 0.8
