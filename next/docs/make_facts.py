# SPDX-License-Identifier: Apache-2.0
"""Writes docs/facts.tsv from docs/facts/*.tsv: one row per fact of the two inventories, with the issue that owes it.

`D` numbers are facts of the inventory of data and training, `Q` numbers those of quantization.
"""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).parent
DATA_FACTS, QUANTIZATION_FACTS = 164, 171
FIRST_TRAINING_FACT = 125
"""Facts 125 to 164 of data and training are about the trainer and pruning: issue 5."""
TRAINER_FACTS = (115, 121, 122)
"""Earlier ones that only the trainer can keep: short steps of several processes, a model's own processor."""
GRAPH_FACTS = 65
"""The first facts of quantization are about ONNX Runtime and ONNX files: issue 4; the others: issue 3."""


def rows() -> list[tuple[str, str, str]]:
    """Id, issue, and the test or the reason."""
    known: dict[str, str] = {}
    for file in sorted((DOCS / "facts").glob("*.tsv")):
        for line in file.read_text().splitlines():
            if line.strip() and not line.startswith("#"):
                name, _, value = line.partition("\t")
                known[name.strip().replace("B", "D", 1)] = value.strip()
    training = {*range(FIRST_TRAINING_FACT, DATA_FACTS + 1), *TRAINER_FACTS}
    data = [(f"D{n}", "5" if n in training else "2") for n in range(1, DATA_FACTS + 1)]
    quantization = [(f"Q{n}", "4" if n <= GRAPH_FACTS else "3") for n in range(1, QUANTIZATION_FACTS + 1)]
    return [(name, issue, known.get(name, "")) for name, issue in (*data, *quantization)]


def text() -> str:
    """The content of facts.tsv."""
    return "".join("\t".join(row) + "\n" for row in [("fact", "issue", "test"), *rows()])


if __name__ == "__main__":
    (DOCS / "facts.tsv").write_text(text())
