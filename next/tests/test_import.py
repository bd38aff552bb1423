# SPDX-License-Identifier: Apache-2.0
"""`import fewbit` and help are light: no framework, no pydantic, nothing printed."""

import subprocess
import sys

import pytest

HEAVY = (
    "torch",
    "onnx",
    "onnxruntime",
    "transformers",
    "datasets",
    "pyarrow",
    "openvino",
    "pydantic",
    "scipy",
    "sklearn",
)


def modules_after(code):
    program = f"{code}\nimport sys\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)


def test_import_is_light_and_silent():
    result = modules_after("import fewbit")
    assert result.stdout.strip() == "" and result.stderr == ""


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["quantize", "--help"],
        ["quantize", "missing.onnx"],
        ["check", "missing/"],
        ["quantize", "--sampels", "3"],
    ],
)
def test_help_and_wrong_names_import_nothing_heavy(words):
    call = f"with contextlib.redirect_stdout(io.StringIO()): main({words!r})"
    result = modules_after(f"import contextlib, io\nfrom fewbit.cli import main\n{call}")
    assert result.stdout.strip() == ""


def test_every_public_name_is_there():
    import fewbit

    for name in fewbit.__all__:
        assert getattr(fewbit, name) is not None
    with pytest.raises(AttributeError, match="quantise"):
        fewbit.quantise
