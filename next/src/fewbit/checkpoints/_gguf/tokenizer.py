# SPDX-License-Identifier: Apache-2.0
"""A tokenizer inside a GGUF file: tokens, their types and scores, merges, special tokens, chat template.

llama.cpp knows how a tokenizer divides text into words by a name only. The name is found from the structure of
`tokenizer.json`; an unknown structure is refused, because a wrong name divides texts wrongly without a message.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from fewbit.errors import ModelError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Token types in llama.cpp's numbers."""
_LEAST = -1e6
"""The score of a token that no merge gives."""
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PRE_TOKENIZERS: dict[tuple[tuple[str, ...], bool], str] = {
    (("GPT-2",), False): "gpt-2",
    (("digits", "GPT-2"), False): "smollm",
    ((rf"{_WORDS}|\p{{N}}{{1,3}}|{_REST}", "bytes"), True): "llama-bpe",
    ((rf"{_WORDS}|\p{{N}}{{1,3}}|{_REST}", "bytes"), False): "dbrx",
    ((rf"{_WORDS}|\p{{N}}|{_REST}", "bytes"), False): "qwen2",
    ((_TEKKEN, "bytes"), True): "tekken",
}
"""The steps, and whether a word that is a token skips the merges."""


@dataclass
class Vocabulary:
    """What a file says of a tokenizer.

    Args:
        model: `gpt2` for byte-level BPE, `llama` for SentencePiece BPE.
        pre: llama.cpp's name of the pre-tokenizer.
        tokens: text by number.
        types: by number; others are normal.
        scores: by number; empty for `gpt2`.
        space_prefix: whether a space is put in front of a text.
        notes: what a user should know.
    """

    model: str
    pre: str = "default"
    tokens: dict[int, str] = field(default_factory=dict)
    types: dict[int, int] = field(default_factory=dict)
    scores: dict[int, float] = field(default_factory=dict)
    space_prefix: bool = False
    notes: list[str] = field(default_factory=list)


def describe_tokenizer(writer: Any, folder: Path, config: Any) -> list[str]:
    """Write the tokenizer of a folder; returns what a user should know of it.

    Args:
        writer: a `gguf.GGUFWriter`.
        folder: with `tokenizer.json`.
        config: of the model.

    Raises:
        ModelError: a tokenizer that llama.cpp does not have, or tokens without an embedding.
    """
    import gguf

    vocabulary = read_vocabulary(folder)
    if vocabulary is None:
        writer.add_tokenizer_model("none")
        return ["the folder has no tokenizer.json: the file has no tokenizer, and llama.cpp takes token ids only"]
    count = config.vocab_size
    beyond = [number for number in vocabulary.tokens if number >= count]
    if beyond:
        raise ModelError(
            f"{len(beyond)} tokens have no embedding, the first is {min(beyond)}", code="gguf-tokenizer",
            where=str(folder / "tokenizer.json"), expected=f"numbers below {count}",
            hint="the tokenizer that belongs to this model",
        )  # fmt: skip
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_tokenizer_pre(vocabulary.pre)
    writer.add_token_list([vocabulary.tokens.get(number, f"[PAD{number}]") for number in range(count)])
    types = dict.fromkeys(vocabulary.tokens, NORMAL) | vocabulary.types
    writer.add_token_types([types.get(number, UNUSED) for number in range(count)])
    if vocabulary.scores:
        writer.add_token_scores([vocabulary.scores.get(number, _LEAST) for number in range(count)])
    writer.add_add_space_prefix(vocabulary.space_prefix)
    special = gguf.SpecialVocab(folder, load_merges=vocabulary.model == "gpt2", n_vocab=count)
    for kind in ("bos", "eos"):
        special.add_special_token.setdefault(kind, False)  # llama.cpp's own guess depends on the kind of tokenizer
        number = getattr(config, f"{kind}_token_id", None)
        number = number[0] if isinstance(number, list) and number else number
        if isinstance(number, int) and number < count:
            special.special_token_ids.setdefault(kind, number)
        if kind not in special.special_token_ids:
            special.add_special_token[kind] = False
    special.add_to_gguf(writer, quiet=True)
    return vocabulary.notes


def read_vocabulary(folder: Path) -> Vocabulary | None:
    """The vocabulary of `tokenizer.json`; `None` if there is none.

    Raises:
        ModelError: a kind of tokenizer that llama.cpp does not have, or a pre-tokenizer that is not known.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        if (folder / "tokenizer.model").is_file():
            raise _unknown(
                file,
                "tokenizer.model without tokenizer.json",
                "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)",
            )
        return None
    try:
        content = orjson.loads(file.read_bytes())
        model = content["model"]
    except (ValueError, TypeError, KeyError) as error:
        raise _unknown(file, "a file that is no tokenizer", "") from error
    steps = [str(step.get("type")) for step in _steps(content.get("pre_tokenizer"))]
    if model.get("type") == "BPE" and "ByteLevel" in steps:
        vocabulary = Vocabulary("gpt2", _pre_tokenizer(content, file), _numbered(model["vocab"]))
        if content.get("normalizer") is not None:
            vocabulary.notes.append(f"llama.cpp has no normalizer {content['normalizer'].get('type')}: it is left out")
    elif model.get("type") == "BPE" and model.get("byte_fallback"):
        vocabulary = _sentencepiece(content)
    else:
        raise _unknown(file, f"a {model.get('type')} tokenizer after {', '.join(steps) or 'nothing'}", "")
    for token in content.get("added_tokens") or ():
        vocabulary.tokens[token["id"]] = token["content"]
        if vocabulary.types.get(token["id"]) != UNKNOWN:
            vocabulary.types[token["id"]] = CONTROL if token["special"] else USER_DEFINED
    return vocabulary


def _sentencepiece(content: dict[str, Any]) -> Vocabulary:
    """Merges become scores: the first has the highest."""
    model = content["model"]
    tokens = _numbered(model["vocab"])
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(model["merges"]):
        ranks.setdefault("".join(merge.split(" ") if isinstance(merge, str) else merge), rank)
    scores = {number: -float(ranks[text]) if text in ranks else _LEAST for number, text in tokens.items()}
    types = {number: BYTE for number, text in tokens.items() if len(text) == 6 and text.startswith("<0x")}
    types |= {number: UNKNOWN for number, text in tokens.items() if text == model.get("unk_token")}
    return Vocabulary("llama", "default", tokens, types, scores, _has_prefix(content))


def _has_prefix(content: dict[str, Any]) -> bool:
    """Whether a space is put in front: by a normalizer, or by the pre-tokenizer."""
    if any(step["type"] == "Prepend" for step in _steps(content.get("normalizer"))):
        return True
    metaspace = [step for step in _steps(content.get("pre_tokenizer")) if step["type"] == "Metaspace"]
    return any(step.get("prepend_scheme", "always") != "never" for step in metaspace)


def _pre_tokenizer(content: dict[str, Any], file: Path) -> str:
    steps = tuple(_step_name(step) for step in _steps(content.get("pre_tokenizer")))
    name = _PRE_TOKENIZERS.get((steps, bool(content["model"].get("ignore_merges"))))
    if name is None:
        raise _unknown(file, f"a pre-tokenizer that divides text by {', then '.join(steps)}", "")
    return name


def _steps(part: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, nested sequences flattened."""
    if part is None:
        return []
    inner = part.get("pretokenizers") or part.get("normalizers")
    return [step for nested in inner for step in _steps(nested)] if part.get("type") == "Sequence" and inner else [part]


def _step_name(step: dict[str, Any]) -> str:
    kind = str(step.get("type"))
    if kind == "Split" and not step.get("invert") and step.get("behavior") == "Isolated":
        return str(step["pattern"].get("Regex"))
    if kind == "Digits" and step.get("individual_digits"):
        return "digits"
    if kind == "ByteLevel" and not step.get("add_prefix_space"):
        return "GPT-2" if step.get("use_regex", True) else "bytes"
    return str({name: value for name, value in step.items() if name != "trim_offsets"})


def _numbered(vocabulary: dict[str, int]) -> dict[int, str]:
    return {number: text for text, number in vocabulary.items()}


def _unknown(file: Path, what: str, hint: str) -> ModelError:
    return ModelError(
        f"llama.cpp has no such tokenizer: {what}", code="gguf-tokenizer", where=str(file),
        expected="byte-level BPE of " + ", ".join(sorted(set(_PRE_TOKENIZERS.values()))) + ", or SentencePiece BPE",
        hint=hint or "{format=compressed-tensors}, or remove tokenizer.json for a file without a tokenizer",
    )  # fmt: skip
