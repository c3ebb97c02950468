"""The guide names the families of KerasHub that tests tune and that generate."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.keras.generation_test import TRANSLATORS
from tests.keras.language_models import FAMILIES, hub
from tests.keras.pretrained_test import TUNED

PAGE = Path(__file__).resolve().parents[2] / "lingvo_pipe/docs/pretrained.md"


def listed(families: Iterable[str]) -> str:
    return ", ".join(f"`{family}`" for family in sorted({*families}))


def tuned(tuning: str) -> list[str]:
    return [family for family, case, *_ in TUNED if case == tuning]


def table() -> str:
    """Returns the page's table."""
    rows = {
        "load a preset, train all weights, generate, save": listed(tuned("full")),
        "the same with LoRA": listed(tuned("LoRA")),
        "the same with QLoRA": listed(tuned("QLoRA")),
        "generate by a `CausalLM` of random weights": listed(FAMILIES),
        "generate by a `Seq2SeqLM` of random weights": listed(TRANSLATORS),
    }
    lines = [f"| {what} | {families} |\n" for what, families in rows.items()]
    return "".join(["| What tests do | Families of KerasHub |\n|---|---|\n", *lines])


def test_the_table_is_of_the_tests() -> None:
    assert table() in PAGE.read_text(encoding="utf-8")


def test_the_families_that_are_exported_are_of_this_kerashub() -> None:
    exporter = "keras_hub.src.utils.transformers.export.hf_exporter"
    exporters = pytest.importorskip(exporter).MODEL_EXPORTERS
    families = listed(name.removesuffix("Backbone") for name in exporters)
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"KerasHub {hub.__version__} exports {families}." in text
