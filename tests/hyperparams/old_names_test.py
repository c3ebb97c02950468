"""Texts of earlier versions are read as the present ones."""

from __future__ import annotations

import importlib.util

import pytest

from lingvo_pipe.hyperparams import old_names
from lingvo_pipe.hyperparams.text_entries import entries_by_path


def test_old_names_in_a_text_become_the_present_ones() -> None:
    text = (
        "task.eval.pictures : 3\n"
        "task.pipeline.num_parts : 2\n"
        "task.pipeline.num_parts_of : params/lingvo_pipe.mine/Layer\n"
        "cells : [params/lingvo_pipe.models.amoebanet.ends/StemLayer, 'a']\n"
        "kind : type/lingvo_pipe.models.side_classifier/SideClassifierLayer\n"
    )
    assert [str(entry) for entry in entries_by_path(text).values()] == [
        "task.eval.images : 3",
        "task.pipeline.num_batch_shards : 2",
        "task.pipeline.num_parts_of : params/lingvo_pipe.mine/Layer",
        "cells : [params/lingvo_pipe.models.amoebanet.stem_and_head/StemLayer, 'a']",
        "kind : type/lingvo_pipe.models.images.auxiliary_classifier/"
        "AuxiliaryClassifierLayer",
    ]


@pytest.mark.parametrize("module", sorted(set(old_names._MODULES.values())))
def test_present_modules_exist(module: str) -> None:
    assert importlib.util.find_spec(f"lingvo_pipe.{module}") is not None
