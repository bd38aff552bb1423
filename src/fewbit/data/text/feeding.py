# SPDX-License-Identifier: Apache-2.0
"""Tokens as the inputs a model has: masks, kinds, positions, the start of a decoder, filled up to a fixed length."""

from __future__ import annotations

from typing import Any

import numpy as np

from fewbit.data.signature import InputSpec, Signature
from fewbit.data.text.encoding import Ids
from fewbit.data.text.model_facts import ModelFacts


class Inputs:
    """Makes a sample of tokens what a model takes, without a batch axis.

    Args:
        signature: the model's inputs.
        tokenizer: says what to fill up with, and on which side.
        facts: of the model.

    Attributes:
        length: of a model whose inputs have a fixed length, that length.
    """

    def __init__(self, signature: Signature, tokenizer: Any, facts: ModelFacts):
        self._specs = {spec.name: spec for spec in signature.inputs}
        self._decoder_start = facts.decoder_start
        choices = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
        self._filling = next(token for token in choices if token is not None)  # zero is a token like any other
        self._left = getattr(tokenizer, "padding_side", "right") == "left"
        self.length = _second_axis(self._specs["input_ids"])

    def __call__(self, found: Ids) -> tuple[dict[str, np.ndarray], int]:
        """The inputs, and how many of the tokens are there to fill up."""
        missing = max((self.length or 0) - len(found.tokens), 0)
        ids = self._filled(found.tokens, missing, self._filling)
        mask = self._filled([1] * len(found.tokens), missing, 0)
        made = {
            "input_ids": ids,
            "attention_mask": mask,
            "token_type_ids": self._filled(found.kinds, missing, 0),
        }
        if self._decoder_start is not None:
            made["decoder_input_ids"] = np.concatenate([np.array([self._decoder_start]), ids[:-1]])
            made["decoder_attention_mask"] = mask
        made = {name: array for name, array in made.items() if name in self._specs}
        # A module counts positions itself, and has no past before its first call; an exported decoder asks for both.
        if (positions := self._specs.get("position_ids")) is not None and positions.required:
            made["position_ids"] = np.maximum(np.cumsum(mask) - 1, 0)
        made.update({name: past for name, spec in self._specs.items() if (past := _no_past(spec)) is not None})
        return made, missing

    def _filled(self, values: list[int], missing: int, value: int) -> np.ndarray:
        around = (missing, 0) if self._left else (0, missing)
        return np.pad(np.asarray(values, dtype=np.int64), around, constant_values=value)


def _second_axis(spec: InputSpec) -> int | None:
    axis = spec.shape[1] if spec.shape is not None and len(spec.shape) > 1 else None
    return axis if isinstance(axis, int) and axis > 0 else None


def _no_past(spec: InputSpec) -> np.ndarray | None:
    """Keys or values of no tokens, for a decoder that has to be given some: heads and width as it says, no length."""
    if not spec.name.startswith("past_key_values.") or spec.shape is None or len(spec.shape) != 4:
        return None
    heads, width = spec.shape[1], spec.shape[3]
    if not isinstance(heads, int) or not isinstance(width, int):
        return None
    return np.zeros((heads, 0, width), dtype=np.float16 if spec.dtype == "float16" else np.float32)
