"""The attributes and preprocessing that a PipelinedModel takes from its plain model.

Nothing here imports KerasHub. Whoever has a task of KerasHub has imported it.
"""

from operator import attrgetter
from typing import Any

import keras

from lingvo_pipe.keras.cells import private_names

_PREPROCESSING = "keras_hub.src.utils.pipeline_model"


class PlainAttributes(keras.Model):
    """A model that has some attributes of the plain model, its attribute `model`."""

    # Keras's get_layer searches `layers`.
    layers = property(attrgetter("model.layers"))
    input = property(attrgetter("model.input"))
    inputs = property(attrgetter("model.inputs"))
    output = property(attrgetter("model.output"))
    outputs = property(attrgetter("model.outputs"))
    input_shape = property(attrgetter("model.input_shape"))
    output_shape = property(attrgetter("model.output_shape"))
    save = property(attrgetter("model.save"))
    export = property(attrgetter("model.export"))
    to_json = property(attrgetter("model.to_json"))
    save_weights = property(attrgetter("model.save_weights"))
    load_weights = property(attrgetter("model.load_weights"))
    # These are of KerasHub's tasks.
    save_to_preset = property(attrgetter("model.save_to_preset"))
    export_to_transformers = property(attrgetter("model.export_to_transformers"))
    preprocess_samples = property(attrgetter("model.preprocess_samples"))

    @property
    def preprocessor(self) -> Any:
        """The task's preprocessor, or None if its data are preprocessed already."""
        return self.model.preprocessor

    @preprocessor.setter
    def preprocessor(self, preprocessor: Any) -> None:
        self.model.preprocessor = preprocessor

    @property
    def metrics(self) -> list[keras.Metric]:
        """Keras's metrics of a model, and attributes of the plain one, in its order."""
        first = private_names.trainer_metrics(self)
        of_layers = super().metrics[len(first) :]
        return [*first, *private_names.attribute_metrics(self.model), *of_layers]


def preprocessing_kind(kind: type, model_kind: type) -> type:
    """Returns the class `kind` with the preprocessing methods of KerasHub's tasks.

    They call the instance's `preprocess_samples`, and then Keras's methods. If the
    model is no task, `kind` itself is returned.
    """
    for base in model_kind.__mro__:
        if base.__module__ == _PREPROCESSING:
            return type(kind.__name__, (kind, base), {"__module__": kind.__module__})
    return kind
