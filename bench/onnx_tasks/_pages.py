# SPDX-License-Identifier: Apache-2.0
"""Pages of a document: titles, paragraphs, tables and figures, and where each of them is."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from . import _rendering as draw

KINDS = ("text", "title", "figure", "figure_caption", "table", "table_caption")


class Block(NamedTuple):
    """A part of a page: which of KINDS, and its box."""

    kind: str
    box: tuple[float, float, float, float]


def page(part: str, random: np.random.Generator, width: int, height: int) -> tuple[Image.Image, list[Block]]:
    """One or two columns, filled from the top."""
    ink, paper = draw.colours(random)
    image, pen = draw.canvas(width, height, paper)
    columns, gap = int(random.integers(1, 3)), width // 24
    size, face = int(random.integers(9, 13)) * width // 600, int(random.integers(100))
    blocks: list[Block] = []
    top = height // 20
    if random.random() < 0.6:
        place = (width // 8, top, width - width // 8, height)
        top = _title(part, random, pen, blocks, face, place, 2 * size, ink) + size
    step = (width - gap) // columns
    for column in range(columns):
        left, y = gap + column * step, top
        right = left + step - gap
        while y < height - 10 * size:
            kind = random.choice(["text", "text", "text", "section", "table", "figure"])
            y = _PARTS[kind](part, random, pen, blocks, face, (left, y, right, height), size, ink) + size
    return image, blocks


def _lines(part, random, pen, face, place, size, ink, count) -> tuple[int, int]:
    """Lines of running text; where the last one ends, and the widest."""
    left, y, right, _ = place
    font = draw.font(face, max(size, 6))
    passages = draw.sentences(part)
    every = " ".join(passages[i] for i in random.integers(len(passages), size=2)).split()
    widest = left
    for _ in range(count):
        line, room = "", right - left
        while every and (room := room - font.getlength(f" {every[0]}")) > 0:
            line = f"{line} {every.pop(0)}".strip()
        pen.text((left, y), line, ink, font)
        widest = max(widest, left + int(font.getlength(line)))
        y += int(size * 1.35)
    return y, widest


def _text(part, random, pen, blocks, face, place, size, ink) -> int:
    count = min(int(random.integers(3, 11)), int((place[3] - place[1]) / size / 1.35) - 1)
    end, right = _lines(part, random, pen, face, place, size, ink, count)
    blocks.append(Block("text", (place[0], place[1], right, end)))
    return end


def _title(part, random, pen, blocks, face, place, size, ink) -> int:
    end, right = _lines(part, random, pen, face + 1, place, size, ink, 1)
    blocks.append(Block("title", (place[0], place[1], right, end)))
    return end


def _section(part, random, pen, blocks, face, place, size, ink) -> int:
    return _title(part, random, pen, blocks, face, (place[0], place[1] + size // 2, *place[2:]), size * 4 // 3, ink)


def _caption(part, random, pen, blocks, face, place, size, ink, kind) -> int:
    left, y, right, _ = place
    label = f"{'Table' if kind == 'table_caption' else 'Fig.'} {random.integers(1, 9)}. "
    text = label + draw.some_words(part, random, 4)
    font = draw.font(face, max(size - 1, 6))
    start = left + max(0, (right - left - font.getlength(text)) / 2)
    pen.text((start, y), text, ink, font)
    blocks.append(Block(kind, (start, y, min(right, start + font.getlength(text)), y + size * 1.3)))
    return y + int(size * 1.6)


def _table(part, random, pen, blocks, face, place, size, ink) -> int:
    left, _, right, limit = place
    top = _caption(part, random, pen, blocks, face, place, size, ink, "table_caption")
    bottom = table(part, random, pen, face, (left, top, right, limit), size, ink, ruled=bool(random.random() < 0.6))
    blocks.append(Block("table", (left, top, right, bottom)))
    return bottom


def table(part, random, pen: ImageDraw.ImageDraw, face, place, size, ink, *, ruled: bool) -> int:
    """A table's cells, with a line around each of them or only a few across; where it ends."""
    left, top, right, limit = place
    step, font = int(size * 1.8), draw.font(face, max(size - 1, 6))
    rows, columns = min(int(random.integers(3, 9)), (limit - top) // step - 1), int(random.integers(3, 7))
    width = (right - left) / columns
    for row in range(rows):
        for column in range(columns):
            number = f"{random.uniform(0, 100):.1f}"
            text = draw.some_words(part, random, 1)[:8] if row == 0 or column == 0 else number
            pen.text((left + column * width + 3, top + row * step + step // 5), text, ink, font)
    bottom = top + rows * step
    for y in [top + i * step for i in range(rows + 1)] if ruled else _few(random, top, step, bottom):
        pen.line([(left, y), (right, y)], ink, 1 if ruled else 2)
    for x in [left + i * width for i in range(columns + 1)] if ruled else []:
        pen.line([(x, top), (x, bottom)], ink, 1)
    return bottom


def _few(random, top: int, step: int, bottom: int) -> list[int]:
    return [top, top + step, bottom] if random.random() < 0.7 else []


def _figure(part, random, pen, blocks, face, place, size, ink) -> int:
    left, y, right, limit = place
    height = min(int((right - left) * random.uniform(0.4, 0.7)), limit - y - 3 * size)
    if random.random() < 0.5:
        photo = photos()[int(random.integers(len(photos())))]
        shift = int(random.integers(0, photo.width // 3))
        piece = photo.crop((shift, 0, photo.width - shift // 2, photo.height)).resize((right - left, height))
        pen._image.paste(piece, (left, y))
    else:
        _chart(random, pen, (left, y, right, y + height), ink)
    blocks.append(Block("figure", (left, y, right, y + height)))
    return _caption(part, random, pen, blocks, face, (left, y + height + 4, right, limit), size, ink, "figure_caption")


def _chart(random, pen, box, ink) -> None:
    left, top, right, bottom = box
    pen.rectangle(box, outline=ink)
    for _ in range(int(random.integers(1, 4))):
        steps = np.cumsum(random.normal(size=40))
        steps = (steps - steps.min()) / np.ptp(steps)
        colour = tuple(map(int, random.integers(0, 220, 3)))
        across, up = np.linspace(left, right, len(steps)), bottom - 4 - (bottom - top - 8) * steps
        pen.line(list(zip(across, up)), colour, 2)


@cache
def photos() -> list[Image.Image]:
    """The two sample photographs of scikit-learn."""
    from sklearn.datasets import load_sample_images

    return [Image.fromarray(pixels) for pixels in load_sample_images().images]


_PARTS = {"text": _text, "section": _section, "table": _table, "figure": _figure}
