# SPDX-License-Identifier: Apache-2.0
"""What running one sample shows of a model: who feeds whom, and who reads the same input."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """A producer whose output channels can be scaled if the consumers' input channels are scaled back.

    Args:
        producer: the layer (norm, linear, convolution) whose output it is.
        consumers: every layer that reads it; together, so that scaling them all back leaves the model as it was.
        channels: for each input channel of the consumers, the producer's output channel it comes from; longer than the
            producer's output where channels are repeated (grouped-query attention), -1 where a channel comes from
            somewhere else (concatenation). Output channels that do not appear, such as queries and keys in a fused
            projection, are not to be scaled.
    """

    producer: str
    consumers: tuple[str, ...]
    channels: tuple[int, ...]


@dataclass(frozen=True)
class Structure:
    """Everything found.

    Args:
        order: layers in the order they ran.
        shared: layers that read the very same tensor, in groups of two or more.
        links: producers and their consumers.
        idle: layers that the sample did not reach.
    """

    order: tuple[str, ...]
    shared: tuple[tuple[str, ...], ...]
    links: tuple[Link, ...]
    idle: tuple[str, ...] = ()
