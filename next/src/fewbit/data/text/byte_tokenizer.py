# SPDX-License-Identifier: Apache-2.0
"""A tokenizer without files: every byte of UTF-8 is a token. For examples, tests, and models that read bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

SPECIAL_TOKENS = {"<|end|>": 256, "<|pad|>": 257, "<|start|>": 258}


@dataclass(frozen=True)
class ByteTokenizer:
    """Tokens 0 to 255 are bytes; then end of text, padding, and start of text. Has the interface of transformers'.

    >>> tokenizer = ByteTokenizer()
    >>> tokenizer("aé")["input_ids"], tokenizer.decode([97, 195, 169, 256])
    ([97, 195, 169], 'aé')
    """

    eos_token, pad_token, bos_token = SPECIAL_TOKENS
    eos_token_id, pad_token_id, bos_token_id = SPECIAL_TOKENS.values()
    mask_token: ClassVar[str | None] = None
    chat_template: ClassVar[str | None] = None
    padding_side = "right"
    model_max_length = 10**30
    is_fast = True
    vocab_size = 259
    name_or_path = "bytes"

    def __call__(self, text: str | Sequence[str], text_pair: str | None = None, **options: Any) -> dict[str, Any]:
        """Encode one text, or several; of the options `return_offsets_mapping`, `truncation` and `max_length` count."""
        if isinstance(text, str):
            pair = "" if text_pair is None else f"\n{text_pair}"
            return {name: rows[0] for name, rows in self([text + pair], **options).items()}
        stop = options.get("max_length") if options.get("truncation") else None
        ids = [list(line.encode(errors="replace"))[:stop] for line in text]
        encoding: dict[str, Any] = {"input_ids": ids, "attention_mask": [[1] * len(row) for row in ids]}
        if options.get("return_offsets_mapping"):
            encoding["offset_mapping"] = [
                [(at, at + 1) for at, letter in enumerate(line) for _ in letter.encode(errors="replace")][:stop]
                for line in text
            ]
        return encoding

    def __len__(self) -> int:
        return self.vocab_size

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True, **_: Any) -> str:
        """The text of tokens; invalid UTF-8 becomes U+FFFD."""
        names = {number: b"" if skip_special_tokens else name.encode() for name, number in SPECIAL_TOKENS.items()}
        return b"".join(names[i] if i in names else bytes([i]) for i in map(int, ids)).decode(errors="replace")

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
