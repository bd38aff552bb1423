# SPDX-License-Identifier: Apache-2.0
from fewbit.cli._summary import lines
from fewbit.record import Record


def text(record):
    return "\n".join(lines(record))


def made(**facts):
    return Record("quantize", facts={"bytes_before": 4000, "bytes_after": 1000, **facts})


def test_what_a_runtime_makes_of_a_graph():
    executed = {"integer": {"QLinearConv": 12}, "floating": {"Conv": 2, "Gemm": 1}, "weight_only": {"MatMulNBits": 1}}
    record = made(
        activations=7,
        executed=executed,
        expected_speedup=1.5,
        expected_error=0.0123,
        answers={"items": 8, "error": 0.0346, "agreement": 0.998},
    )
    assert text(record).splitlines()[1:] == [
        "  7 activations quantized",
        "  the runtime multiplies: 12 QLinearConv in integers; 2 Conv, 1 Gemm in float; "
        "1 MatMulNBits in float on packed weights",
        "  expected: 1.50× as fast, error 0.012 of the answers' energy",
        "  measured: error 0.035 of the answers' energy, the same choice in 99.8%, on 8 items",
    ]


def test_answers_without_a_choice():
    record = made(answers={"items": 2, "error": 0.5, "agreement": None})
    assert text(record).splitlines()[1:] == ["  measured: error 0.5 of the answers' energy, on 2 items"]


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
