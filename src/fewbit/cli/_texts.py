# SPDX-License-Identifier: Apache-2.0
"""Rows of text as the inputs of a Hugging Face model, by the tokenizer in the model's own folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fewbit.data.dataset import Dataset
from fewbit.data.sample import Place, Sample
from fewbit.data.signature import read_signature
from fewbit.data.tables.layout import TEXT_PARTS, recognise
from fewbit.data.views import View
from fewbit.errors import DataError, UsageError, nearest, require
from fewbit.record import Record

_VOCABULARIES = (
    "tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model",
    "sentencepiece.bpe.model", "tekken.json",
)  # fmt: skip


def needs_tokens(dataset: Dataset, network: Any) -> bool:
    """Whether elements are rows of text, and the model takes tokens."""
    takes_tokens = "input_ids" in read_signature(network).names
    first = next(iter(dataset), None)
    is_rows = isinstance(first, Mapping) and not dataset.batched and "input_ids" not in first
    return takes_tokens and is_rows and any(isinstance(v, str) or _is_messages(v) for v in first.values())  # type: ignore[union-attr]


class Placed(View):
    """The same rows, each with its place, also those of a list."""

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[Sample]:
        return (self._placed(row, index) for index, row in enumerate(self.inner))

    def get(self, index: int) -> Sample:
        return self._placed(self.inner.get(index), index)

    def _placed(self, row: Mapping[str, Any], index: int) -> Sample:
        return row if isinstance(row, Sample) else Sample(row, place=Place("rows", index=index))


class Tokens:
    """Turns a row into `input_ids` and what else the model takes, as a batch of one.

    Args:
        folder: the model's, with its tokenizer.
        network: the model, or what says which inputs it has.
        first: a row, which says how rows are laid out.
        column: the column that holds the text, instead of the one that looks like it.
        max_length: the most tokens of a row; longer ones are cut.

    Attributes:
        tokenizer: the folder's.
    """

    def __init__(self, folder: Path, network: Any, first: Mapping[str, Any], *, column: str | None, max_length: int):
        self.tokenizer = open_tokenizer(folder)
        self._config = getattr(network, "config", None)
        self._names = read_signature(network).names
        positions = getattr(self._config, "max_position_embeddings", None) or max_length
        self._longest = min(max_length, positions, self.tokenizer.model_max_length)
        self._columns = [column] if column is not None else _text_columns(first)
        missing = [name for name in self._columns if name not in first]
        if missing or not self._columns:
            raise UsageError(
                f"the rows have no column {missing[0]!r}" if missing else "the rows do not say which column is text",
                where="--data",
                expected=nearest(missing[0] if missing else "text", list(first)),
                try_="--text-column NAME",
            )
        # By place and not by call: the first row is looked at several times before the work starts.
        self._cut: set[Place] = set()
        self._empty: set[Place] = set()

    def __call__(self, row: Sample) -> dict[str, Any]:
        import torch

        ids = self._ids(row)
        if len(ids) > self._longest:
            self._cut.add(row.place)
        if not ids:
            self._empty.add(row.place)
        ids = ids[: self._longest] or [self.tokenizer.eos_token_id or 0]
        tokens = torch.tensor([ids])
        found = {
            "input_ids": tokens,
            "attention_mask": torch.ones_like(tokens),
            "token_type_ids": torch.zeros_like(tokens),  # a text alone is the first of a pair
        }
        if getattr(self._config, "is_encoder_decoder", False):
            start = torch.tensor([[self._config.decoder_start_token_id or 0]])  # type: ignore[union-attr]
            found["decoder_input_ids"] = torch.cat([start, tokens[:, :-1]], dim=1)
        return {name: value for name, value in found.items() if name in self._names}

    def note(self, record: Record) -> None:
        """What was done to the rows, into the record."""
        columns = ", ".join(self._columns)
        record.note("tokenized", f"the text of a row is in {columns}, and was cut at {self._longest} tokens")
        if cut := len(self._cut):
            record.note("truncated", f"{cut} rows had more than {self._longest} tokens", rows=cut)
        if empty := len(self._empty):
            record.note("empty-text", f"{empty} rows had no tokens and became one end-of-text", rows=empty)

    def _ids(self, row: Mapping[str, Any]) -> list[int]:
        values = [row.get(name) for name in self._columns]
        if len(values) == 1 and _is_messages(values[0]):
            if self.tokenizer.chat_template:
                text = self.tokenizer.apply_chat_template(values[0], tokenize=False)
                return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
            values = [message.get("content") for message in values[0]]  # type: ignore[union-attr]
        text = "\n".join(value for value in values if isinstance(value, str))
        return list(self.tokenizer(text, verbose=False)["input_ids"])


def home_of(model: str) -> Path:
    """The folder of a model with its tokenizer, beside the file or one above: `onnx/model.onnx` is a common layout."""
    place = Path(model).expanduser()
    if not place.is_file():
        return place
    folders = place.absolute().parents[:2]
    return next((folder for folder in folders if has_tokenizer(folder)), folders[0])


def open_tokenizer(folder: Path) -> Any:
    """The tokenizer in a folder; no code of its own is run.

    Raises:
        DataError: there is none, or it cannot be read.
    """
    transformers = require("transformers", extra="hf", purpose="tokenizing the rows")
    if not has_tokenizer(folder):  # transformers would make one without a vocabulary
        raise _no_tokenizer(folder, "none of its files is here")
    try:
        return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever a damaged tokenizer makes the library raise
        raise _no_tokenizer(folder, (str(error) or type(error).__name__).splitlines()[0][:200]) from error


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder holds a tokenizer's vocabulary."""
    return any((folder / name).is_file() for name in _VOCABULARIES)


def _no_tokenizer(folder: Path, why: str) -> DataError:
    return DataError(
        f"the model's folder has no tokenizer that opens: {why}",
        code="tokenizer",
        where=folder,
        expected="tokenizer.json beside config.json",
        try_="tokenizer.save_pretrained(folder), rows with input_ids, or --transform file.py:function",
    )


def _text_columns(first: Mapping[str, Any]) -> list[str]:
    parts = ("messages", *TEXT_PARTS, "input")
    named = [column for part, column in recognise([first]).columns.items() if part in parts]
    texts = [name for name, value in first.items() if isinstance(value, str)]
    return named or (texts if len(texts) == 1 else [])  # of several any may be an identifier, or a number in a .csv


def _is_messages(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, Mapping) for each in value)
