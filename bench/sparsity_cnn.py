# SPDX-License-Identifier: Apache-2.0
"""Part `cnn` of bench/sparsity.py: two small networks for CIFAR-10, beside NNCF and SparseML.

Trained here, once: what was learned is kept under `.bench/sparsity/`. Then half of the weights zero in one go, judged
as weights of the plain network; and 80 % zeros with int8 in training, where every side's own model is judged.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sparsity_data
from language import Failed, ask
from sparsity_nets import HIGHEST_LR

WORKER = "sparsity_worker.py"
KEYS = ("device", "net", "what", "side", "way", "epochs", "more", "limit", "judged", "samples")
NETS = ("resnet", "mobilenet")
ONE_SHOT, AWARE = 0.5, 0.8
# side -> its environment, ways to zeros in one go, ways in training; the first is ours
SIDES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "fewbit": ("fewbit", ("auto", "sensitivity", "magnitude"), ("auto",)),
    "nncf": ("nncf_torch", ("local", "global"), ("local",)),
    "sparseml": ("sparseml", ("magnitude", "global"), ("magnitude", "magnitude_float")),
}
TUNED = 0.1
"""The learning rate of a network that has learned already, as a share of the first one."""
Row = dict[str, Any]


def measured(options: argparse.Namespace) -> Iterator[Row]:
    """Every measurement that is asked for, as it comes in."""
    if options.packages is not None:
        sparsity_data.unpack(options.packages)
    data = str(sparsity_data.cifar10())
    for net in options.nets.split(","):
        base = {
            "device": options.device, "net": net, "epochs": options.epochs, "more": options.more,
            "limit": options.limit, "judged": options.judged, "samples": options.samples,
        }  # fmt: skip
        run = _Net(base, data, options)
        yield from run.floats()
        for side in options.sides.split(","):
            _, ways, training = SIDES[side]
            for way in ways:
                yield run.one_shot({**base, "what": "one-shot", "side": side, "way": way})
            for way in training:
                yield run.aware({**base, "what": "training-aware", "side": side, "way": way})


class _Net:
    """One network: its float weights, and what is made of them."""

    def __init__(self, base: Row, data: str, options: argparse.Namespace):
        self.base, self.options = base, options
        self.given = {"net": base["net"], "data": data, "device": base["device"]}
        self.weights = str(self._place(f"{base['epochs']}"))

    def floats(self) -> Iterator[Row]:
        """The network as it was trained, and trained on for as long as sides with training have."""
        lr = HIGHEST_LR[self.base["net"]]
        longer = str(self._place(f"{self.base['epochs']}+{self.base['more']}"))
        for what, out, start, epochs, rate in (
            ("float", self.weights, None, self.base["epochs"], lr),
            ("float, longer", longer, self.weights, self.base["more"], lr * TUNED),
        ):
            found: Row = {}
            if not Path(out).exists():
                unfinished = f"{out}.unfinished"
                settings = {"epochs": epochs, "limit": self.base["limit"], "lr": rate, "start": start}
                found = self._ask("fewbit", do="cnn.learn", out=unfinished, **settings)
                Path(unfinished).rename(out)
            yield {**self.base, "what": what, "side": "float", "way": ""} | found | self._judged(out, 0.0)

    def one_shot(self, row: Row) -> Row:
        """Half of the weights zero."""
        question = {"do": "cnn.one_shot", "share": ONE_SHOT, "samples": self.base["samples"], "weights": self.weights}

        def made(folder: str) -> Row:
            out = f"{folder}/weights.pt"
            found = self._ask(row["side"], side=row["side"], way=row["way"], out=out, **question)
            return found | self._judged(out, ONE_SHOT)

        return _tried(row, made)

    def aware(self, row: Row) -> Row:
        """Zeros and int8 in training."""
        question = {name: self.base[name] for name in ("samples", "limit", "judged")}
        question |= {"do": "cnn.aware", "share": AWARE, "epochs": self.base["more"], "weights": self.weights}
        question["lr"] = HIGHEST_LR[self.base["net"]] * TUNED

        def made(folder: str) -> Row:
            return self._ask(row["side"], side=row["side"], way=row["way"], folder=f"{folder}/made", **question)

        return _tried(row, made)

    def _judged(self, weights: str, share: float) -> Row:
        return self._ask("fewbit", do="cnn.judge", weights=weights, share=share, judged=self.base["judged"])

    def _ask(self, where: str, **question: Any) -> Row:
        return ask(SIDES[where][0], self.options, worker=WORKER, **self.given, **question)

    def _place(self, name: str) -> Path:
        limit = self.base["limit"]
        cut = "" if limit is None else f"-of-{limit}"
        return sparsity_data.WORK / f"{self.base['net']}-{self.base['device']}-{name}{cut}.pt"


def _tried(row: Row, made: Any) -> Row:
    """A measurement, or why there is none."""
    row |= {"when": time.strftime("%Y-%m-%d %H:%M"), "load": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory(dir=sparsity_data.WORK) as folder:
        try:
            found: Row = made(folder)
        except Failed as failure:
            return row | {"failed": str(failure)}
    return row | found
