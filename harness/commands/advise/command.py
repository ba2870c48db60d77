"""`python -m harness.advise`: the fastest layouts of a training step on a cluster that may not be rented yet.

A cell of suite layouts answers, from the model of a step's seconds in suites/training/step_time.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Sequence

from harness.commands.entry import DONE, FAILED, MISTAKE, NO, complain, print_all, start
from harness.config.validation import ConfigError

USAGE = """\
python -m harness.advise model=PATH gpus=N [KEY=VALUE ...]
    which layout is the fastest that fits, how fast, and how sure?

  model=PATH          a Hugging Face config.json, or its folder; no weights are
                      read
  gpus=128            GPUs in all; gpus_per_node=8 of them share the fast link
  device=h100_80gb    a name of conf/hardware
  link=400gbit        the network per GPU; 3200gbit/node that of a node; 400gbit,efa
                      is AWS's
  seq_len=2048        tokens of a sequence
  tokens_per_batch=4M tokens of an update, or global_batch_size in sequences
  layout=tp:8,pp:4    one layout instead of the fastest: dp, tp, pp, cp, ep, etp,
                      zero, virtual_stages; with micro_batch_size, recompute
  mine=4.1s           with layout: the seconds of your own step, and what would
                      explain the difference
  price=2.5           dollars per GPU-hour
  program=megatron    whose code trains: megatron, torchtitan, nanotron,
                      deepspeed, composer
  precision=bf16      or fp8, mxfp8, nvfp4
  out=results/advise  folder of the records

python -m harness.advise questions=FILE out=FILE
    predictions for a file of questions, one JSON object per line

Exit status: 0 a layout fits, 3 none does, 2 a mistake in the command, 1 a
failure. Nothing is run. docs/advise.md

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
    from harness.sweep.executors.start import executor_context

    with executor_context():
        return answer(argv)


def answer(argv: Sequence[str]) -> int:
    """Run what is not on disk yet, print the answer, return the exit status; raises ConfigError."""
    from harness.commands.advise.lines import layouts_of, lines
    from harness.commands.advise.question import question_of
    from harness.commands.results import planned
    from harness.records import Status
    from harness.sweep.store import read_records
    from harness.sweep.sweep import sweep
    from harness.sweep.turn import turn

    question = question_of(argv)
    with turn(question.run.out):
        sweep(question.run)
        (record,) = planned(question.run.out, read_records(question.run.out))
    if record.status != Status.OK:
        status = MISTAKE if record.status == Status.UNAVAILABLE else FAILED
        return complain("harness.advise", record.reason or str(record.status), status)
    print_all(lines(record, question))
    return DONE if layouts_of(record) else NO


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
