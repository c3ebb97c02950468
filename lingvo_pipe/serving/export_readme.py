"""The README.md beside an exported model, for those who call its signatures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_HEAD = """# SavedModel

    model = tf.saved_model.load(FOLDER)
    outputs = model.signatures[NAME](INPUT=...)

Its signatures: {}. `saved_model_cli show --all --dir FOLDER` prints their inputs and
outputs.
"""
_IMAGES = """
`classify_images` takes the contents of PNG, JPEG, GIF or BMP files, string [B], as
`images`, and prepares them: {}

`serving_default` takes images prepared so, float32 {}.
"""
_TRANSLATE = """
`translate` takes plain `sentences`, string [B]. Import `tensorflow_text` first, because
the vocabulary within the model needs its operations. The target languages: {}.
"""


def export_readme(signatures: Iterable[str], data: Any) -> str:
    """Returns the text for the names of signatures, and the model's input."""
    text = _HEAD.format(", ".join(f"`{name}`" for name in signatures))
    if "classify_images" in signatures:
        shape = ", ".join(map(str, data.image_shape))
        text += _IMAGES.format(data.pixel_note, f"[B, {shape}]")
    if "translate" in signatures:
        text += _TRANSLATE.format(", ".join(data.TargetLanguages()) or "one")
    return text
