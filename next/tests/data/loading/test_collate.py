# SPDX-License-Identifier: Apache-2.0
"""Batches: masks are true, labels ignore padding, packed samples do not see one another (claims 3.5 and 3.11)."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.data.loading import generate_dataset_config, get_custom_data_collator
from fewbit.data.loading.collate import Collator, Padding
from fewbit.data.text.pack import join
from fewbit.errors import DataError, FewbitWarning, UsageError
from tiny_tokenizers import word_tokenizer

UNEVEN = [{"input_ids": [5, 6, 7]}, {"input_ids": [8]}]


def collator(tokenizer=None, arguments=None, **custom):
    custom = {"tokenizer": tokenizer or word_tokenizer(), **custom}
    config = generate_dataset_config([{"text": "a"}], ["tokenization", "padding"], custom)
    return get_custom_data_collator(config, **(arguments or {}))


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=12), min_size=1, max_size=6),
    st.sampled_from(["left", "right"]), st.sampled_from([1, 4, 7]), st.integers(0, 9),
    st.sampled_from([list, np.array]),
)  # fmt: skip
def test_tokens_masks_and_labels_are_padded_to_one_width(rows, side, multiple, token, kind):
    samples = [{"input_ids": kind(row), "labels": kind([token + 100 for token in row])} for row in rows]
    batch = Collator(padding=Padding(side=side, multiple=multiple, token=token))(samples)
    width = batch["input_ids"].shape[1]
    assert width % multiple == 0 and width - max(map(len, rows)) < multiple
    for row, ids, labels, mask in zip(rows, batch["input_ids"], batch["labels"], batch["attention_mask"]):
        real = slice(width - len(row), None) if side == "left" else slice(0, len(row))
        padding = np.delete(np.arange(width), real)
        assert ids[real].tolist() == row and labels[real].tolist() == [token + 100 for token in row]
        assert set(ids[padding].tolist()) <= {token} and set(labels[padding].tolist()) <= {-100}
        assert mask[real].all() and not mask[padding].any()
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


def test_an_end_that_is_also_the_padding_is_seen_and_learned():
    batch = Collator(padding=Padding(token=2))([{"input_ids": row, "labels": row} for row in ([7, 2], [7, 8, 2])])
    assert batch["labels"].tolist() == [[7, 2, -100], [7, 8, 2]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]


def test_padding_to_a_length_or_not_at_all():
    assert Collator(padding=Padding("max_length", 6))(UNEVEN)["input_ids"].shape == (2, 6)
    with pytest.raises(DataError, match=r"sample 0 of the batch, field 'input_ids'.*3 tokens") as caught:
        Collator(padding=Padding("max_length", 2))(UNEVEN)
    assert "truncation" in caught.value.hint
    with pytest.raises(DataError, match=r"a\.jsonl:2, field 'input_ids'"):
        Collator(padding=Padding("none"))(UNEVEN, ["a.jsonl:1", "a.jsonl:2"])
    assert Collator(padding=Padding("none"))(UNEVEN[:1])["input_ids"].tolist() == [[5, 6, 7]]


def test_fields_with_one_entry_per_token_are_padded_too():
    def sample(count):
        ones = [1] * count
        boxes = np.ones((count, 4), int)
        return {"input_ids": ones, "token_type_ids": ones, "special_tokens_mask": [0] * count, "bbox": boxes}

    batch = Collator()([sample(3), sample(1)])
    assert batch["token_type_ids"].tolist() == [[1, 1, 1], [1, 0, 0]] and batch["bbox"].shape == (2, 3, 4)
    assert batch["special_tokens_mask"].tolist() == [[0, 0, 0], [0, 1, 1]]
    padded_before = [{"input_ids": [1, 0], "attention_mask": [1, 0]}, {"input_ids": [1] * 3, "attention_mask": [1] * 3}]
    assert Collator()(padded_before)["attention_mask"].tolist() == [[1, 0, 0], [1, 1, 1]]


def test_labels_of_a_whole_text():
    one, several = ([{"input_ids": ids, key: labels} for ids, labels in zip(([1, 2], [3]), values)] for key, values in (
        ("label", (1, 0)), ("labels", ([1.0, 0.0, 1.0], [0.0, 0.0, 1.0])),
    ))  # fmt: skip
    assert Collator()(one)["labels"].tolist() == [1, 0]
    assert Collator()(several)["labels"].shape == (2, 3)


@pytest.mark.parametrize(("side", "positions"), [("right", [1, 0]), ("left", [1, 2])])
def test_positions_of_an_answer_move_with_left_padding(side, positions):
    samples = [{"input_ids": [1, 2, 3], "start_positions": 1}, {"input_ids": [4], "start_positions": 0}]
    assert Collator(padding=Padding(side=side))(samples)["start_positions"].tolist() == positions


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([{"input_ids": [1, 2], "labels": [1]}, {"input_ids": [1], "labels": [1, 2]}], "sample 0.*'labels'"),
        ([{"input_ids": [1, 2], "attention_mask": [1]}], "sample 0.*'attention_mask'"),
        ([{"input_ids": [1]}, {"input_ids": []}], "sample 1.*'input_ids'.*empty"),
        ([{"input_ids": np.ones((1, 3), int)}], r"sample 0.*shape \[1, 3\]"),
        ([{"input_ids": [1, 2]}, {"input_ids": [0.5]}], "sample 1.*float"),
        ([{"input_ids": [1], "labels": [1]}, {"input_ids": [1]}], "sample 1.*'labels'.*nothing"),
        ([{"input_ids": [1]}, [1, 2]], "sample 1.*list"),
        ([{"n": 1}, {"n": None}], "sample 1.*'n'"),
        ([{"spectrum": np.ones((2, 3))}, {"spectrum": np.ones((2, 5))}], "sample 1.*'spectrum'"),
        ([{"audio": {"array": [1.0], "sampling_rate": rate}} for rate in (16000, 8000)], "sample 1.*8000 Hz"),
        ([{"image": np.ones((2, 2, 3)), "mask": np.ones((3, 2), int)}], "sample 0.*'mask'"),
        ([{"image": np.ones((2, 2, 3)), "boxes": np.ones((2, 5))}], "sample 0.*'boxes'"),
        ([{"image": np.ones((2, 2, 3))}, {"image": np.ones((2, 2, 1))}], "sample 1.*'image'"),
    ],
)
def test_a_sample_that_does_not_fit_is_named(samples, message):
    with pytest.raises(DataError, match=message):
        Collator()(samples)


@pytest.fixture(scope="module")
def llama():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=50, num_key_value_heads=2, max_position_embeddings=64, **sizes)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return transformers.LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("attention", ["mask", "positions"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_packed_samples_have_the_losses_they_have_alone(llama, side, attention, implementation):
    llama.set_attn_implementation(implementation)
    draw = np.random.default_rng(0)
    texts = [draw.integers(1, 40, length) for length in (4, 1, 6, 5, 3)]
    pieces = [({"input_ids": text, "labels": text}, 0, len(text)) for text in texts]
    rows = [join(part, ["input_ids", "labels"]) for part in (pieces[:3], pieces[3:])]
    batch = Collator(padding=Padding(side=side), attention=attention)(rows)
    assert ("attention_mask" in batch) == (attention == "mask") and "seq_lens" not in batch

    def loss(logits, labels):
        return torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, reduction="sum"
        ).item()

    with torch.no_grad():
        labels = batch.pop("labels")
        packed = loss(llama(**batch, use_cache=False).logits, labels)
        single = [torch.tensor(text)[None] for text in texts if len(text) > 1]
        alone = sum(loss(llama(input_ids=ids, use_cache=False).logits, ids) for ids in single)
    assert packed == pytest.approx(alone, rel=1e-5)


def image(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def test_images_of_one_size_are_stacked_with_their_labels():
    batch = Collator()([{"image": image(4, 6), "label": 2}, {"image": image(4, 6, 1), "label": 0}])
    assert set(batch) == {"pixel_values", "labels"} and batch["pixel_values"].dtype is torch.float32
    assert torch.equal(batch["pixel_values"][1], torch.from_numpy(image(4, 6, 1) / np.float32(255)).permute(2, 0, 1))


def test_on_a_canvas_boxes_and_masks_stay_in_place():
    box = np.array([[0.5, 0.5, 1.0, 1.0]], np.float32)
    square = {"image": image(4, 4), "boxes": box, "classes": [1], "masks": np.ones((1, 4, 4), bool)}
    tall = {"image": image(8, 2), "boxes": np.zeros((0, 4)), "classes": [], "masks": np.zeros((0, 8, 2), bool)}
    batch = Collator()([square, tall])
    assert batch["pixel_values"].shape == (2, 3, 8, 4) and batch["pixel_mask"].sum(dim=(1, 2)).tolist() == [16, 16]
    assert batch["boxes"][0].tolist() == [[0.5, 0.25, 1.0, 0.5]] and batch["boxes"][1].shape == (0, 4)
    assert batch["masks"][0].shape == (1, 8, 4) and batch["masks"][0].sum() == 16
    assert [classes.tolist() for classes in batch["classes"]] == [[1], []]
    with pytest.raises(DataError, match=r"sample 1.*'image'"):
        Collator(padding=Padding("none"))([square, tall])


def test_segmentation_masks_are_ignored_outside_their_image():
    samples = [{"image": image(2, width), "mask": np.full((2, width), width)} for width in (2, 3)]
    assert Collator()(samples)["masks"].tolist() == [[[2, 2, -100]] * 2, [[3, 3, 3]] * 2]


def test_signals_are_padded_with_silence():
    samples = [{"audio": [0.5, 1.5, 2.5]}, {"audio": {"array": [3.5], "sampling_rate": None}}]
    batch = Collator(padding=Padding(multiple=2))(samples)
    assert batch["audio"].tolist() == [[0.5, 1.5, 2.5, 0.0], [3.5, 0.0, 0.0, 0.0]]
    assert batch["lengths"].tolist() == [3, 1] and batch["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]


def test_numbers_tensors_and_texts():
    half = torch.ones(2, dtype=torch.bfloat16)
    rows = [{"n": i, "f": 0.5, "b": i == 1, "t": half * i, "s": "name", "o": None, "d": np.ones(2)} for i in range(3)]
    batch = Collator()(rows)
    assert batch["n"].tolist() == [0, 1, 2] and batch["b"].tolist() == [False, True, False]
    assert batch["f"].dtype is torch.float32 and batch["t"].dtype is torch.bfloat16
    assert batch["s"] == ["name"] * 3 and batch["o"] == [None] * 3
    assert batch["d"].dtype is torch.float64  # the user's arrays stay


def test_the_call_overrides_the_configuration_and_says_so():
    with pytest.warns(FewbitWarning, match="batch_size=2 of the call"):
        assert collator(arguments={"batch_size": 2}, batch_size=4).batch_size == 2
    with pytest.warns(FewbitWarning, match="padding=False of the call"):
        assert collator(arguments={"padding": False}, padding="longest").padding.to == "none"
    assert collator(arguments={"batch_size": 4}, batch_size=4).batch_size == 4
    assert collator(padding={"multiple_of": 8}).padding.multiple == 8


def test_padding_is_what_the_tokenizer_says():
    rule = collator(word_tokenizer(padding_side="left", pad_token="<unk>")).padding
    assert (rule.side, rule.token) == ("left", 0)
    assert collator(word_tokenizer(pad_token=None)).padding.token == 2
    assert collator(arguments={"padding": "max_length"}, max_length=6).padding.length == 6
    limited = word_tokenizer(model_max_length=12)
    assert collator(limited, {"padding": "max_length"}).padding.length == 12


@pytest.mark.parametrize(
    "wrong",
    [{"batch_size": 0}, {"padding": "longets"}, {"padding": []}, {"padding": {"multiple_off": 8}},
     {"padding": {"multiple_of": 0}}, {"padding": "max_length"}, {"attention": "flash"}],
)  # fmt: skip
def test_arguments_that_do_not_fit(wrong):
    with pytest.raises(UsageError):
        collator(arguments=wrong)


def test_a_collator_goes_to_another_process_and_into_a_torch_loader():
    left = Collator(padding=Padding(side="left"))
    assert pickle.loads(pickle.dumps(left)) == left
    loader = torch.utils.data.DataLoader([{"input_ids": [1, 2]}, {"input_ids": [3]}], batch_size=2, collate_fn=left)
    assert next(iter(loader))["input_ids"].tolist() == [[1, 2], [0, 3]]
