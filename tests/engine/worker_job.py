# SPDX-License-Identifier: Apache-2.0
"""What `torchrun` starts in the tests of workers: one job, and on purpose a worker that fails."""

import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import fewbit
from fewbit.backends.eager import chains
from fewbit.engine.journal import Journal

RANK = int(os.environ.get("RANK", "0"))


class Block(torch.nn.Module):
    """Adds to what goes through it."""

    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


def built(name):
    """A model, and how one item is drawn; a library that takes seconds to import is asked only where it has to be."""
    if name == "blocks":
        torch.manual_seed(0)
        return torch.nn.Sequential(Block(), Block()).eval(), lambda draw: torch.randn(8, 16, generator=draw)
    from tiny_models import transformer

    return transformer(name).eval(), lambda draw: {"input_ids": torch.randint(3, 40, (2, 24), generator=draw)}


def main(folder, name, what, count):
    (model, item), draw = built(name), torch.Generator().manual_seed(0)
    if what == "error" and RANK == 1:
        chains.call = lambda *_: 1 / 0
    if what == "death" and RANK == 1:
        chains.call = lambda *_: os._exit(3)
    if what == "stop":
        write = Journal.write

        def stop(self, name, solution):
            write(self, name, solution)
            if "1.up" in name:
                raise SystemExit(5)

        Journal.write = stop
    if what == "other" and RANK == 1:
        draw.manual_seed(1)
    try:
        fewbit.compress_weights(
            model,
            mode="int4_sym",
            group_size=8,
            dataset=[item(draw) for _ in range(count)],
            algorithm="gptq",
            output=folder / "out",
            statistics=folder / "sums",
        )
    except Exception as error:
        (folder / f"error{RANK}").write_text(f"{type(error).__name__}: {error}")
        raise


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
