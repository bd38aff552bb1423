# SPDX-License-Identifier: Apache-2.0
"""What is said of the price is what it is."""

import re
from pathlib import Path

from fewbit import cli
from fewbit.engine.options import PRICE

DOCS = Path(__file__).parents[2] / "docs" / "onnx.md"


def test_the_help_and_the_page_name_the_price_that_is_used(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    cli.run(["quantize", "--help"])
    assert f"all its time; {PRICE} if not given" in capsys.readouterr().out
    text = " ".join(DOCS.read_text().split())
    assert f"the whole float model: {PRICE} by default" in text
    share, error = map(
        float, re.search(r"saves ([\d.]+) of the time may so bring an error of ([\d.]+\d)", text).groups()
    )
    assert error == round(share * PRICE, 6)
