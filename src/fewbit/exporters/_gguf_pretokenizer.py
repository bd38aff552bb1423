# SPDX-License-Identifier: Apache-2.0
"""The name llama.cpp has for a pre-tokenizer, found by what a tokenizer.json says it does."""

from __future__ import annotations

from typing import Any

from fewbit.errors import UsageError

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UP_TO_THREE_DIGITS = rf"{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_ONE_DIGIT = rf"{_WORDS}|\p{{N}}|{_REST}"
_GPT2 = "ByteLevel with its own pattern"
_BYTES = "ByteLevel"

# What is done, one after the other, and whether a word that is a token as it is skips the merges.
_NAMES: dict[tuple[tuple[str, ...], bool], str] = {
    ((_GPT2,), False): "gpt-2",
    (("Digits one by one", _GPT2), False): "smollm",
    ((_UP_TO_THREE_DIGITS, _BYTES), True): "llama-bpe",
    ((_UP_TO_THREE_DIGITS, _BYTES), False): "dbrx",
    ((_ONE_DIGIT, _BYTES), False): "qwen2",
}


def pre_tokenizer_name(content: dict[str, Any], where: object) -> str:
    """The name for a whole tokenizer.json.

    Raises:
        UsageError: a structure that is not known; a wrong name would cut texts wrongly without a word.

    >>> pre_tokenizer_name({"pre_tokenizer": {"type": "ByteLevel"}, "model": {}}, "here")
    'gpt-2'
    """
    done = tuple(_said(step) for step in steps(content.get("pre_tokenizer")))
    found = _NAMES.get((done, bool(content["model"].get("ignore_merges"))))
    if found is None:
        raise UsageError(
            f"the pre-tokenizer is not one of those that are recognised: {', then '.join(done)}",
            where=where,
            expected=", ".join(_NAMES.values()),
            try_="pre_tokenizer='…' with the name llama.cpp has for it ('default' cuts roughly as GPT-2 does), "
            "or tokenizer=False for a file without a tokenizer",
        )
    return found


def steps(part: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, sequences laid flat."""
    if part is None:
        return []
    inner = part.get("pretokenizers") or part.get("normalizers")
    return [step for each in inner for step in steps(each)] if part.get("type") == "Sequence" and inner else [part]


def _said(step: dict[str, Any]) -> str:
    kind = str(step.get("type"))
    if kind == "Split" and not step.get("invert") and step.get("behavior") == "Isolated":
        return str(step["pattern"].get("Regex"))
    if kind == "Digits" and step.get("individual_digits"):
        return "Digits one by one"
    if kind == "ByteLevel" and not step.get("add_prefix_space"):
        return _GPT2 if step.get("use_regex", True) else _BYTES
    return str({name: value for name, value in step.items() if name != "trim_offsets"})
