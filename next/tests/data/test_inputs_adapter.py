# SPDX-License-Identifier: Apache-2.0
"""From samples to batches of inputs, against the runtimes themselves."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.backends.onnx.inspect import inspect_onnx
from fewbit.data.inputs import InputAdapter, model_inputs
from fewbit.errors import DataError, UsageError
from fewbit.model_info import ModelInfo, TensorInfo
from item_source import item_dataset as data

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def onnx_model(path, **inputs):
    """A model that passes its inputs through, so that what arrives can be seen."""
    helper = onnx.helper
    kinds = {"float32": onnx.TensorProto.FLOAT, "int64": onnx.TensorProto.INT64, "uint8": onnx.TensorProto.UINT8}
    values = [helper.make_tensor_value_info(name, kinds[d], s) for name, (d, s) in inputs.items()]
    outputs = [helper.make_tensor_value_info(f"{name}_out", kinds[d], s) for name, (d, s) in inputs.items()]
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in inputs]
    graph = helper.make_graph(nodes, "g", values, outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def run(path, inputs):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, inputs)


@pytest.fixture
def image_model(tmp_path):
    return onnx_model(tmp_path / "m.onnx", pixels=("float32", ["n", 3, 4, 5]))


@pytest.fixture
def adapter(image_model):
    return InputAdapter(inspect_onnx(image_model))


def image(value=1.0, dtype=np.float32):
    return np.full((3, 4, 5), value, dtype)


def codes(adapter):
    return sorted(adapter.report.counts)


def test_samples_are_joined_under_input_names(image_model, adapter):
    samples = [{"pixels": image(number), "label": number} for number in range(7)]
    adapter.first(data(samples))
    batches = list(adapter.batches(data(samples), 3))
    assert [len(batch) for batch in batches] == [3, 3, 1]
    assert [label for batch in batches for label in batch.labels] == list(range(7))
    assert [str(location) for location in batches[1].locations] == ["3.npz", "4.npz", "5.npz"]
    outputs = np.concatenate([run(image_model, batch.inputs)[0] for batch in batches])
    assert np.array_equal(outputs[:, 0, 0, 0], np.arange(7)) and codes(adapter) == []


def test_batches_of_a_loader_keep_their_size(image_model, adapter):
    items = [np.ones((2, 3, 4, 5), np.float32), np.ones((1, 3, 4, 5), np.float32)]
    assert [len(batch) for batch in adapter.batches(data(items, batched=True), 4)] == [2, 1]


@pytest.mark.parametrize("pair", [tuple, list])
def test_pairs_give_up_their_labels(adapter, pair):
    items = [pair([np.ones((2, 3, 4, 5), np.float32), np.array([3, 4])])]
    (batch,) = adapter.batches(data(items, batched=True))
    assert batch.labels[0].tolist() == [3, 4] and codes(adapter) == ["labels-left-out"]


@pytest.mark.parametrize(
    "item",
    [image(), (image(),), {"pixels": image()}, {"anything": image()}, ((image(),), {}), (image(), 3), image().tolist()],
)
def test_every_form_of_a_sample_reaches_the_only_input(image_model, adapter, item):
    (batch,) = adapter.batches(data([item]))
    assert run(image_model, batch.inputs)[0].shape == (1, 3, 4, 5)


def test_a_sample_with_several_rows_is_split(adapter):
    samples = [
        {"pixels": np.stack([image(0), image(1), image(2)]), "label": [7, 8, 9]},
        {"pixels": image(3), "label": 6},
    ]
    batches = list(adapter.batches(data(samples), 2))
    assert [len(batch) for batch in batches] == [2, 2]
    assert [label for batch in batches for label in batch.labels] == [7, 8, 9, 6]


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.uint8, ">f4"])
def test_other_dtypes_run(image_model, adapter, dtype):
    (batch,) = adapter.batches(data([{"pixels": image(1, dtype)}]))
    assert run(image_model, batch.inputs)[0].sum() == 60


def test_everything_wrong_with_a_sample_is_said_at_once(tmp_path):
    path = onnx_model(
        tmp_path / "m.onnx", ids=("int64", ["n", "s"]), mask=("int64", ["n", "s"]), more=("float32", ["n", 2])
    )
    adapter = InputAdapter(inspect_onnx(path))
    with pytest.raises(DataError) as caught:
        adapter.first(data([{"ids": np.ones(4), "mask": np.ones(5, np.int64)}]))
    assert caught.value.code == "input-mismatch" and "0.npz" in caught.value.where
    for part in ("'ids'", "dtype-refused", "more: float32 [n, 2]", "axis 's'"):
        assert part in caught.value.what


def test_a_single_problem_has_its_own_code(adapter):
    with pytest.raises(DataError) as caught:
        adapter.first(data([{"pixels": np.ones((4, 5, 3), np.float32)}]))
    assert caught.value.code == "input-layout" and "transpose" in caught.value.hint


def test_a_later_sample_that_does_not_fit_is_named(adapter):
    batches = adapter.batches(data([{"pixels": image()}, {"pixels": np.ones((3, 4, 6), np.float32)}]))
    next(batches)
    with pytest.raises(DataError) as caught:
        next(batches)
    assert "1.npz" in caught.value.where and caught.value.code == "input-shape"


def test_on_error_drops_or_repairs(image_model):
    info = inspect_onnx(image_model)
    turned = np.arange(60, dtype=np.float32).reshape(4, 5, 3)
    samples = [{"pixels": image()}, {"pixels": turned}, {"pixels": np.ones(3, np.float32)}]
    dropping = InputAdapter(info, {"on_error": "drop"})
    assert len(list(dropping.batches(data(samples)))) == 1
    assert [str(location) for location in dropping.dropped] == ["1.npz", "2.npz"]
    repairing = InputAdapter(info, {"on_error": {"input-layout": "repair", "*": "drop"}})
    _, repaired = repairing.batches(data(samples))
    assert np.array_equal(repaired.inputs["pixels"][0], turned.transpose(2, 0, 1))
    named = InputAdapter(info, {"on_error": "repair"})
    with pytest.raises(DataError, match="shape"):
        list(named.batches(data(samples)))


def test_the_look_at_the_first_samples_counts_nothing_twice(image_model):
    adapter = InputAdapter(inspect_onnx(image_model), {"on_error": "drop"})
    samples = data([{"pixels": np.ones(3, np.float32)}, {"pixels": image(1, np.float64)}])
    adapter.first(samples)
    assert not adapter.report.counts and not adapter.dropped
    assert len(list(adapter.batches(samples))) == 1
    assert adapter.report.counts == {"input-shape": 1, "dtype-narrowed": 1} and len(adapter.dropped) == 1


def test_warnings_never_drop_a_sample(image_model):
    adapter = InputAdapter(inspect_onnx(image_model), {"on_error": "drop"})
    assert len(list(adapter.batches(data([{"pixels": image(1, np.uint8)}] * 3)))) == 3
    assert adapter.report.counts == {"dtype-unscaled": 1}


def test_what_is_left_out_is_noted_once(adapter):
    samples = [{"pixels": image(1, np.float64), "class": np.arange(3), "file": "a.png"}] * 3
    list(adapter.batches(data(samples)))
    assert adapter.report.counts == {"dtype-narrowed": 1, "input-extra": 1}


def test_values_that_do_not_fit_are_located(tmp_path):
    adapter = InputAdapter(inspect_onnx(onnx_model(tmp_path / "m.onnx", ids=("int64", ["n", 1]))))
    with pytest.raises(DataError, match="9223372036854775808") as caught:
        list(adapter.batches(data([np.array([1], np.uint64), np.array([1 << 63], np.uint64)])))
    assert "1.npz" in caught.value.where and caught.value.code == "dtype-refused"


def test_token_ids_beyond_the_vocabulary():
    info = ModelInfo("m", "ONNX", "onnx", inputs=(TensorInfo("input_ids", "int64", ("batch", None)),), vocabulary=30)
    adapter = InputAdapter(info)
    list(adapter.batches(data([{"input_ids": np.array([0, 29])}])))
    for ids in ([0, 30], [-1, 2]):
        with pytest.raises(DataError) as caught:
            list(adapter.batches(data([{"input_ids": np.array(ids)}])))
        assert caught.value.code == "id-range"


def test_samples_of_different_shapes_make_no_batch(tmp_path):
    adapter = InputAdapter(inspect_onnx(onnx_model(tmp_path / "m.onnx", x=("float32", ["n", "s"]))))
    samples = [{"x": np.ones(3, np.float32)}, {"x": np.ones(4, np.float32)}]
    assert len(list(adapter.batches(data(samples)))) == 2
    with pytest.raises(DataError, match=r"\[1, 3\] and \[1, 4\]") as caught:
        list(adapter.batches(data(samples), 2))
    assert caught.value.code == "batch-ragged" and "1.npz" in caught.value.where


def test_a_fixed_batch_is_filled_and_the_rest_recorded(tmp_path):
    path = onnx_model(tmp_path / "m.onnx", x=("float32", [2, 3]))
    adapter = InputAdapter(inspect_onnx(path))
    samples = [{"x": np.full(3, number, np.float32)} for number in range(5)]
    for batch_size in (1, 2):
        batches = list(adapter.batches(data(samples), batch_size))
        assert [run(path, batch.inputs)[0].shape for batch in batches] == [(2, 3)] * 2
    assert codes(adapter) == ["batch-incomplete"] and str(adapter.dropped[0]) == "4.npz"
    for wrong in (3, 0, True):
        with pytest.raises(UsageError):
            list(adapter.batches(data(samples), wrong))
    whole = [{"x": np.ones((2, 3), np.float32)}] * 2
    assert [batch.inputs["x"].shape for batch in adapter.batches(data(whole))] == [(2, 3)] * 2


@pytest.fixture
def recurrent(tmp_path):
    return onnx_model(
        tmp_path / "r.onnx", x=("float32", ["batch", "time"]), state=("float32", [2, "batch", 3]), rate=("int64", [])
    )


def test_a_batch_axis_elsewhere(recurrent):
    adapter = InputAdapter(inspect_onnx(recurrent))
    for x, state in (((6,), (2, 3)), ((1, 6), (2, 1, 3))):
        samples = [
            {"x": np.full(x, number, np.float32), "state": np.full(state, number, np.float32), "rate": np.int64(16)}
            for number in range(3)
        ]
        (batch,) = adapter.batches(data(samples), 3)
        assert {name: array.shape for name, array in batch.inputs.items()} == {
            "x": (3, 6),
            "state": (2, 3, 3),
            "rate": (),
        }
        assert run(recurrent, batch.inputs)[1][1, :, 0].tolist() == [0, 1, 2]


def test_one_value_for_the_whole_batch_must_be_one(recurrent):
    adapter = InputAdapter(inspect_onnx(recurrent))
    samples = [{"x": np.ones(6, np.float32), "state": np.ones((2, 3), np.float32), "rate": rate} for rate in (8, 16)]
    with pytest.raises(DataError, match="'rate'"):
        list(adapter.batches(data(samples), 2))


def test_whole_inputs_pass_alone(tmp_path):
    path = onnx_model(tmp_path / "m.onnx", x=("float32", [1, 6]), state=("float32", [2, 1, 8]))
    samples = [{"x": np.ones((1, 6), np.float32), "state": np.ones((2, 1, 8), np.float32)}] * 2
    batches = list(InputAdapter(inspect_onnx(path)).batches(data(samples)))
    assert [run(path, batch.inputs)[1].shape for batch in batches] == [(2, 1, 8)] * 2


def test_a_transform_gives_the_inputs_with_or_without_a_batch_axis(image_model):
    info = inspect_onnx(image_model)
    for shape in ((3, 4, 5), (1, 3, 4, 5)):

        def transform(sample, shape=shape):
            return {"pixels": np.full(shape, sample["image"][0, 0, 0], np.float32)}

        samples = [{"image": np.full((9, 9, 3), number, np.uint8), "label": number} for number in range(4)]
        for adapter, dataset in (
            (InputAdapter(info, {"transform": transform}), data(samples)),
            (InputAdapter(info, {"transform": "mine.py:fn"}), data(samples, transform)),
        ):
            batches = list(adapter.batches(dataset, 4))
            assert [batch.inputs["pixels"][:, 0, 0, 0].tolist() for batch in batches] == [[0, 1, 2, 3]]
            assert adapter.describe().startswith("transform ")
    with pytest.raises(UsageError, match="transform of type int"):
        InputAdapter(info, {"transform": 3}).first(data(samples))


def images(count=2):
    return [{"image": np.full((8, 9, 3), 51 * number, np.uint8), "label": number} for number in range(count)]


def test_images_are_prepared_as_the_input_shape_says(image_model):
    adapter = InputAdapter(inspect_onnx(image_model), {"mean": (0.5,), "std": (0.5,)})
    adapter.first(data(images()))
    (batch,) = adapter.batches(data(images()), 2)
    assert batch.inputs["pixels"].dtype == np.float32 and batch.labels == (0, 1)
    assert np.allclose(run(image_model, batch.inputs)[0][:, 0, 0, 0], [-1, -0.6])
    assert "mean 0.5" in adapter.describe() and codes(adapter) == []
    record = adapter.record()
    assert record["image_size"] == (4, 5) and record["mean"] == (0.5,)


def test_the_record_is_what_the_next_command_reads(image_model, tmp_path):
    """Every setting survives `preprocessing.json`, also what only a Hugging Face processor or a text model has."""
    import orjson

    settings = {
        "image_size": (4, 5), "resize": "crop", "resize_to": (8, 9), "mean": (0.25,), "std": (0.5,), "scale": 1 / 127.5,
        "layout": "nchw", "channels": "bgr", "interpolation": "bicubic", "pad_value": 3, "max_length": 64,
        "pack": "pad", "text_column": "body", "label_column": "kind",
    }  # fmt: skip
    path = tmp_path / "m.preprocessing.json"
    path.write_bytes(orjson.dumps(settings | {"labels": ["cat", "dog"]}))
    for _ in range(2):
        info = inspect_onnx(image_model)
        adapter = InputAdapter(info)
        adapter.first(data(images()))
        record = adapter.record()
        assert record | settings == record and record["labels"] == ["cat", "dog"]
        path.write_bytes(orjson.dumps(record))
    assert info.preprocessing_source == "m.preprocessing.json"


def test_image_and_text_settings_may_lie_in_two_files(image_model, tmp_path):
    (tmp_path / "preprocessor_config.json").write_text('{"do_resize": true, "size": {"height": 4, "width": 5}}')
    (tmp_path / "preprocessing.json").write_text('{"max_length": 128}')
    info = inspect_onnx(image_model)
    assert info.preprocessing["max_length"] == 128 and info.preprocessing["image_size"] == [4, 5]
    assert info.preprocessing_source == "preprocessing.json and preprocessor_config.json"
    (tmp_path / "preprocessing.json").write_text('{"mean": [0.5]}')
    assert "image_size" not in inspect_onnx(image_model).preprocessing, "one file decides about images"


def test_images_for_channels_last_and_for_bytes(tmp_path):
    path = onnx_model(tmp_path / "m.onnx", pixels=("uint8", ["n", 4, 5, 3]))
    (batch,) = InputAdapter(inspect_onnx(path)).batches(data(images()), 2)
    assert run(path, batch.inputs)[0][1, 0, 0].tolist() == [51, 51, 51]


def test_boxes_come_along_as_labels(image_model):
    sample = images(1)[0] | {"boxes": np.zeros((2, 4), np.float32), "classes": np.zeros(2, np.int64)}
    del sample["label"]
    (batch,) = InputAdapter(inspect_onnx(image_model)).batches(data([sample]))
    assert set(batch.labels[0]) == {"boxes", "classes"}


def test_an_image_input_needs_its_other_inputs_too(tmp_path):
    path = onnx_model(tmp_path / "m.onnx", image=("float32", ["n", 3, 4, 4]), scale=("float32", ["n", 2]))
    with pytest.raises(DataError) as caught:
        InputAdapter(inspect_onnx(path)).first(data(images()))
    assert caught.value.code == "input-missing" and "scale" in caught.value.what


def test_text_goes_through_the_tokenizer(tmp_path):
    info = ModelInfo(
        "m", "ONNX", "onnx", inputs=(TensorInfo("input_ids", "int64", ("batch", "seq")),), vocabulary=300
    )  # fmt: skip
    adapter = InputAdapter(info, {"tokenizer": "bytes", "pack": "pad", "max_length": 16})
    batches = list(adapter.batches(data([{"text": "hello"}, {"text": "you"}])))
    assert len(batches) == 2 and all(batch.inputs["input_ids"].dtype == np.int64 for batch in batches)
    assert adapter.describe() == "text, at most 16 tokens (options)"
    found = replace(info, preprocessing={"max_length": 8, "pack": "pad"}, preprocessing_source="preprocessing.json")
    adapter = InputAdapter(found, {"tokenizer": "bytes"})
    batches = list(adapter.batches(data([{"text": "hello, how are you?"}])))
    assert batches[0].inputs["input_ids"].shape == (1, 8)
    assert adapter.describe() == "text, at most 8 tokens (preprocessing.json)" and adapter.record()["max_length"] == 8


@pytest.mark.parametrize(("value", "code"), [("hello", "input-mismatch"), ([[1.0], [2.0, 3.0]], "dtype-refused")])
def test_what_is_no_array_never_reaches_a_model(adapter, value, code):
    with pytest.raises(DataError) as caught:
        adapter.first(data([{"pixels": value}]))
    assert caught.value.code == code and "dtype-refused" in str(caught.value)


def test_an_empty_dataset_and_too_many_values(adapter):
    with pytest.raises(DataError, match="empty"):
        adapter.first(data([]))
    with pytest.raises(DataError, match="3 values") as caught:
        adapter.first(data([(image(), image(), image())]))
    assert caught.value.code == "input-surplus" and "0.npz" in caught.value.where


def test_model_inputs_of_a_path_ask_for_the_info(image_model):
    with pytest.raises(UsageError, match=r"m\.onnx"):
        model_inputs(data([image()]), str(image_model))
    (inputs,) = data([image()]).inputs(inspect_onnx(image_model))
    assert list(inputs) == ["pixels"]


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.lists(st.one_of(st.integers(), st.text(max_size=2), st.lists(st.floats(), max_size=3)), max_size=3),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
    st.builds(
        lambda shape, dtype: np.zeros(shape, dtype),
        st.lists(st.integers(0, 4), max_size=5).map(tuple),
        st.sampled_from(["float32", "float64", "int64", "uint8", "bool", "complex64", "U3", "S3", "O", "M8[s]", "V4"]),
    ),
)
SAMPLES = st.one_of(
    VALUES,
    st.dictionaries(st.sampled_from(["x", "X", "ids", "image", "text", "label", "boxes", ""]), VALUES, max_size=4),
    st.tuples(VALUES, VALUES),
    st.lists(VALUES, max_size=3),
)
MODELS = [
    ModelInfo(
        "m", "ONNX", "onnx", inputs=(TensorInfo("x", "float32", ("batch", 3)), TensorInfo("ids", "int64", ("batch",)))
    ),
    ModelInfo("m", "ONNX", "onnx", inputs=(TensorInfo("x", "float32", (None, 3, 4, 4)),)),
    ModelInfo("m", "ONNX", "onnx", inputs=(TensorInfo("x", "bfloat16", (2, "batch", 3), 1),), vocabulary=3),
    ModelInfo("m", "ONNX", "onnx", inputs=(TensorInfo("x", "str", (None,)), TensorInfo("ids", "bool", (), None))),
    ModelInfo(
        "m",
        "Net",
        "torch",
        takes_tensors=True,
        takes_objects=True,
        inputs=(TensorInfo("x"),),
        facts={"open_ended": True, "floating": "float16"},
    ),
]


@settings(deadline=None, max_examples=400)
@given(SAMPLES, st.sampled_from(MODELS), st.booleans(), st.sampled_from([None, "drop", "repair", "keep"]))
def test_anything_ends_in_batches_or_a_typed_error(sample, info, batched, on_error):
    adapter = InputAdapter(info, {"on_error": on_error})
    try:
        for batch in adapter.batches(data([sample], batched=batched)):
            assert set(batch.inputs) <= {tensor.name for tensor in info.inputs} or info.facts
    except DataError:
        pass
