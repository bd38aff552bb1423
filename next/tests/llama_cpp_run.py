# SPDX-License-Identifier: Apache-2.0
"""llama.cpp in a process of its own: `python llama_cpp_run.py JOB.json RESULT.json`. Needs xllamacpp.

A job is a list of {"path", "ids", "vocabulary", "texts"}; the result has, for each, the log-probabilities of all tokens
after half of `ids` and after all of them, and the token ids of `texts`.
"""

import json
import sys
import urllib.request
from pathlib import Path


def run(path, ids, vocabulary, texts=()):
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = params.n_batch = params.n_ubatch = 128
    params.n_parallel, params.n_gpu_layers, params.warmup = 1, 0, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.swa_full, params.verbosity, params.no_extra_bufts = True, 1, True
    params.port, params.fit_params = 0, False
    server = xllamacpp.Server(params)

    def ask(endpoint, **body):
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{server.listening_address}/{endpoint}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request) as answer:
            return json.loads(answer.read())

    # The answer holds no probabilities for a token that is half a character, or the end: any other is forced.
    letter = ask("tokenize", content="T", add_special=False)["tokens"][-1]
    rows = []
    for length in (len(ids) // 2, len(ids)):
        settings = {
            "n_predict": 1,
            "n_probs": vocabulary,
            "temperature": -1.0,
            "cache_prompt": False,
            "logit_bias": [[letter, 1e6]],
        }
        answer = ask("completion", prompt=ids[:length], **settings)
        row = [0.0] * vocabulary
        for entry in answer["completion_probabilities"][0]["top_logprobs"]:
            row[entry["id"]] = entry["logprob"]
        rows.append(row)
    tokens = [ask("tokenize", content=text, add_special=False)["tokens"] for text in texts]
    return {"logprobs": rows, "tokens": tokens}


if __name__ == "__main__":
    jobs = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps([run(**job) for job in jobs]))
