# SPDX-License-Identifier: Apache-2.0
"""Rows of text with pictures, made inputs by the model's own processor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fewbit.data.images.decode import WHITE
from fewbit.data.images.pixels import to_rgb
from fewbit.data.kinds import comes_from
from fewbit.data.sample import Sample
from fewbit.data.signature import Signature
from fewbit.data.text.tally import Tally
from fewbit.data.text.tokenizer import home_of
from fewbit.data.text.wording import Wording
from fewbit.errors import DataError, require

COLUMNS = ("images", "image")
_PLACE = "<image>"
"""Where a picture stands in a text, in the rows most such models were trained on."""


def picture_column(rows: Sequence[Mapping[str, Any]], signature: Signature) -> str | None:
    """The column with pictures, if there is one and the model takes pictures."""
    if not any(name.startswith("pixel_values") for name in signature.names):
        return None
    return next((name for name in COLUMNS if any(row.get(name) is not None for row in rows)), None)


def open_processor(model: Any) -> Any:
    """The processor of a model, for texts and pictures.

    Raises:
        DataError: there is none, or it cannot be read.
    """
    if hasattr(model, "image_processor"):
        return model
    home, found = home_of(model), None
    transformers = require("transformers", extra="hf", purpose="preparing texts with pictures")
    try:
        if home is not None and home.is_dir():
            found = transformers.AutoProcessor.from_pretrained(home, local_files_only=True, trust_remote_code=False)
        why = "its folder has none for texts with pictures"
    except Exception as error:  # whatever a damaged file, or a library that is not there, makes it raise
        why = (str(error) or type(error).__name__).splitlines()[0][:200]
    if hasattr(found, "image_processor"):
        return found
    raise DataError(
        f"the rows have pictures, and the model has no processor that opens: {why}",
        code="processor",
        where=home if home is not None else type(model).__name__,
        expected="processor_config.json or preprocessor_config.json beside config.json",
        try_="processor.save_pretrained(folder), rows without pictures, or a transform (--transform file.py:function)",
    )


def with_pictures(
    rows: Iterable[Sample], wording: Wording, column: str, processor: Any, signature: Signature, tally: Tally
) -> Iterator[dict[str, Any]]:
    """Every row an item, as the processor makes it; none is cut, since its pictures are tokens too."""
    for row in rows:
        said = wording(row)
        value = row.get(column)
        pictures = [_picture(each, row) for each in (value if isinstance(value, list) else [value]) if each is not None]
        if not said.texts and not pictures:
            tally.row([])
            continue
        made = _made(processor, said.messages or [{"role": "user", "content": "\n".join(said.texts)}], pictures)
        tokens = made["input_ids"].reshape(-1).tolist()
        tally.row(tokens)
        tally.longer += len(tokens) > tally.seqlen
        yield {name: value for name, value in made.items() if name in signature.names}


def _made(processor: Any, messages: list[dict[str, Any]], pictures: list[Any]) -> Mapping[str, Any]:
    turns = _placed(messages, pictures)
    if getattr(processor, "chat_template", None):
        text = processor.apply_chat_template(turns, tokenize=False)
    else:
        mark = getattr(processor, "image_token", _PLACE)
        parts = [part for turn in turns for part in turn["content"]]
        text = "\n".join(mark if part["type"] == "image" else part["text"] for part in parts)
    found: Mapping[str, Any] = processor(text=text, images=pictures or None, return_tensors="pt")
    return found


def _placed(messages: list[dict[str, Any]], pictures: list[Any]) -> list[dict[str, Any]]:
    """The messages in parts, a part for each picture: where the text marks its place, else before all texts."""
    turns = [{**message, "content": _parts(message["content"])} for message in messages]
    marked = sum(part["type"] == "image" for turn in turns for part in turn["content"])
    first = next((turn for turn in turns if turn["role"] == "user"), turns[0])
    first["content"] = [{"type": "image"}] * (len(pictures) - marked) + first["content"]
    return turns


def _parts(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, list):
        kinds = ({"type": "image"} if part.get("type") == "image" else part for part in content)
        return [part for part in kinds if part["type"] == "image" or part.get("text")]
    found: list[dict[str, Any]] = []
    for number, text in enumerate((content or "").split(_PLACE)):
        found += [{"type": "image"}] if number else []
        found += [{"type": "text", "text": text.strip("\n")}] if text.strip() else []
    return found


def _picture(value: Any, row: Sample) -> Any:
    from PIL import Image

    if isinstance(value, Mapping):  # as `datasets` keeps pictures it does not decode
        value = value.get("bytes") or value.get("path")
    if comes_from(value, "PIL.Image.Image"):
        return Image.fromarray(to_rgb(value, WHITE))
    if isinstance(value, np.ndarray):
        return Image.fromarray(value)
    if isinstance(value, str) and Path(value).expanduser().is_file():
        with Image.open(Path(value).expanduser()) as opened:
            return Image.fromarray(to_rgb(opened, WHITE))
    raise DataError(
        f"a picture is a {type(value).__name__}" if not isinstance(value, str) else f"there is no picture {value!r}",
        code="picture",
        where=row.place,
        expected="a picture, an array of shape (height, width, 3), or the path of a file from the current folder",
    )
