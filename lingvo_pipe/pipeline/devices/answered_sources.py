"""Determines the senders whose packets a cluster's task answers.

Anyone who reaches a task's port can execute code there. If the cluster lists the
addresses of all tasks and of the trainer, a task answers only these addresses.
"""

import socket
import threading
import time
from typing import NamedTuple

from lingvo_pipe.core.errors import UserConnectionError
from lingvo_pipe.pipeline.devices.cluster_spec import Cluster, split_address
from lingvo_pipe.pipeline.devices.listener_restriction import restrict_listeners
from lingvo_pipe.pipeline.devices.own_addresses import ALL_FLAG, route_source

# Seconds between two looks, while names are unknown, and when all are known.
_POLL_SECONDS, _KNOWN_SECONDS = 1.0, 30.0
_NUM_SHOWN = 4


class Sources(NamedTuple):
    """IP addresses that a task answers. If `ips` is empty, the task answers anyone."""

    ips: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()  # Tasks whose host names are not known yet.


def answered_sources(cluster: Cluster) -> Sources:
    """Returns the IP addresses that a task answers, and the tasks not resolved yet."""
    if cluster.listens_on_all or cluster.trainer is None:
        return Sources()
    ips: dict[str, None] = {}
    unknown = []
    for task in (cluster.trainer, *cluster.workers):
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
    created later, or again, has a new IP address. As soon as it finds one, the
    listeners at `port` answer that one, too. `addresses` are the addresses of this
    machine at which they listen.
    """

    def look(current: Sources) -> None:
        while True:
            time.sleep(_POLL_SECONDS if current.unknown else _KNOWN_SECONDS)
            now = answered_sources(cluster)
            # An address stays, even if the name server does not know it any more.
            ips = tuple(dict.fromkeys((*current.ips, *now.ips)))
            if ips != current.ips:
                try:
                    restrict_listeners(port, addresses, ips)
                except UserConnectionError as error:
                    print(error, flush=True)
            current = Sources(ips, now.unknown)

    thread = threading.Thread(target=look, args=(sources,), daemon=True)
    thread.start()
    return thread
