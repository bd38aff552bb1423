# SPDX-License-Identifier: Apache-2.0
"""The data layer against what people use today, side by side in one run.

    python bench/data.py                 every section, then its part of bench/RESULTS.md is written
    python bench/data.py rows images     some sections, printed only

Every measurement runs in a process of its own (data caches cold, imports done, a peak memory of its own); the two
sides of a ratio alternate and the best of three runs counts. Data is made under `.bench/`.
"""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from results import write_section

ROOT = Path(__file__).parents[1]
WORK = ROOT / ".bench" / "data"
ROWS = 1_000_000
IMAGES = 20_000
NPZ = 5_000
WORDS = ["the", "model", "keeps", "its", "answers", "while", "weights", "lose", "bits", "layer", "after", "layer"]


# ---- data ------------------------------------------------------------------------------------------------


def make_jsonl(rows: int) -> Path:
    def write(path: Path) -> None:
        rng = random.Random(0)
        with path.open("w") as file:
            for i in range(rows):
                text = " ".join(rng.choices(WORDS, k=42))
                file.write(json.dumps({"id": i, "text": text, "label": i % 7, "score": i / 3}) + "\n")

    return _made(f"rows-{rows}.jsonl", write)


def make_csv(rows: int, quoted: bool) -> Path:
    def write(path: Path) -> None:
        rng = random.Random(0)
        with path.open("w", newline="") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL)
            writer.writerow(["id", "text", "label", "score"])
            for i in range(rows):
                text = ("," if quoted else "") + " ".join(rng.choices(WORDS, k=46))
                writer.writerow([i, text, i % 7, i / 3])

    return _made(f"rows-{rows}{'-quoted' if quoted else ''}.csv", write)


def make_images(count: int) -> Path:
    def write(folder: Path) -> None:
        import numpy as np
        from PIL import Image

        rng = np.random.default_rng(0)
        base = np.kron(rng.integers(0, 255, (12, 12, 3), np.uint8), np.ones((8, 8, 1), np.uint8))
        for i in range(count):
            part = folder / f"class{i % 20:02}"
            part.mkdir(parents=True, exist_ok=True)
            picture = Image.fromarray(np.roll(base, i % 96, axis=i % 2))
            picture.save(part / f"{i:05}.jpg", quality=85)

    return _made(f"images-{count}", write)


def make_npz(count: int, shape: tuple[int, ...], names: tuple[str, ...], dtype: str, label: str) -> Path:
    def write(folder: Path) -> None:
        import numpy as np

        folder.mkdir()
        rng = np.random.default_rng(0)
        for i in range(count):
            np.savez(folder / f"input{i:04}.npz", **{n: rng.integers(1, 9, shape).astype(dtype) for n in names})

    return _made(f"npz-{label}-{count}", write)


def _made(name: str, write: Callable[[Path], None]) -> Path:
    path = WORK / name
    if not path.exists():
        WORK.mkdir(parents=True, exist_ok=True)
        unfinished = WORK / f"unfinished-{name}"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.unlink(missing_ok=True)
        write(unfinished)
        unfinished.rename(path)
    return path


# ---- measured in a process of their own ------------------------------------------------------------------


def fewbit_first(path: str) -> dict:
    import fewbit

    warm()
    return timed(lambda: next(iter(fewbit.open_dataset(path))))


def datasets_first(path: str) -> dict:
    import datasets

    return timed(lambda: datasets.load_dataset("json", data_files=path, split="train", cache_dir=fresh())[0])


def fewbit_start(path: str) -> dict:
    def start() -> object:
        import fewbit

        return next(iter(fewbit.open_dataset(path)))

    return timed(start)


def datasets_start(path: str) -> dict:
    def start() -> object:
        import datasets

        return datasets.load_dataset("json", data_files=path, split="train", cache_dir=fresh())[0]

    return timed(start)


def fewbit_index(path: str) -> dict:
    import fewbit

    dataset = fewbit.open_dataset(path)
    next(iter(dataset))
    result = timed(lambda: len(dataset))
    kept = sum(f.stat().st_size for f in Path(os.environ["FEWBIT_CACHE"]).rglob("*") if f.is_file())
    return {**result, "bytes_a_row": kept / len(dataset)}


def fewbit_reopen(path: str) -> dict:
    import fewbit

    len(fewbit.open_dataset(path))
    return timed(lambda: fewbit.open_dataset(path)[12_345 % len(fewbit.open_dataset(path))])


def fewbit_random(path: str) -> dict:
    import fewbit

    dataset = fewbit.open_dataset(path)
    picks = random.Random(1).sample(range(len(dataset)), 10_000)
    return timed(lambda: [dataset[i] for i in picks])


def datasets_random(path: str) -> dict:
    import datasets

    dataset = datasets.load_dataset("json", data_files=path, split="train", cache_dir=fresh())
    picks = random.Random(1).sample(range(len(dataset)), 10_000)
    return timed(lambda: [dataset[i] for i in picks])


def fewbit_pass(path: str) -> dict:
    import fewbit

    return timed(lambda: sum(1 for _ in fewbit.open_dataset(path)))


def fewbit_check(path: str) -> dict:
    import fewbit

    warm()
    return timed(lambda: fewbit.check_dataset(path).ok)


def csv_module(path: str) -> dict:
    def read() -> int:
        with open(path, newline="", encoding="utf-8") as file:
            return sum(1 for _ in csv.reader(file))

    return timed(read)


def fewbit_listing(path: str) -> dict:
    import fewbit

    return timed(lambda: len(fewbit.open_dataset(path)))


def datasets_listing(path: str) -> dict:
    import datasets

    datasets.disable_progress_bars()
    return timed(lambda: len(datasets.load_dataset("imagefolder", data_dir=path, split="train", cache_dir=fresh())))


def pillow_loop(path: str) -> dict:
    import numpy as np
    from PIL import Image

    files = sorted(str(p) for p in Path(path).rglob("*.jpg"))

    def read() -> int:
        total = 0
        for file in files:
            with Image.open(file) as picture:
                total += np.asarray(picture.convert("RGB")).shape[0]
        return total

    return timed(read)


def fewbit_decode_1(path: str) -> dict:
    return _decode(path, 1)


def fewbit_decode_2(path: str) -> dict:
    return _decode(path, 2)


def _decode(path: str, workers: int) -> dict:
    import fewbit

    dataset = fewbit.open_dataset(path, workers=workers)
    len(dataset)
    return timed(lambda: sum(sample["image"].shape[0] for sample in dataset))


def fewbit_headers(path: str) -> dict:
    import fewbit

    warm()
    return timed(lambda: fewbit.check_dataset(path, quick=True).ok)


def numpy_load(path: str) -> dict:
    import numpy as np

    files = sorted(Path(path).glob("*.npz"))

    def read() -> int:
        total = 0
        for file in files:
            with np.load(file) as archive:
                total += sum(archive[name].size for name in archive.files)
        return total

    return timed(read)


# ---- the run ---------------------------------------------------------------------------------------------


def timed(work: Callable[[], object]) -> dict:
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - start
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {"seconds": seconds, "mb": grown, "result": result if isinstance(result, int | float | bool) else None}


def warm() -> None:
    """Check a tiny folder of each kind, so that a rate is measured and not the imports behind it."""
    import tempfile

    import numpy as np

    import fewbit

    folder = Path(tempfile.mkdtemp())
    for name in ("npz", "jsonl", "csv"):
        (folder / name).mkdir()
    np.savez(folder / "npz" / "1.npz", x=np.ones(3))
    (folder / "jsonl" / "a.jsonl").write_text('{"x": 1}\n')
    (folder / "csv" / "a.csv").write_text("x,y\n1,2\n")
    for part in sorted(folder.iterdir()):
        fewbit.check_dataset(part)
    shutil.rmtree(folder)


def fresh() -> str:
    return os.environ["FRESH"]


def measure(case: str, path: Path, times: int = 3) -> dict:
    runs = [_run(case, path) for _ in range(times)]
    return min(runs, key=lambda run: run["seconds"])


def versus(ours: str, theirs: str, path: Path, times: int = 3) -> tuple[dict, dict]:
    pairs = [(_run(ours, path), _run(theirs, path)) for _ in range(times)]
    best = [min((pair[side] for pair in pairs), key=lambda run: run["seconds"]) for side in (0, 1)]
    return best[0], best[1]


def _run(case: str, path: Path) -> dict:
    scratch = WORK / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    environment = {**os.environ, "FEWBIT_CACHE": str(scratch / "fewbit"), "FRESH": str(scratch / "theirs")}
    environment["HF_HOME"] = str(scratch / "hf")
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # compiling every module at every start is nobody's working day
    command = [sys.executable, __file__, "--case", case, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    shutil.rmtree(scratch, ignore_errors=True)
    if done.returncode:
        raise SystemExit(f"{case} on {path} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


Row = tuple[str, str, str, str]


def rows() -> list[Row]:
    path = make_jsonl(ROWS)
    size = path.stat().st_size / 1e6
    first, their_first = versus("fewbit_first", "datasets_first", path, times=2)
    start, their_start = versus("fewbit_start", "datasets_start", path, times=2)
    index = measure("fewbit_index", path)
    reopen = measure("fewbit_reopen", path)
    reads, their_reads = versus("fewbit_random", "datasets_random", path, times=2)
    whole = measure("fewbit_pass", path)
    checked = measure("fewbit_check", path, times=1)
    return [
        ratio(f"JSONL {size:,.0f} MB, first sample, cold cache, vs `datasets`", their_first, first, "≥ 10×"),
        ratio("… the same with the import of either library", their_start, start, ""),
        (
            "… index of 1,000,000 rows",
            f"{index['seconds']:.2f} s",
            f"{index['bytes_a_row']:.1f} bytes a row",
            "≤ 16 bytes",
        ),
        ("… memory growth: first sample and index", f"{first['mb'] + index['mb']:.0f} MB", "", "≤ 100 MB"),
        ("… second open, one sample from the middle", f"{reopen['seconds'] * 1e3:.1f} ms", "", "instant"),
        ratio("… 10,000 random reads vs `datasets`", their_reads, reads, "≥ 1×"),
        ("… one pass in order", f"{whole['seconds']:.2f} s", f"{whole['mb']:.0f} MB growth", ""),
        ("… full check", f"{checked['seconds']:.2f} s", f"{checked['mb']:.0f} MB growth", ""),
    ]


def table() -> list[Row]:
    lines = []
    for quoted in (False, True):
        path = make_csv(ROWS, quoted)
        ours, theirs = versus("fewbit_check", "csv_module", path, times=2)
        name = f"CSV {path.stat().st_size / 1e6:,.0f} MB, {'all quoted' if quoted else 'plain'}"
        lines.append(ratio(f"{name}: full check vs `csv` reading it", theirs, ours, "≥ 1×"))
        lines.append(
            (f"… memory growth of the check ({'quoted' if quoted else 'plain'})", f"{ours['mb']:.0f} MB", "", "")
        )
    return lines


def images() -> list[Row]:
    path = make_images(IMAGES)
    listing, their_listing = versus("fewbit_listing", "datasets_listing", path, times=2)
    one, bare = versus("fewbit_decode_1", "pillow_loop", path)
    two, bare_again = versus("fewbit_decode_2", "pillow_loop", path)
    return [
        ratio(f"{IMAGES:,} JPEGs: listing vs `datasets` imagefolder", their_listing, listing, "≥ 2×"),
        ratio("… decoding, one worker, vs a bare Pillow loop", bare, one, "≥ 0.9×"),
        ratio("… decoding, two workers, vs a bare Pillow loop", bare_again, two, "≥ 1.7×"),
    ]


def npz() -> list[Row]:
    lines = []
    small = make_npz(NPZ, (128,), ("input_ids", "attention_mask", "token_type_ids"), "int64", "text")
    large = make_npz(NPZ, (3, 224, 224), ("pixel_values",), "float32", "image")
    for name, path in (("3 × int64[128]", small), ("float32[3, 224, 224]", large)):
        ours, theirs = versus("fewbit_headers", "numpy_load", path)
        lines.append(ratio(f"{NPZ:,} `.npz` of {name}: header check vs numpy loading them", theirs, ours, "≥ 5×"))
    return lines


def scaling() -> list[Row]:
    lines = []
    for case, what in (("fewbit_index", "index"), ("fewbit_pass", "pass in order"), ("fewbit_check", "full check")):
        speeds = []
        for count in (10_000, 100_000, 1_000_000):
            seconds = measure(case, make_jsonl(count), times=3 if count < ROWS else 1)["seconds"]
            speeds.append(f"{count / seconds / 1e3:,.0f}k")
        lines.append((f"JSONL {what}: rows/s at 10⁴, 10⁵, 10⁶", ", ".join(speeds), "", "linear"))
    return lines


def safety() -> list[Row]:
    command = [sys.executable, str(ROOT / "bench" / "fuzz.py"), "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    outcome = f"{found['samples']:,} opened, {found['findings']:,} refused with a finding"
    bad = f"{found['crashes']} crashes, {found['hangs']} hangs, {found['untyped']} untyped errors"
    return [(f"{found['inputs']:,} mutated inputs over {found['kinds']} kinds of file", outcome, bad, "nothing else")]


ABOUT = """\
Both sides ran alternately in one run, each in a process of its own with cold caches, best of two or three.

What is not in the times: imports. `datasets`, numpy and Pillow are imported before the clock starts, and so are
fewbit's modules for "first sample", "full check" and "header check" (by checking a tiny folder first), because fewbit
loads them on first use. Only the row "with the import of either library" includes them. Caches of *data* are cold
on both sides; compiled bytecode is kept, as on a user's machine.
"""

SECTIONS = {"rows": rows, "table": table, "images": images, "npz": npz, "scaling": scaling, "safety": safety}


def ratio(name: str, theirs: dict, ours: dict, goal: str) -> Row:
    measured = f"{ours['seconds']:.3g} s against {theirs['seconds']:.3g} s"
    return (name, measured, f"**{theirs['seconds'] / ours['seconds']:.2f}×**", goal)


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--case"]:
        print(json.dumps(globals()[arguments[1]](arguments[2])))
        return
    text = ["| what | measured | ratio or size | goal |", "|---|---|---|---|"]
    print("\n".join(text))
    for name in arguments or SECTIONS:
        for row in SECTIONS[name]():
            text.append("| " + " | ".join(row) + " |")
            print(text[-1], flush=True)
    if not arguments:
        write_results("\n".join(text))


def write_results(table_text: str) -> None:
    write_section("Data (`bench/data.py`)", f"{ABOUT}\n{table_text}")


if __name__ == "__main__":
    main(sys.argv[1:])
