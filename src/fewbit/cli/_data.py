# SPDX-License-Identifier: Apache-2.0
"""What the options about data mean, the same for every command that has them."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewbit import registry
from fewbit.cli import _output
from fewbit.cli._reference import load_function
from fewbit.errors import UsageError

if TYPE_CHECKING:
    from fewbit.data.dataset import Dataset


Format = Annotated[str | None, typer.Option(help="Take this format instead of detecting one, or file.py:fn.")]
DataFormat = Annotated[str | None, typer.Option(help="The data's format, instead of detecting it; or file.py:fn.")]
Options = Annotated[list[str] | None, typer.Option(help="An option of the format, as name=value.")]
Policies = Annotated[
    list[str] | None,
    typer.Option(help="What to do about faults while reading: drop, or code=drop; see `fewbit list findings`."),
]


def open_data(
    data: str,
    transform: str | None,
    *,
    format: str | None = None,
    policies: list[str] | None = None,
    options: list[str] | None = None,
) -> Dataset:
    """The dataset at a path, or the one that `file.py:name` is or returns.

    Args:
        data: what `--data` names.
        transform: what `--transform` names.
        format: what `--format` names.
        policies: each `--policy`.
        options: each `--option`.

    Raises:
        UsageError: no such path, file or name, a function that takes arguments, an unknown policy or option.
    """
    from fewbit.data.dataset import Dataset
    from fewbit.data.objects.spool import SpoolWarning
    from fewbit.data.opening import open_source

    change = None if transform is None else load_function(transform, returns="a model input", takes=("a row",))
    source = _referred(data) if registry.is_reference(data) else data
    given = _output.parse_options(options or [])
    for name in given.keys() & {"format", "policy"}:
        raise UsageError(f"--option {name}={given[name]}", where="--option", expected=f"--{name} {given[name]}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpoolWarning)  # the record says it too, and is printed
        return Dataset(open_source(source, format=format, policy=read_policies(policies or []), **given), change)


def read_policies(given: list[str]) -> dict[str, str] | str | None:
    """One policy for every fault, or one for each code."""
    pairs = {code: policy for code, equals, policy in (text.partition("=") for text in given) if equals}
    if len(pairs) == len(given):
        return pairs
    if len(given) == 1:
        return given[0]
    raise UsageError(
        f"--policy {' --policy '.join(given)}",
        where="--policy",
        expected="--policy drop, or --policy code=drop once for each code",
    )


def with_policies(options: dict[str, Any], policies: list[str] | None, flag: str = "--option") -> dict[str, Any]:
    """Options with what `--policy` says as one of them.

    Args:
        options: what the line says of the data.
        policies: each `--policy`.
        flag: what those options are called.

    Raises:
        UsageError: a policy that is said in both ways.
    """
    if not policies:
        return options
    if "policy" in options:
        raise UsageError(f"{flag} policy=… and --policy", where="--policy", expected="one of the two")
    return {**options, "policy": read_policies(policies)}


def check_batch_size(dataset: Dataset, batch_size: int) -> None:
    """Refuse to batch what comes in batches already, and what cannot be put into one.

    Raises:
        UsageError: a batch size for a loader, for inputs a transform made, for texts.
    """
    if batch_size > 1 and dataset.batched:
        raise UsageError(
            f"--batch-size {batch_size} for data that have a batch axis of their own",
            where="--batch-size",
            expected="1: what a loader, a transform or the tokenizer gives is one model input, and is run as it is",
            try_="leave it out, or make the batches in file.py:function",
        )


def _referred(text: str) -> Any:
    """What a reference names; a function or class is called for it."""
    found = registry.load_reference(text)
    holds_data = hasattr(found, "__iter__") or hasattr(found, "__getitem__")
    if isinstance(found, type) or not holds_data:
        return load_function(text, returns="a dataset, a loader or a list")()
    return found
