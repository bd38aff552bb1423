# SPDX-License-Identifier: Apache-2.0
"""Who feeds whom in a graph, found from the graph alone.

find_structure(model)
  infer_shapes      how many axes a value has
  source_of         nodes whose constants scale their output channels
  Flow              each source's channels, followed to the layers that read them
"""

from __future__ import annotations

import onnx_ir as ir

from fewbit.backends.graph.flow import Flow, Places
from fewbit.backends.graph.layers import Layer, layer_of
from fewbit.backends.graph.shapes import infer_shapes
from fewbit.backends.graph.sources import source_of
from fewbit.model.ops import EMBEDDING
from fewbit.model.structure import Link, Structure


def find_structure(model: ir.Model) -> Structure:
    """The layers in order, those that read the same value, and the links between them.

    A source is followed only as far as its scale goes, so the time grows with the graph, not with its square.

    Args:
        model: a repaired graph; shapes are written to its values, nothing else is changed.
    """
    infer_shapes(model)
    places = Places(model)
    order: list[str] = []
    links: list[Link] = []
    readers: dict[ir.Value, list[str]] = {}
    passed: set[ir.Node] = set()
    for node in places.nodes:
        layer, source = layer_of(node), source_of(node)
        if layer is not None or source is not None:
            order.append(node.name or "")
        if layer is not None and (read := _reads(layer)) is not None:
            readers.setdefault(read, []).append(layer.name)
        if source is None or (source.is_product and node in passed):  # its scale is that of the layer before
            continue
        flow = Flow(source, places)
        found = flow.links(node.name or "")
        links += found
        passed |= flow.passed if found else set()
    shared = tuple(tuple(names) for names in readers.values() if len(names) > 1)
    return Structure(tuple(order), shared, tuple(links))


def _reads(layer: Layer) -> ir.Value | None:
    return None if layer.op is EMBEDDING else layer.node.inputs[layer.reads]
