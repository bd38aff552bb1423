# SPDX-License-Identifier: Apache-2.0
"""The tokens of a tokenizer, with the types and scores llama.cpp wants to know, and how text is cut before.

gpt2    byte-level BPE; llama.cpp knows a pre-tokenizer by name only, so it is recognised by its structure
llama   SentencePiece BPE with bytes to fall back on; merges become scores, the first merge the highest
t5      SentencePiece unigram
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from fewbit.errors import UsageError
from fewbit.exporters._gguf_pretokenizer import pre_tokenizer_name, steps
from fewbit.exporters._gguf_sentencepiece import read_model


class TokenType(IntEnum):
    """What a token is, in llama.cpp's numbers; SentencePiece has the same."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


LEAST = -1e6  # the score of what no merge gives


@dataclass
class Vocabulary:
    """What a file says of a tokenizer.

    Args:
        model: `gpt2`, `llama` or `t5`.
        pre: the pre-tokenizer's name.
        tokens: text by number.
        types: `TokenType` by number; those not named are normal.
        scores: by number; empty for `gpt2`.
        space_prefix: whether a text gets a space in front.
        charsmap: the unigram model's normalization, compiled.
        notes: what a user should know.
    """

    model: str
    pre: str = "default"
    tokens: dict[int, str] = field(default_factory=dict)
    types: dict[int, int] = field(default_factory=dict)
    scores: dict[int, float] = field(default_factory=dict)
    space_prefix: bool = False
    charsmap: bytes = b""
    notes: list[str] = field(default_factory=list)


def read_vocabulary(folder: Path, pre_tokenizer: str | None) -> Vocabulary:
    """The vocabulary of a folder with `tokenizer.json` or `tokenizer.model`.

    Raises:
        UsageError: a kind of tokenizer that llama.cpp does not have, or a pre-tokenizer that is not recognised.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        pieces = read_model(folder / "tokenizer.model")
        texts, scores, types = ({n: each[k] for n, each in enumerate(pieces.pieces)} for k in range(3))
        return Vocabulary(
            "t5" if pieces.unigram else "llama", "default", texts, types, scores, pieces.dummy_prefix, pieces.charsmap
        )
    content = json.loads(path.read_text("utf-8"))
    model, cut = content["model"], steps(content.get("pre_tokenizer"))
    if model.get("type") == "Unigram":
        found = _unigram(content)
    elif model.get("type") == "BPE" and any(step["type"] == "ByteLevel" for step in cut):
        found = Vocabulary("gpt2", pre_tokenizer or pre_tokenizer_name(content, path), _numbered(model["vocab"]))
        if content.get("normalizer") is not None:
            found.notes.append(f"llama.cpp leaves out the normalizer {content['normalizer']['type']}")
    elif model.get("type") == "BPE" and model.get("byte_fallback"):
        found = _sentencepiece(content)
    else:
        raise UsageError(
            f"llama.cpp has no tokenizer like this one: {model.get('type')} after {[step['type'] for step in cut]}",
            where=path,
            expected="byte-level BPE, SentencePiece BPE with bytes to fall back on, or unigram",
            try_="tokenizer=False for a file without a tokenizer",
        )
    for added in content.get("added_tokens") or ():
        found.tokens[added["id"]] = added["content"]
        kind = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
        if found.types.get(added["id"]) != TokenType.UNKNOWN:
            found.types[added["id"]] = kind
    return found


def _sentencepiece(content: dict[str, Any]) -> Vocabulary:
    model = content["model"]
    tokens = _numbered(model["vocab"])
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(model["merges"]):
        ranks.setdefault("".join(merge.split(" ") if isinstance(merge, str) else merge), rank)
    scores = {number: -float(ranks[text]) if text in ranks else LEAST for number, text in tokens.items()}
    return Vocabulary("llama", "default", tokens, _types(tokens, model.get("unk_token")), scores, _prefixed(content))


def _unigram(content: dict[str, Any]) -> Vocabulary:
    model = content["model"]
    tokens = {number: text for number, (text, _) in enumerate(model["vocab"])}
    scores = {number: float(score) for number, (_, score) in enumerate(model["vocab"])}
    maps = [step["precompiled_charsmap"] for step in steps(content.get("normalizer")) if "precompiled_charsmap" in step]
    types = _types(tokens, tokens.get(model.get("unk_id")))
    charsmap = base64.b64decode(maps[0]) if maps and maps[0] else b""
    return Vocabulary("t5", "default", tokens, types, scores, _prefixed(content), charsmap)


def _types(tokens: dict[int, str], unknown: str | None) -> dict[int, int]:
    types: dict[int, int] = {number: TokenType.BYTE for number, text in tokens.items() if _is_byte(text)}
    return types | {number: TokenType.UNKNOWN for number, text in tokens.items() if text == unknown}


def _is_byte(text: str) -> bool:
    return len(text) == 6 and text.startswith("<0x") and text.endswith(">")


def _prefixed(content: dict[str, Any]) -> bool:
    """Whether a text gets a space in front: by a normalizer, or where it is cut into words."""
    if any(step["type"] == "Prepend" for step in steps(content.get("normalizer"))):
        return True
    cut = [step for step in steps(content.get("pre_tokenizer")) if step["type"] == "Metaspace"]
    return any(step.get("prepend_scheme", "always") != "never" for step in cut)


def _numbered(vocabulary: dict[str, int]) -> dict[int, str]:
    return {number: text for text, number in vocabulary.items()}
