# SPDX-License-Identifier: Apache-2.0
"""llama.cpp in a process of its own: `python llama_cpp_run.py JOB.json RESULT.npz`. Needs llama-cpp-python and NumPy.

A job is {"logits": {name: {"path", "ids"}}}, {"tokens": {name: {"path", "texts"}}} or
{"quantize": {"path": a .npy file, "types": {name: number, bytes of a block, elements of a block}}}.
"""

import ctypes
import json
import sys
from pathlib import Path

import numpy as np


def logits(path, ids):
    """`[position, token]`, everything in float32 that can be."""
    import llama_cpp

    llm = llama_cpp.Llama(
        path, n_ctx=len(ids), n_batch=len(ids), n_ubatch=len(ids), logits_all=True, n_threads=1, n_threads_batch=1,
        type_k=0, type_v=0, flash_attn=False, swa_full=True, verbose=False,
    )  # fmt: skip
    llm.eval(ids)
    return np.array(llm.scores[: len(ids)], np.float32)


def tokens(path, texts):
    import llama_cpp

    llm = llama_cpp.Llama(path, vocab_only=True, verbose=False)
    return [llm.tokenize(text.encode(), add_bos=False, special=False) for text in texts]


def quantize(path, types):
    """What ggml's own quantizer makes of a matrix, as bytes."""
    import llama_cpp

    name = next(each for each in (Path(llama_cpp.__file__).parent / "lib").iterdir() if "ggml-base" in each.name)
    chunk = ctypes.CDLL(str(name)).ggml_quantize_chunk
    sizes = [ctypes.c_int64] * 3
    chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *sizes, ctypes.c_void_p]
    chunk.restype = ctypes.c_size_t
    values = np.ascontiguousarray(np.load(path), np.float32)
    found = {}
    for kind, (number, width, elements) in types.items():
        out = np.zeros((len(values), values.shape[1] // elements * width), np.uint8)
        assert chunk(number, values.ctypes.data, out.ctypes.data, 0, *values.shape, None) == out.nbytes
        found[kind] = out
    return found


if __name__ == "__main__":
    job = json.loads(Path(sys.argv[1]).read_text())
    result = {name: logits(**each) for name, each in job.get("logits", {}).items()}
    for name, each in job.get("tokens", {}).items():
        result[name] = np.array(json.dumps(tokens(**each)))
    result |= quantize(**job["quantize"]) if "quantize" in job else {}
    np.savez(sys.argv[2], **result)
