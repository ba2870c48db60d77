"""`python -m harness.fit`: does a training step of the user's model fit a device, and what would make it fit?

Cells of suite memory answer: one searches the largest micro-batch by dry runs, and one per change of the
recipe (conf/fit.yaml) tries the asked one. Their records stay in a folder, so that the same question is
answered at once.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands.entry import DONE, FAILED, MISTAKE, NO, complain, print_all, start
from harness.commands.fit.own_file import oom_answer, own_question
from harness.commands.fit.own_layout import own_layout
from harness.commands.fit.question import KEYS, Question, question_of
from harness.commands.fit.written_layout import refuse_unknown_format
from harness.commands.results import planned
from harness.config.validation import ConfigError

if TYPE_CHECKING:
    from harness.commands.fit.own_layout import OwnLayout
    from harness.records import Record

    Records = Mapping[tuple[str, str], Record]
    """Records by workload and variant."""

USAGE = """\
python -m harness.fit model=PATH [KEY=VALUE ...]
    does this training step fit, and which micro-batch at most?

  model=PATH          a Hugging Face config.json, or its folder; no weights are
                      read
  config=FILE         your framework's own file in place of the words below,
                      which replace what it says: torchtitan, axolotl,
                      LLaMA-Factory, Hugging Face, accelerate, DeepSpeed,
                      Megatron-LM, NeMo, LLM Foundry, torchtune, nanotron
  write=FORMAT        also print the answer as that framework's file; with
                      config= or layout=
  oom=FILE            explain an out-of-memory message instead; with config=
                      its tensor is named
  device=h100_80gb    a name of conf/hardware, or the memory that a process can
                      use, as 48GB or 44.5GiB
  devices=1           GPUs of that kind
  seq_len=2048        tokens of a sequence; at most the model's positions
  micro_batch_size=1  sequences of one forward pass on one GPU
  optimizer=adamw     adamw, sgd_momentum, adafactor, adamw_8bit or muon
  techniques=[a,b]    the recipe, as [fsdp2,mixed_precision,attention]; without
                      it mixed precision, flash attention where the model has
                      it, and FSDP2 on several devices; [] is plain PyTorch.
                      python -m harness list techniques has all with settings
  what_ifs=true       what else is tried: true for the quick changes, all, or
                      false for none
  layout=tp:8,pp:4    a layout of parallelism: dp, tp, pp, cp, ep, etp, zero,
                      virtual_stages, shard_size; or layout=search for all that
                      fit. With it, in place of techniques and what_ifs:
                      program=megatron (or torchtitan, deepspeed, nanotron,
                      composer), recompute=none, precision=bf16 (fp8, mxfp8),
                      global_batch_size, offload=none, gpus_per_node=8,
                      fused_loss=false, recompute_modules=[moe_act,layernorm],
                      dispatcher=alltoall (allgather, deepep)
  out=results/fit     folder of the records, one folder below it per question;
                      the same question is answered from them

Exit status: 0 the micro-batch fits, 3 it does not fit, 2 a mistake in the
command, 1 a failure. Nothing is allocated: GPU memory is simulated from a dry
run of the step and torch's allocator. docs/commands/fit.md and
docs/commands/own-files.md

python -m harness.fit model=config.json device=h100_80gb devices=4 \\
  techniques=[fsdp2,mixed_precision,attention,activation_checkpointing]
python -m harness.fit model=config.json devices=512 layout=tp:8,pp:4,zero:1
"""

SEARCHES = ("largest_micro_batch", "fits")
"""What the cells of an answer search."""

LEAVE_OUT = "; leave out the technique attention"
"""End of the reason why a model has no such attention."""


def main(argv: Sequence[str]) -> int:
    """Answer one question; return the exit status."""
    logging.basicConfig(format="harness.fit: %(message)s", level=logging.ERROR)
    logging.getLogger("harness.sweep.turn").setLevel(logging.WARNING)
    return start("harness.fit", argv, USAGE, run)


def run(argv: Sequence[str]) -> int:
    """Answer while the ranks of a launcher, if there is one, serve; raises ConfigError and StoreError."""
    from harness.sweep.executors.start import executor_context

    with executor_context():
        return answer(argv)


def answer(argv: Sequence[str]) -> int:
    """Run what is not on disk yet, print the answer, return the exit status; raises ConfigError."""
    from harness.commands.fit.answer import Answer, WhatIfResult
    from harness.commands.fit.lines import lines
    from harness.records import Status

    divided = own_layout(argv, KEYS)
    if divided is not None or any(word.startswith("layout=") for word in argv):
        return answer_of_layouts(argv, divided)
    explained = oom_answer(argv)
    if explained is not None:
        print_all(explained)
        return DONE
    own = own_question(argv)
    question, records, left_out = asked(own.words if own else argv)
    record = records[question.recipe]
    if record.status != Status.OK:
        status = MISTAKE if record.status == Status.UNAVAILABLE else FAILED
        return complain("harness.fit", failure(question, record), status)
    found = Answer(record, question, left_out)
    if found.room_B <= 0:
        raise ConfigError(f"{question.device}: {found.outside} outside of torch's allocator take all of it")
    tried = [
        WhatIfResult(one.title, one.reason, records.get((one.workload, one.variant)))
        for one in question.what_ifs
    ]
    print_all([*lines(found, tried), *(own.lines(found.largest) if own else ())])
    return DONE if found.fits else NO


def answer_of_layouts(argv: Sequence[str], own: OwnLayout | None) -> int:
    """Answer a question about layouts of parallelism; `own`: that of a framework's file.

    Raises ConfigError.
    """
    from harness.commands.fit import layout_lines, layouts
    from harness.records import Status
    from harness.sweep.store import read_records
    from harness.sweep.sweep import sweep
    from harness.sweep.turn import turn

    given = [word for word in argv if not word.startswith("write=")]
    question = layouts.question_of(own.words if own else given)
    format_ = next((word.partition("=")[2] for word in argv if word.startswith("write=")), None)
    if format_ is not None:
        refuse_unknown_format(format_)
    with turn(question.run.out):
        sweep(question.run)
        (record,) = planned(question.run.out, read_records(question.run.out))
    if record.status != Status.OK:
        status = MISTAKE if record.status == Status.UNAVAILABLE else FAILED
        return complain("harness.fit", record.reason or str(record.status), status)
    said = [*layout_lines.lines(record, question), *(own.lines() if own else ())]
    if format_ is not None:
        said += ["", *layout_lines.written(record, question, own.setup if own else None, format_)]
    print_all(said)
    answered = [one for one in record.measurements if one.metric in ("fits", "layouts_that_fit")]
    return DONE if any(one.samples[-1] for one in answered) else NO


def asked(argv: Sequence[str]) -> tuple[Question, Records, str]:
    """Return the question with its records, and why the default recipe is without flash attention, or ""."""
    question = question_of(argv)
    records = run_cells(question)
    reason = records[question.recipe].reason
    if not (question.recipe_is_ours and reason.endswith(LEAVE_OUT)):
        return question, records, ""
    question = question_of(argv, left_out=("attention",))
    return question, run_cells(question), reason.removesuffix(LEAVE_OUT)


def failure(question: Question, record: Record) -> str:
    """Return in one line why a recipe has no answer."""
    from harness.records import Status

    reason = record.reason or record.status
    if record.status == Status.WRONG_RESULT:
        return (
            "the recipe failed its check, so its memory is not given: a small model trained with it differs "
            f"from plain PyTorch: {reason}"
        )
    technique = reason.partition(":")[0]
    if question.recipe_is_ours and technique in question.default_recipe:
        return f"{reason}; {technique} is in the default recipe, which techniques=[...] replaces"
    return reason


def run_cells(question: Question) -> Records:
    """Return the records of a question's cells; runs those that are not on disk; raises ConfigError."""
    from harness.sweep.store import read_records
    from harness.sweep.sweep import sweep
    from harness.sweep.turn import turn

    refuse_other_results(question.out)
    out = question.run.out
    if sys.stderr.isatty():
        sys.stderr.write(f"dry run of {question.model} ...\n")
    with turn(out):
        sweep(question.run)
        cells = planned(out, read_records(out))
    return {(one.cell.workload, one.cell.optimization): one for one in cells}


def refuse_other_results(out: Path) -> None:
    """Raise ConfigError where a folder has the results of a sweep, whose plan an answer would replace."""
    from harness.sweep.store import RECORDS, read_records

    records = read_records(out) if (out / RECORDS).is_file() else []
    others = [one for one in records if one.cell.config["workload"].get("search") not in SEARCHES]
    if others:
        raise ConfigError(
            f"out={out}: has results of a sweep of suite {others[0].cell.suite}; choose another folder"
        )
