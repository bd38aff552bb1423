# SPDX-License-Identifier: Apache-2.0
"""What a run may be told beside the configuration: for which runtime, and what is done before and after rounding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from fewbit.errors import UsageError, nearest

PRICE = 0.1
"""The error in the answers, as a share of their energy, that is worth the time of the whole float model."""


@dataclass(frozen=True)
class Options:
    """How a run goes about it.

    Args:
        target: the runtime a graph is placed for.
        correct: the algorithm that makes up for rounding: `fast_bias_correction`, `bias_correction`, or none.
        prepare: algorithms that change the float model first: `rotation`, `awq`, `equalization`, `smooth_quant`. None
            where they are chosen by looking: `smooth_quant` for a language model whose layers are to read integers.
        price: the error in the answers that is worth the time of the whole float model. What brings more error than
            the time it saves is worth stays in float. Infinite if only time counts.
        batch_size: of samples without a batch axis.
        seqlen: of texts, the most tokens of a sample.
        pack: how texts become samples: `concatenate`, `pad`; see `fewbit.data.text.as_inputs`.
        text_column: which column holds the text, if its name does not say.
        exact: of a frozen module, let no kernel compute less precisely than the model itself.
        accuracy_level: of MatMulNBits, where ONNX Runtime multiplies with narrow weights: 0 as the model computes, 4
            with activations rounded to int8.
        activation_budget: bytes of memory for activations that wait while a model is walked block by block; those
            beyond wait in files, and nothing else changes. None for a fourth of what is free.
    """

    target: str | None = None
    correct: str | None = None
    prepare: tuple[str, ...] | None = ()
    price: float = PRICE
    batch_size: int = 1
    seqlen: int = 512
    pack: str | None = None
    text_column: str | None = None
    exact: bool = False
    accuracy_level: int = 0
    activation_budget: int | None = None

    @classmethod
    def read(cls, given: Mapping[str, Any] | None, **known: Any) -> Options:
        """From a user's `advanced_parameters`, over what is known already.

        Raises:
            UsageError: a name that there is not, or a value that cannot be.
        """
        options = dict(given or {})
        names = [field.name for field in fields(cls) if field.name != "target"]
        unknown = [name for name in options if name not in names]
        if unknown:
            raise UsageError(
                f"advanced_parameters has {', '.join(map(repr, unknown))}",
                where="advanced_parameters",
                expected=nearest(unknown[0], names),
            )
        if isinstance(prepare := options.get("prepare"), str):
            raise UsageError(
                f"prepare={prepare!r}", where="advanced_parameters", expected=f"a list of names, such as [{prepare!r}]"
            )
        if prepare is not None:
            options["prepare"] = tuple(prepare)
        made = cls(**{**known, **options})
        if not made.price > 0:
            raise UsageError(f"price={made.price!r}", where="advanced_parameters", expected="a number above zero")
        if made.accuracy_level not in range(5):
            raise UsageError(
                f"accuracy_level={made.accuracy_level!r}",
                where="advanced_parameters",
                expected="0 to 4, as ONNX Runtime has",
            )
        room = 0 if made.activation_budget is None else made.activation_budget
        if not isinstance(room, int | float) or not room >= 0:
            raise UsageError(
                f"activation_budget={made.activation_budget!r}",
                where="advanced_parameters",
                expected="bytes, such as 8e9",
            )
        return made
