# SPDX-License-Identifier: Apache-2.0
"""Writes docs/findings.md from the registry; a test compares the two."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from fewbit.cli.list import findings


def text() -> str:
    """The page: one table a format."""
    lines = [
        "# Findings",
        "",
        "What `fewbit check` can find, by format. Made by `make docs` from the formats themselves.",
        "",
    ]
    lines += [
        "A reader's default is the first policy; choose another with `open_dataset(path, policy={code: policy})`.",
        "",
    ]
    for format, rows in groupby(findings(), key=lambda row: row["format"]):
        lines += [f"## {format}", "", "| code | severity | meaning | what to try | policies |", "|---|---|---|---|---|"]
        for row in rows:
            cells = [row["meaning"], row["fix"], ", ".join(row["policies"])]
            escaped = [cell.replace("|", "\\|") for cell in cells]
            lines.append(f"| `{row['code']}` | {row['severity']} | {' | '.join(escaped)} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    Path(__file__).with_name("findings.md").write_text(text(), encoding="utf-8")
