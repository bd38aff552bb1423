# SPDX-License-Identifier: Apache-2.0
"""Which layers are pruned: the usual ones, those that are named, and a reason for each of the others."""

from __future__ import annotations

import pytest
from torch import nn

from fewbit.engine.run import view_of
from fewbit.errors import UsageError
from fewbit.sparsity.layers import choose_layers
from sparse_runs import network
from tiny_models import transformer


def layers(model, **more):
    return [point.layer for point in choose_layers(view_of(model), **more).points]


def test_first_last_and_depthwise_stay_dense_and_say_why():
    chosen = choose_layers(view_of(network()))
    assert [point.layer for point in chosen.points] == ["3", "7", "10"]
    reasons = dict(chosen.dense)
    assert "first layer" in reasons["0"] and "depthwise" in reasons["6"] and "last layer" in reasons["14"]


@pytest.mark.parametrize("tied", [True, False])
def test_tables_and_heads_of_a_language_model_stay_dense(tied):
    model = transformer("llama", tie_word_embeddings=tied)
    found = layers(model)
    assert len(found) == 7 * len(model.model.layers)
    assert not {"lm_head", "model.embed_tokens"} & set(found)


def test_of_heads_that_are_stacked_the_last_layers_stay_dense():
    from transformers import DistilBertConfig, DistilBertForSequenceClassification, SegformerConfig
    from transformers import SegformerForSemanticSegmentation as Segformer

    sizes = {"dim": 8, "hidden_dim": 8, "n_layers": 1, "n_heads": 2, "vocab_size": 16, "max_position_embeddings": 8}
    dense = dict(choose_layers(view_of(DistilBertForSequenceClassification(DistilBertConfig(**sizes)))).dense)
    assert dense["classifier"] == "the last layer" and dense["pre_classifier"] == "the last layer of a head"
    shape = {"num_encoder_blocks": 1, "depths": [1], "sr_ratios": [1], "hidden_sizes": [8], "patch_sizes": [3]}
    config = SegformerConfig(**shape, strides=[2], num_attention_heads=[1], mlp_ratios=[2], decoder_hidden_size=8)
    found, dense = layers(Segformer(config)), dict(choose_layers(view_of(Segformer(config))).dense)
    assert any(name.startswith("decode_head.linear") for name in found) and "decode_head.classifier" in dense


def test_a_first_linear_layer_is_pruned():
    assert layers(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))) == ["0", "1"]


@pytest.mark.parametrize(
    ("targets", "ignore", "found"),
    [
        (["Conv2d"], [], ["0", "3", "6", "7", "10"]),
        (["14"], [], ["14"]),
        ([r"re:\d"], ["7"], ["0", "3", "6"]),
        ([], ["10"], ["3", "7"]),
    ],
)
def test_names_patterns_and_classes(targets, ignore, found):
    assert layers(network(), targets=targets, ignore=ignore) == found


def test_every_entry_that_names_nothing_is_told():
    with pytest.raises(UsageError) as error:
        layers(network(), targets=["Conv3d", "re:("], ignore=["77"])
    assert all(part in str(error.value) for part in ("'Conv3d'", "Conv2d", "regular expression", "ignore: '77'"))


def test_nothing_left_is_refused():
    with pytest.raises(UsageError, match=r"no layer is left.*the last layer"):
        layers(nn.Sequential(nn.Linear(4, 4)))
