# SPDX-License-Identifier: Apache-2.0
"""Calibration data as the command line names it, held against the model before anything is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewbit.cli import _data, _texts
from fewbit.errors import UsageError

if TYPE_CHECKING:
    from fewbit.data.dataset import Dataset

Data = Annotated[str | None, typer.Option(help="Calibration data: a path, or file.py:name that is or returns it.")]
Transform = Annotated[str | None, typer.Option(help="Makes a row a model input, as file.py:function.")]
Samples = Annotated[int, typer.Option(min=1, help="Read at most so many samples.")]
BatchSize = Annotated[int, typer.Option(min=1, help="How many samples to run at a time.")]
TextColumn = Annotated[str | None, typer.Option(help="The column of a row that holds the text.")]
MaxLength = Annotated[int, typer.Option(min=1, help="The most tokens of a text.")]


@dataclass(frozen=True)
class Calibration:
    """The options about data of one command line.

    Raises:
        UsageError: an option about data, and no data.
    """

    data: str | None
    transform: str | None
    format: str | None
    policy: list[str] | None
    option: list[str] | None
    samples: int
    batch_size: int
    text_column: str | None
    max_length: int

    def __post_init__(self) -> None:
        for name in ("transform", "text_column", "format", "policy", "option"):
            if self.data is None and getattr(self, name):
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(f"{flag} and no data", where=flag, expected="--data beside it")

    def open(self) -> Dataset | None:
        """The dataset as it is."""
        if self.data is None:
            return None
        return _data.open_data(self.data, self.transform, format=self.format, policies=self.policy, options=self.option)

    def as_inputs(self, dataset: Dataset, model: str, takes: Any) -> tuple[Dataset, _texts.Tokens | None]:
        """The dataset as inputs of the model, tokenized where it is text and the model takes tokens.

        Args:
            dataset: what `open` gave.
            model: as the command line names it.
            takes: what says which inputs the model has.

        Raises:
            UsageError: an option that has nothing to do here.
            DataError: a first sample that does not fit, with every reason.
        """
        tokens = None
        if self.transform is None and _texts.needs_tokens(dataset, takes):
            dataset, tokens = self._tokenized(dataset, model, takes)
        elif self.text_column is not None:
            raise UsageError(
                f"--text-column {self.text_column}, and nothing is tokenized here",
                where="--text-column",
                expected="rows of text, a model that takes input_ids, and no --transform",
            )
        _data.check_batch_size(dataset, self.batch_size)
        dataset.validate(takes)
        return dataset, tokens

    def _tokenized(self, dataset: Dataset, model: str, takes: Any) -> tuple[Dataset, _texts.Tokens]:
        from fewbit.data.dataset import Dataset

        tokens = _texts.Tokens(
            _texts.home_of(model), takes, next(iter(dataset)), column=self.text_column, max_length=self.max_length
        )
        return Dataset(_texts.Placed(dataset.source), tokens), tokens
