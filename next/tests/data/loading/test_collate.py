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

ROWS = [{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, {"input_ids": [8], "labels": [8]}]
rows = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=12), min_size=1, max_size=6)


def config(tokenizer=None, steps=("tokenization", "padding"), **custom):
    return generate_dataset_config([{"text": "a"}], list(steps), {"tokenizer": tokenizer or word_tokenizer(), **custom})


def padded(lists, width, fill, side):
    rest = [[fill] * (width - len(row)) for row in lists]
    return [more + row if side == "left" else row + more for row, more in zip(lists, rest)]


@settings(max_examples=50, deadline=None)
@given(rows, st.sampled_from(["left", "right"]), st.sampled_from([1, 4, 7]), st.integers(0, 9), st.booleans())
def test_rows_masks_and_labels_are_those_made_by_hand(lists, side, multiple, token, arrays):
    kind = np.array if arrays else list
    samples = [{"input_ids": kind(row), "labels": kind([i + 100 for i in row])} for row in lists]
    batch = Collator(padding=Padding(side=side, multiple=multiple, token=token))(samples)
    width = next(n for n in range(max(map(len, lists)), 100) if n % multiple == 0)
    assert batch["input_ids"].tolist() == padded(lists, width, token, side)
    assert batch["labels"].tolist() == padded([[i + 100 for i in row] for row in lists], width, -100, side)
    assert batch["attention_mask"].tolist() == padded([[1] * len(row) for row in lists], width, 0, side)
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


def test_an_end_that_is_also_the_padding_is_seen_and_learned():
    samples = [{"input_ids": [7, 2], "labels": [7, 2]}, {"input_ids": [7, 8, 2], "labels": [7, 8, 2]}]
    batch = Collator(padding=Padding(token=2))(samples)
    assert batch["labels"].tolist() == [[7, 2, -100], [7, 8, 2]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]


def test_up_to_a_length_or_not_at_all():
    assert Collator(padding=Padding("max_length", 6))(ROWS)["input_ids"].shape == (2, 6)
    with pytest.raises(DataError, match=r"sample 0 of the batch, field 'input_ids'.*3 tokens") as caught:
        Collator(padding=Padding("max_length", 2))(ROWS)
    assert "truncation" in caught.value.hint
    same = [{"input_ids": [1, 2]}, {"input_ids": [3, 4]}]
    assert Collator(padding=Padding("none"))(same)["input_ids"].tolist() == [[1, 2], [3, 4]]
    with pytest.raises(DataError, match=r"a\.jsonl:2, field 'input_ids'"):
        Collator(padding=Padding("none"))(ROWS, ["a.jsonl:1", "a.jsonl:2"])


def test_fields_with_one_entry_per_token_are_padded_with_it():
    samples = [
        {
            "input_ids": [1, 2, 3],
            "token_type_ids": [0, 1, 1],
            "bbox": np.ones((3, 4), int),
            "special_tokens_mask": [0] * 3,
        },
        {"input_ids": [1], "token_type_ids": [1], "bbox": np.ones((1, 4), int), "special_tokens_mask": [0]},
    ]
    batch = Collator()(samples)
    assert batch["token_type_ids"].tolist() == [[0, 1, 1], [1, 0, 0]] and batch["bbox"].shape == (2, 3, 4)
    assert batch["special_tokens_mask"].tolist() == [[0, 0, 0], [0, 1, 1]]


def test_padding_that_is_there_already_stays_unseen():
    samples = [{"input_ids": [1, 0], "attention_mask": [1, 0]}, {"input_ids": [1, 2, 3], "attention_mask": [1] * 3}]
    assert Collator()(samples)["attention_mask"].tolist() == [[1, 0, 0], [1, 1, 1]]


def test_a_label_of_the_whole_text_or_several():
    one = [{"input_ids": [1, 2], "label": 1}, {"input_ids": [3], "label": 0}]
    assert Collator()(one)["labels"].tolist() == [1, 0]
    several = [{"input_ids": [1, 2], "labels": [1.0, 0.0, 1.0]}, {"input_ids": [3], "labels": [0.0, 0.0, 1.0]}]
    assert Collator()(several)["labels"].shape == (2, 3)


def test_the_place_of_an_answer_moves_with_left_padding():
    samples = [{"input_ids": [1, 2, 3], "start_positions": 1}, {"input_ids": [4], "start_positions": 0}]
    assert Collator()(samples)["start_positions"].tolist() == [1, 0]
    assert Collator(padding=Padding(side="left"))(samples)["start_positions"].tolist() == [1, 2]


WRONG = {
    "labels": ([{"input_ids": [1, 2], "labels": [1]}, {"input_ids": [1], "labels": [1, 2]}], "sample 0.*'labels'"),
    "mask": ([{"input_ids": [1, 2], "attention_mask": [1]}], "sample 0.*'attention_mask'"),
    "nothing": ([{"input_ids": [1]}, {"input_ids": []}], "sample 1.*'input_ids'.*empty"),
    "a batch in a batch": ([{"input_ids": np.ones((1, 3), int)}], r"sample 0.*shape \[1, 3\]"),
    "fractions": ([{"input_ids": [1, 2]}, {"input_ids": [0.5]}], "sample 1.*float"),
    "a field less": ([{"input_ids": [1], "labels": [1]}, {"input_ids": [1]}], "sample 1.*'labels'.*nothing"),
    "no dict": ([{"input_ids": [1]}, [1, 2]], "sample 1.*list"),
    "other kinds": ([{"n": 1}, {"n": None}], "sample 1.*'n'"),
}


@pytest.mark.parametrize("samples, message", WRONG.values(), ids=WRONG)
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
    random = np.random.default_rng(0)
    texts = [random.integers(1, 40, n) for n in (4, 1, 6, 5, 3)]
    pieces = [({"input_ids": text, "labels": text}, 0, len(text)) for text in texts]
    samples = [join(part, ["input_ids", "labels"]) for part in (pieces[:3], pieces[3:])]
    batch = Collator(padding=Padding(side=side), attention=attention)(samples)
    assert ("attention_mask" in batch) == (attention == "mask") and "seq_lens" not in batch
    loss = torch.nn.functional.cross_entropy
    with torch.no_grad():
        labels = batch.pop("labels")
        logits = llama(**batch, use_cache=False).logits
        packed = loss(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, reduction="sum")
        alone = 0.0
        for text in texts:
            ids = torch.tensor(text)[None]
            scores = llama(input_ids=ids, use_cache=False).logits[0, :-1]
            alone += float(loss(scores, ids[0, 1:], reduction="sum")) if len(text) > 1 else 0.0
    assert float(packed) == pytest.approx(alone, rel=1e-5)


def image(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def test_images_of_one_size_are_stacked_with_their_labels():
    batch = Collator()([{"image": image(4, 6), "label": 2}, {"image": image(4, 6, 1), "label": 0}])
    assert set(batch) == {"pixel_values", "labels"} and batch["pixel_values"].dtype is torch.float32
    assert torch.equal(batch["pixel_values"][1], torch.from_numpy(image(4, 6, 1) / np.float32(255)).permute(2, 0, 1))


def test_images_of_several_sizes_share_a_canvas_on_which_boxes_and_masks_stay_in_place():
    samples = [
        {
            "image": image(4, 4),
            "boxes": np.array([[0.5, 0.5, 1.0, 1.0]], np.float32),
            "classes": [1],
            "masks": np.ones((1, 4, 4), bool),
        },
        {
            "image": image(8, 2),
            "boxes": np.zeros((0, 4), np.float32),
            "classes": [],
            "masks": np.zeros((0, 8, 2), bool),
        },
    ]
    batch = Collator()(samples)
    assert batch["pixel_values"].shape == (2, 3, 8, 4) and batch["pixel_mask"].sum(dim=(1, 2)).tolist() == [16, 16]
    assert batch["boxes"][0].tolist() == [[0.5, 0.25, 1.0, 0.5]] and batch["boxes"][1].shape == (0, 4)
    assert batch["masks"][0].shape == (1, 8, 4) and batch["masks"][0].sum() == 16
    filled = Collator(targets="padded")(samples)
    assert filled["classes"].tolist() == [[1], [-100]] and filled["object_mask"].tolist() == [[True], [False]]


def test_segmentation_masks_are_ignored_outside_their_image():
    batch = Collator()(
        [{"image": image(2, 2), "mask": np.ones((2, 2), int)}, {"image": image(2, 3), "mask": np.zeros((2, 3), int)}]
    )
    assert batch["masks"].tolist() == [[[1, 1, -100]] * 2, [[0, 0, 0]] * 2]
    with pytest.raises(DataError, match="'mask'"):
        Collator()([{"image": image(2, 2), "mask": np.ones((3, 2), int)}])
    with pytest.raises(DataError, match=r"sample 1.*'image'"):
        Collator(padding=Padding("none"))([{"image": image(2, 2)}, {"image": image(2, 3)}])


def test_signals_are_padded_with_silence():
    batch = Collator(padding=Padding(multiple=2))(
        [{"audio": [0.5, 1.5, 2.5]}, {"audio": {"array": [3.5], "sampling_rate": None}}]
    )
    assert batch["audio"].tolist() == [[0.5, 1.5, 2.5, 0.0], [3.5, 0.0, 0.0, 0.0]] and batch["lengths"].tolist() == [
        3,
        1,
    ]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]
    with pytest.raises(DataError, match="8000 Hz"):
        Collator()([{"audio": {"array": [1.0], "sampling_rate": rate}} for rate in (16000, 8000)])
    spectra = [{"spectrum": np.ones((2, 3))}, {"spectrum": np.ones((2, 5))}]
    assert Collator(ragged={"spectrum": 1})(spectra)["spectrum"].shape == (2, 2, 5)
    with pytest.raises(DataError, match="'spectrum'") as caught:
        Collator()(spectra)
    assert "ragged={'spectrum': 1}" in caught.value.hint


def test_numbers_tensors_and_texts():
    half = torch.ones(2, dtype=torch.bfloat16)
    batch = Collator()([{"n": i, "f": 0.5, "b": i == 1, "t": half * i, "s": "name", "o": None} for i in range(3)])
    assert (
        batch["n"].tolist() == [0, 1, 2]
        and batch["f"].dtype is torch.float32
        and batch["b"].tolist() == [False, True, False]
    )
    assert batch["t"].dtype is torch.bfloat16 and batch["s"] == ["name"] * 3 and batch["o"] == [None] * 3
    assert Collator()([{"d": np.ones(2)}, {"d": np.ones(2)}])["d"].dtype is torch.float64  # the user's arrays stay


def test_the_call_holds_against_the_configuration_and_says_so():
    with pytest.warns(FewbitWarning, match="batch_size=2 of the call"):
        assert get_custom_data_collator(config(batch_size=4), batch_size=2).batch_size == 2
    with pytest.warns(FewbitWarning, match="padding=False of the call"):
        assert get_custom_data_collator(config(padding="longest"), padding=False).padding.to == "none"
    assert get_custom_data_collator(config(batch_size=4, padding={"multiple_of": 8})).padding.multiple == 8
    assert get_custom_data_collator(config(batch_size=4), batch_size=4).batch_size == 4


def test_padding_is_what_the_tokenizer_says():
    rule = get_custom_data_collator(config(word_tokenizer(padding_side="left", pad_token="<unk>"))).padding
    assert (rule.side, rule.token) == ("left", 0)
    assert get_custom_data_collator(config(word_tokenizer(pad_token=None))).padding.token == 2
    assert get_custom_data_collator(config(max_length=6), padding="max_length").padding.length == 6
    limited = config(word_tokenizer(model_max_length=12))
    assert get_custom_data_collator(limited, padding="max_length").padding.length == 12
    with pytest.raises(UsageError):
        get_custom_data_collator(config(), padding="max_length")


@pytest.mark.parametrize(
    "wrong",
    [{"batch_size": 0}, {"padding": "longets"}, {"padding": {"multiple_off": 8}}, {"padding": {"multiple_of": 0}},
     {"attention": "flash"}, {"targets": "list"}],
)  # fmt: skip
def test_arguments_that_do_not_fit(wrong):
    with pytest.raises(UsageError):
        get_custom_data_collator(config(), **wrong)


def test_it_goes_to_another_process_and_into_a_torch_loader():
    collator = Collator(padding=Padding(side="left"))
    assert pickle.loads(pickle.dumps(collator)) == collator
    loader = torch.utils.data.DataLoader([{"input_ids": [1, 2]}, {"input_ids": [3]}], batch_size=2, collate_fn=collator)
    assert next(iter(loader))["input_ids"].tolist() == [[1, 2], [0, 3]]
