# SPDX-License-Identifier: Apache-2.0
"""bench/RESULTS.md: one section a benchmark, each rewritten by its own script, the others left as they are."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "RESULTS.md"
HEAD = """# Benchmarks

Every section is written by the script its title names; `make bench` runs them all. Ratios are theirs / ours, so more
than one is faster, unless a column says otherwise.
"""


def write_section(title: str, text: str, path: Path = RESULTS) -> None:
    """Replace the section of that title, or add it at the end. What was measured elsewhere says so in its text."""
    sections = read_sections(path)
    cores, python = len(os.sched_getaffinity(0)), platform.python_version()
    sections[title] = f"Written {time.strftime('%Y-%m-%d')} on {cores} cores, Python {python}.\n\n{text.strip()}\n"
    body = "\n".join(f"## {name}\n\n{content}" for name, content in sections.items())
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(f"{HEAD}\n{body}", encoding="utf-8")
    unfinished.replace(path)


def read_sections(path: Path = RESULTS) -> dict[str, str]:
    """The sections by title, in the order of the file."""
    parts = path.read_text(encoding="utf-8").split("\n## ")[1:] if path.exists() else []
    split = [part.partition("\n") for part in parts]
    return {title: content.strip() + "\n" for title, _, content in split}


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
