"""A worker that can't have its port says so."""

from __future__ import annotations

import socket

import pytest

from lingvo_pipe.pipeline.devices import worker
from lingvo_pipe.pipeline.devices.cluster_spec import Cluster


@pytest.mark.parametrize("is_checked", [True, False], ids=["before", "meanwhile"])
def test_a_port_that_is_taken_is_told(
    is_checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or was free when it was looked at: two workers may start at the same moment."""
    if not is_checked:
        monkeypatch.setattr(worker, "check_port", lambda who, address: None)
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        address = f"localhost:{other.getsockname()[1]}"
        named = rf"worker:0\b.*{address}\b.*--cluster\b"
        with pytest.raises(ConnectionError, match=named):
            worker.serve(Cluster((address,)), 0)
