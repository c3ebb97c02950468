"""What TF_CONFIG may say, and that TensorFlow reads the same in it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from lingvo_pipe.pipeline.devices.cluster_resolvers import from_tf_config
from lingvo_pipe.pipeline.devices.tf_config import check_tf_config

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
def test_what_is_right_is_what_tensorflow_reads(
    cluster: Any, kind: str | None, index: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = _text(cluster, kind, index)
    check_tf_config(text)
    monkeypatch.setenv("TF_CONFIG", text)
    told = from_tf_config()
    assert told.jobs == cluster
    assert (told.task_type, told.task_index) == (kind, int(index))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("worker=a:1", "must be JSON; Expecting value"),
        ("[1]", "must be a JSON object with a cluster; got '[1]'"),
        ("{}", "must be a JSON object with a cluster"),
        (json.dumps({"cluster": CHIEF, "task": 0}), "must have a type and an index"),
        (json.dumps({"cluster": CHIEF, "rpc_layer": "x"}), "must be grpc; got 'x'"),
        (_text({**CHIEF, "ps": ["p:1"]}), "must name no ps"),
        (_text({"workers": WORKERS}), "got ['workers']. Did you mean 'worker'?"),
        (_text({"worker": "a:1"}), "must list its addresses; 'worker' is 'a:1'"),
        (_text({"worker": {"1": "a:1"}}), "must list its addresses; 'worker' is {"),
        (_text({"worker": [1]}), "must list its addresses; 'worker' is [1]"),
        (_text({**CHIEF, "master": ["m:1"]}), "one trainer; got chief and master"),
        (_text(CHIEF, "worke"), "got 'worke'. Did you mean 'worker'?"),
        (_text(CHIEF, "ps"), "must be one of chief, master, trainer, worker, eval"),
        (_text(CHIEF, "worker", 2), "below 2, the number of its worker tasks; got 2"),
        (_text({"chief": ["c:1"]}, "worker"), "below 0, the number of its worker"),
        (_text(CHIEF, "chief", 1), "below 1, the number of its chief tasks; got 1"),
        (_text(CHIEF, "worker", -1), "must be 0, 1, ...; got -1"),
        (_text(CHIEF, "worker", True), "must be 0, 1, ...; got True"),
        (_text(CHIEF, "worker", "x"), "must be 0, 1, ...; got 'x'"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as raised:
        check_tf_config(text)
    assert "\n" not in str(raised.value)
