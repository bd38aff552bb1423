# SPDX-License-Identifier: Apache-2.0
"""Curves of a run as SVG, written line by line: a browser shows them, and nothing has to be installed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from fewbit.record import write_atomically
from fewbit.tuning.metrics_log import Line

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _EDGE = 720, 360, 64, 40, 28
_COLOURS = ("#2563eb", "#dc2626", "#059669", "#d97706")
_MOST_POINTS = 2000

Points = Sequence[tuple[float, float]]


def write_plots(lines: Sequence[Line], folder: Path) -> list[Path]:
    """A picture for each number of a run, the loss of steps and evaluations in one.

    Args:
        lines: of a `MetricsLog`.
        folder: made if it is not there.

    Returns:
        The files.
    """
    curves: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for line in lines:
        for name, value in line.items():
            if name in ("kind", "step", "epoch", "seconds", "tokens") or not isinstance(value, int | float):
                continue
            series = "train" if line["kind"] in ("step", "prune") else "validation"
            if math.isfinite(value):
                curves.setdefault(name, {}).setdefault(series, []).append((line["step"], value))
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, found in sorted(curves.items()):
        path = folder / f"{name}.svg"
        write_atomically(path, draw(name, found).encode())
        written.append(path)
    return written


def draw(title: str, series: Mapping[str, Points]) -> str:
    """One picture with a line for each series.

    >>> draw("loss", {"train": [(0, 2.0), (1, 1.0)]}).count("<polyline")
    1
    """
    points = [point for each in series.values() for point in each]
    across = _ticks(*_range([x for x, _ in points]))
    up = _ticks(*_range([y for _, y in points]))
    inner = (_WIDTH - _LEFT - _EDGE, _HEIGHT - _BOTTOM - _EDGE)

    def place(x: float, y: float) -> tuple[float, float]:
        share = (x - across[0]) / (across[-1] - across[0]), (y - up[0]) / (up[-1] - up[0])
        return _LEFT + share[0] * inner[0], _EDGE + (1 - share[1]) * inner[1]

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        f'font-size="12" fill="#334155"><rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="18" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    for value in up:
        x, y = place(across[0], value)
        parts.append(f'<path d="M{x:.1f} {y:.1f}h{inner[0]}" stroke="#e2e8f0"/>')
        parts.append(f'<text x="{x - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    for value in across:
        x, y = place(value, up[0])
        parts.append(f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle">{value:.6g}</text>')
    for number, (name, each) in enumerate(series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        every = max(1, math.ceil(len(each) / _MOST_POINTS))
        shown = [place(*point) for point in [*each[:-1][::every], *each[-1:]]]
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in shown)
        parts.append(f'<polyline points="{corners}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        if len(shown) <= 50:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in shown]
        x = _WIDTH - _EDGE - 90 * (len(series) - number)
        parts.append(f'<text x="{x}" y="18" fill="{colour}">{escape(name)}</text>')
    parts.append(f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 6}" text-anchor="middle">step</text></svg>')
    return "\n".join(parts)


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    return (low, high) if high > low else (low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1))


def _ticks(low: float, high: float) -> list[float]:
    """Five or so round numbers from below one value to above another.

    >>> _ticks(0.1, 0.93)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    size = 10 ** math.floor(math.log10((high - low) / 4))
    step = next(size * each for each in (1, 2, 5, 10) if (high - low) / (size * each) <= 5)
    digits = max(0, 1 - math.floor(math.log10(step)))
    return [round(number * step, digits) for number in range(math.floor(low / step), math.ceil(high / step) + 1)]
