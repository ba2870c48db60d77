"""`python -m harness.fit`: does a training step of the user's model fit a device, and what would make it fit?

Cells of suite memory answer: one searches the largest micro-batch by dry runs, and one per change of the
recipe (conf/fit.yaml) tries the asked one. Their records stay in a folder, so that the same question is
answered at once.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.fit_question import Question, question_of
from harness.validation import ConfigError

if TYPE_CHECKING:
    from harness.config import Run
    from harness.records import Record

USAGE = """\
python -m harness.fit model=PATH [KEY=VALUE ...]   does this training step fit, and which micro-batch at most?

  model=PATH             a Hugging Face config.json, or its folder; no weights are read
  device=h100_80gb       a name of conf/hardware, or the memory that a process can use, as 48GB or 44.5GiB
  devices=1              GPUs of that kind
  seq_len=2048           tokens of a sequence; at most the model's positions
  micro_batch_size=1     sequences of one forward pass on one GPU
  optimizer=adamw        adamw, sgd_momentum, adafactor, adamw_8bit, muon or paged_adamw_8bit
  techniques=[a,b]       the recipe: [fsdp2,mixed_precision,attention,activation_checkpointing];
                         without it mixed precision and flash attention, and FSDP2 on several devices.
                         python -m harness list techniques has them with their settings
  what_ifs=true          what else is tried: true for the quick changes, all, or false for none
  out=results/fit        folder of the records; the same question is answered from them

Exit status: 0 the micro-batch fits, 3 it does not fit, 2 a mistake in the command, 1 a failure.
Nothing is allocated: GPU memory is simulated from a dry run of the step and torch's allocator. docs/fit.md

python -m harness.fit model=config.json device=h100_80gb devices=4 seq_len=4096 \\
  techniques=[fsdp2,mixed_precision,attention,activation_checkpointing]
"""

FITS, FAILED, MISTAKE, DOES_NOT_FIT = 0, 1, 2, 3
"""Exit statuses."""


def main(argv: Sequence[str]) -> int:
    """Answer one question; return the exit status."""
    if not argv or {"-h", "--help"}.intersection(argv):
        sys.stdout.write(USAGE)
        return FITS if argv else MISTAKE
    from harness.executors import ExecutorError
    from harness.executors.start import executor_context
    from harness.store import StoreError

    logging.basicConfig(format="harness.fit: %(message)s", level=logging.ERROR)
    try:
        with executor_context():
            return answer(question_of(argv))
    except (ConfigError, ExecutorError, StoreError) as error:
        sys.stderr.write(f"harness.fit: {error}\n")
        return FAILED if isinstance(error, StoreError) else MISTAKE


def answer(question: Question) -> int:
    """Run what is not on disk yet, print the answer, return the exit status."""
    from harness.fit_answer import Answer, WhatIfResult, lines

    records = {(one.cell.workload, one.cell.optimization): one for one in run_cells(question.run)}
    record = records[next(iter(question.run.workloads)), question.run.variants[0].name]
    if record.status != "ok":
        own = "; give your own recipe, as in techniques=[mixed_precision]" if question.recipe_is_ours else ""
        sys.stderr.write(f"harness.fit: {record.reason or record.status}{own}\n")
        return MISTAKE if record.status == "unavailable" else FAILED
    found = Answer(record, question.device, question.devices)
    tried = [
        WhatIfResult(one.title, one.reason, records.get((one.workload, one.variant)))
        for one in question.what_ifs
    ]
    sys.stdout.write("\n".join(lines(found, tried)) + "\n")
    return FITS if found.fits else DOES_NOT_FIT


def run_cells(run: Run) -> list[Record]:
    """Return the records of a run's cells; runs those that are not on disk."""
    from harness.plan import read_plan
    from harness.store import read_records
    from harness.sweep import sweep

    sweep(run)
    records = {record.cell.id: record for record in read_records(run.out)}
    return [records[cell] for cell in read_plan(run.out).cells if cell in records]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
