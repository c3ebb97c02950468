"""Models by name: a class registers itself, and programs find it by its name.

@model_registry.RegisterSingleTaskModel
class Digits: ...

params = model_registry.GetParams("image.digits.Digits", "Train")
"""

from model_registry.registry import (
    CheckName,
    DatasetError,
    GetClass,
    GetDatasets,
    GetName,
    GetParams,
    ImportAll,
    ImportModels,
    IsKnown,
    ListModels,
    RegisterSingleTaskModel,
)

__all__ = [
    "CheckName",
    "DatasetError",
    "GetClass",
    "GetDatasets",
    "GetName",
    "GetParams",
    "ImportAll",
    "ImportModels",
    "IsKnown",
    "ListModels",
    "RegisterSingleTaskModel",
]
