# SPDX-License-Identifier: Apache-2.0
"""What a format has no place for in a model is told before the work starts."""

import pytest
from torch import nn

from fewbit import compress_weights
from fewbit.errors import UsageError
from planted import texts
from tiny_models import transformer


@pytest.fixture
def idle(monkeypatch):
    """No sample may be run, and no weight settled."""
    monkeypatch.setattr("fewbit.engine.quantizer.ModelQuantizer.quantize_view", lambda *_, **__: pytest.fail("work"))


@pytest.mark.parametrize(
    ("name", "format", "says"),
    [
        ("gpt_oss", "compressed-tensors", r"^2 reasons"),
        ("gpt2", "compressed-tensors", "of a Conv1D"),
        ("qwen3_moe", "gguf", "'qwen3_moe'.*cannot be written as GGUF"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_before_the_work(name, format, says, tmp_path, idle):
    model = transformer(name, vocab_size=96)
    with pytest.raises(UsageError, match=says):
        compress_weights(model, mode="int8_sym", dataset=texts(2), output=tmp_path / "out", format=format)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("format", ["compressed-tensors", "gguf"])
def test_a_plain_module_is_refused_before_the_work(format, tmp_path, idle):
    with pytest.raises(UsageError, match="cannot be written as"):
        compress_weights(
            nn.Sequential(nn.Linear(32, 32)), mode="int8_sym", dataset=texts(2), output=tmp_path / "out", format=format
        )


def test_routers_and_experts_that_are_cut_by_rows_are_not_refused(tmp_path):
    model = transformer("qwen3_moe", hidden_size=32, moe_intermediate_size=32)
    made = compress_weights(
        model, mode="int8_sym", group_size=32, output=tmp_path / "out", format="compressed-tensors", all_layers=True
    )
    assert (made / "model.safetensors").is_file()
