# SPDX-License-Identifier: Apache-2.0
"""Samples of text as tokens, each with its role: prompt, answer, calculator or special. One path for every verb.

A sample is rendered to one text, the text is tokenized once with character offsets, and a token has the role of the
character it starts with. Nothing is decided by token ids, so the end of a text is learned even if padding is the same
token.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np

from fewbit.data.answers import answer_in_context
from fewbit.data.text.assistant_mask import ChatTemplate, Span
from fewbit.data.text.content import NO_TEXT, Content, content_of, separated
from fewbit.data.text.roles import ANSWER, CALCULATOR, IGNORED, PROMPT, SPECIAL, Ints, Roles
from fewbit.data.text.tokenizer import separator_tokens, special_tokens
from fewbit.data.types import NOWHERE, Issue, Location, Sample, SampleError

_CALCULATION = re.compile(r"<<[^<>=]*=([^<>]*>>)")
Tokens = tuple[list[int], Sequence[Span]]
"""Token ids, and from which character to which each of them goes."""


@dataclass(frozen=True)
class _Text:
    """A text to tokenize.

    Args:
        text: all of it.
        answers: what is learned of it; `None` for everything.
        templated: whether a template brings the special tokens.
        ends: whether an end-of-text token belongs behind it.
        fallback: why the chat template was not used.
    """

    text: str
    answers: Sequence[Span] | None = None
    templated: bool = False
    ends: bool = True
    fallback: str | None = None


class TextEncoder:
    """Tokenizes samples one way.

    Args:
        tokenizer: of transformers, or a `ByteTokenizer`.
        training: whether it must be known which tokens are learned; what cannot be learned is then an issue. For
            calibration everything is read, prompts and completions through the chat template, and what the template
            refuses as plain text.
        causal: whether the model writes text; otherwise texts get the tokenizer's start and end, and are only read.
        add_eos: whether a text that is learned ends with the end-of-text token.
        chat_template: instead of the tokenizer's.
        text_column: the field that holds the text.
        separator: between a prompt and a completion that would touch.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        training: bool = True,
        causal: bool = True,
        add_eos: bool = True,
        chat_template: str | None = None,
        text_column: str | None = None,
        separator: str = "\n",
    ):
        self.tokenizer, self.causal = tokenizer, causal
        self._training, self._add_eos, self._separator = training, add_eos, separator
        self._template, self._text_column = chat_template, text_column

    def encode(self, samples: Sequence[Any], locations: Sequence[Location] = ()) -> list[Sample | Issue]:
        """Several samples, tokenized together; an issue in place of a sample that cannot be used.

        Args:
            samples: dicts; or texts, or chats as lists of messages.
            locations: where they come from, for the issues.

        Returns:
            Samples with `input_ids`, `roles` and `labels` (the tokens themselves, a class, or one label per token) or
            `start_positions` and `end_positions`; `token_type_ids` for pairs; `fallback` if the chat template refused.

        >>> from fewbit.data.text.byte_tokenizer import ByteTokenizer
        >>> sample = TextEncoder(ByteTokenizer(), separator="").encode([{"prompt": "2+2=", "completion": "4"}])[0]
        >>> sample["input_ids"].tolist(), sample["roles"].tolist()
        ([50, 43, 50, 61, 52, 256], [0, 0, 0, 0, 1, 1])
        """
        samples = [sample if isinstance(sample, Mapping) else _bare(sample) for sample in samples]
        results: list[Any] = [self._caught(self._render, sample) for sample in samples]
        texts = {number: result for number, result in enumerate(results) if isinstance(result, _Text)}
        for number, tokens in zip(texts, self._tokenize(list(texts.values()))):
            results[number] = self._caught(self._assemble, samples[number], texts[number], tokens)
        locations = [*locations, *[NOWHERE] * (len(samples) - len(locations))]
        return [
            replace(result, location=location) if isinstance(result, Issue) else result
            for result, location in zip(results, locations)
        ]

    def encode_all(self, samples: Any, block: int = 512) -> Iterator[tuple[int, Sample | Issue]]:
        """Every sample of a view or dataset in order, or the issue in its place, also of samples that are damaged."""
        for start in range(0, len(samples), block):
            results: dict[int, Sample | Issue] = {}
            readable: dict[int, Any] = {}
            for index in range(start, min(start + block, len(samples))):
                try:
                    readable[index] = samples[index]
                except SampleError as error:
                    results[index] = error.issue
            locations = [samples.location(index) for index in readable]
            results |= zip(readable, self.encode(list(readable.values()), locations))
            for index in sorted(results):
                yield index, results[index]

    @staticmethod
    def _caught(function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except SampleError as error:
            return error.issue

    @cached_property
    def special(self) -> tuple[list[int], list[int]]:
        """Special tokens before and after a text."""
        return special_tokens(self.tokenizer)

    @cached_property
    def _pair_separator(self) -> list[int]:
        return separator_tokens(self.tokenizer)

    @cached_property
    def _pair_types(self) -> bool:
        """Whether the tokenizer tells the texts of a pair apart; RoBERTa's model has no type 1."""
        try:
            return 1 in (self.tokenizer("a", "a", return_token_type_ids=True).get("token_type_ids") or ())
        except TypeError:
            return False

    def _render(self, sample: Mapping[str, Any]) -> _Text | Sample:
        if "input_ids" in sample:
            return _tokenized_before(sample)
        if isinstance(sample.get("question"), str) and isinstance(sample.get("context"), str):
            return self._question(sample)
        words = sample.get("tokens", sample.get("words"))
        if isinstance(words, list | tuple) and "tags" in sample:
            return _Text(" ".join(map(str, words))) if words else _refuse("there are no words")
        content = content_of(sample, self._text_column)
        if content is None:
            return _refuse(f"no field is text; it has {', '.join(sample) or 'nothing'}")
        if not content.as_text().strip():
            return _refuse("its text is empty")
        if len(content.texts) == 2 and not self.causal:
            pair, _, _ = self._pair(content.texts[0], _Text(content.texts[1]))
            label = _class_label(sample)
            return pair if label is None else pair | {"labels": label}
        has_template = bool(self._template or getattr(self.tokenizer, "chat_template", None))
        if has_template and not self._training:
            content = content.as_chat()
        if content.messages is not None:
            return self._chat(content, has_template)
        if content.completion is None:
            return _Text("\n".join(content.texts))
        if self._training and not content.completion.strip():
            return _refuse("the answer is empty")
        prompt = separated(content.texts[0], content.completion, self._separator)
        text = prompt + content.completion
        return _Text(text, [(len(prompt), len(text))])

    def _chat(self, content: Content, has_template: bool) -> _Text:
        messages = content.messages or ()
        template = ChatTemplate(self.tokenizer, self._template, content.tools)
        if not has_template:
            chat = _role_names(messages)
        elif self._training:
            chat = _Text(*template.answer_spans(messages), templated=True, ends=False)
        else:
            try:
                return _Text(template.render(messages), templated=True, ends=False)
            except SampleError as error:
                return _Text(content.as_text(), fallback=error.issue.message)
        return chat if chat.answers or not self._training else _refuse("the assistant says nothing")

    def _tokenize(self, texts: list[_Text]) -> list[Tokens]:
        if not texts:
            return []
        if not getattr(self.tokenizer, "is_fast", False):
            return [self._tokenize_pieces(text) for text in texts]
        encoding = self.tokenizer(
            [text.text for text in texts], add_special_tokens=False, return_offsets_mapping=True, verbose=False,
            return_attention_mask=False, return_token_type_ids=False,
        )  # fmt: skip
        return list(zip(encoding["input_ids"], encoding["offset_mapping"]))

    def _tokenize_pieces(self, text: _Text) -> Tokens:
        """For tokenizers without offsets: cut the text where answers start and end, and tokenize the pieces."""
        borders = sorted({0, len(text.text), *(border for span in text.answers or () for border in span)})
        ids: list[int] = []
        offsets: list[Span] = []
        for start, end in pairwise(borders):
            piece = self.tokenizer(text.text[start:end], add_special_tokens=False, verbose=False)["input_ids"]
            ids += piece
            offsets += [(start, end)] * len(piece)
        return ids, offsets

    def _assemble(self, sample: Mapping[str, Any], text: _Text, tokens: Tokens) -> Sample:
        ids, offsets = tokens
        if not ids:
            return _refuse("its text has no token")
        before, after = self.special
        label = _class_label(sample)
        if "tags" in sample:
            tags = np.pad(_tags(sample, offsets), (len(before), len(after)), constant_values=IGNORED)
            return _join((before, SPECIAL), (ids, ANSWER), (after, SPECIAL)) | {"labels": tags}
        if label is not None or not self.causal:
            parts = [(ids, PROMPT)] if text.templated else [(before, SPECIAL), (ids, PROMPT), (after, SPECIAL)]
            result = _join(*parts) | ({} if label is None else {"labels": label})
        else:
            result = self._learned(text, ids, _roles(text, offsets))
        return result if text.fallback is None else result | {"fallback": text.fallback}

    def _learned(self, text: _Text, ids: list[int], roles: Roles) -> Sample:
        """Start of text before it and end of text after it; a template brings its own, which must not come twice."""
        before, after = self.special
        if text.templated:
            if before and ids[: len(before)] == before:
                roles[: len(before)] = SPECIAL
            before = []
        eos = getattr(self.tokenizer, "eos_token_id", None)
        after = after or ([] if eos is None else [int(eos)])
        return _join((before, SPECIAL), (ids, roles), (after if self._add_eos and text.ends else [], ANSWER))

    def _pair(self, first: str, second: _Text) -> tuple[Sample, Sequence[Span], int]:
        """Two texts with the tokenizer's separator between them; offsets and start of the second."""
        (first_ids, _), (second_ids, offsets) = self._tokenize([_Text(first), second])
        (before, after), separator = self.special, self._pair_separator
        sample = _join(
            (before, SPECIAL), (first_ids, PROMPT), (separator, SPECIAL), (second_ids, PROMPT), (after, SPECIAL)
        )
        start = len(before) + len(first_ids) + len(separator)
        types = np.zeros(len(sample["input_ids"]), np.int64)
        types[start:] = self._pair_types
        return sample | {"token_type_ids": types}, offsets, start

    def _question(self, sample: Mapping[str, Any]) -> Sample:
        """A question and its context, with the first and last token of the answer."""
        answer = answer_in_context(sample)
        if isinstance(answer, str) and self._training:
            return _refuse(answer)
        spans = [] if isinstance(answer, str) else [answer]
        pair, offsets, start = self._pair(sample["question"], _Text(sample["context"], spans))
        pair["roles"][:start] = SPECIAL  # the question is never cut off
        if not spans:
            return pair
        bounds = np.array(offsets, np.int64).reshape(-1, 2)
        inside = start + np.flatnonzero((bounds[:, 1] > spans[0][0]) & (bounds[:, 0] < spans[0][1]))
        if not len(inside):
            return _refuse("no token of the context belongs to the answer")
        pair["roles"][inside] = ANSWER
        del pair["labels"]
        return pair | {"start_positions": int(inside[0]), "end_positions": int(inside[-1])}


def _bare(sample: Any) -> Sample:
    return {"text": sample} if isinstance(sample, str) else {"messages": sample}


def _join(*parts: tuple[Sequence[int], Any]) -> Sample:
    """Tokens with their roles, one part after the other."""
    ids = np.concatenate([np.asarray(tokens, np.int64) for tokens, _ in parts])
    roles = np.concatenate([np.broadcast_to(np.asarray(role, np.uint8), len(tokens)) for tokens, role in parts])
    return {"input_ids": ids, "roles": roles, "labels": ids.copy()}


def _roles(text: _Text, offsets: Sequence[Span]) -> Roles:
    """Answer or prompt by the first character of each token; calculator if all of it is inside a result."""
    roles = np.full(len(offsets), ANSWER, np.uint8)
    bounds = np.array(offsets, np.int64).reshape(-1, 2)
    if text.answers is not None:
        starts = np.array([_first_character(text.text, start, end) for start, end in offsets])
        answered = [(starts >= start) & (starts < end) for start, end in text.answers]
        roles[~np.any(answered, axis=0)] = PROMPT
    for match in _CALCULATION.finditer(text.text):
        start, end = match.span(1)
        roles[(bounds[:, 0] >= start) & (bounds[:, 1] <= end) & (roles == ANSWER)] = CALCULATOR
    return roles


def _first_character(text: str, start: int, end: int) -> int:
    """The first character of a token that is not white space: byte-level tokens begin with the space before."""
    if start == end:  # some tokenizers give white space an empty offset, after the character
        return start - 1
    return start + next((shift for shift, letter in enumerate(text[start:end]) if not letter.isspace()), 0)


def _role_names(messages: Sequence[Mapping[str, Any]]) -> _Text:
    """A chat for tokenizers without a template: `User: …`, `Assistant: …`, one turn per line."""
    turns = [f"{str(message['role']).capitalize()}: {message['content']}" for message in messages]
    ends = np.cumsum([len(turn) + 1 for turn in turns]) - 1
    assistant = [message["role"] == "assistant" for message in messages]
    answers = [
        (int(end) - len(message["content"]), int(end))
        for message, end, learned in zip(messages, ends, assistant)
        if learned
    ]
    return _Text("\n".join(turns), answers, ends=assistant[-1:] == [True])


def _tags(sample: Mapping[str, Any], offsets: Sequence[Span]) -> Ints:
    """The tag of each word at its first token."""
    words = [str(word) for word in sample.get("tokens", sample.get("words", ()))]
    if len(sample["tags"]) != len(words):
        _refuse(f"{len(sample['tags']):,} tags for {len(words):,} words")
    starts = np.cumsum([0, *(len(word) + 1 for word in words)])
    last_characters = np.array([max(end, start + 1) - 1 for start, end in offsets])
    word = np.searchsorted(starts, last_characters, side="right") - 1
    tags = np.asarray(sample["tags"], np.int64)[np.minimum(word, len(words) - 1)]
    return np.where(np.diff(word, prepend=-1) != 0, tags, IGNORED)


def _tokenized_before(sample: Mapping[str, Any]) -> Sample:
    """Tokens of the user, with labels and types if there are any."""
    result: Sample = {}
    for name in ("input_ids", "labels", "token_type_ids"):
        if sample.get(name) is None:
            continue
        try:
            values = np.asarray(sample[name])
        except ValueError:
            return _refuse(f"{name} has rows of different lengths")
        if values.dtype.kind not in "iu" or values.ndim != 1 or not values.size:
            if name != "labels" or values.ndim or values.dtype.kind not in "iu":  # a class is one number
                return _refuse(f"{name} of shape {list(values.shape)} and type {values.dtype}")
        elif result and values.shape != result["input_ids"].shape:
            return _refuse(f"{name} has {values.size:,} entries for {len(result['input_ids']):,} tokens")
        result |= _join((values.tolist(), ANSWER)) if not result else {name: values.astype(np.int64)}
    return result | ({"labels": int(result["labels"])} if np.ndim(result["labels"]) == 0 else {})


def _class_label(sample: Mapping[str, Any]) -> int | None:
    label = sample.get("label")
    return int(label) if isinstance(label, int | np.integer) and not isinstance(label, bool) and label >= 0 else None


def _refuse(reason: str) -> NoReturn:
    raise SampleError(Issue(NO_TEXT, reason))
