from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from lingvo_pipe.pipeline.devices.worker_description import (
    WorkerDescription,
    differences,
    read_description,
)

WORKERS = ("a:1", "b:1")
OURS = {"lingvo_pipe": "1", "tensorflow": "2"}
WORKER = WorkerDescription("1", "2", 1, WORKERS, ("CPU", "CPU", "GPU"), "h", 7)


def test_a_description_is_read_as_it_was_written() -> None:
    assert read_description(WORKER.to_json()) == WORKER
    assert str(WORKER) == "host h, process 7, 2 CPU, 1 GPU"


@pytest.mark.parametrize(
    "text", ["", "3", "{", "null", '["task"]', json.dumps({"task": 1})]
)
def test_what_is_no_description_is_not_understood(text: str) -> None:
    assert read_description(text) is None


def test_one_of_another_form_is_not_understood() -> None:
    values = json.loads(WORKER.to_json())
    assert read_description(json.dumps({**values, "more": 1})) is None
    assert read_description(json.dumps({**values, "workers": 1})) is None
    del values["pid"]
    assert read_description(json.dumps(values)) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, []),
        ({"lingvo_pipe": "0"}, ["lingvo_pipe 0 there, 1 here"]),
        ({"tensorflow": "1"}, ["tensorflow 1 there, 2 here"]),
        ({"task": 0}, ["worker:0 there, worker:1 here"]),
        ({"workers": ("b:1", "a:1")}, ["workers b:1,a:1 there, a:1,b:1 here"]),
        (
            {"lingvo_pipe": "0", "task": 5},
            ["lingvo_pipe 0 there, 1 here", "worker:5 there, worker:1 here"],
        ),
        ({"host": "other", "pid": 8, "kinds": ()}, []),
    ],
)
def test_each_difference_that_matters_is_named(
    change: dict[str, Any], words: list[str]
) -> None:
    assert differences(replace(WORKER, **change), 1, list(WORKERS), OURS) == words
