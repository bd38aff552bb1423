# SPDX-License-Identifier: Apache-2.0
"""Calibration data as the command line names it, held against the model before anything is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewbit.cli import _data
from fewbit.errors import UsageError

if TYPE_CHECKING:
    from fewbit.data.dataset import Dataset

Data = Annotated[
    str | None,
    typer.Option(help="Calibration data: a path, wikitext, pileval, or file.py:name that is or returns it."),
]
Transform = Annotated[str | None, typer.Option(help="Makes a row a model input, as file.py:function.")]
Samples = Annotated[int, typer.Option(min=1, help="Maximum number of samples, a random sample of the data.")]
BatchSize = Annotated[int, typer.Option(min=1, help="How many samples to run at a time.")]
TextColumn = Annotated[str | None, typer.Option(help="The column of a row that holds the text.")]
Seqlen = Annotated[int, typer.Option(min=1, help="The most tokens of a sample of text.")]
Pack = Annotated[
    str | None,
    typer.Option(help="How rows of text become samples: concatenate (if not given, for decoders), or pad: one each."),
]


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
    seqlen: int
    pack: str | None

    def __post_init__(self) -> None:
        for name in ("transform", "text_column", "format", "policy", "option", "pack"):
            if self.data is None and getattr(self, name):
                flag = "--data-format" if name == "format" else f"--{name.replace('_', '-')}"
                raise UsageError(f"{flag} and no data", where=flag, expected="--data beside it")

    def open(self) -> Dataset | None:
        """The dataset as it is."""
        if self.data is None:
            return None
        from fewbit.data.text import open_text

        data = self.data if self.format is not None else open_text(self.data)
        return _data.open_data(data, self.transform, format=self.format, policies=self.policy, options=self.option)

    def as_inputs(self, dataset: Dataset, model: str, takes: Any) -> Dataset:
        """The dataset as inputs of the model, tokenized where it is text and the model takes tokens.

        Args:
            dataset: what `open` gave.
            model: as the command line names it.
            takes: what says which inputs the model has.

        Raises:
            UsageError: an option that has nothing to do here.
            DataError: a first sample that does not fit, with every reason.
        """
        from fewbit.data.text import as_inputs

        made = as_inputs(dataset, model, takes, seqlen=self.seqlen, pack=self.pack, column=self.text_column)
        _data.check_batch_size(made, self.batch_size)
        if self.batch_size > 1 and made.facts.get("alike") is False:
            raise UsageError(
                f"--batch-size {self.batch_size} for texts that differ in length",
                where="--batch-size",
                expected="1: what fills a batch up would be calibrated on like text",
                try_="leave it out, or --pack concatenate",
            )
        made.validate(takes)
        return made
