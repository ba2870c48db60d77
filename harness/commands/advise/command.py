"""`python -m harness.advise`: the fastest layouts of a training step on a cluster that may not be rented yet.

A cell of suite layouts answers, from the model of a step's seconds in suites/training/step_time.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from harness.commands.entry import DONE, FAILED, MISTAKE, NO, complain, print_all, start
from harness.config.validation import ConfigError

if TYPE_CHECKING:
    from harness.commands.advise.own_run import OwnRun
    from harness.commands.advise.question import AdviseQuestion
    from harness.config.own_files.setup import OwnSetup
    from harness.records import Record

USAGE = """\
python -m harness.advise model=PATH gpus=N [KEY=VALUE ...]
    which layout is the fastest that fits, how fast, and how sure?

  model=PATH          a Hugging Face config.json, or its folder; no weights are
                      read
  config=FILE         your framework's own file in place of the model, the
                      layout and the batch, which are predicted and compared
                      with all others; words replace what it says
  gpus=128            GPUs in all; gpus_per_node=8 of them share the fast link
  device=h100_80gb    a name of conf/hardware
  link=400gbit        the network per GPU; 3200gbit/node that of a node; 400gbit,efa
                      is AWS's
  seq_len=2048        tokens of a sequence
  tokens_per_batch=4M tokens of an update, or global_batch_size in sequences
  layout=tp:8,pp:4    one layout instead of the fastest: dp, tp, pp, cp, ep, etp,
                      zero, virtual_stages; with micro_batch_size, recompute
  mine=4.1s           with config or layout: the seconds of your own step, or the
                      file of its log; and what would explain the difference
  write=FORMAT        also print the fastest as the file of torchtitan, megatron,
                      nanotron, ...
  price=2.5           dollars per GPU-hour
  program=megatron    whose code trains: megatron, torchtitan, nanotron,
                      deepspeed, composer
  precision=bf16      or fp8, mxfp8, nvfp4; also fused_loss=true, compiled=true
  out=results/advise  folder of the records

python -m harness.advise serve=8050 [KEY=VALUE ...]
    a page at this port of this machine: the step's timeline, its memory, and
    controls to change them; with the keys above, or none. serve=true: port 8050

python -m harness.advise questions=FILE out=FILE
    predictions for a file of questions, one JSON object per line

Exit status: 0 a layout fits, 3 none does, 2 a mistake in the command, 1 a
failure. Nothing is run. docs/commands/advise.md

python -m harness.advise model=llama-3.1-70b.json gpus=128 link=400gbit \\
  seq_len=8192 tokens_per_batch=4M
"""


def main(argv: Sequence[str]) -> int:
    """Answer one question, or a file of them; return the exit status."""
    logging.basicConfig(format="harness.advise: %(message)s", level=logging.ERROR)
    logging.getLogger("harness.sweep.turn").setLevel(logging.WARNING)
    return start("harness.advise", argv, USAGE, run)


def run(argv: Sequence[str]) -> int:
    """Answer while the ranks of a launcher, if there is one, serve; raises ConfigError and StoreError."""
    if any(word.startswith("questions=") for word in argv):
        return answer_file(argv)
    if any(word.startswith("serve=") for word in argv):
        from harness.commands.advise.page.server import serve

        return serve(argv)
    from harness.sweep.executors.start import executor_context

    with executor_context():
        return answer(argv)


def answer(argv: Sequence[str]) -> int:
    """Run what is not on disk yet, print the answer, return the exit status; raises ConfigError."""
    from harness.commands.advise.lines import fits, layouts_of, lines
    from harness.commands.advise.own_run import own_run
    from harness.commands.advise.question import question_of
    from harness.commands.fit.written_layout import refuse_unknown_format

    format_ = next((word.partition("=")[2] for word in argv if word.startswith("write=")), None)
    if format_ is not None:
        refuse_unknown_format(format_)
    run = own_run(argv)
    if run is not None:
        return answer_of_file(run, format_)
    question = question_of(argv)
    record = record_of(question)
    if record.status != "ok":
        return refused(record)
    print_all([*lines(record, question), *written(record, question, None, format_)])
    return DONE if any(map(fits, layouts_of(record).values())) else NO


def answer_of_file(run: OwnRun, format_: str | None) -> int:
    """Print how a framework's own file does and which layouts are faster; raises ConfigError."""
    from harness.commands.advise import own_run
    from harness.commands.advise.lines import fits, layouts_of, lines

    record, others = record_of(run.asked), record_of(run.others)
    for one in (record, others):
        if one.status != "ok":
            return refused(one)
    said = [*own_run.lines(run, record, others), *lines(others, run.others), *run.own.lines()]
    print_all([*said, *written(others, run.others, run.own.setup, format_)])
    return DONE if any(map(fits, layouts_of(record).values())) else NO


def record_of(question: AdviseQuestion) -> Record:
    """Return the record that answers, which is made where it is not on disk; raises ConfigError."""
    from harness.commands.results import planned
    from harness.sweep.store import read_records
    from harness.sweep.sweep import sweep
    from harness.sweep.turn import turn

    with turn(question.run.out):
        sweep(question.run)
        (record,) = planned(question.run.out, read_records(question.run.out))
    return record


def refused(record: Record) -> int:
    """Print in one line why a record has no answer; return the exit status."""
    from harness.records import Status

    status = MISTAKE if record.status == Status.UNAVAILABLE else FAILED
    return complain("harness.advise", record.reason or str(record.status), status)


def written(
    record: Record, question: AdviseQuestion, setup: OwnSetup | None, format_: str | None
) -> Iterator[str]:
    """Yield the fastest layout as a framework's file, where one is asked for; raises ConfigError."""
    from harness.commands.fit.written_layout import answered_setup, written_layout

    if format_ is None:
        return
    found = answered_setup(record, question.workload, setup)
    yield ""
    if found is None:
        yield f"write={format_}: no layout fits, so that there is nothing to write."
    else:
        yield from written_layout(found, format_)


def answer_file(argv: Sequence[str]) -> int:
    """Answer a file of questions in a process that loads the model; raises ConfigError."""
    from harness.commands.grammar import read

    words = read(argv, ("questions", "out"))
    if "out" not in words:
        raise ConfigError("out: missing; give out=FILE, where the predictions are written")
    given = [f"questions={words.values['questions']}", f"out={words.values['out']}"]
    module = "suites.training.step_time.questions"
    done = subprocess.run([sys.executable, "-m", module, *given], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return DONE
    last = (done.stderr.strip() or "failed").splitlines()[-1]
    return complain("harness.advise", last, MISTAKE if done.returncode == MISTAKE else FAILED)
