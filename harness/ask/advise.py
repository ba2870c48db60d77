"""`python -m harness.advise`: the fastest layouts of a training step on a cluster not rented yet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.ask.words import ADVISE, searching, step_question, words_of
from harness.commands.entry import DEPENDS, DONE, NO, print_all, start
from harness.commands.grammar import CommandWords
from harness.question import Question

USAGE = """\
python -m harness.advise model=PATH gpus=N [KEY=VALUE ...]
    which layout is the fastest that fits, how fast, and how sure?

  model=PATH          a Hugging Face config.json, its folder, or a well-known
                      model's name; no weights are read
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
  rate=2.5            dollars per GPU-hour; price= is another name of it
  program=megatron    whose code trains: megatron, torchtitan, nanotron,
                      deepspeed, composer
  precision=bf16      or fp8, mxfp8, nvfp4; also fused_loss=true, compiled=true
  show=all            also where each value comes from
  out=results/advise  folder of the answers

python -m harness.advise serve=8050 [KEY=VALUE ...]
    a page at this port of this machine: the step's timeline, its memory, and
    controls to change them; with the keys above, or none. serve=true: port 8050

python -m harness.advise questions=FILE out=FILE
    predictions for a file of questions, one JSON object per line

Exit status: 0 a layout fits, 3 none does, 5 it depends, 2 a mistake in the
command, 1 a failure. Nothing is run. docs/commands/advise.md

python -m harness.advise model=llama-3.1-70b.json gpus=128 link=400gbit \\
  seq_len=8192 tokens_per_batch=4M
"""


def main(argv: Sequence[str]) -> int:
    """Answer one question, or a file of them; return the exit status."""
    return start("harness.advise", argv, USAGE, run)


def run(argv: Sequence[str]) -> int:
    """Print the answer; return the exit status; raises ConfigError."""
    if any(word.startswith("questions=") for word in argv):
        from harness.ask.batch import answer_file

        return answer_file(argv, seconds=True)
    if any(word.startswith("serve=") for word in argv):
        from harness.ask.page.server import serve

        return serve(argv)
    words = words_of(argv, ADVISE)
    return answer(step_question(words), words)


def answer(question: Question, words: CommandWords) -> int:
    """Print the answer to one question and keep it; return the exit status; raises ConfigError."""
    from harness.ask.advise_lines import answer_lines, own_lines
    from harness.ask.engines import answer_to
    from harness.ask.fit import folder_of, keep, rest_lines
    from harness.ask.mine import own_step
    from harness.ask.prices import rates_asked

    rate = rates_asked(words)[0] if "rate" in words else None
    last = best = answer_to(question)
    if "config" in words and not question.search:
        best = answer_to(searching(question))
    mine = own_step(words, question)
    keep(last, question, folder_of(question, words.text("out", "results/advise")))
    if "config" in words:
        said = [*own_lines(Path(words.values["config"]).name, last, best, mine)]
        said += answer_lines(best, searching(question), rate, None)
    else:
        said = [*answer_lines(last, question, rate, mine)]
    rest = list(rest_lines(best, question, words))
    print_all([*said, "", *rest] if question.format else [*said, *rest])
    if last.verdict == "depends" and not question.search:
        return DEPENDS
    return DONE if any(one.fits for one in last.layouts) else NO
