"""A valid TF_CONFIG is what TensorFlow reads; all others are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lingvo_pipe.pipeline.devices.scheduler_environment.cluster_resolvers import (
    from_tf_config,
)
from lingvo_pipe.pipeline.devices.scheduler_environment.tf_config import check_tf_config

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
def test_tensorflow_reads_a_valid_value(
    cluster: Any, kind: str | None, index: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = _text(cluster, kind, index)
    check_tf_config(text)
    monkeypatch.setenv("TF_CONFIG", text)
    found = from_tf_config()
    assert found.jobs == cluster
    assert (found.task_type, found.task_index) == (kind, int(index))


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("worker=a:1", r"TF_CONFIG.*\bJSON\b.*\bline 1\b"),
        ("[1]", r"TF_CONFIG.*\bJSON\b.*'\[1\]'"),
        ("{}", r"TF_CONFIG.*\bJSON\b.*'\{\}'"),
        (
            json.dumps({"cluster": CHIEF, "task": 0}),
            r"TF_CONFIG\.task\b\D*\btype\b\D*\bindex\b\D* 0\b",
        ),
        (
            json.dumps({"cluster": CHIEF, "rpc_layer": "x"}),
            r"TF_CONFIG\.rpc_layer\b.*\bgrpc\b.*'x'",
        ),
        (_text({**CHIEF, "ps": ["p:1"]}), r"TF_CONFIG.*\bps\b"),
        (_text({"workers": WORKERS}), r"TF_CONFIG.*\['workers'\].*'worker'"),
        (_text({"worker": "a:1"}), "TF_CONFIG.*'worker'.*'a:1'"),
        (_text({"worker": {"1": "a:1"}}), r"TF_CONFIG.*'worker'.*\{'1': 'a:1'\}"),
        (_text({"worker": [1]}), r"TF_CONFIG.*'worker'.*\[1\]"),
        (
            _text({**CHIEF, "master": ["m:1"]}),
            r"TF_CONFIG.*\bchief\b[^,]*\bmaster\b",
        ),
        (_text(CHIEF, "worke"), r"TF_CONFIG\.task\.type\b.*'worke'.*'worker'"),
        (
            _text(CHIEF, "ps"),
            "TF_CONFIG.*chief, master, trainer, worker, evaluator.*'ps'",
        ),
        (
            _text(CHIEF, "worker", 2),
            r"TF_CONFIG\.task\.index\b\D* 2\b\D*\bworker\b\D* 2\b",
        ),
        (
            _text({"chief": ["c:1"]}, "worker"),
            r"TF_CONFIG\.task\.index\b\D* 0\b\D*\bworker\b\D* 0\b",
        ),
        (
            _text(CHIEF, "chief", 1),
            r"TF_CONFIG\.task\.index\b\D* 1\b\D*\bchief\b\D* 1\b",
        ),
        (_text(CHIEF, "worker", -1), r"TF_CONFIG\.task\.index\b.* 0, 1\b\D* -1\b"),
        (_text(CHIEF, "worker", True), r"TF_CONFIG\.task\.index\b.* 0, 1\b\D*\bTrue\b"),
        (_text(CHIEF, "worker", "x"), r"TF_CONFIG\.task\.index\b.* 0, 1\b\D*'x'"),
    ],
)
def test_other_values_are_refused_in_one_line(text: str, pattern: str) -> None:
    with pytest.raises(ValueError, match=pattern) as raised:
        check_tf_config(text)
    assert "\n" not in str(raised.value)
