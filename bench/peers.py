# SPDX-License-Identifier: Apache-2.0
"""The peers' own environments, under `.bench/envs/`: made once, every version pinned.

    python bench/peers.py                 make or update them all

A peer is a file `bench/peers/NAME.txt` that pins every package of its environment. Nothing is resolved (`--no-deps`),
so nothing that is not in the file can come in; torch is the local CPU build, the same as ours. Quark compiles C++ when
it is first imported, NNCF when it first quantizes a torch model, which is done here, so that no benchmark pays for it;
they need g++.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENVS = ROOT / ".bench" / "envs"
PINS = Path(__file__).parent / "peers"
FIRST_IMPORT = {
    "autoround": "import auto_round",
    "hqq": "import hqq.core.quantize",
    "llmcompressor": "import llmcompressor",
    "nncf": "import nncf",
    "nncf_torch": "import nncf.torch.quantization.extensions as e; e.QuantizedFunctionsCPULoader.load()",
    "ort": "import onnxruntime.quantization",
    "quark": "import quark.torch",
    "sparseml": "import sparseml.pytorch.optim",
    "torchao": "import torchao.quantization",
}


def python_of(peer: str) -> Path:
    """The interpreter of a peer's environment, which is made if it is not there or its pins changed."""
    folder = ENVS / peer
    pins = PINS / f"{peer}.txt"
    stamp, digest = folder / "ready", hashlib.sha256(pins.read_bytes()).hexdigest()
    python = folder / "bin" / "python"
    if stamp.exists() and stamp.read_text() == digest:
        return python
    print(f"making the environment of {peer}: minutes, once", file=sys.stderr, flush=True)
    stamp.unlink(missing_ok=True)
    _call([sys.executable, "-m", "venv", "--clear", folder])
    _call([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "-r", pins])
    _call([python, "-c", FIRST_IMPORT[peer]])
    stamp.write_text(digest)
    return python


def environment() -> dict[str, str]:
    """The variables a peer runs with: what it compiles stays under `.bench/`, nothing asks a network."""
    return {
        **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        "TORCH_EXTENSIONS_DIR": str(ENVS / "extensions"),
        "NNCF_EXTENSION_LOAD_TIMEOUT": "0",
        "HF_HUB_OFFLINE": "1",
    }


def names() -> list[str]:
    """Every peer that has pins."""
    return sorted(path.stem for path in PINS.glob("*.txt"))


def _call(command: list[str | Path]) -> None:
    done = subprocess.run([str(part) for part in command], env=environment(), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


if __name__ == "__main__":
    for name in names():
        print(python_of(name))
