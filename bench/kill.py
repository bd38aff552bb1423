# SPDX-License-Identifier: Apache-2.0
"""A run that is killed again and again, beside one that is not: the same bytes, and what it cost.

    PYTHONPATH=src:bench:tests python bench/kill.py [KILLS]

A small Llama is compressed (gptq, int4, two formats, statistics kept) in a process that is killed with SIGKILL at
moments of its work drawn from a fixed seed, and started again until it is done; then another one is, until there were
enough kills. Every file of every run is compared, the statistics and what may lie beside the output too.
"""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import orjson

from results import table, write_section

_KILLS = 20
_FORMATS = ("safetensors", "compressed_tensors")


def job(folder: Path) -> None:
    """What is killed."""
    import torch

    import fewbit
    from tiny_models import transformer

    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)
    items = [{"input_ids": torch.randint(3, 40, (2, 24), generator=draw)} for _ in range(24)]
    model = transformer("llama", num_hidden_layers=4, hidden_size=64, intermediate_size=128, head_dim=16).eval()
    print("begin", flush=True)
    fewbit.compress_weights(
        model, mode="int4_sym", group_size=32, dataset=items, algorithm="gptq", format=_FORMATS,
        statistics=folder / "sums", output=folder / "out",
    )  # fmt: skip


def ran(folder: Path, limit: float | None = None) -> float | None:
    """How many seconds a start worked, its imports not counted; none if it took longer than a limit, and was killed."""
    line = [sys.executable, __file__, "job", str(folder)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None and started.stdout.readline() == "begin\n"
        began = time.perf_counter()
        try:
            code = started.wait(limit)
        except subprocess.TimeoutExpired:
            started.kill()
            return None
    if code:
        raise SystemExit(f"a start in {folder} ended with code {code}")
    return time.perf_counter() - began


def content(folder: Path) -> dict[str, str]:
    """The hash of every file, hidden ones too, but for what says when a run was made."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        if path.name in ("record.json", "fewbit.json"):
            told = orjson.loads(content)
            told.pop("made", None)
            told.get("files", {}).pop("record.json", None)
            content = orjson.dumps(told)
        found[str(path.relative_to(folder))] = hashlib.sha256(content).hexdigest()
    return found


def main(kills: int) -> None:
    """Run both and write the figures."""
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch, "whole")
        lasted = ran(whole)
        assert lasted is not None
        wanted, moments, runs, different = content(whole), list[float](), 0, set[str]()
        while len(moments) < kills:
            runs += 1
            killed = Path(scratch, f"killed-{runs}")
            while not (killed / "out").exists():
                moment = draw.uniform(0, lasted)
                if ran(killed, moment if len(moments) < kills else None) is None:
                    moments.append(moment)
            found = content(killed)
            different |= {name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)}
    rows = [
        ["kills", f"{len(moments)}, of {runs} runs"],
        ["moments, of a run that works for so long", f"{min(moments):.2f} to {max(moments):.2f} s of {lasted:.2f} s"],
        ["files of a run", str(len(wanted))],
        ["files that differ from those of the run that was not killed", ", ".join(sorted(different)) or "none"],
    ]
    text = table(["", ""], rows)
    print(text)
    if different:
        raise SystemExit(1)
    write_section("kill.py", text)


if __name__ == "__main__":
    if sys.argv[1:2] == ["job"]:
        job(Path(sys.argv[2]))
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else _KILLS)
