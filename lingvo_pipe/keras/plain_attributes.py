"""Attributes of a PipelinedModel that are the plain model's."""

from operator import attrgetter

import keras


class PlainAttributes(keras.Model):
    """A model that gives some attributes of another one, its attribute `model`."""

    # Keras's get_layer searches `layers`.
    layers = property(attrgetter("model.layers"))
    inputs = property(attrgetter("model.inputs"))
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
    preprocess_samples = property(attrgetter("model.preprocess_samples"))
