# SPDX-License-Identifier: Apache-2.0
"""Names of files, classes and layers are shown, not obeyed by the terminal; JSON is JSON whatever they are."""

import json
import os

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save
from PIL import Image
from rich.text import Text

from fewbit import cli
from fewbit.cli import _output
from fewbit.errors import UsageError
from fewbit.record import Record

UNSAFE = ("\x1b", "\x07", "\x9b", "\u202e", "\u2066")


def _pictures(folder, name):
    for each in (b"cat", name):
        place = os.path.join(os.fsencode(folder), each)
        os.makedirs(place)
        for number in range(2):
            pixels = np.random.default_rng(number + len(each)).integers(0, 255, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(os.fsdecode(os.path.join(place, b"%d.png" % number)))
    return folder


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_the_name_of_a_folder_sends_no_escape_sequence(tmp_path, capsys, flags):
    folder = _pictures(tmp_path / "data", "\x1b[31mRED\x1b[0m\u202e".encode())
    cli.run(["check", str(folder), *flags])
    out, err = capsys.readouterr()
    assert "RED" in out and not any(each in out + err for each in UNSAFE)
    if flags:
        assert any("\x1b[31mRED\x1b[0m\u202e" in each for each in _strings(json.loads(out)))  # nothing is lost


def _strings(value):
    if isinstance(value, str):
        yield value
    for each in [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _strings(each)


def test_the_name_of_a_node_sends_no_escape_sequence(tmp_path, capsys):
    weight = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="\x1b]0;title\x07node")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 64])],
        [weight],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(tmp_path / "m.onnx"))
    cli.run(["plan", str(tmp_path / "m.onnx")])
    out, err = capsys.readouterr()
    assert "node" in out and not any(each in out + err for each in UNSAFE)


def test_errors_and_styled_text_are_safe_and_keep_their_styles(capsys):
    _output.show_error(UsageError("no \x1b[2Jfile", where="\x9bplace"), as_json=False)
    err = capsys.readouterr().err
    assert "no ␛[2Jfile" in err and not any(each in err for each in UNSAFE)
    styled = _output._safe_text(Text.assemble(("a\x1bb", "bold"), "c"))
    assert styled.plain == "a␛bc" and [(span.start, span.end) for span in styled.spans] == [(0, 3)]
    _output.stdout().print("one\ttwo\nthree [x]", markup=False)
    assert capsys.readouterr().out.expandtabs() == "one     two\nthree [x]\n"


def test_a_folder_whose_name_is_not_utf_8_is_valid_json(tmp_path, capsys):
    try:
        folder = _pictures(tmp_path / "data", b"\xff\xfe")
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    assert cli.run(["check", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert any(r"\xff\xfe" in each for each in _strings(found))
    assert cli.run(["check", str(folder)]) == 0


def test_a_record_with_such_a_name_can_be_written():
    record = Record("check", {"a": os.fsdecode(b"\xff"), "b": ["\ud83d"], "c": {"d": (1, None)}})
    found = Record.from_json(record.to_json()).facts
    assert found == {"a": r"\xff", "b": [r"\ud83d"], "c": {"d": [1, None]}}
    with pytest.raises(TypeError):
        Record("check", {"a": object()}).to_json()
