"""Current names for old ones in texts of Params, which run directories still hold."""

import re

# Old names of params, with the names before them that make them unique.
_PARAMS = {
    "pipeline.num_parts": "pipeline.num_batch_shards",
    "task.eval.pictures": "task.eval.images",
}

# Old modules below `lingvo_pipe`, by folder and current module.
_MOVED: dict[str, dict[str, str]] = {
    "input": {"images.image_input": "image_input"},
    "input.transforms": {
        "colors": "chroma_shift color_distortion normalization",
        "geometry": "central_crop crop_transform crops cutout pad_and_crop "
        "random_area_crop random_flip resize",
    },
    "layers": {
        "convolution": "pooling",
        "core.base_layer": "base_layer",
        "dense": "activation feed_forward",
        "dropout": "drop_path",
        "embedding": "token_embedding",
        "sequential": "feature_extraction seq_layer",
    },
    "models": {
        "images.auxiliary_classifier": "side_classifier",
        "images.image_classifier": "image_classifier",
    },
    "models.amoebanet": {"operations": "factorized_reduction", "stem_and_head": "ends"},
    "models.transformer": {"streams": "stream_embedding stream_norm"},
    "training": {"task.base_task": "base_task"},
    "training.optim": {"optimizers": "adafactor rmsprop"},
}
_MODULES = {
    f"{folder}.{old}": f"{folder}.{current}"
    for folder, modules in _MOVED.items()
    for current, old_names in modules.items()
    for old in old_names.split()
}

# Old names of classes.
_CLASSES = {"SideClassifierLayer": "AuxiliaryClassifierLayer"}

_PATH = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, _PARAMS))})(?!\w)")
_SYMBOL = re.compile(r"\b((?:params|type|func|enum)/lingvo_pipe\.)([\w.]+)/(\w+)")


def current_path(path: str) -> str:
    """Returns a param's path with current names in place of old names of params."""
    return _PATH.sub(lambda match: _PARAMS[match[0]], path)


def current_value(text: str) -> str:
    """Returns a value's text with the current names of modules and classes."""

    def replace(match: re.Match[str]) -> str:
        prefix, module, name = match.groups()
        return f"{prefix}{_MODULES.get(module, module)}/{_CLASSES.get(name, name)}"

    return _SYMBOL.sub(replace, text)
