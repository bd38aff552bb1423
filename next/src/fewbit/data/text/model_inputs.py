# SPDX-License-Identifier: Apache-2.0
"""Texts as the inputs of a language model, for calibration and evaluation.

Decoders read running text: texts are drawn over the entire source, joined and cut to one length. Encoders read one text
each. What else the model asks for (masks, positions, an empty cache, decoder tokens) follows from its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from fewbit.data.dataset import Dataset
from fewbit.data.text.assistant_mask import MASK_UNAVAILABLE, TEMPLATE_ERROR
from fewbit.data.text.content import NO_TEXT
from fewbit.data.text.encoder import TextEncoder
from fewbit.data.text.pack import concatenate
from fewbit.data.text.roles import SPECIAL, truncate
from fewbit.data.text.tokenizer import check_room, load_tokenizer, max_tokens, pad_id
from fewbit.data.types import Issue, IssueType, Location, Sample, SampleError, Severity, spread
from fewbit.errors import DataError, UsageError, nearest, plural
from fewbit.model_info import ModelInfo, TensorInfo

MAX_LENGTH = 512
PACKS = ("auto", "concatenate", "pad")
_BLOCK = 256
"""Rows that are tokenized together; fewer are read in vain when `samples` is small."""
_POSITIONS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
_CAUSAL = ("CausalLM", "LMHeadModel", "ConditionalGeneration")

TEMPLATE_FALLBACK = IssueType(
    "chat-template-fallback", Severity.NOTE, "chat that the chat template refuses, read as plain text",
    "correct the roles and their order",
)  # fmt: skip
ISSUES = (NO_TEXT, TEMPLATE_ERROR, TEMPLATE_FALLBACK, MASK_UNAVAILABLE)


def text_inputs(dataset: Dataset, info: ModelInfo, options: Mapping[str, Any] | None = None) -> Dataset:
    """A dataset of texts as a dataset of model inputs: arrays without a batch axis, by the model's names.

    Args:
        dataset: texts, chats, prompts with completions, or token ids.
        info: says which inputs there are and where the tokenizer is.
        options: `max_length` (512), `pack` (`auto`, `concatenate`, `pad`), `samples` (all), `seed` (0), `text_column`,
            `tokenizer`, `chat_template`.

    Returns:
        The inputs as a stream: rows are tokenized while it is read. `report.facts["text"]` says how many rows and
        tokens that were so far. Samples keep `label` if the model has no input of that name.

    Raises:
        DataError: no tokenizer, or no text.
    """
    options = dict(options or {})
    tokenizer = load_tokenizer(options.get("tokenizer") or info.tokenizer or info.source)
    model = language_model(info)
    inputs = _InputBuilder(info, tokenizer, model)
    limits = (inputs.length, model.positions, max_tokens(tokenizer))
    max_length = min([int(options.get("max_length") or MAX_LENGTH), *(limit for limit in limits if limit)])
    check_room(max_length, tokenizer)
    packed = _packs(options.get("pack") or "auto", model, info, tokenizer)
    encoder = TextEncoder(
        tokenizer, training=False, causal=packed, chat_template=options.get("chat_template"),
        text_column=options.get("text_column"),
    )  # fmt: skip
    order = spread(dataset.strata(), len(dataset), len(dataset), int(options.get("seed") or 0))
    facts: dict[str, Any] = {"pack": "concatenate" if packed else "pad", "max_length": max_length, "sequences": 0}
    dataset.report.facts["text"] = facts
    stream = InputStream(dataset.select(order), encoder, inputs, facts, most=options.get("samples"))
    if not stream.has(0):
        raise DataError(
            f"none of {plural(facts.get('rows', 0), 'row')} has any text", code="no-text", where=dataset.report.source,
            expected="rows with text", hint="{text_column=NAME} names the column that holds it",
        )  # fmt: skip
    return Dataset.of(stream, dataset.report)


@dataclass(frozen=True)
class LanguageModel:
    """What the configuration of a language model says.

    Args:
        positions: the longest sequence it has positions for.
        causal: whether it is a decoder, which reads running text; `None` if nothing says so.
        decoder_start: the first token of the decoder behind an encoder.
    """

    positions: int | None = None
    causal: bool | None = None
    decoder_start: int | None = None


def language_model(info: ModelInfo) -> LanguageModel:
    """The facts in `config.json` next to the model or its tokenizer; otherwise what its class is called."""
    config = _config(info)
    inner = config.get("text_config")
    levels = (config, inner if isinstance(inner, Mapping) else {})
    limits = [level.get(name) for level in levels for name in _POSITIONS]
    positions = next((limit for limit in limits if isinstance(limit, int) and limit > 0), None)
    if config.get("is_encoder_decoder"):
        start = config.get("decoder_start_token_id")
        return LanguageModel(positions, False, start if isinstance(start, int) else 0)
    classes = [str(name) for name in config.get("architectures") or ([info.kind] if "For" in info.kind else [])]
    return LanguageModel(positions, any(name.endswith(_CAUSAL) for name in classes) if classes else None)


class InputStream:
    """Model inputs in the order of the rows, tokenized block by block: memory does not grow with the source.

    Reading backwards starts again from the first row; what is found there is reported and counted only once.

    Args:
        rows: texts, in the order to read them in.
        encoder: makes tokens of them.
        build: makes model inputs of tokens.
        facts: `pack` and `max_length`; takes the counts.
        most: inputs to stop after; all by default.
    """

    def __init__(
        self,
        rows: Dataset,
        encoder: TextEncoder,
        build: Callable[[Sample], Sample],
        facts: dict[str, Any],
        *,
        most: int | None = None,
    ):
        self._rows, self._encoder, self._build, self._counts, self._most = rows, encoder, build, facts, most
        self.facts = {name: value for name, value in rows.facts.items() if name in ("classes", "task")}
        self._length: int | None = None
        self._pass: Iterator[tuple[Sample, Location]] | None = None
        self._number = -1  # of the sample read last
        self._current: tuple[Sample, Location] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pass": None, "_number": -1, "_current": None}

    def __len__(self) -> int:
        while self._length is None:
            self.has(self._number + 1)
        return self._length

    def has(self, index: int) -> bool:
        """Whether there is a sample of this number; reads up to it."""
        if self._length is not None and index >= self._length:
            return False
        if self._pass is None or index < self._number:
            self._pass, self._number, self._current = islice(self._sequences(), self._most), -1, None
        while self._number < index:
            self._current = next(self._pass, None)
            if self._current is None:
                self._pass, self._length = None, self._number + 1
                return False
            self._number += 1
        return True

    def __getitem__(self, index: int) -> Sample:
        return dict(self._at(index)[0])

    def location(self, index: int) -> Location:
        """Where its first token comes from."""
        return self._at(index)[1]

    def strata(self) -> None:
        """Nothing is known without reading."""

    def _at(self, index: int) -> tuple[Sample, Location]:
        if index < 0 or not self.has(index) or self._current is None:
            raise IndexError(index)
        return self._current

    def _sequences(self) -> Iterator[tuple[Sample, Location]]:
        """One pass."""
        packed, max_length = self._counts["pack"] == "concatenate", self._counts["max_length"]
        encoded = _encoded(self._rows, self._encoder, None if packed else max_length, self._counts)
        for number, (tokens, location) in enumerate(
            _running(encoded, self._encoder, max_length) if packed else encoded
        ):
            if number >= self._counts["sequences"]:
                _count(self._counts, "sequences")
                _count(self._counts, "tokens", len(tokens["input_ids"]))
            yield self._build(tokens), location


class _InputBuilder:
    """Builds the inputs of one model from tokens."""

    def __init__(self, info: ModelInfo, tokenizer: Any, model: LanguageModel):
        tensors = info.inputs or (TensorInfo("input_ids", "int64"), TensorInfo("attention_mask", "int64"))
        self._tensors = {tensor.name: tensor for tensor in tensors}
        self._model, self._pad = model, pad_id(tokenizer)
        self._pads_left = getattr(tokenizer, "padding_side", "right") == "left"
        ids = self._tensors.get("input_ids")
        length = ids.shape[1] if ids is not None and ids.shape is not None and len(ids.shape) > 1 else None
        self.length = length if isinstance(length, int) and length > 0 else None

    def __call__(self, tokens: Sample) -> Sample:
        count = len(tokens["input_ids"])
        padding = max((self.length or 0) - count, 0)
        ids = self._padded(tokens["input_ids"], padding, self._pad)
        mask = self._padded(np.ones(count), padding, 0)
        types = self._padded(tokens.get("token_type_ids", np.zeros(count)), padding, 0)
        arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        if self._model.decoder_start is not None:
            arrays["decoder_input_ids"] = np.concatenate([[self._model.decoder_start], ids[:-1]])
            arrays["decoder_attention_mask"] = mask
        positions = self._tensors.get("position_ids")
        if positions is not None and positions.required:  # a module counts them itself
            arrays["position_ids"] = np.maximum(np.cumsum(mask) - 1, 0)
        sample: Sample = {}
        for name, tensor in self._tensors.items():
            if name in arrays:
                sample[name] = arrays[name].astype(tensor.dtype or np.int64)
            elif (cache := _empty_cache(tensor)) is not None:
                sample[name] = cache
        label = tokens.get("labels")
        return sample | ({"label": label} if isinstance(label, int) and "label" not in self._tensors else {})

    def _padded(self, values: Any, padding: int, value: int) -> np.ndarray:
        width = (padding, 0) if self._pads_left else (0, padding)
        return np.pad(np.asarray(values, np.int64), width, constant_values=value)


def _encoded(
    dataset: Dataset, encoder: TextEncoder, max_length: int | None, facts: dict[str, Any]
) -> Iterator[tuple[Sample, Location]]:
    """The tokens of every row in order; rows without text are reported and left out, each once in several passes."""
    report = dataset.report
    for number, (index, result) in enumerate(encoder.encode_all(dataset, _BLOCK)):
        new = number >= facts.get("rows", 0)
        _count(facts, "rows", new)
        location = dataset.location(index)
        if not isinstance(result, Issue) and max_length is not None and len(result["input_ids"]) > max_length:
            _count(facts, "truncated", new)
            try:
                result = truncate(result, max_length)
            except SampleError as error:
                result = error.issue
        if isinstance(result, Issue):
            _count(facts, "empty", new)
            action = report.add(result.type, result.message, location) if new else report.action(result.type)
            if action == "raise":
                raise SampleError(result)
            continue
        if "fallback" in result and new:
            _count(facts, "template_refused")
            report.add(TEMPLATE_FALLBACK, result["fallback"], location)
        yield result, location


def _count(facts: dict[str, Any], name: str, count: int = 1) -> None:
    facts[name] = facts.get(name, 0) + count


def _running(
    encoded: Iterator[tuple[Sample, Location]], encoder: TextEncoder, max_length: int
) -> Iterator[tuple[Sample, Location]]:
    """Texts joined by end-of-text and cut, each sequence with the tokenizer's start."""
    eos = getattr(encoder.tokenizer, "eos_token_id", None)

    def texts() -> Iterator[tuple[Sequence[int], Location]]:
        for tokens, location in encoded:
            ids = tokens["input_ids"][tokens["roles"] != SPECIAL].tolist()
            # A template may end the text itself, with a line break behind the end.
            yield (ids if eos is None or eos in ids[-2:] else [*ids, int(eos)]), location

    for ids, location in concatenate(texts(), max_length, encoder.special[0]):
        yield {"input_ids": np.array(ids, np.int64)}, location


def _packs(pack: str, model: LanguageModel, info: ModelInfo, tokenizer: Any) -> bool:
    """Whether texts are joined and cut."""
    if pack not in PACKS:
        raise UsageError(
            f"there is no packing {pack!r}", code="pack", param="pack",
            expected=", ".join(nearest(pack, PACKS) or PACKS), hint="{pack=concatenate} or {pack=pad}",
        )  # fmt: skip
    if pack != "auto":
        return pack == "concatenate"
    if model.causal is not None:
        return model.causal
    # A model that does not say: encoders have a mask token, or need to know the texts of a pair.
    typed = any(tensor.name == "token_type_ids" and tensor.required for tensor in info.inputs)
    return getattr(tokenizer, "mask_token", None) is None and not typed


def _config(info: ModelInfo) -> Mapping[str, Any]:
    """`config.json` of the model."""
    config = info.facts.get("config")
    if isinstance(config, Mapping):
        return config
    source = Path(info.source)
    folders = [Path(info.tokenizer)] if info.tokenizer else []
    folders += [source] if source.is_dir() else [source.parent] if source.is_file() else []
    for folder in folders:
        try:
            config = orjson.loads((folder / "config.json").read_bytes())
        except (OSError, orjson.JSONDecodeError):
            continue
        if isinstance(config, Mapping):
            return config
    return {}


def _empty_cache(tensor: TensorInfo) -> np.ndarray | None:
    """Keys or values of length 0 for an exported decoder that asks for its past; heads and width as it says."""
    if not tensor.name.startswith("past") or tensor.shape is None or len(tensor.shape) != 4:
        return None
    heads, width = tensor.shape[1], tensor.shape[3]
    if not isinstance(heads, int) or not isinstance(width, int):
        return None
    return np.zeros((heads, 0, width), np.float16 if tensor.dtype == "float16" else np.float32)
