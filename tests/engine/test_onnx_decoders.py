# SPDX-License-Identifier: Apache-2.0
"""Decoders as ONNX graphs: weights of four bits whose errors cancel, as MatMulNBits, run by ONNX Runtime."""

from collections import Counter

import numpy as np
import onnxruntime
import pytest

import fewbit
from decoder_graphs import decoder, token_items


def answers(proto, items):
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, item)[0] for item in items]).astype(np.float64)


@pytest.mark.parametrize("mode", ["int4_sym", "int4_asym"])
def test_answers_are_nearer_than_those_of_the_search(mode):
    model, held_out = decoder(), token_items(8, seed=99)
    before, wanted = model.SerializeToString(), answers(decoder(), held_out)
    errors, made = {}, {}
    for algorithm in ("scale_search", "gptq", "auto"):
        made[algorithm] = fewbit.compress_weights(
            model, mode=mode, group_size=32, dataset=token_items(20), algorithm=algorithm
        )
        off = answers(made[algorithm], held_out) - wanted
        errors[algorithm] = np.square(off).sum() / np.square(wanted).sum()
    assert errors["gptq"] < 0.8 * errors["scale_search"]
    assert made["auto"].SerializeToString() == made["gptq"].SerializeToString()
    operators = Counter(node.op_type for node in made["gptq"].graph.node)
    assert operators["MatMulNBits"] == 15 and operators["MatMul"] == 4  # the others are the attention's own
    assert model.SerializeToString() == before


def test_a_file_and_what_is_said_of_it(tmp_path):
    import onnx

    from fewbit.record import Record

    onnx.save(decoder(), tmp_path / "decoder.onnx")
    out = fewbit.compress_weights(
        tmp_path / "decoder.onnx", mode="int4_sym", group_size=32, dataset=token_items(10), output=tmp_path / "w4.onnx"
    )
    lines = Record.from_json((tmp_path / "w4.onnx.record.json").read_bytes()).lines
    settled = [line for line in lines if line["what"] == "quantized" and line["algorithm"] == "gptq"]
    assert len(settled) == 15 and all("held_out_output_error" in line for line in settled)
    assert answers(onnx.load(out), token_items(1)).shape == (2, 16, 96)


def test_without_data_it_is_the_search():
    one, other = (
        fewbit.compress_weights(decoder(), mode="int4_sym", group_size=32, algorithm=each)
        for each in ("auto", "scale_search")
    )
    assert one.graph == other.graph


def test_accuracy_control_reads_texts(tmp_path):
    """Rows of text are tokenized by the tokenizer beside the file, as the other verbs do."""
    import onnx

    from word_tokenizer import make_tokenizer

    make_tokenizer().save_pretrained(tmp_path)
    onnx.save(decoder(layers=1), tmp_path / "decoder.onnx")
    rows = [{"text": " ".join(f"w{10 + (7 * row + word) % 80}" for word in range(40))} for row in range(6)]
    fed = []

    def judge(model, items):
        fed.append([item["input_ids"].shape for item in items])
        return 1.0

    made = fewbit.quantize_with_accuracy_control(
        tmp_path / "decoder.onnx", rows, rows, judge, advanced_parameters={"price": 1e6}
    )
    assert fed[0] == fed[-1] and set(fed[0]) == {(1, 16)} and len(fed[0]) == 15  # 6 · 41 tokens, 16 a sample
    assert answers(made, token_items(1)).shape == (2, 16, 96)
