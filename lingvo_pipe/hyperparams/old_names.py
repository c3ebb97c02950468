"""Names of earlier versions in texts of Params, and their current names.

Run directories keep texts of Params. List here a class that moves to another module,
and a param that gets another name, so that such texts can still be read.
"""

from __future__ import annotations

import re

# Old names of params, with the names before them that make them unique.
_PARAMS = {
    "pipeline.num_parts": "pipeline.num_batch_shards",
    "task.eval.pictures": "task.eval.images",
}

# Old modules below `lingvo_pipe`.
_MODULES = {
    "input.image_input": "input.images.image_input",
    "input.transforms.central_crop": "input.transforms.geometry",
    "input.transforms.chroma_shift": "input.transforms.colors",
    "input.transforms.color_distortion": "input.transforms.colors",
    "input.transforms.crop_transform": "input.transforms.geometry",
    "input.transforms.crops": "input.transforms.geometry",
    "input.transforms.cutout": "input.transforms.geometry",
    "input.transforms.normalization": "input.transforms.colors",
    "input.transforms.pad_and_crop": "input.transforms.geometry",
    "input.transforms.random_area_crop": "input.transforms.geometry",
    "input.transforms.random_flip": "input.transforms.geometry",
    "input.transforms.resize": "input.transforms.geometry",
    "layers.activation": "layers.dense",
    "layers.base_layer": "layers.core.base_layer",
    "layers.drop_path": "layers.dropout",
    "layers.feature_extraction": "layers.sequential",
    "layers.feed_forward": "layers.dense",
    "layers.pooling": "layers.convolution",
    "layers.seq_layer": "layers.sequential",
    "layers.token_embedding": "layers.embedding",
    "models.amoebanet.ends": "models.amoebanet.stem_and_head",
    "models.amoebanet.factorized_reduction": "models.amoebanet.operations",
    "models.image_classifier": "models.images.image_classifier",
    "models.side_classifier": "models.images.auxiliary_classifier",
    "models.transformer.stream_embedding": "models.transformer.streams",
    "models.transformer.stream_norm": "models.transformer.streams",
    "training.base_task": "training.task.base_task",
    "training.optim.adafactor": "training.optim.optimizers",
    "training.optim.rmsprop": "training.optim.optimizers",
}

# Old names of classes.
_CLASSES = {
    "SideClassifierLayer": "AuxiliaryClassifierLayer",
}

_PATH = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, _PARAMS))})(?!\w)")
_SYMBOL = re.compile(r"\b((?:params|type|func|enum)/lingvo_pipe\.)([\w.]+)/(\w+)")


def current_path(path: str) -> str:
    """Returns a param's path with old names of params replaced."""
    return _PATH.sub(lambda match: _PARAMS[match[0]], path)


def current_value(text: str) -> str:
    """Returns a value's text with old names of modules and classes replaced."""

    def replace(match: re.Match[str]) -> str:
        prefix, module, name = match.groups()
        return f"{prefix}{_MODULES.get(module, module)}/{_CLASSES.get(name, name)}"

    return _SYMBOL.sub(replace, text)
