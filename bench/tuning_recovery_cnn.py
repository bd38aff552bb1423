# SPDX-License-Identifier: Apache-2.0
"""Part `cnn` of bench/tuning_recovery.py: the networks for CIFAR-10 of bench/sparsity_nets.py in few bits.

Float weights come from `--weights`, or are trained as bench/sparsity.py does. `w4a8`: int4 weights with a scale an
output, int8 activations with fixed ranges; `int4`: int4 weights of `compress_weights`; `int4-rtn`: the same by plain
rounding, measured without being asked for if one of the others loses too little for a share of it to mean anything.
Each is trained by `finetune`, `qat` with the labels and `distill` with the float network's answers, on pictures moved
and mirrored by chance. Trained on for as long, the float network shows what more training is worth by itself.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuning_shares import TOO_LITTLE, shares

if TYPE_CHECKING:
    from torch import Tensor, nn

DATA = "sparsity_data.py"
WORK = Path(__file__).parents[1] / ".bench" / "tuning"
NETS = ("resnet", "mobilenet")
SCHEMES = ("w4a8", "int4", "int4-rtn")
METHODS = ("qat", "distill")
HARDER = "int4-rtn"
SAMPLES, AT_ONCE = 512, 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What may be asked for."""
    parser.add_argument("--nets", default=",".join(NETS))
    parser.add_argument("--weights", action="append", default=[], metavar="NET=FILE")
    parser.add_argument("--epochs", type=int, default=8, help="of the float network, where its weights are not given")
    parser.add_argument("--schemes", default="w4a8,int4")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--temperature", type=float, default=2.0)
    parser.add_argument("--limit", type=int, help="pictures to learn from; all if not said")
    parser.add_argument("--judged", type=int, help="pictures to judge on; all 10,000 if not said")


def measure(given: argparse.Namespace, data: str) -> None:
    """Print a line of JSON for each network, scheme and method."""
    for asked, known in ((given.nets, NETS), (given.schemes, SCHEMES), (given.methods, METHODS)):
        if strange := set(asked.split(",")) - set(known):
            raise SystemExit(f"{', '.join(sorted(strange))}: expected some of {', '.join(known)}")
    for net in given.nets.split(","):
        run = _Net(given, net, data)
        for row in run.rows():
            print(json.dumps({"net": net, "device": given.device, **row}), flush=True)


class _Net:
    """One network and what is made of it."""

    def __init__(self, given: argparse.Namespace, net: str, data: str):
        from sparsity_nets import Pictures
        from tuning_pictures import Moved, scaled

        self.given, self.net = given, net
        seen, test = Pictures(data, "train", given.limit), Pictures(data, "test", given.judged)
        self.moved = Moved(seen, given.batch_size, given.device)
        self.seen = seen
        self.calibration = list(scaled(seen.pictures[:SAMPLES].to(given.device)).split(AT_ONCE))
        self.test, self.labels = scaled(test.pictures.to(given.device)), test.labels.to(given.device)
        self.float: nn.Module = self._floats()
        self.right = self._right(self.float)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Each measurement: the float network trained on, then every scheme by every method."""
        yield self._trained("float", self.float, "full")
        schemes = self.given.schemes.split(",")
        for scheme in schemes:
            small = self._small(scheme)
            before = self._right(small)
            if self._accuracy(self.right) - self._accuracy(before) < TOO_LITTLE and HARDER not in schemes:
                schemes.append(HARDER)
            for method in self.given.methods.split(","):
                yield self._trained(scheme, small, method, before)

    def _trained(self, scheme: str, model: nn.Module, method: str, before: Tensor | None = None) -> dict[str, Any]:
        """What a method makes of a model; before is none where the model is the float one."""
        import fewbit

        given = self.given
        taught = {"teacher": self.float, "temperature": given.temperature} if method == "distill" else {}
        start = time.perf_counter()
        tuned = fewbit.finetune(
            model, self.moved.loader(), method=method, task="image_classification", max_steps=given.steps, lr=given.lr,
            device=given.device, precision="fp32", validation=False, **taught,
        )  # fmt: skip
        seconds = time.perf_counter() - start
        after = self._right(tuned)
        row = {"scheme": scheme, "method": method, "float": self._accuracy(self.right)}
        if before is not None:
            row |= shares(*(each.cpu().numpy() for each in (self.right, before, after)))
        return row | {
            "after": self._accuracy(after), "judged": len(after), "steps": given.steps, "lr": given.lr,
            "batch_size": given.batch_size, "epochs": given.steps / len(self.moved), "seconds": seconds,
        }  # fmt: skip

    def _small(self, scheme: str) -> nn.Module:
        import fewbit
        from fewbit.schemes.presets import preset

        if scheme == "w4a8":
            config = preset("w8a8", dtype="int4")
            made = fewbit.quantize(self.float, self.calibration, preset=config, subset_size=SAMPLES)
        else:
            how = {"algorithm": "rtn"} if scheme == "int4-rtn" else {}
            made = fewbit.compress_weights(self.float, mode="int4_sym", all_layers=True, **how)
        small: nn.Module = made
        return small

    def _floats(self) -> nn.Module:
        """The float network, trained if nobody has it."""
        import torch

        from sparsity_nets import BATCH, HIGHEST_LR, make, opened, train
        from tuning_pictures import Moved

        given, net = self.given, self.net
        cut = "" if given.limit is None else f"-of-{given.limit}"
        places = dict(each.split("=", 1) for each in given.weights)
        place = Path(places.get(net, WORK / f"{net}-{given.device}-{given.epochs}{cut}.pt"))
        if not place.exists() and net in places:
            raise SystemExit(f"there are no weights of {net} at {place}")
        if not place.exists():
            model = make(net)
            train(model, Moved(self.seen, BATCH, given.device), given.epochs, HIGHEST_LR[net], given.device)
            place.parent.mkdir(parents=True, exist_ok=True)
            unfinished = place.with_suffix(".unfinished")
            torch.save({name: value.cpu() for name, value in model.state_dict().items()}, unfinished)
            unfinished.replace(place)
        return opened(net, str(place), given.device)

    def _right(self, model: nn.Module) -> Tensor:
        """Which pictures a model names right."""
        import torch

        with torch.no_grad():
            named = [model.eval()(part).argmax(1) for part in self.test.split(500)]
        return torch.cat(named) == self.labels

    def _accuracy(self, right: Tensor) -> float:
        return float(right.double().mean())
