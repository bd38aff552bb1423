# SPDX-License-Identifier: Apache-2.0
"""Quantizing PyTorch modules, beside AMD Quark and torchao in their own environments, in one run.

    python bench/eager.py                     every section, then its part of bench/RESULTS.md is written
    python bench/eager.py imports inference   some sections, printed only

Sides are processes that stay alive and take turns (bench/worker.py); a figure is the median of its turns. Everything
measured is kept in `.bench/eager.json`.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import assets
import peers
from results import table, write_section

ROOT = Path(__file__).parents[1]
WORK = ROOT / ".bench"
RAW: dict[str, Any] = {}

SCHEMES = {
    "int8": "int8 weights, per channel",
    "int4_g32": "int4 weights, groups of 32",
    "int4_g128": "int4 weights, groups of 128",
    "uint4_g32": "uint4 weights with zero points, groups of 32",
    "uint4_g128": "uint4 weights with zero points, groups of 128",
    "w8a8": "int8 weights and activations, static",
    "w8a8_dynamic": "int8 weights and activations, dynamic per token",
    "fp8": "fp8 weights and activations, static, per tensor",
    "mxfp4": "MXFP4 weights and activations",
}
TORCHAO = ("int8", "int4_g32", "int4_g128", "uint4_g32", "uint4_g128", "w8a8_dynamic")
STATIC = ("w8a8", "fp8")
TURNS = {"minilm": 3, "decoder": 3}
MODELS = {
    "minilm": "MiniLM (37 linear layers, 10.8 M weights)",
    "decoder": "24-layer decoder (168 layers, 308 M weights)",
}


class Side:
    """A worker process that is asked one thing after the other."""

    def __init__(self, name: str, python: Path, variables: dict[str, str]):
        command = [str(python), str(ROOT / "bench" / "worker.py"), name]
        self.name = name
        self.log = (WORK / f"{name}.log").open("w")
        environment = {**peers.environment(), **variables}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.log}
        self.process = subprocess.Popen(command, env=environment, text=True, **pipes)

    def ask(self, do: str, **question: Any) -> dict[str, Any]:
        """The answer to one question."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps({"do": do, **question}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} failed at {do} {question}; see {self.log.name}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Let the process end."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()
        self.log.close()


@contextmanager
def side(name: str, **variables: str) -> Iterator[Side]:
    """A side, alive for a block."""
    python = Path(sys.executable) if name in ("ours", "float") else peers.python_of(name)
    opened = Side(name, python, variables)
    try:
        yield opened
    finally:
        opened.close()


# ---- imports ---------------------------------------------------------------------------------------------

IMPORTS = {
    "quark": "import quark.torch",
    "quark beyond torch": "import torch; START(); import quark.torch",
    "torch": "import torch",
    "fewbit": "import fewbit",
    "names": "from fewbit import ModelQuantizer, Config, QuantizationConfig, QuantizationSpec",
    "names beyond torch": "import torch; START(); from fewbit import ModelQuantizer, Config, QuantizationConfig",
}


def imports() -> str:
    """Import times, each in a process of its own, in turns."""
    taken: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for _ in range(3):
        for name in IMPORTS:
            taken[name].append(import_seconds(name))
    found = RAW["imports"] = {name: statistics.median(times) for name, times in taken.items()}
    most = [clock(found["quark"]), f"{found['quark'] / found['torch']:.2f}×", ""]
    rows = [
        limit("`import fewbit`", found["fewbit"], "`import quark.torch`", found["quark"], 20),
        limit(
            "`from fewbit import ModelQuantizer, Config, …`, torch and all",
            found["names"],
            "the same",
            found["quark"],
            20,
        ),
        limit("… beyond torch", found["names beyond torch"], "… beyond torch", found["quark beyond torch"], 20),
        ["`import torch` alone: the most that is possible with it", clock(found["torch"]), "the same", *most],
    ]
    text = "Seconds inside a fresh process, files and Quark's compiled kernel in the cache. Nothing is subtracted."
    return f"### Import\n\n{text}\n\n{table(LIMIT, rows)}"


def import_seconds(name: str) -> float:
    """Seconds of the statement, or of what comes after START()."""
    python = peers.python_of("quark") if name.startswith("quark") else Path(sys.executable)
    prepare = "import time\nclock = [time.perf_counter()]\ndef START(): clock.append(time.perf_counter())\n"
    code = f"{prepare}{IMPORTS[name]}\nprint(time.perf_counter() - clock[-1])"
    done = subprocess.run(
        [str(python), "-c", code], env=peers.environment(), capture_output=True, text=True, check=True
    )
    return float(done.stdout.splitlines()[-1])


# ---- quantize and freeze ---------------------------------------------------------------------------------


def quantizing() -> str:
    """Time and error of quantize + freeze for every common scheme."""
    fresh = WORK / "inductor"
    shutil.rmtree(fresh, ignore_errors=True)
    text = []
    with ExitStack() as stack:
        sides = {
            "ours": stack.enter_context(side("ours")),
            "quark": stack.enter_context(side("quark", QUARK_DISABLE_COMPILE="1")),
            "compiled": stack.enter_context(side("quark", TORCHINDUCTOR_CACHE_DIR=str(fresh))),
            "torchao": stack.enter_context(side("torchao")),
        }
        for model, title in MODELS.items():
            found = {scheme: one_scheme(sides, model, scheme) for scheme in SCHEMES}
            RAW[model] = found
            text += [f"### Quantize and freeze: {title}", times_table(found), errors_table(found)]
            for one in sides.values():
                one.ask("forget")
    return "\n\n".join([text[0], QUANTIZING, *text[1:]])


FRESH = ("int8", "int4_g128", "w8a8_dynamic", "mxfp4")


def fresh() -> str:
    """Time of the one quantize + freeze that a script makes: in a process that did nothing before."""
    rows, found = [], RAW.setdefault("fresh", {})
    for model, title in MODELS.items():
        for scheme in FRESH:
            taken = {}
            for name in ("ours", "quark"):
                with side(name) as one:
                    taken[name] = one.ask("quantize", model=model, scheme=scheme)["seconds"]
            found[f"{model} {scheme}"] = taken
            print(model, scheme, taken, file=sys.stderr, flush=True)
            ratio = mark(taken["quark"] / taken["ours"], 3)
            rows.append([title, SCHEMES[scheme], clock(taken["ours"]), clock(taken["quark"]), ratio])
    text = """\
Each a new process that imports, builds the model and quantizes it once, both sides as they come: ours with the search
for scales, Quark with its compiler, whose results of earlier runs are in its cache. Imports and building are not in
it."""
    head = ["model", "scheme", "ours", "Quark", "Quark / ours ≥ 3"]
    return f"### The first and only call of a process\n\n{text}\n\n{table(head, rows)}"


QUANTIZING = """\
Wall time of quantize + freeze; building and copying the float model is not in it, calibration is. *Ours* is as users
get it: scales searched for, the caller's model left alone, weights packed and put into kernels. *Plain* is ours with
plain rounding and in place, which is what the peers do (Quark does not pack its weights). Quark compiles its rounding
with torch.compile by default: *first* is the first call for a scheme in a process whose compiler cache was empty before
the first scheme (so the first row carries the start of the compiler), *again* later calls in that process, *eager*
QUARK_DISABLE_COMPILE=1. *✓* where Quark's time / ours ≥ 3. *Floor* is one plain float pass over the calibration set, in
turns with the rest: no static scheme can be faster. On the five weight-only schemes Quark and torchao round by one
formula and give the same bits (compared by hash on MiniLM), so the two errors there are one opinion, not two."""


def one_scheme(sides: dict[str, Side], model: str, scheme: str) -> dict[str, Any]:
    """Every side's times and error, the sides taking turns."""
    question = {"do": "quantize", "model": model, "scheme": scheme}
    first = sides["compiled"].ask(**question)["seconds"]
    names = ("ours", "plain", "quark", "compiled", "torchao", "floor")
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for turn in range(TURNS[model]):
        judge = turn == 0
        runs["ours"].append(sides["ours"].ask(**question, judge=judge))
        runs["plain"].append(sides["ours"].ask(**question, judge=judge, algorithm="rtn", inplace=True))
        runs["quark"].append(sides["quark"].ask(**question, judge=judge))
        runs["compiled"].append(sides["compiled"].ask(**question))
        if scheme in TORCHAO:
            runs["torchao"].append(sides["torchao"].ask(**question, judge=judge))
        if scheme in STATIC:
            runs["floor"].append(sides["ours"].ask("plain", model=model))
    seconds = {name: statistics.median(r["seconds"] for r in made) for name, made in runs.items() if made}
    judged = {name: made[0] for name, made in runs.items() if made and "error" in made[0]}
    errors = {name: one["error"] for name, one in judged.items()}
    weighed = {name: one["weighed"] for name, one in judged.items()}
    print(model, scheme, {"first": first, **seconds}, errors, file=sys.stderr, flush=True)
    return {"seconds": {**seconds, "first": first}, "errors": errors, "weighed": weighed}


def times_table(found: dict[str, Any]) -> str:
    """Times of a model, one scheme a row."""
    rows = []
    for scheme, title in SCHEMES.items():
        t = found[scheme]["seconds"]
        ratios = [mark(t[name] / t["ours"], 3) for name in ("first", "compiled", "quark")]
        clocks = [clock(t[name]) for name in ("ours", "plain", "first", "compiled", "quark")]
        extra = [clock(t[name]) if name in t else "" for name in ("torchao", "floor")]
        rows.append([title, *clocks, *ratios, *extra])
    head = ["scheme", "ours", "plain", "Quark first", "again", "eager", "first / ours", "again / ours", "eager / ours"]
    return table([*head, "torchao", "floor"], rows)


def errors_table(found: dict[str, Any]) -> str:
    """Errors of a model, one scheme a row."""
    rows = []
    for scheme, title in SCHEMES.items():
        cells = [title]
        for kind in ("errors", "weighed"):
            e = found[scheme][kind]
            theirs = min(e[name] for name in ("quark", "torchao") if name in e)
            met = "✓" if e["ours"] <= theirs else "✗"
            cells += [f"{e['ours']:.4f}", f"{e['plain']:.4f}", f"{theirs:.4f}", f"{e['ours'] / theirs:.4f} {met}"]
        rows.append(cells)
    sides = ["ours", "plain", "best peer", "ours / peer ≤ 1"]
    return f"{ERRORS}\n\n{table(['scheme', *sides, *(f'weighed: {name}' for name in sides)], rows)}"


ERRORS = """\
‖W − Ŵ‖ / ‖W‖ of what the frozen layers compute with, summed over layers. That is the goal; it counts every weight
alike. Given calibration data (the two static schemes), ours minimises the error weighed by what each input feature
carries instead, so *weighed* shows that one too, measured on inputs no side calibrated on."""


# ---- memory ----------------------------------------------------------------------------------------------


def memory() -> str:
    """Peaks of resident memory above the loaded decoder, each in a process of its own."""
    rows = []
    found: dict[str, Any] = {}
    for scheme in ("int8", "int4_g128", "w8a8"):
        for title, name, options in (
            ("ours, in place", "ours", {"inplace": True}),
            ("ours, not in place", "ours", {}),
            ("Quark eager (always in place)", "quark", {}),
        ):
            with side(name, QUARK_DISABLE_COMPILE="1") as one:
                answer = found[f"{scheme}, {title}"] = one.ask("memory", model="decoder", scheme=scheme, **options)
            print(scheme, title, answer, file=sys.stderr, flush=True)
            rows.append(memory_row(SCHEMES[scheme], title, answer))
    RAW["memory"] = found
    text = """\
The decoder; the peak of resident memory (the kernel's own count) above what was resident with the model loaded and
everything imported and used once on a tiny model. The goal is three times the largest layer. Not in place, the packed
result lies beside the caller's model, so the bytes it does not share with it are allowed for too. The static scheme
runs the model, whose activations count as well. A good part of the rest is free memory that glibc's allocator keeps;
with MALLOC_MMAP_THRESHOLD_=1048576 in the environment it gives that back."""
    head = ["scheme", "side", "grown by", "largest layer × 3", "allowed", "met", "weights before → frozen"]
    return f"### Peak memory\n\n{text}\n\n{table(head, rows)}"


def memory_row(scheme: str, title: str, answer: dict[str, int]) -> list[str]:
    """One line; a caller's model that is left alone allows for what was newly made beside it."""
    three = 3 * answer["largest"]
    ours = title.startswith("ours")
    allowed = three + answer["new"]
    met = ("✓" if answer["grown"] <= allowed else "✗") if ours else ""
    sizes = f"{mb(answer['model'])} → {mb(answer['frozen'])}"
    return [scheme, title, mb(answer["grown"]), mb(three), mb(allowed) if ours else "", met, sizes]


# ---- inference -------------------------------------------------------------------------------------------

SHAPES = {"minilm": [(1, 128), (32, 128)], "blocks": [(1, 1), (32, 128)]}
KERNELS = {"w8a8_dynamic": "int8 dynamic", "int4_kernel": "int4 weights, groups of 32"}


def inference_cases(model: str) -> Iterator[tuple[str, str, bool, int, int]]:
    """Scheme, type of the activations, compiled or not, batch, tokens. Compiling takes long: int4 only at one shape."""
    for scheme, dtype in (("w8a8_dynamic", "float32"), ("int4_kernel", "bfloat16"), ("int4_kernel", "float32")):
        for compiled in (False, True):
            for batch, length in SHAPES[model]:
                if not compiled or scheme == "w8a8_dynamic" or (dtype == "bfloat16" and batch == 1):
                    yield scheme, dtype, compiled, batch, length


def inference() -> str:
    """Frozen inference on the CPU, eager and compiled."""
    rows = []
    with ExitStack() as stack:
        cache = str(WORK / "inductor-inference")
        names = ("float", "ours", "torchao")
        sides = {name: stack.enter_context(side(name, TORCHINDUCTOR_CACHE_DIR=cache)) for name in names}
        for model in SHAPES:
            for scheme, dtype, compiled, batch, length in inference_cases(model):
                question = {"model": model, "dtype": dtype, "compiled": compiled, "batch": batch, "length": length}
                t = inference_times(sides, scheme, question)
                mode = "compiled" if compiled else "eager"
                RAW.setdefault("inference", {})[f"{model} {scheme} {dtype} {mode} {batch}×{length}"] = t
                where = [NAMES[model], KERNELS[scheme], dtype, mode, f"{batch} × {length}"]
                rows.append([*where, *inference_cells(t)])
            for one in sides.values():
                one.ask("forget")
    head = [
        "model",
        "scheme",
        "activations",
        "mode",
        "batch × tokens",
        "ours",
        "torchao",
        "float, same type",
        "float32",
    ]
    made = table([*head, "torchao / ours ≥ 1", "float32 / ours > 1"], rows)
    return f"### Frozen inference, CPU\n\n{INFERENCE}\n\n{made}"


NAMES = {"minilm": "MiniLM", "blocks": "2 decoder blocks"}
INFERENCE = """\
One forward pass of MiniLM, or of two decoder blocks of width 1024. Warm: compilation and the first call are not in it.
*Compiled* is `torch.compile(model)` on all sides, which is how torchao is documented. torchao's int4 for CPUs is a
prototype (`Int4OpaqueTensor`) made for bfloat16: PyTorch's kernel under it is a plain loop in float32, so there it is
only measured at the small shape, and being faster than that proves little."""


def inference_times(sides: dict[str, Side], scheme: str, question: dict[str, Any]) -> dict[str, float]:
    """The sides in turns, and the float model in float32 too where the others compute in another type."""
    asked: dict[str, tuple[Side, dict[str, Any]]] = {
        "float": (sides["float"], {**question, "scheme": None}),
        "ours": (sides["ours"], {**question, "scheme": scheme}),
        "float32": (sides["float"], {**question, "scheme": None, "dtype": "float32"}),
    }
    slow = scheme == "int4_kernel" and question["dtype"] == "float32" and question["batch"] > 1
    if not slow:
        asked["torchao"] = (sides["torchao"], {**question, "scheme": scheme})
    if question["dtype"] == "float32":
        del asked["float32"]
    taken: dict[str, list[float]] = {name: [] for name in asked}
    cosines: dict[str, float] = {}
    for turn in range(3):
        for name, (one, wanted) in asked.items():
            answer = one.ask("infer", **wanted, judge=turn == 0)
            taken[name].append(answer["seconds"])
            cosines[name] = answer.get("cosine", cosines.get(name, 0.0))
    wrong = {name: cosine for name, cosine in cosines.items() if cosine < 0.9}
    if wrong:
        raise SystemExit(f"a time for wrong answers is no time: {scheme} {question} has cosines {wrong} with float32")
    found = {name: statistics.median(times) for name, times in taken.items()}
    print(scheme, question, found, cosines, file=sys.stderr, flush=True)
    return {"float32": found["float"], **found}


def inference_cells(t: dict[str, float]) -> list[str]:
    """Times and ratios of one line."""
    torchao = [clock(t["torchao"]), mark(t["torchao"] / t["ours"], 1)] if "torchao" in t else ["", ""]
    return [
        clock(t["ours"]),
        torchao[0],
        clock(t["float"]),
        clock(t["float32"]),
        torchao[1],
        mark(t["float32"] / t["ours"], 1),
    ]


# ---- the run ---------------------------------------------------------------------------------------------

LIMIT = ["ours", "time", "theirs", "time", "theirs / ours", "goal"]


def limit(name: str, ours: float, other: str, theirs: float, goal: float) -> list[str]:
    """A row of two times and their ratio against a goal."""
    return [name, clock(ours), other, clock(theirs), mark(theirs / ours, goal), f"≥ {goal:g}×"]


def mark(ratio: float, goal: float) -> str:
    """A ratio and whether it reaches the goal."""
    return f"{ratio:.2f}× {'✓' if ratio >= goal else '✗'}"


def clock(seconds: float) -> str:
    """A time with its unit."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def mb(count: int) -> str:
    """Bytes as MB."""
    return f"{count / 1e6:,.0f} MB"


SECTIONS: dict[str, Callable[[], str]] = {
    "imports": imports,
    "quantizing": quantizing,
    "fresh": fresh,
    "memory": memory,
    "inference": inference,
}


def prepare() -> None:
    """Everything that is made once: environments, packages, the decoder's weights, the passages as tokens."""
    for peer in peers.names():
        peers.python_of(peer)
    assets.minilm()
    code = "import minilm, models; minilm.write_passages(); models.decoder_file()"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT / "bench", check=True)


def main(arguments: list[str]) -> None:
    prepare()
    start = time.perf_counter()
    parts = []
    for name in arguments or SECTIONS:
        parts.append(SECTIONS[name]())
        print(parts[-1], flush=True)
    raw = {"when": time.strftime("%Y-%m-%d %H:%M"), "load": os.getloadavg(), **RAW}
    (WORK / "eager.json").write_text(json.dumps(raw, indent=1))
    minutes = (time.perf_counter() - start) / 60
    if not arguments:
        about = (
            f"Quark 0.13, torchao 0.18.0, PyTorch 2.13.0 on the CPU; {minutes:.1f} minutes, load {raw['load'][0]:.1f}."
        )
        write_section("Eager PyTorch beside Quark and torchao (`bench/eager.py`)", "\n\n".join([about, *parts]))


if __name__ == "__main__":
    main(sys.argv[1:])
