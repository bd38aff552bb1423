# SPDX-License-Identifier: Apache-2.0
"""Rows with pictures, by a real processor and into a real (small, random) vision-language model."""

import numpy as np
import pytest
import torch
from PIL import Image

from fewbit.data.text import as_inputs
from fewbit.errors import DataError
from word_tokenizer import lines, make_tokenizer, takes

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}<image> {% else %}{{ c['text'] }} {% endif %}{% endfor %}</s> {% endfor %}"
)
PICTURE = (np.arange(40 * 50 * 3) % 255).astype(np.uint8).reshape(40, 50, 3)
TAKES = takes("input_ids", "attention_mask", "pixel_values")
PATCHES = 16


@pytest.fixture(scope="module")
def processor():
    import transformers

    pictures = transformers.CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    tokenizer = make_tokenizer(template=TEMPLATE)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    return transformers.LlavaProcessor(
        image_processor=pictures,
        tokenizer=tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATE,
    )


def expected(before, after):
    """The tokens around a picture, which is one token for each of its patches."""
    return [[*before, *[7] * PATCHES, *after]]


ROWS = {
    "a text": ({"image": PICTURE, "text": "w10 w11"}, [5], [10, 11, 2]),
    "pictures in a list": ({"images": [PICTURE], "text": "w10 w11"}, [5], [10, 11, 2]),
    "a place in the text": (
        {"image": PICTURE, "conversations": [{"from": "human", "value": "w10\n<image>\nw11"}]},
        [5, 10],
        [11, 2],
    ),
    "parts": (
        {
            "images": [Image.fromarray(PICTURE)],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "w10"}, {"type": "image"}]}],
        },
        [5, 10],
        [2],
    ),
}


@pytest.mark.parametrize(("row", "before", "after"), ROWS.values(), ids=ROWS)
def test_pictures_stand_where_the_row_says(processor, row, before, after):
    made = as_inputs([row], processor, TAKES)
    (item,) = made
    assert item["input_ids"].tolist() == expected(before, after)
    wanted = processor.image_processor(Image.fromarray(PICTURE), return_tensors="pt")["pixel_values"]
    assert torch.equal(item["pixel_values"], wanted) and made.batched and len(list(made.subset(1))) == 1


def test_a_row_without_a_picture_and_one_that_is_long(processor):
    made = as_inputs([{"image": PICTURE, "text": "w10"}, {"image": None, "text": "w11"}], processor, TAKES, seqlen=8)
    first, second = made
    assert "pixel_values" in first and second["input_ids"].tolist() == [[5, 11, 2]]
    assert lines(made)["not-truncated"]["rows"] == 1


def test_the_processor_in_the_models_folder_feeds_the_model(processor, tmp_path):
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(image_size=32, patch_size=8, **sizes),
        text_config=LlamaConfig(vocab_size=96, **sizes),
        image_token_id=7,
    )
    torch.manual_seed(0)
    LlavaForConditionalGeneration(config).save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    model = LlavaForConditionalGeneration.from_pretrained(tmp_path).eval()
    Image.fromarray(PICTURE).save(tmp_path / "p.png")
    made = as_inputs([{"image": str(tmp_path / "p.png"), "text": "w10"}], tmp_path, model)
    ((args, kwargs),) = made.inputs(model)
    with torch.no_grad():
        assert model(*args, **kwargs).logits.shape == (1, PATCHES + 3, 96)


def test_a_model_without_a_processor(tmp_path):
    make_tokenizer().save_pretrained(tmp_path)
    rows = [{"image": PICTURE, "text": "w10"}]
    with pytest.raises(DataError, match="no processor that opens"):
        as_inputs(rows, tmp_path, TAKES)
    assert next(iter(as_inputs(rows, tmp_path, takes())))["input_ids"].tolist() == [10, 2]


def test_a_picture_that_is_not_there(processor):
    with pytest.raises(DataError, match=r"no picture 'gone.png'"):
        list(as_inputs([{"image": "gone.png", "text": "w10"}], processor, TAKES))
