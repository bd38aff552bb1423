# SPDX-License-Identifier: Apache-2.0
"""From samples to what a model is called with, against the runtimes themselves."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from torch.utils.data import DataLoader, TensorDataset
from transformers import BatchEncoding, BertConfig, BertModel

import fewbit
from fewbit.errors import DataError, UsageError


def onnx_model(path, **inputs):
    """A model that passes its inputs through, so that what arrives can be seen."""
    kinds = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}
    values = [helper.make_tensor_value_info(n, kinds[d], s) for n, (d, s) in inputs.items()]
    outs = [helper.make_tensor_value_info(f"{n}_out", kinds[d], s) for n, (d, s) in inputs.items()]
    nodes = [helper.make_node("Identity", [n], [f"{n}_out"]) for n in inputs]
    graph = helper.make_graph(nodes, "g", values, outs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return str(path)


def run(model, feed):
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feed)


@pytest.fixture
def image_model(tmp_path):
    return onnx_model(tmp_path / "m.onnx", pixels=("float32", ["n", 3, 4, 5]))


class Net(torch.nn.Module):
    def forward(self, pixels, mask=None):
        return pixels.sum()


class Dictionary(torch.nn.Module):
    def forward(self, batch):
        return batch["a"] + batch["b"]


def call(model, feed):
    args, kwargs = feed
    return model(*args, **kwargs)


def test_samples_are_stacked_under_input_names(image_model):
    data = {"pixels": np.random.default_rng(0).random((7, 3, 4, 5), np.float32), "label": np.arange(7)}
    feeds = list(fewbit.Dataset(data).inputs(image_model, batch_size=3))
    assert [feed["pixels"].shape[0] for feed in feeds] == [3, 3, 1]
    assert np.array_equal(np.concatenate([run(image_model, f)[0] for f in feeds]), data["pixels"])


def test_an_array_goes_to_the_only_input(image_model):
    images = np.ones((2, 3, 4, 5), np.float64)
    (feed, _) = fewbit.Dataset(images).inputs(image_model)
    assert feed["pixels"].dtype == np.float32 and run(image_model, feed)[0].shape == (1, 3, 4, 5)


def test_items_are_never_batched_again(image_model):
    loader = DataLoader(torch.ones(5, 3, 4, 5), batch_size=2)
    assert [f["pixels"].shape[0] for f in fewbit.Dataset(loader).inputs(image_model, batch_size=4)] == [2, 2, 1]


def test_pairs_of_a_loader_give_their_labels_up(image_model):
    loader = DataLoader(TensorDataset(torch.ones(4, 3, 4, 5), torch.arange(4)), batch_size=2)
    dataset = fewbit.Dataset(loader)
    for feed in dataset.inputs(image_model):
        run(image_model, feed)
    for feed in fewbit.Dataset(loader).inputs(Net()):
        assert call(Net(), feed) == 2 * 60
    assert [line["what"] for line in dataset.record.lines] == ["labels-left-out"]


def test_a_pytorch_dataset_of_pairs_is_batched(image_model):
    dataset = fewbit.Dataset(TensorDataset(torch.ones(4, 3, 4, 5), torch.arange(4)))
    assert [f["pixels"].shape[0] for f in dataset.inputs(image_model, batch_size=3)] == [3, 1]
    assert [call(Net(), f).item() for f in dataset.inputs(Net(), batch_size=4)] == [4 * 60]


def test_a_hugging_face_model_gets_keywords():
    model = BertModel(
        BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    )
    batch = BatchEncoding({"input_ids": torch.ones(2, 4, dtype=torch.long), "attention_mask": torch.ones(2, 4)})
    for data in ([batch], {"input_ids": np.ones((2, 4), np.int64), "attention_mask": np.ones((2, 4), np.int64)}):
        for feed in fewbit.Dataset(data).inputs(model):
            assert call(model, feed).last_hidden_state.shape[1:] == (4, 8)


def test_a_model_that_takes_a_dict_gets_the_dict():
    (feed,) = fewbit.Dataset([{"a": torch.ones(1), "b": torch.ones(1)}]).inputs(Dictionary())
    assert call(Dictionary(), feed).item() == 2


def test_openvino_takes_what_it_gets(image_model):
    openvino = pytest.importorskip("openvino")
    compiled = openvino.Core().compile_model(image_model, "CPU")
    for feed in fewbit.Dataset(np.ones((2, 3, 4, 5), np.float32)).inputs(compiled):
        assert compiled(feed)[0].shape == (1, 3, 4, 5)


def test_a_mismatch_names_sample_input_expected_found_and_fix(image_model):
    with pytest.raises(DataError) as caught:
        fewbit.Dataset({"pixels": np.ones((2, 4, 5, 3), np.float32)}).validate(image_model)
    text = str(caught.value)
    for part in ("sample 0", "'pixels'", "[3, 4, 5]", "[4, 5, 3]", "transpose"):
        assert part in text


def test_every_mismatch_is_told_at_once(tmp_path):
    model = onnx_model(
        tmp_path / "m.onnx", ids=("int64", ["n", "s"]), mask=("int64", ["n", "s"]), extra=("float32", ["n", 2])
    )
    with pytest.raises(DataError) as caught:
        fewbit.Dataset({"ids": np.ones((3, 4)), "mask": np.ones((3, 5), np.int64)}).validate(model)
    for part in ("'ids'", "dtype", "extra", "axis 's'"):
        assert part in str(caught.value)


def test_an_item_without_a_batch_axis_is_told_how_to_get_one(image_model):
    with pytest.raises(DataError, match="batch_size=1"):
        fewbit.Dataset([np.ones((3, 4, 5), np.float32)]).validate(image_model)
    fewbit.Dataset([np.ones((3, 4, 5), np.float32)], batched=False).validate(image_model)


@pytest.fixture
def recurrent(tmp_path):
    """A model whose state does not begin with the batch axis."""
    return onnx_model(
        tmp_path / "r.onnx", x=("float32", ["batch", "time"]), state=("float32", [2, "batch", 3]), rate=("int64", [])
    )


def state_files(folder, count=3, **changed):
    folder.mkdir()
    for i in range(count):
        arrays = {"x": np.full((1, 6), i, np.float32), "state": np.full((2, 1, 3), i, np.float32), "rate": np.int64(16)}
        np.savez(folder / f"{i}.npz", **arrays | changed)
    return folder


def test_files_of_the_declared_shapes_are_fed_as_they_are(recurrent, tmp_path):
    feeds = fewbit.Dataset(state_files(tmp_path / "data")).inputs(recurrent)
    made = list(feeds)
    assert [run(recurrent, feed)[1][0, 0, 0] for feed in made] == [0, 1, 2]
    assert {name: array.shape for name, array in made[2].items()} == {"x": (1, 6), "state": (2, 1, 3), "rate": ()}
    assert feeds.place(2) == "sample 2 (2.npz, sample 2)"
    with pytest.raises(UsageError, match="whole input"):
        fewbit.Dataset(tmp_path / "data").inputs(recurrent, batch_size=2)


def test_a_stack_of_whole_inputs(recurrent, tmp_path):
    stack = {"x": np.ones((4, 1, 6), np.float32), "state": np.ones((4, 2, 1, 3), np.float32), "rate": np.full(4, 16)}
    np.savez(tmp_path / "all.npz", **stack)
    for data in (fewbit.Dataset(tmp_path / "all.npz"), fewbit.Dataset(stack)):
        assert [run(recurrent, feed)[1].shape for feed in data.inputs(recurrent)] == [(2, 1, 3)] * 4


def test_whole_inputs_of_a_batch_that_is_fixed(tmp_path):
    model = onnx_model(tmp_path / "m.onnx", x=("float32", [2, 3]))
    for batch_size in (1, 2):
        (feed,) = fewbit.Dataset([np.ones((2, 3), np.float32)], batched=False).inputs(model, batch_size)
        assert run(model, feed)[0].shape == (2, 3)


def test_some_samples_whole_and_some_without_a_batch_axis(tmp_path):
    model = onnx_model(tmp_path / "m.onnx", x=("float32", [2, 3]))
    one, other = np.ones((2, 3), np.float32), np.ones(3, np.float32)
    for samples, batch_size in (([one, other], 1), ([other, other, one], 2)):
        with pytest.raises(DataError, match="samples differ") as caught:
            list(fewbit.Dataset(samples, batched=False).inputs(model, batch_size))
        assert f"sample {len(samples) - 1}" in caught.value.where


def test_advice_for_a_batch_axis_elsewhere_can_be_followed(recurrent, tmp_path):
    data = state_files(tmp_path / "data", x=np.ones(6, np.float32), state=np.ones((2, 3), np.float32))
    with pytest.raises(DataError, match="do not all begin with the batch axis") as caught:
        fewbit.Dataset(data).validate(recurrent)
    assert "--transform" in caught.value.try_ and "list of dicts" in caught.value.try_
    whole = [{"x": s["x"][None], "state": s["state"][:, None], "rate": s["rate"]} for s in fewbit.Dataset(data)]
    assert len(list(fewbit.Dataset(whole).inputs(recurrent))) == 3


def test_places_of_batches(image_model, tmp_path):
    for i in range(5):
        np.savez(tmp_path / f"{i}.npz", pixels=np.ones((3, 4, 5), np.float32))
    feeds = fewbit.Dataset(tmp_path).inputs(image_model, batch_size=2)
    assert feeds.place(0) is None and len(list(feeds)) == 3
    assert feeds.place(1) == "sample 2 (2.npz, sample 2) to sample 3 (3.npz, sample 3)"
    assert feeds.place(2) == "sample 4 (4.npz, sample 4)"


def test_a_later_sample_that_does_not_fit_is_named(image_model):
    items = [np.ones((1, 3, 4, 5), np.float32), np.ones((1, 3, 4, 6), np.float32)]
    feeds = fewbit.Dataset(items).inputs(image_model)
    next(feeds)
    with pytest.raises(DataError, match="sample 1 does not fit"):
        next(feeds)


def test_names_the_model_does_not_have_are_refused_with_the_index(tmp_path):
    model = onnx_model(tmp_path / "m.onnx", a=("float32", ["n"]), b=("float32", ["n"]))
    with pytest.raises(DataError, match="no input called 'c'") as caught:
        fewbit.Dataset([{"a": np.ones(1, np.float32), "c": np.ones(1, np.float32)}]).validate(model)
    assert "sample 0" in caught.value.where


def test_raw_text_never_reaches_a_model_with_open_keywords(tmp_path):
    class Open(torch.nn.Module):
        def forward(self, input_ids=None, **kwargs):
            return 1

    (tmp_path / "a.jsonl").write_text('{"text": "hello"}\n')
    with pytest.raises(DataError, match="'text' is no array of numbers") as caught:
        fewbit.open_dataset(tmp_path / "a.jsonl").validate(Open())
    assert "tokenize" in caught.value.try_ and "a.jsonl:1" in caught.value.where


def test_the_model_is_looked_at_and_never_run(image_model):
    class Bomb(torch.nn.Module):
        def forward(self, x):
            raise AssertionError("was run")

    assert len(list(fewbit.Dataset(torch.ones(3, 2)).inputs(Bomb()))) == 3


def test_labels_in_a_mapping_are_left_out_with_a_note(image_model):
    item = {"pixels": torch.ones(2, 3, 4, 5), "label": torch.arange(2)}
    for data, options in (([item], {}), ([{k: v[0] for k, v in item.items()}], {"batched": False})):
        for model in (image_model, Net()):
            dataset = fewbit.Dataset(data, **options)
            for _ in range(2):
                assert len(list(dataset.inputs(model))) == 1
            (line,) = dataset.record.lines
            assert line["what"] == "labels-left-out" and "label: int64" in line["reason"]


def test_what_is_changed_or_left_out_is_noted_once(image_model):
    data = {"pixels": np.ones((3, 3, 4, 5)), "class": np.arange(3)}
    dataset = fewbit.Dataset(data)
    list(dataset.inputs(image_model))
    list(dataset.inputs(image_model))
    assert sorted(line["what"] for line in dataset.record.lines) == ["dtype-narrowed", "input-extra"]


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.uint8, ">f4"])
def test_items_of_another_dtype_run(image_model, dtype):
    (feed,) = fewbit.Dataset([np.ones((2, 3, 4, 5), dtype)]).inputs(image_model)
    assert run(image_model, feed)[0].shape == (2, 3, 4, 5)


def test_an_item_with_one_axis_too_many_runs(image_model):
    (feed,) = fewbit.Dataset([np.ones((1, 2, 3, 4, 5), np.float32)]).inputs(image_model)
    assert run(image_model, feed)[0].shape == (2, 3, 4, 5)


def test_items_are_cast_for_an_exported_program():
    class Two(torch.nn.Module):
        def forward(self, x, *, ids):
            return x.sum() + ids.sum()

    program = torch.export.export(Two(), (torch.ones(2, 3),), {"ids": torch.ones(2, 5, dtype=torch.int64)})
    item = ((torch.ones(2, 3).double(),), {"ids": torch.ones(2, 5, dtype=torch.int32)})
    dataset = fewbit.Dataset([item])
    (feed,) = dataset.inputs(program)
    assert call(program.module(), feed) == 16
    assert [line["what"] for line in dataset.record.lines] == ["dtype-narrowed"]


@pytest.mark.parametrize("batched", [True, False])
def test_a_value_that_does_not_fit_is_placed(tmp_path, batched):
    model = onnx_model(tmp_path / "m.onnx", ids=("int64", ["n"]))
    data = [np.array([1], np.uint64), np.array([1 << 63], np.uint64)]
    with pytest.raises(DataError, match="9223372036854775808 at") as caught:
        list(fewbit.Dataset(data if batched else [row[0] for row in data], batched=batched).inputs(model))
    assert "sample 1" in caught.value.where


@pytest.mark.parametrize("batched", [True, False])
def test_tensors_without_an_array_form_are_data_errors(image_model, batched):
    for tensor in (torch.ones(3, 4, 5, device="meta"), [[1.0, 2.0], [3.0]]):
        item = tensor[None] if batched and isinstance(tensor, torch.Tensor) else tensor
        with pytest.raises(DataError) as caught:
            list(fewbit.Dataset([item], batched=batched).inputs(image_model))
        assert "sample 0" in caught.value.where


def test_a_list_of_numbers_is_one_sample_and_no_pair(tmp_path):
    model = onnx_model(tmp_path / "m.onnx", x=("float32", ["n", 2]))
    (feed,) = fewbit.Dataset([[1.0, 2.0], [3.0, 4.0]], batched=False).inputs(model, batch_size=2)
    assert feed["x"].tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_labels_never_become_an_attention_mask():
    class Optional(torch.nn.Module):
        def forward(self, input_ids=None, attention_mask=None, **kwargs):
            return input_ids

    pairs = TensorDataset(torch.ones(4, 5, dtype=torch.long), torch.arange(4))
    for data in (pairs, DataLoader(pairs, batch_size=2)):
        for args, kwargs in fewbit.Dataset(data).inputs(Optional()):
            assert len(args) + len(kwargs) == 1


def test_none_for_an_optional_input_is_left_away():
    sample = {"pixels": np.ones((3, 4, 5), np.float32), "mask": None}
    ((args, kwargs),) = fewbit.Dataset([sample], batched=False).inputs(Net())
    assert not args and list(kwargs) == ["pixels"]


def test_samples_with_other_inputs_make_no_batch():
    one, two = {"pixels": np.ones(3)}, {"pixels": np.ones(3), "mask": np.ones(3)}
    for data in ([one, two], [two, one]):
        with pytest.raises(DataError, match="samples differ") as caught:
            list(fewbit.Dataset(data, batched=False).inputs(Net(), batch_size=2))
        assert "sample 1" in caught.value.where
        assert len(list(fewbit.Dataset(data, batched=False).inputs(Net()))) == 2


def test_a_model_of_fixed_batch_gets_that_batch(tmp_path):
    model = onnx_model(tmp_path / "m.onnx", x=("float32", [2, 3]))
    dataset = fewbit.Dataset({"x": np.ones((5, 3), np.float32)})
    with pytest.raises(UsageError, match="batches of 2") as caught:
        dataset.inputs(model)
    assert "batch_size=2" in caught.value.try_
    assert [run(model, feed)[0].shape for feed in dataset.inputs(model, batch_size=2)] == [(2, 3)] * 2
    assert [line["what"] for line in dataset.record.lines] == ["batch-incomplete"]
    with pytest.raises(UsageError):
        dataset.inputs(model, batch_size=0)


def test_an_input_without_axes_gets_none(tmp_path):
    model = onnx_model(tmp_path / "m.onnx", x=("float32", ["n", 2]), scale=("float32", []))
    sample = {"x": np.ones(2, np.float32), "scale": np.float32(3)}
    (feed,) = fewbit.Dataset([sample], batched=False).inputs(model)
    assert run(model, feed)[1].shape == ()


def test_a_renamed_item_is_noted_once(image_model):
    dataset = fewbit.Dataset([{"pix": np.ones((1, 3, 4, 5), np.float32)}] * 3)
    for feed in dataset.inputs(image_model):
        assert list(feed) == ["pixels"]
    (line,) = dataset.record.lines
    assert line["what"] == "input-renamed" and "'pix'" in line["reason"] and "'pixels'" in line["where"]


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
@pytest.mark.parametrize("found", ["float64", "float32"])
@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16, torch.float64])
def test_floats_of_another_dtype_run_in_a_pytorch_module(batched, kind, found, wanted):
    model = torch.nn.Linear(3, 2).to(wanted)
    sample = kind(np.ones((4, 3) if batched else 3, found))
    dataset = fewbit.Dataset([sample] * 2, batched=batched)
    for feed in dataset.inputs(model):
        assert call(model, feed).dtype == wanted
    narrowed = torch.finfo(wanted).bits < np.finfo(found).bits
    assert [line["what"] for line in dataset.record.lines] == ["dtype-narrowed"] * narrowed


def test_nested_items_are_cast_and_ids_are_not():
    class Nested(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.mix = torch.nn.Embedding(9, 3), torch.nn.Linear(3, 2)

        def forward(self, batch):
            return self.mix(self.embed(batch["ids"]) + batch["x"])

    item = {"ids": torch.ones(4, dtype=torch.int64), "x": torch.ones(4, 3, dtype=torch.float64)}
    dataset = fewbit.Dataset([item])
    (feed,) = dataset.inputs(Nested())
    assert call(Nested(), feed).shape == (4, 2) and item["x"].dtype == torch.float64
    assert [line["what"] for line in dataset.record.lines] == ["dtype-narrowed"]


def test_array_files_are_held_against_the_parameters_dtype(tmp_path):
    np.savez(tmp_path / "0.npz", input=np.arange(3.0))
    model = torch.nn.Linear(3, 2)
    assert fewbit.check_dataset(tmp_path, model=model).counts == {"dtype-narrowed": 1}
    (feed,) = fewbit.open_dataset(tmp_path).inputs(model)
    assert call(model, feed).shape == (1, 2)


@pytest.mark.parametrize(
    "data",
    [
        {"text": ["a", "b"]},
        {"ids": ["a", "b"]},
        {"ids": np.ones((2, 4), np.float32)},
        {"Ids": np.ones((2, 2, 2, 2), np.int64)},
        [{"text": "a"}],
    ],
)
def test_data_that_is_no_folder_of_arrays_is_advised_a_transform(tmp_path, data):
    datasets = pytest.importorskip("datasets")
    model = onnx_model(tmp_path / "m.onnx", ids=("int64", ["n", "s"]))
    make = datasets.Dataset.from_dict if isinstance(data, dict) else datasets.Dataset.from_list
    for source in (data, make(data)):
        with pytest.raises(DataError) as caught:
            fewbit.Dataset(source).validate(model)
        assert "transform_fn" in caught.value.try_ and "tokenized" in caught.value.try_
        assert "save" not in caught.value.try_ and "rename" not in caught.value.try_


@pytest.fixture
def pictures(tmp_path):
    from PIL import Image

    for name in ("cat", "dog"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        Image.fromarray(np.full((32, 24, 3), 7, np.uint8)).save(tmp_path / "pictures" / name / "0.png")
    return tmp_path / "pictures"


def vit():
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    return ViTForImageClassification(ViTConfig(image_size=32, patch_size=8, **sizes)).eval()


@pytest.mark.parametrize(("make", "wants"), [(vit, "pixel_values"), (lambda: torch.nn.Conv2d(3, 4, 3), "input")])
def test_pictures_as_decoded_do_not_reach_a_module_that_computes_in_floats(pictures, make, wants):
    model = make()
    with pytest.raises(DataError) as caught:
        fewbit.Dataset(pictures).validate(model)
    assert wants in caught.value.expected and "image" in caught.value.what and "uint8[32, 24, 3]" in caught.value.what
    assert "0.png" in caught.value.where
    assert "transform_fn" in caught.value.try_ and "--transform file.py:function" in caught.value.try_

    def prepared(sample):
        return {wants: torch.ones(1, 3, 32, 32) * sample["image"][0, 0, 0]}

    for feed in fewbit.Dataset(pictures, prepared).inputs(model):
        call(model, feed)


def test_a_module_that_scales_pictures_itself_gets_them_from_a_transform(pictures):
    class Scales(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 4, 3)

        def forward(self, image):
            return self.conv(image.permute(0, 3, 1, 2) / 255)

    dataset = fewbit.Dataset(pictures, lambda sample: sample["image"][None])
    assert [call(Scales(), feed).shape[0] for feed in dataset.inputs(Scales())] == [1, 1]


def test_a_hugging_face_model_is_not_called_without_any_of_its_inputs(tmp_path):
    model, pixels = vit(), torch.ones(1, 3, 32, 32)
    np.savez(tmp_path / "0.npz", photo=pixels[0].numpy())
    for data, advice in (
        ([{"photo": pixels}], "transform_fn"),
        ([{"photo": pixels, "labels": torch.zeros(1, dtype=torch.long)}], "transform_fn"),
        (tmp_path, "rename"),
    ):
        with pytest.raises(DataError, match=r"input pixel_values: .* has no array; there are: photo \(") as caught:
            fewbit.Dataset(data).validate(model)
        assert advice in caught.value.try_
    for item in ({"pixel_values": pixels}, pixels):
        (feed,) = fewbit.Dataset([item]).inputs(model)
        assert call(model, feed).logits.shape == (1, 2)


def test_any_input_of_a_hugging_face_model_will_do():
    model = BertModel(
        BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    )
    (feed,) = fewbit.Dataset([{"inputs_embeds": torch.ones(1, 4, 8)}]).inputs(model)
    assert call(model, feed).last_hidden_state.shape == (1, 4, 8)


def test_a_slip_in_a_name_is_told_before_the_model_runs():
    with pytest.raises(DataError, match="no input called 'pixelss'") as caught:
        fewbit.Dataset([{"pixelss": torch.ones(2, 3)}]).validate(Net())
    assert "did you mean 'pixels'" in caught.value.expected and "sample 0" in caught.value.where
