# SPDX-License-Identifier: Apache-2.0
"""A tokenizer without files: every byte of UTF-8 is a token. For examples, tests, and models that read bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

SPECIAL_TOKENS = {"<|end|>": 256, "<|pad|>": 257, "<|start|>": 258}


class ByteTokenizer:
    """Tokens 0 to 255 are bytes; then end of text, padding, and start of text. Has the interface of transformers'.

    >>> tokenizer = ByteTokenizer()
    >>> tokenizer("aé")["input_ids"], tokenizer.decode([97, 195, 169, 256])
    ([97, 195, 169], 'aé')
    """

    eos_token, pad_token, bos_token = SPECIAL_TOKENS
    eos_token_id, pad_token_id, bos_token_id = SPECIAL_TOKENS.values()
    mask_token: str | None = None
    chat_template: str | None = None
    padding_side = "right"
    model_max_length = 10**30
    is_fast = True
    vocab_size = 259
    name_or_path = "bytes"

    def __call__(
        self,
        text: str | Sequence[str],
        text_pair: str | None = None,
        *,
        add_special_tokens: bool = True,
        return_offsets_mapping: bool = False,
        truncation: bool = False,
        max_length: int | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        """Encode one text, or several."""
        single = isinstance(text, str)
        texts = [str(text) if text_pair is None else f"{text}\n{text_pair}"] if single else list(text)
        stop = max_length if truncation else None
        ids = [list(line.encode(errors="replace"))[:stop] for line in texts]
        encoding: dict[str, Any] = {"input_ids": ids, "attention_mask": [[1] * len(row) for row in ids]}
        if return_offsets_mapping:
            encoding["offset_mapping"] = [_offsets(line)[:stop] for line in texts]
        return {name: rows[0] for name, rows in encoding.items()} if single else encoding

    def __len__(self) -> int:
        return self.vocab_size

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return "ByteTokenizer()"

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True, **_: Any) -> str:
        """The text of tokens; invalid UTF-8 becomes U+FFFD."""
        names = {number: name for name, number in SPECIAL_TOKENS.items()}
        pieces: list[bytes] = []
        for number in map(int, ids):
            if number < 256:
                pieces.append(bytes([number]))
            elif not skip_special_tokens:
                pieces.append(names[number].encode())
        return b"".join(pieces).decode(errors="replace")

    def get_vocab(self) -> dict[str, int]:
        """The name of every token."""
        return {f"<{number:02x}>": number for number in range(256)} | SPECIAL_TOKENS

    def convert_ids_to_tokens(self, ids: int | Iterable[int]) -> Any:
        """Names of tokens by their ids."""
        names = list(self.get_vocab())
        return names[ids] if isinstance(ids, int) else [names[number] for number in ids]

    def save_pretrained(self, folder: Any, **_: Any) -> tuple[str, ...]:
        """There is nothing to write; it is named `bytes`."""
        return ()


def _offsets(text: str) -> list[tuple[int, int]]:
    return [(index, index + 1) for index, letter in enumerate(text) for _ in letter.encode(errors="replace")]
