"""Hierarchical hyperparameters: define, set, copy, freeze, print and read back."""

from lingvo_pipe.hyperparams.params import (
    CopyFieldsSubsetTo,
    CopyFieldsTo,
    InstantiableParams,
    Params,
)

__all__ = ["CopyFieldsSubsetTo", "CopyFieldsTo", "InstantiableParams", "Params"]
