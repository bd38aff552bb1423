# SPDX-License-Identifier: Apache-2.0
"""The model and the texts of bench/language.py: SmolLM2-135M off the grid it came on, and tokens every side gets.

    python bench/language_data.py [BLOCKS]         make them, under `.bench/language/`

The weights come in 4 bits. Judged at the grid they lie on, plain rounding would be perfect, so channels are re-scaled
by seeded factors exp(0.35 N(0, 1)), which a norm or the layer before takes back: the same function, other weights.
"""

from __future__ import annotations

import json
import shutil
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import assets
from models import load_transformers

WORK = Path(__file__).parents[1] / ".bench" / "language"
TOKENS = "texts-2.safetensors"  # another name for other texts: what lies there is taken
LENGTH = 512
SEEDS, SAMPLES, JUDGED = 3, 64, 64
RUN = 8  # words
LEARNED = (1536, 1024)  # rows to learn from, of passages and of documentation
CHARACTERS = 400_000  # of a text; more than the samples take
SPREAD = 0.35
SAME = 1e-3  # how far logits may move, as a share of their size


def model_folder(blocks: int | None = None) -> Path:
    """The folder of the re-scaled model in float32 with its tokenizer, or of its first blocks only."""
    folder = WORK / ("model" if blocks is None else f"model-{blocks}")
    if not folder.exists():
        unfinished = folder.with_name(f"unfinished-{folder.name}")
        shutil.rmtree(unfinished, ignore_errors=True)
        model = _original()
        if blocks is not None:
            model.model.layers = model.model.layers[:blocks]
            model.config.num_hidden_layers = blocks
        _rescale_and_check(model)
        model.save_pretrained(unfinished)
        _tokenizer().save_pretrained(unfinished)
        unfinished.rename(folder)
    return folder


def tokens_file() -> Path:
    """`calibration` [SEEDS * SAMPLES, LENGTH], `training` [rows, LENGTH] of int32, and `wiki` and `docs` to judge on,
    [JUDGED, LENGTH] each.

    Calibration is passages of BoolQ's development part; `wiki` those of the end of its test part that are not among
    them, `docs` the documentation of Flask. Training is passages of BoolQ that share no eight words in a row with
    either part, and the documentation of Django. The beginning of the test part, and documentation of Pygments or the
    end of Flask's, are what defaults of ours were chosen on, so nothing is judged on them.
    """
    path = WORK / TOKENS
    if not path.exists():
        from safetensors.torch import save_file

        WORK.mkdir(parents=True, exist_ok=True)
        save_file(_tokens(), path)
    return path


@torch.no_grad()
def rescale(model: Any) -> None:
    """Move the weights of a Llama off their grid, in place; it computes what it did."""
    draw = torch.Generator().manual_seed(0)

    def factors(count: int) -> Tensor:
        return torch.exp(SPREAD * torch.randn(count, generator=draw))

    for block in model.model.layers:
        attention, mlp = block.self_attn, block.mlp
        _between(block.input_layernorm, [attention.q_proj, attention.k_proj, attention.v_proj], factors)
        _between(block.post_attention_layernorm, [mlp.gate_proj, mlp.up_proj], factors)
        c = factors(len(attention.v_proj.weight))
        attention.v_proj.weight /= c[:, None]
        heads = c.reshape(-1, attention.head_dim)  # each is read by several heads of the queries
        attention.o_proj.weight *= heads.repeat_interleave(attention.num_key_value_groups, 0).flatten()
        c = factors(len(mlp.up_proj.weight))
        mlp.up_proj.weight /= c[:, None]
        mlp.down_proj.weight *= c


def _between(norm: Any, readers: list[Any], factors: Any) -> None:
    c = factors(len(norm.weight))
    norm.weight /= c
    for layer in readers:
        layer.weight *= c


@torch.no_grad()
def _rescale_and_check(model: Any) -> None:
    probe = torch.arange(1000, 1256).reshape(2, 128)
    before = model(probe).logits
    rescale(model)
    moved = ((model(probe).logits - before).abs().max() / before.abs().max()).item()
    if not moved < SAME:
        raise SystemExit(f"re-scaling moved the logits by {moved:.1e} of their size; expected below {SAME:g}")


def _original() -> Any:
    """The model as it came, in float32."""
    import gguf

    from language_gguf import config_of, state_of

    transformers = load_transformers()
    reader = gguf.GGUFReader(assets.smollm2())
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config_of(reader)))
    model.load_state_dict(state_of(reader), strict=True)
    return model.eval()


@cache
def _tokenizer() -> Any:
    path = assets.smollm2()
    return load_transformers().AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


def _runs(text: str) -> set[str]:
    """Every run of words of a text, by which two passages of the same article are told to overlap."""
    words = text.split()
    return {" ".join(words[start : start + RUN]) for start in range(len(words) - RUN + 1)}


def _tokens() -> dict[str, Tensor]:
    tokenizer = _tokenizer()
    seen: set[str] = set()

    def passages(path: Path, apart: frozenset[str] = frozenset()) -> str:
        found = (json.loads(line)["passage"] for line in path.read_text().splitlines())
        new = [text for text in found if not (text in seen or seen.add(text))]  # type: ignore[func-returns-value]
        return "\n\n".join(text for text in new if apart.isdisjoint(_runs(text)))

    def samples(text: str, count: int) -> Tensor:
        ids = tokenizer(text, verbose=False)["input_ids"]
        return torch.tensor(ids[: count * LENGTH]).reshape(count, LENGTH)

    calibration = passages(assets.boolq_for_calibration())
    judged = passages(assets.boolq())
    read = passages(assets.boolq_for_learning(), apart=frozenset(_runs(calibration + judged)))
    learned = samples(read, LEARNED[0]), samples(assets.more_documentation(), LEARNED[1])
    return {
        "calibration": samples(calibration[: SEEDS * CHARACTERS], SEEDS * SAMPLES),
        "training": torch.cat(learned).to(torch.int32),
        "wiki": samples(judged[-CHARACTERS:], JUDGED),
        "docs": samples(assets.documentation()[:CHARACTERS], JUDGED),
    }


if __name__ == "__main__":
    print(model_folder(int(sys.argv[1]) if sys.argv[1:] else None), tokens_file(), sep="\n")
