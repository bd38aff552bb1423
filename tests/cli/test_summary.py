# SPDX-License-Identifier: Apache-2.0
import pytest

from fewbit.cli._summary import lines, shortened
from fewbit.record import Record


def text(record):
    return "\n".join(lines(record))


def made(**facts):
    return Record("quantize", facts={"bytes_before": 4000, "bytes_after": 1000, **facts})


def answers(**found):
    return {"items": 1, "error": 0.0, "worst": 0.0, "worst_item": 0, "agreement": None, "kept_aside": True, **found}


def test_what_a_runtime_makes_of_a_graph():
    executed = {"integer": {"QLinearConv": 12}, "floating": {"Conv": 2, "Gemm": 1}, "weight_only": {"MatMulNBits": 1}}
    record = made(
        activations=7,
        executed=executed,
        expected_speedup=1.5,
        expected_error=0.0123,
        answers=answers(items=8, error=0.0346, worst=0.0712, worst_place="sample 9 (9.npz)", agreement=0.998),
    )
    assert text(record).splitlines()[1:] == [
        "  7 activations quantized",
        "  ONNX Runtime executes: 12 QLinearConv in integers; 2 Conv, 1 Gemm in float; "
        "1 MatMulNBits in float on packed weights",
        "  estimated: 1.50× as fast (cost model, not measured), output error 0.012 (relative MSE)",
        "  measured on 8 held-out samples: top-1 agreement 99.8%, output error 0.035 "
        "(relative MSE; worst 0.071 in sample 9 (9.npz))",
    ]


def test_answers_without_a_choice():
    record = made(answers=answers(items=2, error=0.5, worst=0.7))
    assert text(record).splitlines()[1:] == [
        "  measured on 2 held-out samples: output error 0.5 (relative MSE; worst 0.7)"
    ]


def test_samples_are_counted_not_batches():
    record = made(expected_speedup=1.5, expected_error=0.5, answers=answers(items=3, samples=12, error=0.5, worst=0.7))
    assert text(record).splitlines()[-1] == (
        "  measured on 12 held-out samples: output error 0.5 (relative MSE; worst 0.7)"
    )


def test_a_sample_that_calibrates_and_judges_is_said_to():
    record = made(answers=answers(error=0.001, kept_aside=False))
    record.note("not-kept-aside", "of fewer than 5 items none is kept aside", items=1)
    assert text(record).splitlines()[1:] == ["  measured on 1 calibration sample: output error 0.001 (relative MSE)"]


@pytest.mark.parametrize(("expected", "measured"), [(0.01, 0.051), (0.0, 0.002), (0.01, float("nan"))])
def test_an_error_much_larger_than_expected_comes_first(expected, measured):
    record = made(expected_speedup=1.5, expected_error=expected, answers=answers(error=measured))
    first = text(record).splitlines()[0]
    assert first.startswith("warning: the measured error") and f"{measured:.2g}" in first and f"{expected:.2g}" in first


@pytest.mark.parametrize(("expected", "measured"), [(0.01, 0.049), (0.0, 1e-5), (1e-7, 1e-4)])
def test_an_error_about_as_expected_or_tiny_is_no_warning(expected, measured):
    record = made(expected_speedup=1.5, expected_error=expected, answers=answers(error=measured))
    assert "warning" not in text(record)


def test_pixels_that_were_not_scaled_come_first_and_once():
    record = made()
    record.note("float", "it is excluded", where="last")
    record.note("dtype-unscaled", "input 'x': uint8 pixels go to a float32 input", where="input 'x'")
    told = text(record).splitlines()
    assert told[0] == "warning: input 'x': uint8 pixels go to a float32 input" and text(record).count("uint8") == 1


def test_operators_go_by_the_names_the_model_gives_them():
    executed = {
        "integer": {},
        "floating": {"FusedGemm": 1, "Gemm": 1},
        "weight_only": {},
        "float_operators": {"MatMul": 2},
    }
    assert "  ONNX Runtime executes: 2 MatMul in float" in text(made(executed=executed))


def test_long_names_are_cut_in_the_middle_and_not_repeated():
    long = ";".join(f"model/conv2d_{i}/BiasAdd/ReadVariableOp" for i in range(5))
    record = made()
    for _ in range(2):
        record.note("float", "it is excluded", where=long)
    record.note("run", f"Mul {long} folded in", where="conv")
    record.note("note", f"{long} is shorter", where=long)
    told = text(record).splitlines()[1:]
    short = shortened(long)
    assert len(short) == 56 and short.startswith("model/conv2d_0") and short.endswith("_4/BiasAdd/ReadVariableOp")
    assert told == [
        f"  float: it is excluded ({short})",
        f"  run: Mul {short} folded in (conv)",
        f"  note: {short} is shorter",
    ]


def test_reasons_that_differ_in_numbers_are_one_line():
    record = made()
    for i in range(40):
        record.note("run", f"BatchNormalization BatchNormalization.{i} folded in", where=f"Conv.{i}")
    told = text(record).splitlines()
    assert told[1:] == ["  run: BatchNormalization BatchNormalization.0 folded in (Conv.0, Conv.1, Conv.2 and 37 more)"]


def test_many_reasons_are_counted_and_none_of_another_kind_is_lost():
    record = made()
    for name in "abcdef":
        record.note("run", f"Mul {name} folded in", where=name)
        record.note("run", f"Mul {name} folded in", where=f"{name}{name}")
    record.note("float", "it is excluded", where="last")
    told = text(record).splitlines()
    assert [line for line in told if line.startswith("  run: Mul")] == [
        f"  run: Mul {name} folded in ({name}, {name}{name})" for name in "abcd"
    ]
    assert "  run: 4 more lines in the record" in told and told[-1] == "  float: it is excluded (last)"
