"""Tasks of KerasHub: models that preprocess what `fit`, `evaluate` and `predict` take.

Nothing here imports KerasHub. Whoever has a task has imported it.
"""

from typing import Any

_PREPROCESSING = "keras_hub.src.utils.pipeline_model"


def preprocessing_kind(kind: type, model_kind: type) -> type:
    """Returns the class `kind` with the preprocessing methods of KerasHub's tasks.

    They call the instance's `preprocess_samples`, and then Keras's methods. If the
    model is no task, `kind` itself is returned.
    """
    for base in model_kind.__mro__:
        if base.__module__ == _PREPROCESSING:
            return type(kind.__name__, (kind, base), {"__module__": kind.__module__})
    return kind


def sequence_length_of(model: Any) -> int | None:
    """Returns the length to which a task's preprocessor pads, or None."""
    return getattr(getattr(model, "preprocessor", None), "sequence_length", None)
