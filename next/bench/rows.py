# SPDX-License-Identifier: Apache-2.0
"""Damaged CSV and JSON Lines files: issues found of those expected, CPU seconds, peak memory, time to the first sample.

    python bench/rows.py [ROWS] [--keep FOLDER]

Kinds and counts are those of the study of libraries: 100 damaged rows per million, and one unclosed quote.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CSV_KINDS = {
    "row-short": 15, "row-long": 14, "quote-stray": 14, "quote-early": 14, "bad-encoding": 14, "nul-byte": 14,
    "mixed": 14, "quote-unclosed": 1,
}  # fmt: skip
JSON_KINDS = dict.fromkeys(
    (
        "bad-json", "not-an-object", "duplicate-key", "nan-in-json", "lone-surrogate", "bad-encoding", "nul-byte",
        "too-deep", "mark-inside", "mixed",
    ),
    10,
)  # fmt: skip
_WORDS = """
    the of and to in a is that for it as was with be by on not he his but at are this have from or had
"""
WORDS = _WORDS.split()

Expected = set[tuple[str, int]]


def places(kinds: dict[str, int], rows: int, seed: int) -> dict[int, str]:
    """The damaged rows, spread over the file; nothing in the first hundred, which decide layout and dialect."""
    chosen = random.Random(seed).sample(range(100, rows), sum(kinds.values()))
    damage = iter(chosen)
    return {next(damage): kind for kind, count in kinds.items() for _ in range(count)}


def write_csv(path: Path, rows: int) -> Expected:
    """A CSV file of four columns; every tenth row is quoted, every thousandth has a line break inside quotes."""
    rng = random.Random(1)
    damaged = places(CSV_KINDS, rows, 2)
    expected: Expected = set()
    line = 1
    with path.open("wb") as out:
        out.write(b"id,text,label,score\n")
        for row in range(rows):
            line += 1
            text = " ".join(rng.choices(WORDS, k=13))
            if row % 1000 == 7:
                text = f'"{text}, said\nhe"'
            elif row % 10 == 3:
                text = f'"{text}, ""so"" to say"'
            label, score = rng.randrange(5), f"{rng.random():.4f}"
            kind = damaged.get(row)
            data = f"{row},{text},{label},{score}\n".encode()
            if kind is not None:
                plain = " ".join(rng.choices(WORDS, k=13))
                data = _damaged_csv(kind, row, plain, label, score)
                text = plain
                if kind != "mixed":
                    expected.add((kind, line))
            out.write(data)
            line += text.count("\n")
    return expected


def _damaged_csv(kind: str, row: int, text: str, label: int, score: str) -> bytes:
    damaged = {
        "row-short": f"{row},{text},{label}\n",
        "row-long": f"{row},{text},{label},{score},extra\n",
        "quote-stray": f'{row},a 5" {text},{label},{score}\n',
        "quote-early": f'{row},"{text}" he said,{label},{score}\n',
        "quote-unclosed": f'{row},"{text},{label},{score}\n',
        "nul-byte": f"{row},{text[:5]}\0{text[5:]},{label},{score}\n",
        "mixed": f"{row},{text},seven,{score}\n",
    }
    if kind == "bad-encoding":
        return f"{row},{text} caf".encode() + b"\xe9" + f",{label},{score}\n".encode()
    return damaged[kind].encode()


def write_jsonl(path: Path, rows: int) -> Expected:
    """JSON Lines with a nested object."""
    rng = random.Random(3)
    damaged = places(JSON_KINDS, rows, 4)
    expected: Expected = set()
    with path.open("wb") as out:
        for row in range(rows):
            value = {
                "id": row,
                "text": " ".join(rng.choices(WORDS, k=18)),
                "score": round(rng.random(), 4),
                "meta": {"lang": rng.choice(["en", "de", "fr"]), "source": f"site-{rng.randrange(1000)}"},
            }
            data = json.dumps(value).encode()
            kind = damaged.get(row)
            if kind is not None:
                data = _damaged_json(kind, data, value)
                if kind != "mixed":
                    expected.add((kind, row + 1))
            out.write(data + b"\n")
    return expected


def _damaged_json(kind: str, data: bytes, value: dict[str, object]) -> bytes:
    damaged = {
        "bad-json": data[: len(data) // 2],
        "not-an-object": b"[1, 2, 3]",
        "duplicate-key": data[:-1] + b', "id": 1}',
        "nan-in-json": data[:-1] + b', "x": NaN}',
        "lone-surrogate": data[:-1] + b', "x": "\\ud800"}',
        "bad-encoding": data[:-1] + b', "x": "caf\xe9"}',
        "nul-byte": data[:-1] + b', "x": "a\0b"}',
        "too-deep": data[:-1] + b', "x": ' + b"[" * 300 + b"]" * 300 + b"}",
        "mark-inside": b"\xef\xbb\xbf" + data,
    }
    return damaged[kind] if kind in damaged else json.dumps(value | {"id": "seven"}).encode()


def check(path: str) -> None:
    """Check a file in this process and print what was found, the CPU time and the peak memory."""
    from fewbit.data.opening import scan_source

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    data_format = "csv" if path.endswith(".csv") else "json"
    source, report = scan_source(path, data_format=data_format, depth="full")
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = [(issue.code, issue.location.line) for issue in report.issues]
    counts = dict(report.counts)
    print(
        json.dumps(
            {
                "found": found,
                "counts": counts,
                "cpu": seconds,
                "mb": peak / 1024,
                "base": before / 1024,
                "rows": len(source),
            }
        )
    )


def first_sample(path: str) -> None:
    """Time from opening to the first sample, without imports."""
    from fewbit.data.files import Folder
    from fewbit.data.formats.csv import scan as scan_csv
    from fewbit.data.formats.json import scan as scan_json
    from fewbit.data.types import DataReport

    scan = scan_csv if path.endswith(".csv") else scan_json
    times = []
    for _ in range(5):
        start = time.perf_counter()
        source = scan(Folder(Path(path)), DataReport(), depth="index", options={"task": "text-generation"})
        source[0]
        times.append(time.perf_counter() - start)
    print(min(times))


def run(*arguments: str) -> str:
    """The output of this script in a process of its own."""
    command = [sys.executable, __file__, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> None:
    """Generate both files, check them, print a line each."""
    rows = int(next((value for value in sys.argv[1:] if value.isdecimal()), "1000000"))
    keep = sys.argv[sys.argv.index("--keep") + 1] if "--keep" in sys.argv else None
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(keep or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name, write in (("damaged.csv", write_csv), ("damaged.jsonl", write_jsonl)):
            path = folder / name
            expected = write(path, rows)
            result = json.loads(run("--check", str(path)))
            structural = {code for code, _ in expected}
            found = {(code, line) for code, line in result["found"] if code in structural}
            first = float(run("--first", str(path)))
            print(
                f"{name}: {path.stat().st_size / 1e6:.0f} MB, {rows:,} rows; "
                f"found {len(found & expected)} of {len(expected)}, {len(found - expected)} elsewhere; "
                f"mixed types {result['counts'].get('mixed-types', 0)}; "
                f"{result['cpu']:.2f} s CPU; peak {result['mb']:.0f} MB ({result['base']:.0f} before); "
                f"first sample {1000 * first:.1f} ms"
            )
            for code, line in sorted((found ^ expected), key=lambda item: item[1])[:10]:
                print("   ", "missed" if (code, line) in expected else "extra", code, line)


if __name__ == "__main__":
    if "--check" in sys.argv:
        check(sys.argv[-1])
    elif "--first" in sys.argv:
        first_sample(sys.argv[-1])
    else:
        main()
