# SPDX-License-Identifier: Apache-2.0
import json

import jsonschema
import numpy as np
import pytest

from fewbit.api._model_card import write_model_card
from fewbit.errors import DataError
from fewbit.output import Output
from fewbit.record.card import model_card
from fewbit.record.schema import Record, json_schema, plain
from fewbit.record.screen import megabytes, screen


def record(**fields):
    return Record(
        "quantize", "ok", "3.5x smaller", output="rec-int8.onnx", model={"source": "rec.onnx"},
        preset={"resolved": "w8a8"}, size={"original": 21_100_000, "result": 6_000_000},
        quality={"samples": 32, "agreement": 0.997, "agreement_interval": (0.991, 1.0), "sqnr_db": 23.9},
        speed={"original_ms": 25.1, "result_ms": 12.5, "how": "median of 50, 1 thread, ONNX Runtime 1.31"}, **fields,
    )  # fmt: skip


def test_the_final_screen():
    assert screen(record(next=[{"command": "fewbit compare a b"}])).splitlines() == [
        "OK  3.5x smaller",
        "",
        "              original      result",
        "  size         21.1 MB      6.0 MB   3.5x smaller",
        "  quality   agreement 99.7% (99.1 to 100), SQNR 23.9 dB, 32 held-out samples",
        "  speed        25.1 ms     12.5 ms   2.0x faster (median of 50, 1 thread, ONNX Runtime 1.31)",
        "  next      fewbit compare a b",
    ]


def test_a_record_is_valid_json_and_reads_back(tmp_path):
    made = record(layers=[{"name": "a"}], warnings=[{"code": "x", "message": "m", "hint": None}])
    (tmp_path / "record.json").write_bytes(made.to_json())
    jsonschema.validate(json.loads(made.to_json()), json_schema())
    again = Record.read(tmp_path)
    assert again.to_json() == made.to_json()
    assert repr(made) == "Record(quantize, OK, 3.5x smaller)"


def test_what_is_no_record(tmp_path):
    with pytest.raises(DataError, match="no record"):
        Record.read(tmp_path)
    (tmp_path / "record.json").write_text('{"schema": 99, "unknown": 1}')
    with pytest.raises(DataError, match="not a record"):
        Record.read(tmp_path)


def test_values_become_plain():
    value = {"a": np.float32(0.5), "b": (1, 2), "c": float("nan"), "d": "x\x1b", "e": np.arange(2), 3: None}
    assert plain(value) == {"a": 0.5, "b": [1, 2], "c": None, "d": "x\\x1b", "e": [0, 1], "3": None}


def test_the_model_card_shows_figures_and_escapes_names():
    made = record()
    made.model["source"] = "evil<script>|`x`\x1b"
    text = model_card(made, {"ONNX Runtime": "session = 1"}, "fewbit quantize rec.onnx")
    assert "| size | 21.1 MB | 6.0 MB | 3.5x smaller |" in text and "session = 1" in text
    assert "<script>" not in text and "\x1b" not in text and "$ fewbit quantize rec.onnx" in text


def test_the_card_names_the_file_that_a_runtime_loads_and_a_single_file_has_none(tmp_path):
    made = record(verification={"files": ["gguf/it's.gguf", "gptq/model.safetensors"]})
    write_model_card(Output(tmp_path / "out", tmp_path, is_file=True), made, ["gguf"])
    assert not list(tmp_path.iterdir())
    write_model_card(Output(tmp_path / "out", tmp_path, is_file=False), made, ["gguf", "gptq"])
    card = (tmp_path / "README.md").read_text()
    assert """Llama("out/gguf/it's.gguf")""" in card and "LLM('out/gptq')" in card
    assert "$ fewbit quantize rec.onnx --config out/config.yaml\n" in card


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (999, "999 B"), (999_990, "1.0 MB"), (2_500_000_000, "2.5 GB")])
def test_sizes(size, text):
    assert megabytes(size) == text
