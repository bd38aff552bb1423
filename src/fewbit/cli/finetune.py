# SPDX-License-Identifier: Apache-2.0
"""`fewbit finetune`: a model and data in, a model that does better on that data out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewbit import registry
from fewbit.cli import _choice, _data, _output
from fewbit.cli._going_on import told_how_to_go_on
from fewbit.cli._notes import notes
from fewbit.cli._spoken import in_words_of_the_line

if TYPE_CHECKING:
    from fewbit.record import Record

_EXPECTED = ("read", "layout", "all-splits")
"""What the record says of every run."""
_EXACT = 1e-5
"""A change of answers below which rounding in floats is all there is."""
_NO_CHECKPOINT = "no checkpoint was written yet (--option save_every=STEPS says how often)"
_OF_TOKENS = ("causal_lm", "sequence_classification", "token_classification", "question_answering")


def command(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="A Hugging Face folder, a .pt2, a state dict, or file.py:function.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="A folder for the model, metrics, plots and checkpoints.")],
    data: Annotated[
        str, typer.Option(help="A path, a preset such as gsm8k, a dataset configuration (.yaml, .json), or a hub id.")
    ],
    method: Annotated[str, typer.Option(help="Which parameters learn: `fewbit list methods`.")] = "full",
    task: Annotated[str | None, typer.Option(help="What is learned: `fewbit list tasks`.")] = None,
    teacher: Annotated[str | None, typer.Option(help="A model that shows how it is done.")] = None,
    validation: Annotated[str | None, typer.Option(help="Data to judge by, if not kept aside.")] = None,
    step: Annotated[
        list[str] | None, typer.Option(help="How rows are prepared: `fewbit list steps`, in order; again for more.")
    ] = None,
    data_option: Annotated[
        list[str] | None,
        typer.Option(help="name=value about the data, such as max_length=512; again for more."),
    ] = None,
    policy: _data.Policies = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data.")] = None,
    max_steps: Annotated[int | None, typer.Option(help="Steps, instead of epochs.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples that a process runs at a time.")] = None,
    lr: Annotated[float | None, typer.Option(help="The highest learning rate.")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, bf16 or fp16.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps; the accelerator, if there is one.")] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="name=value of any other setting, such as warmup=100; again for more.")
    ] = None,
    factory: _choice.Factory = None,
    resume: Annotated[bool, typer.Option(help="Go on with the run in the folder, if there is one.")] = True,
    json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> int:
    """Train a model on data and write it, with its metrics and curves.

    A run that was interrupted goes on from its last checkpoint when the same line is run again. Data, settings and the
    output are checked before the work starts. `torchrun --nproc-per-node 2 -m fewbit finetune …` shares the work.

    Examples:

        fewbit finetune fewbit-demo/model.py:build --data fewbit-demo/huggingface --task image_classification -o tuned

    """
    from fewbit.modules.opening import refuse_missing
    from fewbit.tuning.configuring import AsSaid
    from fewbit.tuning.finetune import finetune

    said = {
        "epochs": epochs,
        "max_steps": max_steps,
        "batch_size": batch_size,
        "lr": lr,
        "precision": precision,
        "device": device,
    }
    given = {name: value for name, value in said.items() if value is not None} | _output.parse_options(option or ())
    about = _data.with_policies(_output.parse_options(data_option or ()), policy, "--data-option")
    with (
        _output.TerminalProgress() as progress,
        told_how_to_go_on(context, lambda: _checkpoints(out), _NO_CHECKPOINT),
        in_words_of_the_line(_options(said)) as spoken,
    ):
        if not registry.is_reference(model):  # before anything is said of data for it
            refuse_missing(model)
        trained: Any = finetune(
            model,
            AsSaid(data, step, about),
            method=method,
            task=task,
            teacher=teacher,
            output=out,
            validation=None if validation is None else AsSaid(validation, None, _data.with_policies({}, policy)),
            resume=resume,
            progress=progress,
            factory=factory,
            **given,
        )
    return _tell(trained.fewbit_record, out, spoken, as_json=json)


def _options(own: Iterable[str]) -> dict[str, str]:
    """How each setting is written in a line."""
    from fewbit.tuning.options import Options

    found = {key.name: f"--option {key.name}={{}}" for key in Options.known()}
    found |= {name: f"--{name.replace('_', '-')} {{}}" for name in (*own, "method", "task", "teacher", "validation")}
    return found | {"resume": "--no-resume", "output": "--out {}"}


def _checkpoints(out: Path) -> Path | None:
    """Where the checkpoints are, if there is one to go on from."""
    from fewbit.tuning.checkpoints import Checkpoints

    folder = out.expanduser() / "checkpoints"
    return None if Checkpoints(folder).last() is None else folder


def _tell(record: Record, out: Path, spoken: Callable[[str], str], *, as_json: bool) -> int:
    """Print what a run came to; of several processes the first one does."""
    from fewbit.engine.joining import is_first

    if not is_first():
        return 0
    facts = record.facts
    if as_json:
        _output.print_json({"output": str(out), **vars(record)})
        return 0
    reads = f"; {facts['tokens_per_second'] or 0:,.0f} tokens/s" if facts["task"] in _OF_TOKENS else ""
    lines = [f"{facts['steps']:,} steps in {facts['seconds']:,.1f} s{reads}"]
    if facts["classes"]:
        lines.append(f"{len(facts['classes'])} classes: {', '.join(facts['classes'][:12])}"[:200])
    if facts["loss"]:
        lines.append(f"loss {facts['loss'][0][1]:.4g} in the first step, {facts['loss'][-1][1]:.4g} in the last")
    for name in facts["before"] or ():
        after = (facts["after"] or {}).get(name)
        lines.append(f"{name} {facts['before'][name]:.4g} before, {after:.4g} after, on data it did not learn from")
    lines += _of_merging(facts.get("merge"))
    if facts["before"] is None:
        lines.append("nothing was kept aside to judge by: --validation DATA says what it has learned")
    if facts["best_step"] not in (None, facts["steps"]):
        lines.append(f"the weights are those of step {facts['best_step']}, the best evaluation")
    for line in (*lines, *map(spoken, notes(record, _EXPECTED)), f"in {out}"):
        _output.stdout().print(line, markup=False)
    return 0


def _of_merging(merge: Mapping[str, Any] | None) -> Iterator[str]:
    """What putting adapters into the weights cost."""
    if merge is None or (merge["output_error"] or 0) < _EXACT:
        return
    yield f"merging changed the answers by {merge['output_error']:.3%}, most in {merge['worst']}"
    if merge["after"]:
        yield "after merging: " + ", ".join(f"{name} {value:.4g}" for name, value in merge["after"].items())
