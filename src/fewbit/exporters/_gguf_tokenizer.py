# SPDX-License-Identifier: Apache-2.0
"""A tokenizer in a GGUF file: its tokens, the special ones among them, its chat template."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fewbit.errors import DataError, UsageError
from fewbit.exporters._gguf_vocabulary import LEAST, TokenType, read_vocabulary


def describe(writer: Any, folder: Path, config: Any, pre_tokenizer: str | None) -> list[str]:
    """Write the tokenizer of a folder; returns what a user should know of it.

    Args:
        writer: a `gguf.GGUFWriter`.
        folder: with `tokenizer.json` or `tokenizer.model`.
        config: the model's configuration.
        pre_tokenizer: the name llama.cpp shall know the pre-tokenizer by; recognised if it is not given.

    Raises:
        UsageError: a kind of tokenizer that llama.cpp does not have, or a pre-tokenizer that is not recognised.
        DataError: tokens that the model has no embedding for.
    """
    import gguf

    found = read_vocabulary(folder, pre_tokenizer)
    count = config.vocab_size
    beyond = [number for number in found.tokens if number >= count]
    if beyond:
        raise DataError(
            f"the tokenizer has {len(beyond)} tokens the model has no embedding for, the first is {min(beyond)}",
            where=folder,
            expected=f"numbers below {count}",
            try_="the tokenizer that belongs to this model",
        )
    writer.add_tokenizer_model(found.model)
    writer.add_tokenizer_pre(found.pre)
    writer.add_token_list([found.tokens.get(number, f"[PAD{number}]") for number in range(count)])
    types = dict.fromkeys(found.tokens, int(TokenType.NORMAL)) | found.types
    writer.add_token_types([int(types.get(number, TokenType.UNUSED)) for number in range(count)])
    if found.scores:
        writer.add_token_scores([found.scores.get(number, LEAST) for number in range(count)])
    if found.charsmap:
        writer.add_precompiled_charsmap(found.charsmap)
    writer.add_add_space_prefix(found.space_prefix)
    special = gguf.SpecialVocab(folder, load_merges=found.model == "gpt2", n_vocab=count)
    for kind in ("bos", "eos"):
        special.add_special_token.setdefault(kind, False)  # llama.cpp's own guess depends on the kind of tokenizer
        known = getattr(config, f"{kind}_token_id", None)
        if isinstance(known, int) and known < count:
            special.special_token_ids.setdefault(kind, known)
        if kind not in special.special_token_ids:
            special.add_special_token[kind] = False
    special.add_to_gguf(writer, quiet=True)
    return found.notes


@contextmanager
def tokenizer_folder(model: Any, tokenizer: Any) -> Iterator[Path | None]:
    """The folder with the files of a tokenizer; none if the file shall have none.

    Args:
        model: where nothing is given, the tokenizer is looked for where the model was loaded from.
        tokenizer: a tokenizer, a folder, none, or `False`.

    Raises:
        UsageError: nothing found.
    """
    if tokenizer is False:
        yield None
    elif hasattr(tokenizer, "save_pretrained"):
        with TemporaryDirectory() as place:
            tokenizer.save_pretrained(place)
            yield Path(place)
    else:
        folder = Path(str(model.name_or_path) if tokenizer is None else tokenizer)
        if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
            raise UsageError(
                "the model's tokenizer was not found",
                where=folder if str(folder) != "." else "the model was not loaded from a folder",
                expected="tokenizer.json or tokenizer.model beside the model",
                try_="tokenizer=… with a tokenizer or its folder, or tokenizer=False for a file without one",
            )
        yield folder
