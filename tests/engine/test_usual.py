# SPDX-License-Identifier: Apache-2.0
"""What `quantize` settles by itself: the head of a language model, the algorithm, the cache."""

import pytest
import torch
from torch import nn

import fewbit
from fewbit.engine.run import view_of
from fewbit.engine.usual import has_moments, language_head, usual, with_cache
from fewbit.errors import UsageError
from fewbit.modules.kv_cache import CacheCodec
from fewbit.modules.quantized import is_quantized
from fewbit.schemes.config import Config
from fewbit.schemes.presets import preset
from small_models import mixed, opt, token_ids
from tiny_models import transformer


def chosen(name, model, *, data=True, named=True, **changes):
    config = usual(preset(name, **changes), view_of(model), named=named, data=data)
    return config.exclude, None if config.algo_config is None else config.algo_config[0]["name"]


def test_narrow_presets_leave_the_head_and_settle_errors_together():
    model = transformer("llama")
    assert chosen("mxfp4", model) == (("lm_head",), "gptq")
    assert chosen("w4a8_dynamic", model) == (("lm_head",), "gptq")
    assert chosen("mxfp4", model, data=False) == (("lm_head",), None)
    assert chosen("mxfp4", model, named=False) == ((), "gptq")
    assert chosen("fp8", model) == ((), "gptq")  # three bits of mantissa
    assert chosen("w8a8", model) == chosen("bf16", model) == ((), None)
    assert chosen("mxfp4", model, algo_config="rtn") == (("lm_head",), "rtn")


def test_other_models_have_no_such_head():
    assert chosen("mxfp4", nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8))) == ((), "gptq")
    assert chosen("mxfp4", mixed()) == ((), None)  # convolutions have no second moments of use
    assert language_head(view_of(transformer("bert"))) is None
    assert language_head(view_of(opt())) == "lm_head"


def test_moments_of_a_graph_have_to_fit(monkeypatch):
    from decoder_graphs import decoder

    view = view_of(decoder())
    assert has_moments(view)
    widths = [64] * 6 * 2 + [128] * 2 + [64]
    needed = 16 * sum(width**2 for width in widths)
    monkeypatch.setattr("fewbit.engine.usual._MOMENTS", needed)
    assert has_moments(view)
    monkeypatch.setattr("fewbit.engine.usual._MOMENTS", needed - 1)
    assert not has_moments(view)
    assert has_moments(view_of(opt()))


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_table_stays_with_the_head(tied):
    made = fewbit.quantize(opt(tied=tied), [token_ids(2)], mode="mxfp4")
    assert not is_quantized(made.lm_head) and not is_quantized(made.model.decoder.embed_tokens)
    assert is_quantized(made.model.decoder.layers[0].fc1)
    kept = {line["where"] for line in made.fewbit_record.lines if line["what"] == "float"}
    assert kept >= ({"model.decoder.embed_tokens.weight"} if tied else {"lm_head.weight"})


def test_caches_by_name():
    assert with_cache(Config(), None).kv_cache_quant_config is None
    fixed, token = (with_cache(Config(), name).kv_cache("x") for name in ("fp8", "int8_dynamic"))
    assert (fixed.dtype.name, fixed.qscheme.name, fixed.is_dynamic) == ("fp8_e4m3", "per_tensor", False)
    assert (token.dtype.name, token.qscheme.name, token.is_dynamic) == ("int8", "per_token", True)
    with pytest.raises(UsageError, match="fp9"):
        with_cache(Config(), "fp9")


@pytest.mark.parametrize("cache", ["fp8", "int8_dynamic"])
def test_a_cache_beside_weights_settled_on_a_walk(cache):
    model, ids = transformer("llama", hidden_size=64, intermediate_size=96, head_dim=16).eval(), token_ids(2) % 40
    made = fewbit.quantize(model, [ids] * 5, preset="nvfp4_a16", kv_cache=cache)
    assert all(isinstance(pair.key, CacheCodec) for pair in made.fewbit_cache.values())
    assert any(line.get("algorithm") == "gptq" for line in made.fewbit_record.lines)
    with torch.no_grad():
        assert torch.isfinite(made.generate(ids, max_new_tokens=3, do_sample=False)).all()


def test_a_plan_shows_what_will_be_done(capsys, tmp_path, monkeypatch):
    from fewbit import cli

    model = transformer("llama", hidden_size=64, intermediate_size=96, head_dim=16)
    shown = {line["layer"]: line for line in fewbit.plan(model, preset="mxfp4", time=False).layers()}
    assert "float" in shown["lm_head.weight"]
    model.save_pretrained(tmp_path / "llama")
    assert cli.run(["plan", str(tmp_path / "llama"), "--preset", "mxfp4", "--json"]) == 0
    assert '"lm_head.weight"' in capsys.readouterr().out
