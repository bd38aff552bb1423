# SPDX-License-Identifier: Apache-2.0
"""A tokenizer that is always here: every byte of UTF-8 is a token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

_SPECIAL = ("<|end|>", "<|pad|>", "<|start|>")


class ByteTokenizer:
    """Bytes as tokens 0 to 255, then the end of a text, padding, and a start that nothing adds by itself.

    It has what is used here of a Hugging Face tokenizer.

    >>> tokenizer = ByteTokenizer()
    >>> tokenizer("aé")["input_ids"], tokenizer.decode([97, 195, 169, 256])
    ([97, 195, 169], 'aé')
    """

    eos_token, pad_token, bos_token = _SPECIAL
    eos_token_id, pad_token_id, bos_token_id = 256, 257, 258
    vocab_size = 259
    padding_side = "right"
    model_max_length = 10**30
    chat_template = None
    is_fast = True
    name_or_path = "bytes"

    def __call__(
        self,
        text: str | Sequence[str],
        *,
        add_special_tokens: bool = True,
        return_offsets_mapping: bool = False,
        truncation: bool = False,
        max_length: int | None = None,
        **unused: Any,
    ) -> dict[str, Any]:
        """The tokens of a text, or of several."""
        if isinstance(text, str):
            return {name: found[0] for name, found in self([text], **_given(locals())).items()}
        cut = max_length if truncation else None
        ids = [list(each.encode(errors="replace"))[:cut] for each in text]
        made: dict[str, Any] = {"input_ids": ids, "attention_mask": [[1] * len(each) for each in ids]}
        if return_offsets_mapping:
            made["offset_mapping"] = [_offsets(each)[:cut] for each in text]
        return made

    def __len__(self) -> int:
        return self.vocab_size

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return "ByteTokenizer()"

    def encode(self, text: str, **how: Any) -> list[int]:
        """The tokens of one text."""
        return list(self(text, **how)["input_ids"])

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True, **unused: Any) -> str:
        """The text of tokens; bytes that are no UTF-8 are shown as such."""
        runs: list[bytearray | str] = [bytearray()]
        for number in map(int, ids):
            if number < 256:
                if isinstance(runs[-1], str):
                    runs.append(bytearray())
                runs[-1].append(number)  # type: ignore[union-attr]
            elif not skip_special_tokens:
                runs.append(_SPECIAL[number - 256])
        return "".join(run if isinstance(run, str) else run.decode(errors="replace") for run in runs)

    def batch_decode(self, rows: Iterable[Iterable[int]], **how: Any) -> list[str]:
        """The texts of several rows of tokens."""
        return [self.decode(row, **how) for row in rows]

    def get_vocab(self) -> dict[str, int]:
        """The name of every token."""
        return {f"<{number:02x}>": number for number in range(256)} | dict(zip(_SPECIAL, range(256, 259)))

    def convert_ids_to_tokens(self, ids: int | Iterable[int]) -> Any:
        """The names of tokens."""
        names = list(self.get_vocab())
        return names[ids] if isinstance(ids, int) else [names[number] for number in ids]

    def convert_tokens_to_ids(self, tokens: str | Iterable[str]) -> Any:
        """The numbers of tokens by their names."""
        vocabulary = self.get_vocab()
        return vocabulary.get(tokens) if isinstance(tokens, str) else [vocabulary.get(name) for name in tokens]

    def save_pretrained(self, folder: Any) -> tuple[str, ...]:
        """Nothing to write: it is named as `'bytes'`."""
        return ()


def _given(named: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in named.items() if name not in ("self", "text", "unused")}


def _offsets(text: str) -> list[tuple[int, int]]:
    return [(at, at + 1) for at, letter in enumerate(text) for _ in letter.encode(errors="replace")]
