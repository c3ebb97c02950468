"""A valid TF_CONFIG is read as TensorFlow reads it, and all others are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.pipeline.devices.scheduler_environment.tf_config import parse_tf_config
from tests.support.errors import fails

WORKERS = ["a:1", "b:1"]
CHIEF = {"chief": ["c:1"], "worker": WORKERS}


def _text(cluster: Any, kind: Any = None, index: Any = 0) -> str:
    task = {} if kind is None else {"task": {"type": kind, "index": index}}
    return json.dumps({"cluster": cluster, **task})


@pytest.mark.parametrize(
    ("cluster", "kind", "index"),
    [
        ({"worker": WORKERS}, None, 0),
        ({"worker": WORKERS}, "worker", 1),
        ({"worker": WORKERS}, "worker", "1"),
        ({"worker": WORKERS}, "trainer", 0),
        (CHIEF, "chief", 0),
        (CHIEF, "worker", 1),
        (CHIEF, "evaluator", 0),
        ({**CHIEF, "evaluator": ["e:1"]}, "evaluator", 0),
        ({"master": ["m:1"], "worker": WORKERS}, "master", 0),
    ],
)
def test_a_valid_value_is_read_as_by_tensorflow(
    cluster: Any, kind: str | None, index: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = _text(cluster, kind, index)
    found = parse_tf_config(text)
    monkeypatch.setenv("TF_CONFIG", text)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    assert found.jobs == resolver.cluster_spec().as_dict() == cluster
    assert (found.task_type, found.task_index) == (kind, int(index))


@pytest.mark.parametrize(
    ("text", "path", "got"),
    [
        ("worker=a:1", "", ""),  # No JSON.
        ("[1]", "", "[1]"),
        ("{}", "", "{}"),
        (json.dumps({"cluster": CHIEF, "task": 0}), ".task", 0),
        (json.dumps({"cluster": CHIEF, "rpc_layer": "x"}), ".rpc_layer", "x"),
        (_text({**CHIEF, "ps": ["p:1"]}), ".cluster", ["chief", "ps", "worker"]),
        (_text({"workers": WORKERS}), ".cluster", "workers"),
        (_text({"worker": "a:1"}), ".cluster['worker']", "a:1"),
        (_text({"worker": [1]}), ".cluster['worker']", [1]),
        (_text({**CHIEF, "master": ["m:1"]}), ".cluster", ["chief", "master"]),
        (_text(CHIEF, "worke"), ".task.type", "worke"),
        (_text(CHIEF, "worker", 2), ".task.index", 2),
        (_text({"chief": ["c:1"]}, "worker"), ".task.index", 0),
        (_text(CHIEF, "chief", 1), ".task.index", 1),
        (_text(CHIEF, "worker", -1), ".task.index", -1),
        (_text(CHIEF, "worker", True), ".task.index", True),
        (_text(CHIEF, "worker", "x"), ".task.index", "x"),
    ],
)
def test_other_values_are_refused_in_one_line(text: str, path: str, got: Any) -> None:
    with fails(path=f"TF_CONFIG{path}", got=got) as raised:
        parse_tf_config(text)
    assert "\n" not in str(raised.value)
    meant = str(got).startswith("worke")
    assert ("mean 'worker'?" in raised.value.hint) == meant
