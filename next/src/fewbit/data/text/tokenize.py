# SPDX-License-Identifier: Apache-2.0
"""Samples of text as tokens, each with its role: prompt, answer, calculator or special. One path for every verb.

A sample is rendered to one text, the text is tokenized once with character offsets, and a token has the role of the
character it starts with. Nothing is decided by token ids, so the end of a text is learned even if padding is the same
token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fewbit.data.text.assistant_mask import Span, answer_spans, render_chat
from fewbit.data.text.content import NO_TEXT, Content, content_of, separated
from fewbit.data.text.roles import (
    ANSWER,
    CALCULATOR,
    IGNORED,
    PROMPT,
    SPECIAL,
    Ints,
    Roles,
    kept_around,
    kept_tokens,
    masked_labels,
)
from fewbit.data.text.tokenizer import separator_tokens, special_tokens
from fewbit.data.types import NOWHERE, Issue, Location, SampleError

_CALCULATION = re.compile(r"<<[^<>=]*=([^<>]*>>)")


@dataclass(frozen=True)
class Encoded:
    """The tokens of one sample.

    Args:
        ids: the tokens.
        roles: one of `PROMPT`, `ANSWER`, `CALCULATOR`, `SPECIAL` per token.
        target: what is learned instead of the tokens: a class, or a label per token.
        token_type_ids: 0 and 1 for the texts of a pair.
        answer: first and last token of an answer inside a context.
        truncated: how much of it was cut: nothing, some of the prompt, or some of the answer.
        fallback: why the chat template was not used, if it rejected the sample.
    """

    ids: Ints
    roles: Roles
    target: int | Ints | None = None
    token_type_ids: Ints | None = None
    answer: tuple[int, int] | None = None
    truncated: Literal["", "prompt", "answer"] = ""
    fallback: str | None = None

    @property
    def supervised(self) -> NDArray[np.bool_]:
        """The tokens of answers."""
        return np.isin(self.roles, (ANSWER, CALCULATOR))

    def labels(self, *, mask_prompt: bool = True, mask_calculator: bool = False) -> int | Ints | None:
        """What is learned: -100 where nothing is; `None` if it is a span of the context."""
        if self.target is not None or self.answer is not None:
            return self.target
        return masked_labels(self.ids, self.roles, mask_prompt=mask_prompt, mask_calculator=mask_calculator)


def encode_sample(
    tokenizer: Any, sample: Mapping[str, Any], *, max_length: int | None = None, **options: Any
) -> Encoded:
    """Tokenize one sample.

    Args:
        tokenizer: of transformers, or a `ByteTokenizer`.
        sample: with `messages`, a prompt and a completion, `text` and perhaps `label`, `tokens` and `tags`, a question
            in a context, or `input_ids`.
        max_length: at most this many tokens; see `kept_tokens` for what is cut.
        options: of `TextEncoder`.

    Raises:
        SampleError: it has no text, or its answers cannot be found.

    >>> from fewbit.data.text.byte_tokenizer import ByteTokenizer
    >>> encoded = encode_sample(ByteTokenizer(), {"prompt": "2+2=", "completion": "4"}, separator="")
    >>> encoded.ids.tolist(), encoded.labels().tolist()
    ([50, 43, 50, 61, 52, 256], [-100, -100, -100, -100, 52, 256])
    """
    encoded = TextEncoder(tokenizer, max_length=max_length, **options).encode_batch([sample])[0]
    if isinstance(encoded, Issue):
        raise SampleError(encoded)
    return encoded


@dataclass(frozen=True)
class _Rendered:
    """A text to tokenize, and the spans of its answers."""

    text: str
    answers: tuple[Span, ...] | None = None  # None: all of it is learned
    templated: bool = False  # a template brings the start token itself, and the end
    ends: bool = True
    fallback: str | None = None


class TextEncoder:
    """Tokenizes samples one way.

    Args:
        tokenizer: of transformers, or a `ByteTokenizer`.
        max_length: at most this many tokens.
        purpose: `training` needs to know whose each token is and reports what cannot be learned; `calibration` reads
            everything, prompts and completions through the chat template, and falls back to plain text.
        add_eos: whether a text that is learned ends with the end-of-text token.
        causal: whether the model writes text; otherwise texts get the tokenizer's start and end, and are only read.
        chat_template: instead of the tokenizer's.
        text_column: the field that holds the text.
        separator: between a prompt and a completion that would touch.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        max_length: int | None = None,
        purpose: Literal["training", "calibration"] = "training",
        add_eos: bool = True,
        causal: bool = True,
        chat_template: str | None = None,
        text_column: str | None = None,
        separator: str = "\n",
    ):
        self.tokenizer, self.max_length, self.causal = tokenizer, max_length, causal
        self._training, self._add_eos = purpose == "training", add_eos
        self._template, self._column, self._separator = chat_template, text_column, separator

    def encode_batch(
        self, samples: Sequence[Mapping[str, Any]], locations: Sequence[Location] = ()
    ) -> list[Encoded | Issue]:
        """Several samples, tokenized together; an issue in place of a sample that cannot be used."""
        locations = [*locations, *[NOWHERE] * (len(samples) - len(locations))]
        rendered = [self._render(sample, location) for sample, location in zip(samples, locations)]
        tokens = iter(self._tokenize([result for result in rendered if isinstance(result, _Rendered)]))
        results = []
        for sample, result, location in zip(samples, rendered, locations):
            if isinstance(result, _Rendered):
                result = self._encode(sample, result, *next(tokens), location)
            results.append(result if isinstance(result, Issue) else self._truncate(result, location))
        return results

    @cached_property
    def special(self) -> tuple[list[int], list[int]]:
        """Special tokens before and after a text."""
        return special_tokens(self.tokenizer)

    @cached_property
    def _separator_ids(self) -> list[int]:
        return separator_tokens(self.tokenizer)

    @cached_property
    def _typed(self) -> bool:
        """Whether the tokenizer tells the texts of a pair apart; RoBERTa's model has no type 1."""
        try:
            return 1 in (self.tokenizer("a", "a", return_token_type_ids=True).get("token_type_ids") or ())
        except TypeError:
            return False

    @property
    def has_template(self) -> bool:
        """Whether chats are rendered by a template."""
        return bool(self._template or getattr(self.tokenizer, "chat_template", None))

    def _render(self, sample: Mapping[str, Any], location: Location) -> _Rendered | Encoded | Issue:
        try:
            if "input_ids" in sample:
                return _tokenized_before(sample, location)
            if isinstance(sample.get("question"), str) and isinstance(sample.get("context"), str):
                return self._question(sample, location)
            words = sample.get("tokens", sample.get("words"))
            if isinstance(words, list | tuple) and "tags" in sample:
                return _Rendered(" ".join(map(str, words))) if words else Issue(NO_TEXT, "there are no words", location)
            content = content_of(sample, self._column)
            if content is None or content.empty:
                fields = ", ".join(sample) or "nothing"
                reason = "its text is empty" if content is not None else f"no field is text; it has {fields}"
                return Issue(NO_TEXT, reason, location)
            if len(content.texts) == 2 and not self.causal:
                return self._pair(sample, *content.texts)
            return self._rendered(content, location)
        except SampleError as error:
            return error.issue

    def _rendered(self, content: Content, location: Location) -> _Rendered | Issue:
        if not self._training and self.has_template:
            content = content.as_chat()
        if content.messages is not None:
            return self._chat(content, location)
        if content.completion is None:
            return _Rendered("\n".join(content.texts))
        if self._training and not content.completion.strip():
            return Issue(NO_TEXT, "the answer is empty", location)
        prompt = separated(content.texts[0], content.completion, self._separator)
        return _Rendered(prompt + content.completion, ((len(prompt), len(prompt) + len(content.completion)),))

    def _chat(self, content: Content, location: Location) -> _Rendered | Issue:
        messages = content.messages or ()
        options: dict[str, Any] = {"chat_template": self._template, "tools": content.tools, "location": location}
        if not self.has_template:
            rendered = _role_names(messages)
        elif self._training:
            rendered = _Rendered(*answer_spans(self.tokenizer, messages, **options), templated=True, ends=False)
        else:
            try:
                return _Rendered(render_chat(self.tokenizer, messages, **options), templated=True, ends=False)
            except SampleError as error:
                return _Rendered(content.as_text(), fallback=error.issue.message)
        if self._training and not rendered.answers:
            return Issue(NO_TEXT, "the assistant says nothing", location)
        return rendered

    def _tokenize(self, texts: list[_Rendered]) -> list[tuple[list[int], Sequence[Span]]]:
        if not texts:
            return []
        if not getattr(self.tokenizer, "is_fast", False):
            return [self._in_pieces(rendered) for rendered in texts]
        encoding = self.tokenizer(
            [rendered.text for rendered in texts], add_special_tokens=False, return_offsets_mapping=True, verbose=False,
            return_attention_mask=False, return_token_type_ids=False,
        )  # fmt: skip
        return list(zip(encoding["input_ids"], encoding["offset_mapping"]))

    def _in_pieces(self, rendered: _Rendered) -> tuple[list[int], Sequence[Span]]:
        """For tokenizers without offsets: cut the text where answers start and end, and tokenize the pieces."""
        borders = sorted({0, len(rendered.text), *(border for span in rendered.answers or () for border in span)})
        ids: list[int] = []
        offsets: list[Span] = []
        for start, end in pairwise(borders):
            piece = self.tokenizer(rendered.text[start:end], add_special_tokens=False, verbose=False)["input_ids"]
            ids += piece
            offsets += [(start, end)] * len(piece)
        return ids, offsets

    def _encode(
        self,
        sample: Mapping[str, Any],
        rendered: _Rendered,
        ids: list[int],
        offsets: Sequence[Span],
        location: Location,
    ) -> Encoded | Issue:
        if not ids:
            return Issue(NO_TEXT, "its text has no token", location)
        starts = _starts(rendered.text, offsets)
        if "tags" in sample:
            return self._tagged(sample, ids, offsets)
        label = _label(sample)
        if label is not None or not self.causal:
            framed = Encoded(np.array(ids), _all(ids, PROMPT), label, fallback=rendered.fallback)
            return framed if rendered.templated else self._framed(framed)
        roles = _all(ids, ANSWER)
        if rendered.answers is not None:
            roles[~_inside(starts, rendered.answers)] = PROMPT
        if "<<" in rendered.text:
            calculated = [match.span(1) for match in _CALCULATION.finditer(rendered.text)]
            pairs = np.array(offsets, np.int64).reshape(-1, 2)
            wholly = np.zeros(len(ids), bool)
            for start, end in calculated:
                wholly |= (pairs[:, 0] >= start) & (pairs[:, 1] <= end)
            roles[wholly & (roles == ANSWER)] = CALCULATOR
        return self._with_ends(ids, roles, rendered)

    def _with_ends(self, ids: list[int], roles: Roles, rendered: _Rendered) -> Encoded:
        """Start of text before it and end of text after it; a template brings its own, which must not come twice."""
        before, after = self.special
        eos = getattr(self.tokenizer, "eos_token_id", None)
        after = (after or ([] if eos is None else [int(eos)])) if self._add_eos and rendered.ends else []
        if rendered.templated:
            roles[: len(before)] = SPECIAL if before and ids[: len(before)] == before else roles[: len(before)]
            before = []
        return Encoded(
            np.array([*before, *ids, *after], np.int64),
            np.concatenate([_all(before, SPECIAL), roles, _all(after, ANSWER)]),
            fallback=rendered.fallback,
        )

    def _framed(self, encoded: Encoded) -> Encoded:
        """A text that is read, between the tokenizer's start and end."""
        before, after = self.special
        ids = np.concatenate([before, encoded.ids, after]).astype(np.int64)
        roles = np.concatenate([_all(before, SPECIAL), encoded.roles, _all(after, SPECIAL)])
        return replace(encoded, ids=ids, roles=roles)

    def _tagged(self, sample: Mapping[str, Any], ids: list[int], offsets: Sequence[Span]) -> Encoded:
        """Words with tags: the first token of each word has its tag."""
        words = [str(word) for word in sample.get("tokens", sample.get("words", ()))]
        starts = np.cumsum([0, *(len(word) + 1 for word in words)])
        last = np.array([max(end, start + 1) - 1 for start, end in offsets])
        word = np.searchsorted(starts, last, side="right") - 1
        first = np.diff(word, prepend=-1) != 0
        tags = np.where(first, np.asarray(sample["tags"], np.int64)[np.minimum(word, len(words) - 1)], IGNORED)
        before, after = (np.full(len(special), IGNORED) for special in self.special)
        target = np.concatenate([before, tags, after]).astype(np.int64)
        return self._framed(Encoded(np.array(ids), _all(ids, PROMPT), target))

    def _pair(self, sample: Mapping[str, Any], first: str, second: str) -> Encoded:
        return self._joined(self._plain_ids(first), self._plain_ids(second), _label(sample))

    def _joined(self, first: list[int], second: list[int], target: int | None = None) -> Encoded:
        """Two texts with the tokenizer's separator between them."""
        before, after = self.special
        head = [*before, *first, *self._separator_ids]
        ids = np.array([*head, *second, *after], np.int64)
        roles = np.concatenate([
            _all(before, SPECIAL), _all(first, PROMPT), _all(self._separator_ids, SPECIAL), _all(second, PROMPT),
            _all(after, SPECIAL),
        ])  # fmt: skip
        types = (np.arange(len(ids)) >= len(head)).astype(np.int64) if self._typed else np.zeros(len(ids), np.int64)
        return Encoded(ids, roles, target, types)

    def _question(self, sample: Mapping[str, Any], location: Location) -> Encoded | Issue:
        """A question, and the tokens of its answer in the context."""
        span = _answer_in_context(sample)
        if isinstance(span, str) and self._training:
            return Issue(NO_TEXT, span, location)
        question = self._plain_ids(sample["question"])
        encoding = self.tokenizer(
            sample["context"], add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        joined = self._joined(question, list(encoding["input_ids"]))
        start = len(self.special[0]) + len(question) + len(self._separator_ids)
        roles = joined.roles.copy()
        roles[:start] = SPECIAL  # the question is never cut
        if isinstance(span, str):
            return replace(joined, roles=roles)
        offsets = np.array(encoding["offset_mapping"], np.int64).reshape(-1, 2)
        inside = np.flatnonzero((offsets[:, 1] > span[0]) & (offsets[:, 0] < span[1]))
        if not len(inside):
            return Issue(NO_TEXT, "no token of the context belongs to the answer", location)
        roles[start + inside] = ANSWER
        types = (np.arange(len(roles)) >= start).astype(np.int64) if self._typed else joined.token_type_ids
        return replace(
            joined, roles=roles, token_type_ids=types, answer=(start + int(inside[0]), start + int(inside[-1]))
        )

    def _plain_ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def _truncate(self, encoded: Encoded, location: Location) -> Encoded | Issue:
        if self.max_length is None:
            return encoded
        if encoded.answer is not None and np.sum(encoded.roles == SPECIAL) >= self.max_length:
            return Issue(NO_TEXT, f"its question alone has more than {self.max_length} tokens", location)
        return truncated(encoded, self.max_length)


def truncated(encoded: Encoded, max_length: int) -> Encoded:
    """At most `max_length` tokens of a sample; see `kept_tokens`."""
    if len(encoded.ids) <= max_length:
        return encoded
    choose = kept_tokens if encoded.answer is None else kept_around
    positions = choose(encoded.roles, max_length)
    learned = encoded.supervised
    target = encoded.target[positions] if isinstance(encoded.target, np.ndarray) else encoded.target
    types = None if encoded.token_type_ids is None else encoded.token_type_ids[positions]
    answer = encoded.answer
    if answer is not None:
        first, last = (min(int(np.searchsorted(positions, position)), len(positions) - 1) for position in answer)
        answer = first, last
    return replace(
        encoded, ids=encoded.ids[positions], roles=encoded.roles[positions], target=target, token_type_ids=types,
        answer=answer, truncated="answer" if learned[positions].sum() < learned.sum() else "prompt",
    )  # fmt: skip


def _starts(text: str, offsets: Sequence[Span]) -> Ints:
    """The first character of each token that is not white space: byte-level tokens begin with the space before."""
    starts = np.empty(len(offsets), np.int64)
    for index, (start, end) in enumerate(offsets):
        if start == end:  # some tokenizers give white space an empty offset, after the character
            start -= 1
        first = start
        while first < end and text[first].isspace():
            first += 1
        starts[index] = first if first < end else start
    return starts


def _inside(positions: Ints, spans: Sequence[Span]) -> NDArray[np.bool_]:
    inside = np.zeros(len(positions), bool)
    for start, end in spans:
        inside |= (positions >= start) & (positions < end)
    return inside


def _role_names(messages: Sequence[Mapping[str, Any]]) -> _Rendered:
    """A chat for tokenizers without a template: `User: …`, `Assistant: …`, one turn per line."""
    text, answers = "", []
    for message in messages:
        text += f"{str(message['role']).capitalize()}: "
        if message["role"] == "assistant":
            answers.append((len(text), len(text) + len(message["content"])))
        text += message["content"] + "\n"
    ends = bool(messages) and messages[-1]["role"] == "assistant"
    return _Rendered(text.removesuffix("\n"), tuple(answers), ends=ends)


def _tokenized_before(sample: Mapping[str, Any], location: Location) -> Encoded | Issue:
    ids = np.asarray(sample["input_ids"])
    if ids.ndim != 1 or not len(ids) or ids.dtype.kind not in "iu":
        return Issue(NO_TEXT, f"input_ids of shape {list(ids.shape)} and type {ids.dtype}", location)
    labels, types = sample.get("labels"), sample.get("token_type_ids")
    target = None if labels is None else int(labels) if np.ndim(labels) == 0 else np.asarray(labels, np.int64)
    types = None if types is None else np.asarray(types, np.int64)
    for name, values in (("labels", target), ("token_type_ids", types)):
        if isinstance(values, np.ndarray) and values.shape != ids.shape:
            return Issue(NO_TEXT, f"{name} has {values.size:,} entries for {len(ids):,} tokens", location)
    return Encoded(ids.astype(np.int64), _all(ids, ANSWER), target, types)


def _answer_in_context(sample: Mapping[str, Any]) -> Span | str:
    """The span of the answer in the context, or the reason why there is none."""
    answers = sample.get("answers", sample.get("answer"))
    if isinstance(answers, Mapping):
        texts, starts = list(answers.get("text") or ()), list(answers.get("answer_start") or ())
    elif isinstance(answers, list | tuple):
        mappings = [entry for entry in answers if isinstance(entry, Mapping)]
        texts = [entry.get("text") for entry in mappings] or list(answers)
        starts = [entry.get("answer_start") for entry in mappings]
    else:
        texts, starts = ([answers] if answers else []), []
    if not texts or not isinstance(texts[0], str) or not texts[0]:
        return "there is no answer"
    start = sample["context"].find(texts[0]) if not starts or starts[0] is None else int(starts[0])
    if start < 0 or sample["context"][start : start + len(texts[0])] != texts[0]:
        return f"the answer {texts[0][:40]!r} is not in the context at character {start}"
    return start, start + len(texts[0])


def _label(sample: Mapping[str, Any]) -> int | None:
    label = sample.get("label")
    return int(label) if isinstance(label, int | np.integer) and not isinstance(label, bool) and label >= 0 else None


def _all(tokens: Any, role: int) -> Roles:
    return np.full(len(tokens), role, np.uint8)
