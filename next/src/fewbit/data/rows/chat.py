# SPDX-License-Identifier: Apache-2.0
"""Chats in one form: `messages`, a list of `{"role": ..., "content": ...}`, whatever the file calls them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fewbit.data.rows.table import nested
from fewbit.data.rows.text import row_error
from fewbit.data.types import IssueType, Severity

COLUMNS = ("messages", "conversations", "conversation", "dialog", "dialogue")
_ROLE_KEYS = ("role", "from", "speaker")
_CONTENT_KEYS = ("content", "value", "text")
_ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bing", "bard", "bot", "model", "function_call"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation"), "tool"),
}

BAD_MESSAGE = row_error(
    "bad-message", "chat message without role or content", 'write {"role": …, "content": …}', "keep"
)
UNKNOWN_ROLE = IssueType("unknown-role", Severity.WARNING, "unknown chat role", "write system, user, assistant or tool")
EMPTY_MESSAGE = IssueType(
    "empty-message", Severity.WARNING, "chat message without text", "write the text, or leave the message out"
)
STARTS_WITH_ANSWER = IssueType(
    "starts-with-answer", Severity.WARNING, "chat that begins with the assistant", "put the user's message first"
)
ENDS_UNANSWERED = IssueType(
    "ends-unanswered", Severity.NOTE, "chat that does not end with the assistant",
    "leave it out of training: it has no answer",
)  # fmt: skip
ISSUES = (BAD_MESSAGE, UNKNOWN_ROLE, EMPTY_MESSAGE, STARTS_WITH_ANSWER, ENDS_UNANSWERED)

Problem = tuple[IssueType, str]


def is_chat(value: Any) -> bool:
    """Whether a value is a list of messages.

    >>> is_chat([{"from": "human", "value": "hi"}]), is_chat(["hi"])
    (True, False)
    """
    items = value if isinstance(value, list) else []
    are_messages = (
        isinstance(item, Mapping) and all(_key(item, names) for names in (_ROLE_KEYS, _CONTENT_KEYS)) for item in items
    )
    return bool(items) and all(are_messages)


def normalized(value: Any) -> tuple[list[dict[str, Any]], list[Problem]]:
    """The messages under our names, and what cannot be read or is unknown.

    Other keys of a message (`tool_calls`, `name`, `weight`) stay. A message that cannot be read is left out.

    >>> normalized([{"from": "gpt", "value": "hello"}])
    ([{'role': 'assistant', 'content': 'hello'}], [])
    """
    if not isinstance(value, list):
        return [], [(BAD_MESSAGE, f"the messages are {type(value).__name__}, not a list")]
    if not value:
        return [], [(BAD_MESSAGE, "the list of messages is empty")]
    messages: list[dict[str, Any]] = []
    problems: list[Problem] = []
    for number, item in enumerate(value):
        role_key = _key(item, _ROLE_KEYS) if isinstance(item, Mapping) else None
        content_key = _key(item, _CONTENT_KEYS) if isinstance(item, Mapping) else None
        if role_key is None or (content_key is None and "tool_calls" not in item):
            problems.append((BAD_MESSAGE, f"message {number} has no {'content' if role_key else 'role'}"))
            continue
        role, content = item[role_key], item[content_key] if content_key else None
        if not isinstance(role, str) or not (content is None or isinstance(content, str | list)):
            problems.append((BAD_MESSAGE, f"message {number}: role and content must be text"))
            continue
        canonical_role = _ROLES.get(role.lower())
        if canonical_role is None:
            problems.append((UNKNOWN_ROLE, f"message {number} has the role {role[:40]!r}"))
        other_keys = {key: item[key] for key in item if key not in (role_key, content_key)}
        messages.append({"role": canonical_role or role, "content": content, **other_keys})
    return messages, problems


def remarks(messages: list[dict[str, Any]]) -> list[Problem]:
    """What is odd about messages that can be read.

    >>> [kind.code for kind, _ in remarks([{"role": "assistant", "content": ""}, {"role": "user", "content": "hi"}])]
    ['empty-message', 'starts-with-answer', 'ends-unanswered']
    """
    problems = [
        (EMPTY_MESSAGE, f"message {number}, by the {message['role']}, has no content")
        for number, message in enumerate(messages)
        if not message["content"] and not message.get("tool_calls")
    ]
    roles = [message["role"] for message in messages if message["role"] != "system"]
    if roles and roles[0] == "assistant":
        problems.append((STARTS_WITH_ANSWER, "the first message is the assistant's"))
    if messages and (not roles or roles[-1] == "user"):
        problems.append((ENDS_UNANSWERED, f"the last message is the {messages[-1]['role']}'s"))
    return problems


def messages_of(row: Mapping[str, Any], column: str) -> Any:
    """The messages of a row: under their column, or under another name that means the same."""
    value = nested(dict(row), column)
    return value if value is not None else next((row[name] for name in COLUMNS if row.get(name) is not None), None)


def _key(item: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in item), None)
