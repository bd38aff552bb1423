# SPDX-License-Identifier: Apache-2.0
"""`import fewbit` is light, and imports go one way."""

import subprocess
import sys
from pathlib import Path

import pytest

import fewbit

ROOT = Path(__file__).parents[2]


def modules_after(code: str) -> set[str]:
    script = f"import sys; before = set(sys.modules)\n{code}\nprint('\\n'.join(set(sys.modules) - before))"
    return set(subprocess.check_output([sys.executable, "-c", script], text=True).split())


def test_import_fewbit_imports_almost_nothing():
    modules = modules_after("import fewbit")
    assert len(modules) <= 3, modules


def test_the_data_api_needs_no_framework():
    heavy = {"torch", "onnx", "onnxruntime", "openvino", "datasets", "transformers", "pyarrow", "pandas", "sklearn"}
    modules = modules_after("import fewbit; fewbit.open_dataset; fewbit.check_dataset; fewbit.capture; fewbit.Dataset")
    assert not heavy & modules


def test_the_quantizer_loads_no_compiler():
    modules = modules_after("from fewbit import ModelQuantizer, Config, QuantizationSpec; ModelQuantizer(Config())")
    assert "torch" in modules
    assert not {"torch._dynamo", "sympy", "transformers", "onnx", "safetensors"} & modules


def test_checking_a_folder_needs_no_framework(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "hello"}\n')
    code = f"import fewbit; assert fewbit.check_dataset({str(tmp_path / 'a.jsonl')!r}).ok"
    assert not {"torch", "onnx", "onnxruntime", "openvino", "datasets", "transformers", "pyarrow"} & modules_after(code)


@pytest.mark.parametrize("name", fewbit.__all__)
def test_every_public_name_is_there(name):
    assert getattr(fewbit, name) is not None
    assert name in dir(fewbit)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        fewbit.no_such_name


def test_imports_go_one_way():
    result = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout
    assert "2 kept, 0 broken" in result.stdout
