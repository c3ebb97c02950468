"""Determines the senders whose packets a cluster's task answers.

Anyone who reaches a task's port can execute code there. If the cluster lists the
addresses of all tasks and of the trainer, a task answers only these addresses.
"""

import socket
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from lingvo_pipe.core.errors import UserConnectionError
from lingvo_pipe.pipeline.devices.cluster_spec import Cluster, split_address
from lingvo_pipe.pipeline.devices.listener_restriction import restrict_listeners
from lingvo_pipe.pipeline.devices.own_addresses import ALL_FLAG, route_source

# Seconds between two looks for names that have never been known.
_POLL_SECONDS = 1.0
# Seconds between two looks for all names: at least, and for each of them.
_ALL_SECONDS, _TASK_SECONDS = 30.0, 1.0
_NUM_SHOWN = 4


class Sources(NamedTuple):
    """IP addresses that a task answers. If `ips` is empty, the task answers anyone."""

    ips: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()  # Tasks whose host names are not known yet.


def answered_sources(cluster: Cluster) -> Sources:
    """Returns the IP addresses that a task answers, and the tasks not resolved yet."""
    return _look_up(_answered_tasks(cluster))


def _answered_tasks(cluster: Cluster) -> tuple[str, ...]:
    """Returns all tasks of a cluster, or () if a task answers anyone."""
    if cluster.listens_on_all or cluster.trainer is None:
        return ()
    return (cluster.trainer, *cluster.workers)


def _look_up(tasks: Sequence[str]) -> Sources:
    ips: dict[str, None] = {}
    unknown = []
    for task in tasks:
        try:
            entries = socket.getaddrinfo(split_address(task)[0], None)
        except OSError:  # Such as a pod that Kubernetes has not created yet.
            unknown.append(task)
            continue
        ips |= dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in entries)
        # A task on this machine may send from another of its addresses.
        source = route_source(task)
        if source is not None:
            ips[source.partition("%")[0]] = None
    return Sources(tuple(ips), tuple(unknown))


def answered_note(cluster: Cluster, sources: Sources, is_filtered: bool) -> str:
    """Returns a phrase for the user that says which senders a task answers."""
    if cluster.listens_on_all:
        return f"answers everyone who reaches it, by {ALL_FLAG}"
    if cluster.trainer is None:
        return "answers everyone who reaches it: --cluster has no trainer=<host>:<port>"
    if not is_filtered:
        return "answers everyone who reaches it: no capability CAP_NET_ADMIN"
    shown = ", ".join(sources.ips[:_NUM_SHOWN])
    more = len(sources.ips) - _NUM_SHOWN
    return f"answers only {shown}" + (f" and {more} more" if more > 0 else "")


def answer_later(
    cluster: Cluster, port: int, addresses: list[str], sources: Sources
) -> threading.Thread:
    """Starts a thread that lets this process answer more addresses at `port`.

    The thread resolves the tasks' host names again and again, since a pod that is
    created later, or again, has a new IP address. It looks each second for names that
    have never been known, and rarely for all. As soon as it finds an address, the
    listeners at `port` answer that one, too. `addresses` are the addresses of this
    machine at which they listen.
    """
    tasks = _answered_tasks(cluster)
    pause = max(_ALL_SECONDS, _TASK_SECONDS * len(tasks))

    def look(current: Sources) -> None:
        last = time.monotonic()
        while True:
            time.sleep(_POLL_SECONDS if current.unknown else pause)
            if takes_all := time.monotonic() - last >= pause:
                last = time.monotonic()
            now = _look_up(tasks if takes_all else current.unknown)
            # An address stays, even if the name server does not know it any more.
            ips = tuple(dict.fromkeys((*current.ips, *now.ips)))
            if ips != current.ips:
                try:
                    restrict_listeners(port, addresses, ips)
                except UserConnectionError as error:
                    print(error, flush=True)
            unknown = tuple(x for x in now.unknown if x in current.unknown)
            current = Sources(ips, unknown)

    thread = threading.Thread(target=look, args=(sources,), daemon=True)
    thread.start()
    return thread
