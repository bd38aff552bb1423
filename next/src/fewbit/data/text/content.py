# SPDX-License-Identifier: Apache-2.0
"""What a sample says, by the names of its fields: a chat, a prompt with its completion, a pair of texts, one text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fewbit.data.rows import chat
from fewbit.data.types import IssueType, Sample, Severity

PROMPTS = ("prompt", "instruction", "question", "query")
COMPLETIONS = ("completion", "answer", "response", "output", "chosen", "solution")
PAIRS = (("text", "text_pair"), ("premise", "hypothesis"), ("sentence1", "sentence2"), ("question1", "question2"))
CHATS = ("messages", "conversations", "conversation")

NO_TEXT = IssueType(
    "no-text", Severity.WARNING, "sample without text", "fill it, or name the column with {text_column}", "drop",
    ("raise", "drop"), "leaves the sample out",
)  # fmt: skip

Message = dict[str, Any]


@dataclass(frozen=True)
class Content:
    """The text of one sample.

    Args:
        texts: one text, or the two of a pair; or the prompt.
        completion: what is to be written after the prompt.
        messages: the turns of a chat instead, with `role` and `content`.
        tools: what the chat may call.
    """

    texts: tuple[str, ...] = ()
    completion: str | None = None
    messages: tuple[Message, ...] | None = None
    tools: Any = None

    def as_chat(self) -> Content:
        """A prompt and its completion as two turns; anything else as it is."""
        if self.completion is None:
            return self
        turns = ({"role": "user", "content": self.texts[0]}, {"role": "assistant", "content": self.completion})
        return Content(messages=turns)

    def as_text(self) -> str:
        """All of its text, joined by line breaks."""
        if self.messages is not None:
            return "\n".join(filter(None, (message_text(message.get("content")) for message in self.messages)))
        return "\n".join(filter(None, (*self.texts, self.completion)))


def content_of(sample: Mapping[str, Any], text_column: str | None = None) -> Content | None:
    """What a sample says; `None` if no field looks like text.

    Args:
        sample: as a source gives it.
        text_column: the field that holds the text, instead of those that look like it.

    >>> content_of({"instruction": "Add.", "input": "2 and 2", "output": "4"})
    Content(texts=('Add.\\n2 and 2',), completion='4', messages=None, tools=None)
    """
    if text_column is not None:
        value = sample.get(text_column)
        if isinstance(value, list | tuple):
            return Content(messages=tuple(messages_of(value)))
        return None if value is None else Content((str(value),))
    for name in CHATS:
        if isinstance(sample.get(name), list | tuple):
            return Content(messages=tuple(messages_of(sample[name])), tools=sample.get("tools") or None)
    if (content := _prompt_and_completion(sample)) is not None:
        return content
    for first, second in PAIRS:
        if isinstance(sample.get(first), str) and isinstance(sample.get(second), str):
            return Content((sample[first], sample[second]))
    texts = [name for name, value in sample.items() if isinstance(value, str)]
    if "text" in texts:
        return Content((sample["text"],))
    if len(texts) == 1 or (texts and texts[0] in PROMPTS):  # of several others, any may be an identifier
        return Content((sample[texts[0]],))
    return None


def texts_in(sample: Sample) -> list[str]:
    """Every text of a sample, those of a chat too."""
    turns = [messages_of(sample[name]) for name in CHATS if isinstance(sample.get(name), list | tuple)]
    contents = [message["content"] for messages in turns for message in messages]
    return [value for value in sample.values() if isinstance(value, str)] + contents


def messages_of(turns: Sequence[Any]) -> list[Message]:
    """Messages with `role` and `content` as text, also from ShareGPT's `from` and `value`; other keys stay.

    >>> messages_of([{"from": "human", "value": "hi"}])
    [{'role': 'user', 'content': 'hi'}]
    """
    messages, _ = chat.normalized(list(turns))
    return [message | {"content": message_text(message["content"])} for message in messages]


def message_text(content: Any) -> str:
    """The text of a message, also of one made of content blocks.

    >>> message_text([{"type": "image"}, {"type": "text", "text": "What is this?"}])
    'What is this?'
    """
    if isinstance(content, list):
        return "\n".join(str(block["text"]) for block in content if isinstance(block, Mapping) and block.get("text"))
    return content if isinstance(content, str) else ""


def separated(prompt: str, completion: str, separator: str = "\n") -> str:
    """The prompt, followed by a separator if it would touch its completion.

    >>> separated("2 + 2?", "4"), separated("2 + 2 = ", "4")
    ('2 + 2?\\n', '2 + 2 = ')
    """
    touches = bool(prompt) and bool(completion) and not prompt[-1].isspace() and not completion[0].isspace()
    return prompt + separator if touches else prompt


def _prompt_and_completion(sample: Mapping[str, Any]) -> Content | None:
    prompt = next((sample[name] for name in PROMPTS if sample.get(name)), None)
    completion = next((sample[name] for name in COMPLETIONS if sample.get(name) is not None), None)
    if isinstance(completion, list) or (isinstance(prompt, list) and isinstance(completion, str)):
        return Content(messages=tuple(_conversation(prompt, completion)))
    if not isinstance(prompt, str) or not isinstance(completion, str):
        return None
    extra = sample.get("input") if "instruction" in sample else None
    return Content((f"{prompt}\n{extra}" if isinstance(extra, str) and extra.strip() else prompt,), completion)


def _conversation(prompt: Any, completion: Any) -> list[Message]:
    """Turns of a prompt and a completion, of which either may be a list of messages."""
    before = messages_of(prompt) if isinstance(prompt, list) else [{"role": "user", "content": str(prompt or "")}]
    after = messages_of(completion) if isinstance(completion, list) else [{"role": "assistant", "content": completion}]
    # A preference row often repeats the prompt inside the chosen conversation.
    return after if after and after[0]["role"] != "assistant" else before + after
