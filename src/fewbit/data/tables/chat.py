# SPDX-License-Identifier: Apache-2.0
"""Chats in one form: `messages`, a list of `{"role": …, "content": …}`, whatever the file calls them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COLUMNS = ("messages", "conversations", "conversation", "dialog", "dialogue")
_ROLE = ("role", "from", "speaker")
_CONTENT = ("content", "value", "text")
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "function_call": "assistant",
}


def is_chat(value: Any) -> bool:
    """Whether a value is a list of messages.

    >>> is_chat([{"from": "human", "value": "hi"}]), is_chat(["hi"])
    (True, False)
    """
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, Mapping) and _key(item, _ROLE) and _key(item, _CONTENT) for item in value)
    )


def normalised(value: Any) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    """The messages under our names, and what is wrong with them as `(code, message)`.

    Further keys of a message (`tool_calls`, `name`, `weight`) stay. A message that cannot be read is left out.

    >>> normalised([{"from": "gpt", "value": "hello"}])
    ([{'role': 'assistant', 'content': 'hello'}], [])
    """
    if not isinstance(value, list):
        return [], [("bad-message", f"the messages are {type(value).__name__}, not a list")]
    messages, faults = [], []
    for number, item in enumerate(value):
        role_key = _key(item, _ROLE) if isinstance(item, Mapping) else None
        content_key = _key(item, _CONTENT) if isinstance(item, Mapping) else None
        if role_key is None or (content_key is None and "tool_calls" not in item):
            faults.append(("bad-message", f"message {number} has no {'content' if role_key else 'role'}"))
            continue
        role, content = item[role_key], item.get(content_key) if content_key else None
        if not isinstance(role, str) or not (content is None or isinstance(content, str | list)):
            faults.append(("bad-message", f"message {number}: role and content must be text"))
            continue
        known = _ROLES.get(role.lower())
        if known is None:
            faults.append(("unknown-role", f"message {number} has the role {role[:40]!r}"))
        rest = {key: item[key] for key in item if key not in (role_key, content_key)}
        messages.append({"role": known or role, "content": content, **rest})
    if not value:
        faults.append(("bad-message", "the list of messages is empty"))
    return messages, faults


def remarks(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """What is odd about messages under our names that can be read, as `(code, message)`.

    >>> [code for code, _ in remarks([{"role": "assistant", "content": ""}, {"role": "user", "content": "hi"}])]
    ['empty-message', 'starts-with-answer', 'ends-unanswered']
    """
    found = [
        ("empty-message", f"message {number}, of the {message['role']}, has no content")
        for number, message in enumerate(messages)
        if not message["content"] and not message.get("tool_calls")
    ]
    roles = [message["role"] for message in messages if message["role"] != "system"]
    if roles and roles[0] == "assistant":
        found.append(("starts-with-answer", "the first message is the assistant's"))
    if messages and (not roles or roles[-1] == "user"):
        found.append(("ends-unanswered", f"the last message is the {messages[-1]['role']}'s"))
    return found


def _key(item: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in item), None)
