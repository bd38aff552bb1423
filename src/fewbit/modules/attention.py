# SPDX-License-Identifier: Apache-2.0
"""`nn.MultiheadAttention`: query, key and value all meet the projections, so all three are quantized as its input."""

from __future__ import annotations

from typing import Any

from fewbit.modules.activation import ActivationQuantizer
from fewbit.modules.coded import Quantized

_READ = ("query", "key", "value")


class QuantizedAttention(Quantized):
    """In front of `nn.MultiheadAttention`."""

    def with_quantized_input(
        self, quantizer: ActivationQuantizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call with query, key and value on their grid; one tensor stays one."""
        given = {**dict(zip(_READ, args)), **{name: kwargs[name] for name in _READ if name in kwargs}}
        done = {id(x): quantizer(x) for x in given.values()}
        args = (*(done[id(x)] for x in args[:3]), *args[3:])
        return args, {name: done[id(value)] if name in _READ else value for name, value in kwargs.items()}
