"""A worker without its port raises an error."""

from __future__ import annotations

import socket

import pytest

from lingvo_pipe.pipeline.devices import worker
from lingvo_pipe.pipeline.devices.cluster_spec import Cluster


@pytest.mark.parametrize("is_checked", [True, False], ids=["before", "meanwhile"])
def test_a_port_in_use_is_an_error(
    is_checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it was free when checked: two workers may start at the same moment."""
    if not is_checked:
        monkeypatch.setattr(worker, "check_port", lambda task, address: None)
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        address = f"localhost:{other.getsockname()[1]}"
        named = rf"worker:0\b.*{address}\b.*--cluster\b"
        with pytest.raises(ConnectionError, match=named):
            worker.serve(Cluster((address,)), 0)
