# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.data.arrays.description import ArrayInfo, describe
from fewbit.data.arrays.fit import fit
from fewbit.data.arrays.fit_codes import FIT_CODES
from fewbit.data.signature import InputSpec, Signature
from fewbit.errors import DataError

IMAGE = Signature("onnx", (InputSpec("x", ("batch", 3, 8, 8), "float32"),))
BERT = Signature(
    "onnx",
    tuple(InputSpec(name, ("batch", "seq"), "int64") for name in ("input_ids", "attention_mask", "token_type_ids")),
)


def meet(arrays, signature, *, batched=False, **options):
    return fit({name: describe(array) for name, array in arrays.items()}, signature, batched=batched, **options)


def taken_for(result):
    return {step.key: step.name for step in result.steps}


def codes(result):
    return [problem.code for problem in result.problems]


def test_exact_names_shapes_and_dtypes_fit_without_a_word():
    result = meet({"x": np.zeros((3, 8, 8), np.float32)}, IMAGE)
    assert not result.errors and not result.problems and result.rows == 1


def test_every_problem_is_told_at_once():
    found = {
        "input_ids": np.zeros((4, 4, 4), np.int64),
        "attention_mask": np.zeros(4, np.float32),
        "nonsense": np.zeros((7, 7)),
    }
    result = meet(found, BERT)
    assert set(codes(result)) == {"input-shape", "dtype-refused", "input-missing", "input-extra"}
    assert all(problem.fix and problem.input for problem in result.problems)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ("Input_IDs", "input_ids"),
        ("input_ids:0", "input_ids"),
        ("serving_default_input_ids:0", "input_ids"),
        ("bert/input_ids", "input_ids"),
        ("input_id", "input_ids"),
    ],
)
def test_names_that_resemble_an_input_are_suggested(found, wanted):
    arrays = {
        found: np.zeros(4, np.int64),
        "attention_mask": np.zeros(4, np.int64),
        "token_type_ids": np.zeros(4, np.int32),
    }
    arrays["position"] = np.zeros(4, np.int64)  # so that shape and dtype alone settle nothing
    result = meet(arrays, BERT)
    assert taken_for(result)[found] == wanted
    assert "input-name" in codes(result)
    assert f"rename={{{found!r}: {wanted!r}}}" in next(p.fix for p in result.problems if p.code == "input-name")


def test_positional_names_are_suggested_in_order():
    arrays = {f"input_{i}": np.zeros(4, np.int64) for i in range(3)}
    assert taken_for(meet(arrays, BERT)) == dict(zip(arrays, BERT.names))
    from_one = {f"input_{i}": np.zeros(4, np.int64) for i in (1, 2, 3)}
    assert taken_for(meet(from_one, BERT)) == dict(zip(from_one, BERT.names))


def test_an_explicit_rename_is_followed():
    rename = {"a": "input_ids", "b": "attention_mask", "c": "token_type_ids"}
    result = meet({key: np.full(4, i) for i, key in enumerate("abc")}, BERT, rename=rename)
    assert not result.problems
    assert result.apply({key: np.full(4, i) for i, key in enumerate("abc")})["attention_mask"].tolist() == [1] * 4


def test_a_rename_of_unknown_names_is_an_error():
    result = meet({"x": np.zeros((3, 8, 8), np.float32)}, IMAGE, rename={"z": "x", "x": "q"})
    assert codes(result).count("rename-unknown") == 2


def test_a_unique_match_by_looks_is_taken_with_a_warning():
    two = Signature("onnx", (InputSpec("image", (1, 3, 8, 8), "float32"), InputSpec("size", (1, 2), "int64")))
    result = meet({"arr_0": np.zeros(2, np.int64), "arr_1": np.zeros((3, 8, 8), np.float32)}, two)
    assert codes(result) == ["input-renamed", "input-renamed"] and not result.errors
    assert taken_for(result) == {"arr_0": "size", "arr_1": "image"}


def test_a_match_by_looks_that_is_not_unique_is_not_taken():
    result = meet({"a": np.zeros(4, np.int64), "b": np.zeros(4, np.int64), "c": np.zeros(4, np.int64)}, BERT)
    assert result.errors and codes(result).count("input-missing") == 3


def test_missing_required_input_and_extra_key():
    result = meet({"input_ids": np.zeros(4, np.int64), "more": np.zeros((2, 2, 2))}, BERT)
    assert codes(result) == ["input-missing", "input-missing", "input-extra"]


def test_optional_inputs_may_be_missing():
    model = Signature("torch", (InputSpec("x"), InputSpec("mask", required=False)))
    assert meet({"x": np.zeros(3)}, model).errors == []


def test_targets_are_left_out_without_a_word():
    result = meet({"x": np.zeros((3, 8, 8), np.float32), "label": np.int64(3)}, IMAGE, targets={"label"})
    assert not result.problems and [step.key for step in result.steps] == ["x"]


def test_an_open_ended_model_takes_other_names():
    model = Signature("torch", (InputSpec("x"),), open_ended=True)
    result = meet({"x": np.zeros(2), "extra": np.ones(2)}, model)
    assert not result.problems and set(result.apply({"x": np.zeros(2), "extra": np.ones(2)})) == {"x", "extra"}


def test_a_leading_1_is_squeezed():
    array = np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float32)
    result = meet({"x": array}, IMAGE)
    assert codes(result) == ["batch-dimension"] and not result.errors
    np.testing.assert_array_equal(result.apply({"x": array})["x"], array[0])


def test_a_leading_n_is_split_into_samples():
    array = np.arange(5 * 192, dtype=np.float32).reshape(5, 3, 8, 8)
    result = meet({"x": array}, IMAGE)
    assert result.rows == 5 and not result.errors
    np.testing.assert_array_equal(result.apply({"x": array}, 3)["x"], array[3])


def test_inputs_that_disagree_about_the_batch_are_an_error():
    result = meet(
        {
            "input_ids": np.zeros((4, 8), np.int64),
            "attention_mask": np.zeros(8, np.int64),
            "token_type_ids": np.zeros((2, 8), np.int64),
        },
        BERT,
    )
    assert "batch-mixed" in codes(result) and result.rows == 1


def recurrent(x=("batch", "sequence"), state=(2, "batch", 8)):
    return Signature("onnx", (InputSpec("x", x, "float32"), InputSpec("state", state, "float32")))


def shapes(**given):
    return {name: np.zeros(shape, np.float32) for name, shape in given.items()}


@pytest.mark.parametrize(
    ("model", "arrays"),
    [
        (recurrent(), shapes(x=(1, 6), state=(2, 1, 8))),
        (recurrent(), shapes(x=(2, 6), state=(2, 2, 8))),  # which could be cut in two, and would be wrong
        (recurrent(x=(1, 6), state=(2, 1, 8)), shapes(x=(1, 6), state=(2, 1, 8))),
        (recurrent(x=("batch", 3, "frames"), state=(4, 1, 8)), shapes(x=(1, 3, 5), state=(4, 1, 8))),
        (recurrent(x=("frames", 6), state=(1, 1, 8)), shapes(x=(7, 6), state=(1, 1, 8))),
        (recurrent(x=("time", "batch", 6), state=("batch", 8)), shapes(x=(3, 3, 6), state=(3, 8))),
        (recurrent(x=(4, 6), state=(4, 8)), shapes(x=(4, 6), state=(4, 8))),
    ],
)
def test_arrays_of_the_declared_shapes_are_taken_as_they_are(model, arrays):
    result = meet(arrays, model)
    assert result.whole and result.rows == 1 and not result.problems
    assert {name: array.shape for name, array in result.apply(arrays).items()} == {
        name: array.shape for name, array in arrays.items()
    }


def test_what_begins_with_the_batch_axis_is_still_split():
    model = recurrent(x=("batch", 6), state=("batch", 8))
    result = meet(shapes(x=(4, 6), state=(4, 8)), model)
    assert result.rows == 4 and not result.whole
    assert meet(shapes(x=(6,), state=(8,)), recurrent(x=(4, 6), state=(4, 8))).whole is False
    assert "batch-mixed" in codes(meet(shapes(x=(4, 6), state=(2, 8)), recurrent(x=(None, 6), state=(None, 8))))


def test_samples_without_a_batch_axis_for_a_model_that_has_it_elsewhere():
    (problem,) = meet(shapes(x=(6,), state=(2, 8)), recurrent()).errors
    assert problem.code == "batch-mixed" and "state: float32[2, batch, 8]" in problem.message
    assert "--transform" in problem.fix and "list of dicts" in problem.fix


def test_a_whole_array_of_a_wrong_size_is_held_against_the_whole_shape():
    (problem,) = meet(shapes(x=(1, 6), state=(2, 1, 9)), recurrent()).errors
    assert problem.code == "input-shape" and "expected [2, batch, 8], found [2, 1, 9]" in problem.message


def test_a_wrong_shape_names_expected_and_found():
    (problem,) = meet({"x": np.zeros((3, 9, 8), np.float32)}, IMAGE).problems
    assert problem.code == "input-shape"
    assert "[3, 8, 8]" in problem.message and "[3, 9, 8]" in problem.message and "'x'" in problem.message


def test_dynamic_dims_are_free_but_symbols_must_agree():
    def sample(*lengths):
        return {name: np.zeros(size, np.int64) for name, size in zip(BERT.names, lengths)}

    assert not meet(sample(7, 7, 7), BERT).problems
    assert codes(meet(sample(7, 9, 7), BERT)) == ["axis-inconsistent"]


@pytest.mark.parametrize("lead", [(), (1,)])
def test_nhwc_for_nchw_is_hinted_and_can_be_turned(lead):
    array = np.random.default_rng(0).normal(size=(*lead, 8, 8, 3)).astype(np.float32)
    result = meet({"x": array}, IMAGE)
    assert codes(result) == ["input-layout"] and "transpose(2, 0, 1)" in result.problems[0].fix
    np.testing.assert_array_equal(result.apply({"x": array})["x"], array.reshape(8, 8, 3).transpose(2, 0, 1))


def test_nchw_for_nhwc_is_hinted():
    model = Signature("onnx", (InputSpec("x", ("n", 8, 8, 3), "float32"),))
    assert codes(meet({"x": np.zeros((3, 8, 8), np.float32)}, model)) == ["input-layout"]


@pytest.mark.parametrize(
    ("found", "wanted", "code"),
    [
        ("int32", "int64", None),
        ("bool", "int64", None),
        ("float16", "float32", None),
        ("float64", "float32", "dtype-narrowed"),
        ("float32", "float16", "dtype-narrowed"),
        ("float32", "bfloat16", "dtype-narrowed"),
        ("float128", "float32", "dtype-narrowed"),
        ("bfloat16", "float16", "dtype-narrowed"),
        ("float8_e4m3fn", "float16", None),
        ("int4", "int8", "dtype-refused"),
        ("int8", "int4", "dtype-refused"),
        ("object", "float32", "dtype-refused"),
        ("int64", "int32", "dtype-checked"),
        ("int64", "bool", "dtype-checked"),
        ("float32", "int64", "dtype-refused"),
        ("float32", "bool", "dtype-refused"),
        ("complex64", "float32", "dtype-refused"),
        ("str", "int64", "dtype-refused"),
        ("int64", "float32", "dtype-integers"),
        ("uint8", "float32", "dtype-unscaled"),
        ("uint16", "bfloat16", "bfloat16-bits"),
        ("bytes", "str", None),
    ],
)
def test_dtype_rules(found, wanted, code):
    model = Signature("onnx", (InputSpec("x", (None, 2, 2), wanted),))
    result = fit({"x": ArrayInfo((2, 2), found)}, model, batched=False)
    assert codes(result) == ([code] if code else [])


def test_uint8_pixels_ask_about_255():
    assert "255" in meet({"x": np.zeros((3, 8, 8), np.uint8)}, IMAGE).problems[0].message


def test_a_value_that_does_not_fit_is_named():
    model = Signature("onnx", (InputSpec("x", (None, 3), "int32"),))
    array = np.array([1, 1 << 40, 2])
    with pytest.raises(DataError, match=r"1099511627776 at \[1\]") as caught:
        meet({"x": array}, model).apply({"x": array})
    assert caught.value.code == "dtype-refused"


@pytest.mark.parametrize(("value", "found", "wanted"), [(-1, "int64", "uint64"), (1 << 63, "uint64", "int64")])
def test_a_sign_that_is_lost_is_named(value, found, wanted):
    array = np.array([1, value], found)
    with pytest.raises(DataError, match=rf"{value} at \[1\]"):
        meet({"x": array}, Signature("onnx", (InputSpec("x", (None, 2), wanted),))).apply({"x": array})


def test_a_float_that_overflows_is_named():
    model = Signature("onnx", (InputSpec("x", (None, 2), "float16"),))
    array = np.array([1.0, 1e6], np.float32)
    with pytest.raises(DataError, match="1000000"):
        meet({"x": array}, model).apply({"x": array})


def test_bf16_bits_are_widened_to_float32():
    model = Signature("onnx", (InputSpec("x", (None, 2), "bfloat16"),))
    bits = np.array([0x3F80, 0xC000], np.uint16)
    result = meet({"x": bits}, model).apply({"x": bits})["x"]
    assert result.tolist() == [1.0, -2.0] and result.dtype == np.float32


def test_bytes_are_read_as_utf8():
    model = Signature("onnx", (InputSpec("x", (None, 1), "str"),))
    found = {"x": np.array(["naïve".encode()])}
    assert meet(found, model).apply(found)["x"].tolist() == ["naïve"]
    with pytest.raises(DataError, match="utf-8"):
        meet(found, model).apply({"x": np.array([b"\xff"])})


def test_items_carry_the_batch_axis():
    assert not meet({"x": np.zeros((5, 3, 8, 8), np.float32)}, IMAGE, batched=True).problems
    missing = meet({"x": np.zeros((3, 8, 8), np.float32)}, IMAGE, batched=True).problems[0]
    assert missing.code == "batch-missing" and "batch_size=1" in missing.fix and "batched=False" in missing.fix
    twice = meet({"x": np.zeros((1, 5, 3, 8, 8), np.float32)}, IMAGE, batched=True).problems[0]
    assert twice.code == "batch-dimension" and "batch_size=None" in twice.fix
    layout = meet({"x": np.zeros((5, 8, 8, 3), np.float32)}, IMAGE, batched=True)
    assert codes(layout) == ["input-layout"]
    assert layout.apply({"x": np.zeros((5, 8, 8, 3))})["x"].shape == (5, 3, 8, 8)


def test_an_item_must_have_the_batch_a_model_is_fixed_to():
    model = Signature("onnx", (InputSpec("x", (1, 3, 8, 8), "float32"),))
    assert codes(meet({"x": np.zeros((4, 3, 8, 8), np.float32)}, model, batched=True)) == ["batch-fixed"]


AXES = st.one_of(st.integers(0, 4), st.sampled_from(["a", "b"]), st.none())
INFOS = st.builds(
    ArrayInfo,
    st.lists(st.integers(0, 4), max_size=4).map(tuple),
    st.sampled_from(["float32", "float64", "int64", "int32", "uint8", "bool", "str"]),
)
SPECS = st.builds(
    InputSpec,
    st.sampled_from(["x", "y", "input_ids"]),
    st.one_of(st.none(), st.lists(AXES, max_size=4).map(tuple)),
    st.sampled_from([None, "float32", "int64", "float16", "bfloat16", "bool"]),
    st.booleans(),
)


@settings(deadline=None, max_examples=300)
@given(
    st.dictionaries(st.sampled_from(["x", "X", "y", "input_0", "label", "zz"]), INFOS, max_size=4),
    st.lists(SPECS, max_size=3, unique_by=lambda spec: spec.name),
    st.booleans(),
    st.booleans(),
)
def test_whatever_fits_becomes_what_the_model_takes(found, specs, batched, open_ended):
    model = Signature("onnx", tuple(specs), open_ended)
    result = fit(found, model, batched=batched, targets={"label"})
    assert all(problem.code in FIT_CODES for problem in result.problems)
    if result.errors:
        return
    arrays = {key: np.zeros(info.shape, info.dtype) for key, info in found.items()}
    for row in range(min(result.rows, 2)):
        made = result.apply(arrays, row)
        for spec in specs:
            assert spec.name in made or not spec.required
            if spec.name not in made or spec.shape is None:
                continue
            axes = spec.shape if batched or result.whole else spec.shape[1:]
            shape = made[spec.name].shape
            assert len(shape) == len(axes)
            assert all(not isinstance(axis, int) or axis == size for axis, size in zip(axes, shape))
            if spec.dtype is not None:
                assert made[spec.name].dtype == ("float32" if spec.dtype == "bfloat16" else spec.dtype)
