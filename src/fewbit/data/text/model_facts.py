# SPDX-License-Identifier: Apache-2.0
"""What a model's configuration says about texts: how long they may be, and whether it goes on writing them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from fewbit.data.text.tokenizer import home_of

_POSITIONS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
_WRITERS = ("CausalLM", "LMHeadModel", "ConditionalGeneration")


@dataclass(frozen=True)
class ModelFacts:
    """What is known of a language model before it is run.

    Args:
        positions: the most tokens it has places for.
        decoder_start: of an encoder with a decoder, the token that its decoder starts with.
        writes: whether it is a decoder alone, which reads running text; `None` if nothing says so.
    """

    positions: int | None = None
    decoder_start: int | None = None
    writes: bool | None = None


def facts_of(*given: Any) -> ModelFacts:
    """The facts of the first of several things that has a configuration: a model, a folder, a file in one."""
    for each in given:
        if config := _config(each):
            # A model built from its configuration alone has no list of classes there.
            kinds = config.get("architectures") or ([type(each).__name__] if hasattr(each, "config") else [])
            return _read(config, [str(kind) for kind in kinds])
    return ModelFacts()


def _read(config: Mapping[str, Any], kinds: list[str]) -> ModelFacts:
    inner = config.get("text_config")
    levels = (config, inner if isinstance(inner, Mapping) else {})
    found = [level[name] for level in levels for name in _POSITIONS if isinstance(level.get(name), int)]
    positions = next((count for count in found if count > 0), None)
    if config.get("is_encoder_decoder"):
        start = config.get("decoder_start_token_id")
        return ModelFacts(positions, start if isinstance(start, int) else 0, False)
    return ModelFacts(positions, None, any(kind.endswith(_WRITERS) for kind in kinds) if kinds else None)


def _config(model: Any) -> Mapping[str, Any]:
    config: Any = getattr(model, "config", None)
    if hasattr(config, "to_dict"):
        found: Mapping[str, Any] = config.to_dict()
        return found
    home = home_of(model)
    try:
        read = orjson.loads((home / "config.json").read_bytes()) if home is not None else {}
    except (OSError, orjson.JSONDecodeError):  # a model without one is no fault of its texts
        return {}
    return read if isinstance(read, Mapping) else {}
