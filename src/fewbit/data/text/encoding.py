# SPDX-License-Identifier: Apache-2.0
"""What a row says as the numbers of its tokens, chats by the model's own template."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fewbit.data.text.tally import Tally
from fewbit.data.text.tokenizer import frame
from fewbit.data.text.wording import Said, text_of


@dataclass(frozen=True)
class Ids:
    """Tokens of one text.

    Args:
        tokens: their numbers.
        kinds: for each, whether it belongs to the first (0) or second (1) text of a pair.
        label: which class the text is said to be of, if it is.
    """

    tokens: list[int]
    kinds: list[int]
    label: int | None = None

    def __post_init__(self) -> None:
        assert len(self.tokens) == len(self.kinds)


class Encoder:
    """Turns what rows say into tokens.

    Args:
        tokenizer: the model's.
        tally: told of chats that the template refuses.

    Attributes:
        before: the special tokens that start a text.
        between: those that end one: what the tokenizer adds itself, else its end-of-text.
    """

    def __init__(self, tokenizer: Any, tally: Tally):
        self._tokenizer, self._tally = tokenizer, tally
        self.before, after = frame(tokenizer)
        end = tokenizer.eos_token_id
        self.between = after or ([] if end is None else [end])

    def running(self, said: Said) -> list[int]:
        """The tokens of a row that others stand before and after: no start, one end."""
        templated = self._templated(said)
        if templated is None and not _says_anything(said):
            return []
        text = "\n".join(said.texts) if templated is None else templated
        ids = self._tokens(text, add_special_tokens=False)
        start = len(self.before)
        if start and ids[:start] == self.before:  # a template may bring its own
            ids = ids[start:]
        # Templates end with the end of a turn, which often is the end of the text too, and perhaps a line break.
        ended = bool(self.between) and self.between[-1] in ids[-2:]
        return ids if ended else ids + self.between

    def alone(self, said: Said, longest: int) -> tuple[Ids, bool]:
        """The tokens of a row that stands for itself, and whether it had to be cut."""
        templated = self._templated(said)
        if templated is not None:
            ids = self._tokens(templated, add_special_tokens=False)
            return Ids(ids[:longest], [0] * len(ids[:longest])), len(ids) > longest
        if not _says_anything(said):
            return Ids([], []), False
        texts = said.texts if len(said.texts) == 2 and said.messages is None else ("\n".join(said.texts),)
        found = self._framed(texts)
        if len(found.tokens) <= longest:
            return found, False
        # The tokenizer knows which special tokens a text keeps when it is cut.
        return self._framed(texts, truncation=True, max_length=longest), True

    def _framed(self, texts: tuple[str, ...], **how: Any) -> Ids:
        found = self._tokenizer(*texts, return_token_type_ids=True, verbose=False, **how)
        tokens = list(found["input_ids"])
        return Ids(tokens, list(found.get("token_type_ids") or [0] * len(tokens)))

    def _tokens(self, text: str, **how: Any) -> list[int]:
        return list(self._tokenizer(text, verbose=False, **how)["input_ids"])

    def _templated(self, said: Said) -> str | None:
        if not said.messages or not getattr(self._tokenizer, "chat_template", None):
            return None
        turns = [{**message, "content": text_of(message["content"])} for message in said.messages]
        try:
            text: str = self._tokenizer.apply_chat_template(turns, tools=said.tools, tokenize=False)
        except Exception as error:  # templates raise what they like: a role they do not know, turns out of order
            self._tally.refuse(str(error).splitlines()[0][:120] if str(error) else type(error).__name__)
            return None
        return text


def _says_anything(said: Said) -> bool:
    return any(text.strip() for text in said.texts)
