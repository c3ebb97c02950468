"""Hierarchical hyperparameters: define, set, copy, freeze, print and read back."""

from lingvo_pipe.hyperparams.copy_fields import CopyFieldsSubsetTo, CopyFieldsTo
from lingvo_pipe.hyperparams.instantiable_params import InstantiableParams
from lingvo_pipe.hyperparams.params import Params

__all__ = ["CopyFieldsSubsetTo", "CopyFieldsTo", "InstantiableParams", "Params"]
