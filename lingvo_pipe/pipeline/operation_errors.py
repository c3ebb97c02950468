"""Errors of operations that name the layer, and the user's code."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from lingvo_pipe.error_text import frames_text, plain_message

_NODE = re.compile(r"\{\{node ([^}]*)\}\}")


@contextlib.contextmanager
def naming(where: str, graph: Any = None) -> Iterator[None]:
    """Says where it was in the error of an operation that runs eagerly.

    Args:
        where: as in "the forward pass of model/dense".
        graph: what the operations that run were traced in; None: not known. The error
            then ends in those lines of the user's that made the operation.
    """
    try:
        yield
    except tf.errors.OpError as error:
        node = _NODE.search(error.message)
        name = f" (operation {node[1]})" if node else ""
        lines = _lines(graph, node[1]) if graph is not None and node else ""
        message = f"In {where}: {plain_message(error.message)}{name}{lines}"
        raise type(error)(error.node_def, error.op, message) from error


def _lines(graph: Any, node: str) -> str:
    """The user's lines that made a node, or the operation that it is part of."""
    operations = {operation.name: operation for operation in graph.get_operations()}
    names = list(itertools.accumulate(node.split("/"), "{}/{}".format))
    found = (operations[name] for name in reversed(names) if name in operations)
    operation = next(found, None)
    return "" if operation is None else frames_text(operation.traceback)
