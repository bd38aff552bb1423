# SPDX-License-Identifier: Apache-2.0
"""What of a sample is text, and which of its characters are an answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fewbit.data.text.wording import text_of
from fewbit.errors import DataError

Span = tuple[int, int]

_CALCULATED = re.compile(r"<<[^<>=]*=([^<>]*>>)")
"""What a calculator writes in `<<48/2=24>>`: everything after the sign."""


@dataclass(frozen=True)
class Spans:
    """A text and what is in it.

    Args:
        text: all of it.
        answers: where answers stand in it, in characters; all of it, if none.
        calculated: where a calculator wrote inside an answer.
        framed: whether the tokenizer's own start goes before it; a template brings it itself.
        ended: whether the text is to end with the tokenizer's end.
    """

    text: str
    answers: tuple[Span, ...] | None = None
    calculated: tuple[Span, ...] = ()
    framed: bool = True
    ended: bool = True


def of_answer(prompt: str, answer: str) -> Spans:
    """A prompt and its answer.

    >>> of_answer("2+2? ", "<<2+2=4>>4").calculated
    ((11, 14),)
    """
    text = prompt + answer
    found = _CALCULATED.finditer(text, len(prompt)) if "<<" in answer else ()
    return Spans(text, ((len(prompt), len(text)),), tuple(match.span(1) for match in found))


def of_chat(messages: list[Mapping[str, Any]], tokenizer: Any, template: str | None) -> Spans:
    """A chat by the tokenizer's template, or by a plain one of ours; its answers are the assistant's turns.

    Raises:
        DataError: the template refuses the chat, or an answer cannot be found in what it makes.
    """
    turns = [{**message, "content": text_of(message["content"])} for message in messages]
    if template is None and not getattr(tokenizer, "chat_template", None):
        return _plain(turns)
    render = _Template(tokenizer, template)
    text = render(turns)
    answers: list[Span] = []
    end = getattr(tokenizer, "eos_token", None) or ""
    for number, turn in enumerate(turns):
        if turn["role"] == "assistant":
            start = answers[-1][1] if answers else 0
            answers.append(_by_prefix(render, turns, number, text) or _by_content(text, turn, start, end))
    return Spans(text, tuple(answers), framed=False, ended=False)


class _Template:
    def __init__(self, tokenizer: Any, template: str | None):
        self._tokenizer = tokenizer
        self._how = {} if template is None else {"chat_template": template}

    def __call__(self, turns: list[dict[str, Any]], **how: Any) -> str:
        try:
            return str(self._tokenizer.apply_chat_template(turns, tokenize=False, **self._how, **how))
        except Exception as error:  # templates raise what they like: a role they do not know, turns out of order
            reason = (str(error) or type(error).__name__).splitlines()[0][:120]
            raise DataError(f"the chat template refuses it: {reason}", code="bad-row") from error


def _by_prefix(render: _Template, turns: list[dict[str, Any]], number: int, text: str) -> Span | None:
    """Where a turn stands: between what the template makes of the turns before it and with it."""
    try:
        before = render(turns[:number], add_generation_prompt=True) if number else ""
        through = render(turns[: number + 1])
    except DataError:
        return None
    if not text.startswith(before) or not text.startswith(through) or len(before) >= len(through):
        return None
    at = text.find(turns[number]["content"].strip(), len(before), len(through))
    if at < 0:
        return None
    prompted = before != (render(turns[:number]) if number else "")
    # A line break after the end of the turn is the template's, and nothing a model has to write.
    return len(before) if prompted else at, len(text[: len(through)].rstrip())


def _by_content(text: str, turn: Mapping[str, Any], start: int, end: str) -> Span:
    content = turn["content"].strip()
    at = text.find(content, start) if content else -1
    if at < 0:
        raise DataError(
            f"the answer {content[:40]!r} is not in what the chat template makes of the chat", code="bad-row"
        )
    through = at + len(content)
    return at, through + (len(end) if text.startswith(end, through) else 0)


def _plain(turns: list[dict[str, Any]]) -> Spans:
    text, answers = "", []
    for turn in turns:
        text += f"{turn['role'].capitalize()}: "
        if turn["role"] == "assistant":
            answers.append((len(text), len(text) + len(turn["content"])))
        text += turn["content"] + "\n"
    return Spans(text[:-1], tuple(answers), ended=bool(turns) and turns[-1]["role"] == "assistant")
