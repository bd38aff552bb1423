# SPDX-License-Identifier: Apache-2.0
"""The numbers are those of the guide's list of what the published export script gets wrong (data.md §4)."""

import numpy as np
import pytest

from captured import Free, Named, Net, nn, notes, run, samples, torch
from fewbit.data.capture import capture
from fewbit.data.signature import InputSpec, Signature
from fewbit.errors import DataError, UsageError


def test_1_a_positional_call_is_captured(tmp_path):
    x = torch.arange(12.0).reshape(3, 4)
    run(Net(), tmp_path / "d", (x,))
    assert np.array_equal(np.stack([sample["x"] for sample in samples(tmp_path / "d")]), x.numpy())


def test_2_a_call_with_keywords_only_is_captured(tmp_path):
    run(Net(), tmp_path / "d", {"x": torch.ones(2, 4), "mask": torch.zeros(2, 4)})
    assert [sorted(sample) for sample in samples(tmp_path / "d")] == [["mask", "x"]] * 2


def test_3_a_name_of_two_letters_is_a_name(tmp_path):
    run(Free(), tmp_path / "d", {"ab": torch.ones(2, 3)})
    assert samples(tmp_path / "d")[0]["ab"].tolist() == [1, 1, 1]


def test_4_inputs_of_a_call_stay_together_and_samples_apart(tmp_path):
    run(Named(), tmp_path / "d", {"a": torch.arange(6).reshape(3, 2), "b": torch.arange(3) * 10})
    found = [(sample["a"].tolist(), int(sample["b"])) for sample in samples(tmp_path / "d")]
    assert found == [([0, 1], 0), ([2, 3], 10), ([4, 5], 20)]


def test_5_gradients_bfloat16_and_views_are_converted(tmp_path):
    base = torch.arange(24.0).reshape(2, 3, 4)
    call = {
        "a": base.clone().requires_grad_() * 2,
        "b": base.bfloat16(),
        "c": base.permute(0, 2, 1)[:, ::2],
        "conj": torch.tensor([[1 + 2j], [3j]]).conj(),
        "sparse": torch.eye(2).to_sparse(),
        "half": base.half(),
        "flags": base > 3,
    }
    cap = run(Named(), tmp_path / "d", call)
    first = samples(tmp_path / "d")[0]
    assert first["b"].dtype == np.float32 and np.array_equal(first["b"], base[0].numpy())
    assert first["conj"].tolist() == [1 - 2j] and first["sparse"].tolist() == [1, 0]
    assert first["half"].dtype == np.float16 and first["flags"].dtype == bool
    assert np.array_equal(first["c"], base.permute(0, 2, 1)[0, ::2].numpy()) and first["c"].flags.c_contiguous
    assert cap.manifest["inputs"]["b"]["source_dtype"] == "bfloat16"


def test_5_bfloat16_can_be_kept_as_bits(tmp_path):
    values = torch.tensor([[1.5, -2.0], [3.0, 0.1]], dtype=torch.bfloat16)
    run(Free(), tmp_path / "d", {"x": values, "t": torch.tensor(1.5, dtype=torch.bfloat16)}, bfloat16="uint16")
    found = samples(tmp_path / "d")
    bits = np.stack([sample["x"] for sample in found])
    assert bits.dtype == np.uint16 and np.array_equal(bits, values.view(torch.uint16).numpy())
    assert found[0]["t"].shape == () and found[0]["t"] == bits[0, 0]


def test_6_the_folder_is_made_with_its_parents(tmp_path):
    run(Net(), tmp_path / "a" / "b" / "c", (torch.ones(1, 4),))
    assert (tmp_path / "a" / "b" / "c" / "manifest.json").exists()


def test_7_names_are_those_of_forward(tmp_path):
    cap = run(Net(), tmp_path / "d", (torch.ones(1, 4), torch.ones(1, 4)))
    assert list(cap.manifest["inputs"]) == ["x", "mask"] and cap.manifest["names_from"] == "forward"


def test_7_a_forward_without_names_gets_positions_and_keywords(tmp_path):
    model = Free()
    with capture(model, tmp_path / "d") as cap:
        model(torch.ones(1, 4), torch.ones(1, 4), mask=torch.ones(1, 4))
    assert list(cap.manifest["inputs"]) == ["input_0", "input_1", "mask"]


def test_7_names_and_dtypes_of_an_export_are_met(tmp_path):
    export = Signature(
        "onnx",
        (
            InputSpec("mask", ("n", 4), "bool"),
            InputSpec("pixels", ("n", 4), "float32"),
            InputSpec("extra", required=False),
        ),
        source="model.onnx",
    )
    call = {"x": torch.ones(2, 4, dtype=torch.float64), "mask": torch.ones(2, 4, dtype=torch.int64), "scale": 2.0}
    cap = run(Net().double(), tmp_path / "d", call, names=export)
    first = samples(tmp_path / "d")[0]
    assert list(first) == ["mask", "pixels"] and first["pixels"].dtype == np.float32
    assert first["mask"].dtype == bool
    assert {("name-by-position", "pixels"), ("dtype-cast", "pixels"), ("input-left-out", "scale")} <= notes(cap)


def test_7_names_of_an_onnx_file(tmp_path):
    onnx = pytest.importorskip("onnx")
    make = onnx.helper
    kinds = onnx.TensorProto
    inputs = [
        make.make_tensor_value_info("input_ids", kinds.INT64, ["n", "s"]),
        make.make_tensor_value_info("pixels", kinds.FLOAT, ["n", 3]),
    ]
    output = make.make_tensor_value_info("y", kinds.FLOAT, ["n", 3])
    graph = make.make_graph([make.make_node("Identity", ["pixels"], ["y"])], "g", inputs, [output])
    onnx.save(make.make_model(graph), tmp_path / "model.onnx")
    call = {"a": torch.ones(2, 3), "input_ids": torch.ones(2, 5, dtype=torch.int32), "labels": torch.ones(2)}
    cap = run(Named(), tmp_path / "d", call, names=str(tmp_path / "model.onnx"))
    first = samples(tmp_path / "d")[0]
    assert {name: array.dtype.name for name, array in first.items()} == {"input_ids": "int64", "pixels": "float32"}
    assert ("input-left-out", "labels") in notes(cap)


def test_7_a_list_of_names_goes_by_name_then_by_position(tmp_path):
    cap = run(Net(), tmp_path / "d", (torch.ones(1, 4), torch.ones(1, 4)), names=["mask", "pixels"])
    assert cap.manifest["inputs"]["pixels"]["argument"] == "x" and list(cap.manifest["inputs"]) == ["mask", "pixels"]
    run(Net(), tmp_path / "e", (torch.ones(1, 4),), names={"x": "pixels"})
    assert list(samples(tmp_path / "e")[0]) == ["pixels"]


def test_7_a_missing_parameter_is_not_filled_by_another_argument(tmp_path):
    with pytest.raises(DataError, match="nothing for 'b'"):
        run(Named(), tmp_path / "d", {"a": torch.ones(1, 4), "labels": torch.ones(1)}, names=["a", "b"])


def test_7_what_cannot_be_cast_or_does_not_fit_is_refused(tmp_path):
    for number, (spec, value) in enumerate(
        [
            (InputSpec("ids", ("n", 4), "int64"), torch.ones(1, 4)),
            (InputSpec("x", ("n", 4), "int8"), torch.full((1, 4), 300)),
            (InputSpec("x", ("n", 4), "float16"), torch.full((1, 4), 1e30)),
            (InputSpec("image", ("n", 3, 8, 8), "float32"), torch.ones(1, 4)),
        ]
    ):
        with pytest.raises(DataError) as caught:
            run(Net(), tmp_path / str(number), (value,), names=Signature("onnx", (spec,)))
        assert str(spec) in str(caught.value)


def test_7_bytes_into_a_float_input_are_noted(tmp_path):
    names = Signature("onnx", (InputSpec("x", ("n", 4), "float32"),))
    cap = run(Free(), tmp_path / "d", {"x": torch.ones(1, 4, dtype=torch.uint8)}, names=names)
    assert ("image-not-scaled", "x") in notes(cap)


def test_8_nested_containers_are_flattened_by_path(tmp_path):
    transformers = pytest.importorskip("transformers")
    cache = transformers.DynamicCache()
    cache.update(torch.zeros(2, 1, 3, 4), torch.ones(2, 1, 3, 4), 0)
    batch = transformers.BatchEncoding({"ids": torch.ones(2, 3)})
    model = Named()
    with capture(model, tmp_path / "d") as cap:
        model(batch, [torch.ones(2, 3), (torch.ones(2),)], past=cache)
    assert list(cap.manifest["inputs"]) == ["a.ids", "b.0", "b.1.0", "past.0.key", "past.0.value"]


def test_8_numbers_are_kept_and_the_rest_is_told(tmp_path):
    call = {
        "a": torch.ones(2, 3),
        "b": 7,
        "c": None,
        "mode": "fast",
        "use_cache": True,
        "scale": 0.5,
        "x": np.zeros((2, 1)),
    }
    cap = run(Named(), tmp_path / "d", call, {**call, "mode": "slow"})
    first = samples(tmp_path / "d")[0]
    assert first["b"].shape == () and first["b"] == 7 and first["scale"] == 0.5 and first["x"].shape == (1,)
    told = cap.manifest["not_captured"]
    assert told["c"] == {"type": "NoneType", "value": None, "varies": False}
    assert told["mode"]["varies"] and told["use_cache"]["value"] is True


def test_8_a_call_without_tensors_says_what_it_got(tmp_path):
    with pytest.raises(DataError, match="without a tensor") as caught:
        run(Free(), tmp_path / "d", {"n": 3, "mode": "fast"})
    assert "n=3, mode='fast'" in str(caught.value)


def test_9_masks_and_scalars_beside_a_batch(tmp_path):
    call = {
        "mask": torch.arange(9).reshape(1, 1, 3, 3),
        "a": torch.arange(8).reshape(4, 2),
        "positions": torch.arange(3),
        "scale": torch.tensor(2.0),
    }
    cap = run(Named(), tmp_path / "d", call)
    found = samples(tmp_path / "d")
    assert len(found) == 4 and {sample["mask"].shape for sample in found} == {(1, 3, 3)}
    assert all(sample["positions"].tolist() == [0, 1, 2] and sample["scale"] == 2 for sample in found)
    assert {("axis-broadcast", "mask"), ("axis-shared", "positions")} <= notes(cap)


def test_9_samples_stacked_again_give_the_model_the_same_input(tmp_path):
    model = Net().eval()
    x, mask = torch.randn(4, 3, 4), torch.randn(1, 3, 2)

    class Masked(nn.Module):
        def forward(self, x, mask):
            return model(x) * mask

    run(masked := Masked(), tmp_path / "d", (x, mask))
    again = [torch.from_numpy(np.stack([sample[name] for sample in samples(tmp_path / "d")])) for name in ("x", "mask")]
    assert torch.equal(masked(*again), masked(x, mask))


def test_9_a_batch_of_one_with_other_sizes_beside_it(tmp_path):
    run(
        Named(),
        tmp_path / "d",
        {"a": torch.ones(1, 5), "b": torch.ones(1, 5), "patches": torch.ones(60, 3), "c": torch.arange(5)},
    )
    (only,) = samples(tmp_path / "d")
    assert [only[name].shape for name in ("a", "b", "c", "patches")] == [(5,), (5,), (5,), (60, 3)]


def test_9_other_axes_are_declared(tmp_path):
    call = {
        "a": torch.arange(6).reshape(3, 2),
        "past": (torch.arange(6).reshape(3, 2), torch.zeros(1, 2)),
        "b": torch.ones(2),
    }
    run(Named(), tmp_path / "d", call, batch_dim={"a": 1, "past": -1, "b": None})
    found = samples(tmp_path / "d")
    assert [sample["a"].tolist() for sample in found] == [[0, 2, 4], [1, 3, 5]]
    assert found[1]["past.0"].tolist() == [1, 3, 5] and found[0]["b"].shape == (2,)
    run(Free(), tmp_path / "e", {"x": torch.ones(3, 2)}, batch_dim=None)
    assert samples(tmp_path / "e")[0]["x"].shape == (3, 2)


def test_9_a_list_can_be_the_batch(tmp_path):
    images = [torch.ones(3, 5, 6), torch.ones(3, 7, 8)]
    targets = [{"labels": torch.tensor([1])}, {"labels": torch.tensor([2, 3])}]
    run(Named(), tmp_path / "d", {"a": images, "b": targets}, batch_dim={"a": "list", "b": "list"})
    found = samples(tmp_path / "d")
    assert [sample["a"].shape for sample in found] == [(3, 5, 6), (3, 7, 8)]
    assert found[1]["b.labels"].tolist() == [2, 3]


def test_9_a_batch_as_long_as_the_sequence_does_not_change_the_reading(tmp_path):
    def call(batch):
        return {"a": torch.ones(batch, 5), "positions": torch.arange(5)}

    cap = run(Named(), tmp_path / "d", call(4), call(5))
    assert {sample["positions"].shape for sample in samples(tmp_path / "d")} == {(5,)}
    assert ("axis-coincidence", "positions") in notes(cap)
    with pytest.raises(DataError, match="positions") as caught:
        run(Named(), tmp_path / "e", call(5), call(4))
    assert "batch_dim={'positions': None}" in str(caught.value)


def test_9_declared_inputs_that_disagree_are_an_error(tmp_path):
    with pytest.raises(DataError, match="do not agree") as caught:
        run(Named(), tmp_path / "d", {"a": torch.ones(3, 2), "b": torch.ones(4, 2)}, batch_dim={"a": 0, "b": 0})
    assert "a: 3, b: 4" in str(caught.value)
    with pytest.raises(UsageError, match="'typo'"):
        run(Net(), tmp_path / "e", (torch.ones(1, 4),), batch_dim={"typo": 1})
    with pytest.raises(UsageError, match="PackedSequence"):
        run(Free(), tmp_path / "f", (nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)]),))
