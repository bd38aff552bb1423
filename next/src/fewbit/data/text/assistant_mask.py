# SPDX-License-Identifier: Apache-2.0
"""Which characters of a rendered chat are the assistant's.

1. A template with `{% generation %}` says so itself: the tags are replaced by markers, which are removed again.
2. Otherwise a turn is the text between the rendering of the messages before it and of those up to it, as long as each
   rendering is a prefix of the rendered chat.
3. Otherwise, if each answer occurs exactly once in the text, that is where it is.
4. Otherwise there is no mask: an issue, never a mask of zeros, which would silently train on nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from fewbit.data.text.content import Message, message_text
from fewbit.data.types import NOWHERE, Issue, IssueType, Location, SampleError, Severity

Span = tuple[int, int]
Render = Callable[..., str]

MASK_UNAVAILABLE = IssueType(
    "mask-unavailable", Severity.WARNING, "chat whose answers cannot be found in what the template renders",
    "add {% generation %} tags to the chat template, or keep to one answer per chat", "drop", ("raise", "drop"),
    "leaves the chat out",
)  # fmt: skip
TEMPLATE_ERROR = IssueType(
    "chat-template", Severity.WARNING, "chat that the chat template refuses",
    "correct the roles and their order, or give another chat_template", "drop", ("raise", "drop"),
    "leaves the chat out",
)  # fmt: skip

_START, _END = "\ue0f0\ue0f1", "\ue0f1\ue0f0"  # private use: they do not occur in texts
_TAG = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")


def render_chat(
    tokenizer: Any,
    messages: Sequence[Message],
    *,
    chat_template: str | None = None,
    tools: Any = None,
    location: Location = NOWHERE,
) -> str:
    """The text of a chat by the tokenizer's template, not tokenized.

    Raises:
        SampleError: the template rejects it.
    """
    return _renderer(tokenizer, chat_template, tools, location)(messages)


def answer_spans(
    tokenizer: Any,
    messages: Sequence[Message],
    *,
    chat_template: str | None = None,
    tools: Any = None,
    location: Location = NOWHERE,
) -> tuple[str, tuple[Span, ...]]:
    """A rendered chat, and from which character to which the assistant speaks.

    Args:
        tokenizer: has the template.
        messages: the turns.
        chat_template: instead of the tokenizer's.
        tools: what the chat may call.
        location: where the chat comes from, for messages.

    Returns:
        The text and the spans of its answers; none if the assistant says nothing.

    Raises:
        SampleError: the template rejects the chat, or its answers cannot be found.
    """
    render = _renderer(tokenizer, chat_template, tools, location)
    text = render(messages)
    source = chat_template if chat_template is not None else getattr(tokenizer, "chat_template", None)
    answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    if not answers:
        return text, ()
    spans = _marked(render, messages, text, source) if isinstance(source, str) else None
    if spans is None:
        spans = _by_prefixes(render, messages, answers, text)
    if spans is None:
        spans = _by_content(messages, answers, text, getattr(tokenizer, "eos_token", None) or "")
    if spans is None:
        reason = "the template does not render the beginning of a chat like the complete chat"
        raise SampleError(Issue(MASK_UNAVAILABLE, reason, location))
    return text, tuple(spans)


def _renderer(tokenizer: Any, chat_template: str | None, tools: Any, location: Location) -> Render:
    def render(messages: Sequence[Message], template: str | None = chat_template, **options: Any) -> str:
        if template is not None:
            options["chat_template"] = template
        try:
            return str(tokenizer.apply_chat_template(list(messages), tools=tools, tokenize=False, **options))
        except Exception as error:  # templates raise anything: an unknown role, turns out of order
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise SampleError(Issue(TEMPLATE_ERROR, lines[0][:120], location)) from error

    return render


def _marked(render: Render, messages: Sequence[Message], text: str, template: str) -> list[Span] | None:
    """Spans by the template's own generation tags."""
    if not _TAG.search(template) or _START in text or _END in text:
        return None

    def mark(match: re.Match[str]) -> str:
        trim_before, end, trim_after = match.groups()
        # A block in place of a block keeps Jinja's trimming of white space before and after it.
        return f"{{%{trim_before} if true %}}{_END if end else _START}{{% endif {trim_after}%}}"

    try:
        marked = render(messages, _TAG.sub(mark, template))
    except SampleError:
        return None
    spans, position, unmarked = [], 0, ""
    for piece in re.split(f"({_START}.*?{_END})", marked, flags=re.DOTALL):
        if piece.startswith(_START):
            piece = piece[len(_START) : -len(_END)]
            spans.append((position, position + len(piece)))
        unmarked += piece
        position += len(piece)
    return spans if unmarked == text and spans else None


def _by_prefixes(render: Render, messages: Sequence[Message], answers: list[int], text: str) -> list[Span] | None:
    """Spans between the rendering of the messages before an answer and the rendering up to it."""
    spans = []
    for number in answers:
        try:
            before = render(messages[:number], add_generation_prompt=True) if number else ""
            bare = render(messages[:number]) if number else ""
            through = render(messages[: number + 1])
        except SampleError:  # many templates reject a chat that begins or ends with some role
            return None
        if not (text.startswith(through) and through.startswith(before) and len(before) < len(through)):
            return None
        content = text.find(message_text(messages[number].get("content")).strip(), len(before), len(through))
        if content < 0:
            return None
        # Without a generation prompt, the role name comes before the answer.
        start = len(before) if before != bare else content
        # White space after the end of the turn belongs to the template; no model has to write it.
        spans.append((start, len(through.rstrip())))
    return spans


def _by_content(messages: Sequence[Message], answers: list[int], text: str, eos: str) -> list[Span] | None:
    """Spans where the answers occur verbatim, if each occurs once."""
    spans, position = [], 0
    for number in answers:
        content = message_text(messages[number].get("content")).strip()
        if not content or text.count(content) != 1:
            return None
        start = text.find(content, position)
        if start < 0:
            return None
        position = start + len(content)
        position += len(eos) if eos and text.startswith(eos, position) else 0
        spans.append((start, position))
    return spans
