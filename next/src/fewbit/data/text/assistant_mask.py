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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fewbit.data.text.content import Message, message_text
from fewbit.data.types import Issue, IssueType, SampleError, Severity

Span = tuple[int, int]

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


@dataclass(frozen=True)
class ChatTemplate:
    """Renders chats.

    Args:
        tokenizer: has the template.
        template: instead of the tokenizer's.
        tools: what the chat may call.
    """

    tokenizer: Any
    template: str | None = None
    tools: Any = None

    def render(self, messages: Sequence[Message], template: str | None = None, **options: Any) -> str:
        """The text of a chat, not tokenized.

        Raises:
            SampleError: the template refuses it.
        """
        template = template or self.template
        if template is not None:
            options["chat_template"] = template
        try:
            text = self.tokenizer.apply_chat_template(list(messages), tools=self.tools, tokenize=False, **options)
        except Exception as error:  # templates raise anything: an unknown role, turns out of order
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise SampleError(Issue(TEMPLATE_ERROR, lines[0][:120])) from error
        return str(text)

    def answer_spans(self, messages: Sequence[Message]) -> tuple[str, list[Span]]:
        """A rendered chat, and from which character to which the assistant speaks.

        Raises:
            SampleError: the template refuses the chat, or its answers cannot be found.
        """
        text = self.render(messages)
        answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
        if not answers:
            return text, []
        for find in (self._by_tags, self._by_prefixes, self._by_content):
            spans = find(messages, answers, text)
            if spans is not None:
                return text, spans
        reason = "the template does not render the beginning of a chat like the complete chat"
        raise SampleError(Issue(MASK_UNAVAILABLE, reason))

    def _by_tags(self, messages: Sequence[Message], answers: list[int], text: str) -> list[Span] | None:
        template = self.template or getattr(self.tokenizer, "chat_template", None)
        if not isinstance(template, str) or not _TAG.search(template) or _START in text or _END in text:
            return None
        try:
            marked = self.render(messages, _TAG.sub(_marker, template))
        except SampleError:
            return None
        pieces = re.split(f"{_START}(.*?){_END}", marked, flags=re.DOTALL)  # every second piece was between markers
        ends = [sum(map(len, pieces[: number + 1])) for number in range(len(pieces))]
        spans = list(zip(ends[0::2], ends[1::2]))
        return spans if spans and "".join(pieces) == text else None

    def _by_prefixes(self, messages: Sequence[Message], answers: list[int], text: str) -> list[Span] | None:
        spans = []
        for number in answers:
            earlier = messages[:number]
            try:
                without_prompt = self.render(earlier) if earlier else ""
                before = self.render(earlier, add_generation_prompt=True) if earlier else ""
                through = self.render(messages[: number + 1])
            except SampleError:  # many templates refuse a chat that begins or ends with some role
                return None
            if not (text.startswith(through) and through.startswith(before) and len(before) < len(through)):
                return None
            content = text.find(message_text(messages[number].get("content")).strip(), len(before), len(through))
            if content < 0:
                return None
            # Without a generation prompt, the role name comes before the answer. White space after the end of the turn
            # belongs to the template; no model has to write it.
            spans.append((len(before) if before != without_prompt else content, len(through.rstrip())))
        return spans

    def _by_content(self, messages: Sequence[Message], answers: list[int], text: str) -> list[Span] | None:
        eos = getattr(self.tokenizer, "eos_token", None) or ""
        spans: list[Span] = []
        for number in answers:
            content = message_text(messages[number].get("content")).strip()
            start = text.find(content)
            if not content or text.count(content) != 1 or (spans and start < spans[-1][1]):
                return None
            end = start + len(content)
            spans.append((start, end + len(eos) if text.startswith(eos, end) else end))
        return spans


def _marker(tag: re.Match[str]) -> str:
    """A block in place of a block, which keeps Jinja's trimming of white space before and after it."""
    trim_before, end, trim_after = tag.groups()
    return f"{{%{trim_before} if true %}}{_END if end else _START}{{% endif {trim_after}%}}"
