"""`python -m harness.fit`: does a training step of the user's model fit a device, and what would help?

The way to its first line: `entry.run_module`, `main`, `run`; `words.question_from` makes one `Question` of
the words and of a framework's file; `engines.answers` yields its `Answer`; `memory_lines` has the lines.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from harness.answer import Answer, on_disk, refused
from harness.ask.engines import DryRunChild, answer_to, answers, choose
from harness.ask.lines import origins, read_lines, wrapped
from harness.ask.words import FIT, OOM, mistake, question_from, words_of
from harness.commands.entry import DEPENDS, DONE, MISTAKE, NO, print_all, start
from harness.commands.grammar import CommandWords
from harness.config.validation import ConfigError
from harness.question import Question
from harness.records import digest

if TYPE_CHECKING:
    from harness.frameworks.oom import OomExplained

USAGE = """\
python -m harness.fit model=PATH [KEY=VALUE ...]
    does this training step fit, and which micro-batch at most?

  model=PATH          a Hugging Face config.json, its folder, or a well-known
                      model's name, or sizes as JSON; no weights are read
  model_code=M:F      the function F of your module M that makes the model, in
                      place of transformers' code: docs/suites/memory.md
  config=FILE         your framework's own file in place of the words below,
                      which replace what it says: torchtitan, axolotl, TRL,
                      LLaMA-Factory, Hugging Face, accelerate, DeepSpeed,
                      Megatron-LM, Megatron Bridge, NeMo, verl, OpenRLHF,
                      ms-swift, torchtune, litgpt, OLMo-core, LLM Foundry,
                      nanotron; several of one run: config=[FILE,FILE]; or its
                      content as JSON
  vocab_size=N        entries of the vocabulary, in place of the model's
  write=FORMAT        also print the answer as that framework's file
  oom=FILE            explain an out-of-memory message instead; with config= or
                      model= its tensor is named
  questions=FILE      answer a file of questions, one JSON object per line, into
                      out=FILE
  device=h100_80gb    a name of conf/hardware, or the memory that a process can
                      use, as 48GB or 44.5GiB
  devices=1           GPUs of that kind
  seq_len=2048        tokens of a sequence; at most the model's positions
  micro_batch_size=1  sequences of one forward pass on one GPU
  optimizer=adamw     adamw, sgd_momentum, adafactor, adamw_8bit or muon
  precision=bf16      or fp16, fp32, fp8, mxfp8, nvfp4
  recompute=none      selective or full; fused_loss=true, fused_layers=true
                      (Liger's), compiled=true, offload=optimizer or parameters,
                      expandable_segments=true, torch=2.4 (its version),
                      imbalance=1.2 (the busiest experts' tokens over the mean)
  techniques=[a,b]    the whole recipe in place of these, as [fsdp2,
                      mixed_precision,attention]; [] is plain PyTorch.
                      python -m harness list techniques has all with settings
  what_ifs=true       what else is tried: true for the quick changes, all, or
                      false for none
  layout=tp:8,pp:4    a layout of parallelism: dp, tp, pp, cp, ep, etp, zero,
                      virtual_stages, shard_size; or layout=search for all that
                      fit. With it: program=megatron (or torchtitan, deepspeed,
                      nanotron, composer), global_batch_size, gpus_per_node=8,
                      recompute_modules=[moe_act,layernorm],
                      dispatcher=alltoall (allgather, deepep)
  show=all            also where each value comes from
  out=results/fit     folder of the answers, one folder below it per question

Without techniques, layout and config the recipe is mixed precision, flash
attention where the model has it, and FSDP2 on several devices.

Exit status: 0 the micro-batch fits, 3 it does not fit, 5 it depends, 2 a
mistake in the command, 1 a failure. Nothing is allocated: GPU memory is
simulated from a dry run of the step and torch's allocator, or calculated.
docs/commands/fit.md and docs/commands/own-files.md

python -m harness.fit model=config.json device=h100_80gb devices=4 \\
  techniques=[fsdp2,mixed_precision,attention,activation_checkpointing]
python -m harness.fit model=config.json devices=512 layout=tp:8,pp:4,zero:1
"""

STATUS = {"fits": DONE, "does not fit": NO, "depends": DEPENDS, "refused": MISTAKE}
"""Exit status of a verdict."""

FRAGMENTATION = {
    "yes": "torch holds enough unused memory, in pieces",
    "partly": "torch's unused memory and the free memory together would be enough",
    "no": "torch's unused memory would not be enough",
    "unknown": "the message does not say what torch holds unused",
}


def main(argv: Sequence[str]) -> int:
    """Answer one question, or a file of them; return the exit status."""
    return start("harness.fit", argv, USAGE, run)


def run(argv: Sequence[str]) -> int:
    """Print the answer as it becomes known; return the exit status; raises ConfigError."""
    if any(word.startswith("questions=") for word in argv):
        from harness.ask.batch import answer_file

        return answer_file(argv, seconds=False)
    if any(word.startswith("oom=") for word in argv):
        print_all(oom_lines(words_of(argv, OOM)))
        return DONE
    words = words_of(argv, FIT)
    return answer(question_from(words), words)


def answer(question: Question, words: CommandWords) -> int:
    """Print the answer to one question and keep it; return the exit status; raises ConfigError."""
    what_ifs = words.one_of("what_ifs", ("true", "all", "false"), "true")
    folder = folder_of(question, words.text("out", "results/fit"))
    engine, _ = choose(question)
    if "write" in words and not question.search:
        from harness.frameworks.read import write_own

        with mistake(f"{words.typed['write']}: "):  # before it is run
            write_own(question, words.values["write"])
    if engine == "dry run":
        if "recompute_modules" in words:
            raise ConfigError("recompute_modules: Megatron-LM's, which a layout has; give layout=, too")
        last = print_dry_run(question, what_ifs)
    else:
        from harness.ask.memory_lines import account_lines

        last = answer_to(question, seconds=False)
        shown = last if what_ifs != "false" else last.with_(changes=())
        print_all(account_lines(shown, question, folder / "answer.json"))
    keep(last, question, folder)
    if rest := list(rest_lines(last, question, words)):
        print_all(["", *rest])
    return STATUS[last.verdict]


def rest_lines(answer: Answer, question: Question, words: CommandWords) -> Iterator[str]:
    """Yield what was read of a file, where each value comes from, and the answer as a file, as asked for."""
    yield from read_lines(question, "show" in words)
    if "show" in words:
        yield from ("", *origins(question))
    if "write" in words:
        from harness.ask.written import written

        yield from ("", *written(answer, question, words.values["write"]))


def print_dry_run(question: Question, what_ifs: str) -> Answer:
    """Print the verdict as soon as nothing can turn it, and the rest later; return the last answer.

    Raises ConfigError where it is refused.
    """
    from harness.ask.memory_lines import first_lines, later_lines
    from harness.ask.recipe import described, what_ifs_of, with_techniques

    printed = ""  # the verdict that was printed
    with DryRunChild(question.model_name) as child:
        child.start()  # imports what it needs, while techniques are checked here
        question, left_out = with_techniques(question)
        changes = list(what_ifs_of(question, what_ifs == "all")) if what_ifs != "false" else []
        last = refused("no answer")
        for last in answers(question, changes=changes, child=child):
            if last.verdict == "refused":
                raise ConfigError(last.reason)
            if not printed and settled(last, question):
                print_all(first_lines(last, question, described(question)))
                printed = last.verdict
    if printed != last.verdict:
        print_all(first_lines(last, question, described(question)))
    print_all(later_lines(last.with_(left_out=(*last.left_out, *left_out)), question))
    return last


def settled(answer: Answer, question: Question) -> bool:
    """Return whether no other choice, which is tried last, can turn the verdict of a first dry run.

    Another choice needs more: torch's foreach optimizers at most two copies of their states, kept logits at
    most two in fp32.
    """
    memory = answer.memory
    assert memory is not None
    vocabulary = int((question.config or {}).get("vocab_size") or 0)
    logits_B = 8 * question.micro_batch_size * (question.seq_len or 0) * vocabulary
    states_B = memory.peaks[0].by_kind_B.get("optimizer_states", memory.room_B)
    most_B = memory.reserved_B.high + 2 * states_B + logits_B
    return not answer.likely_fits or most_B <= memory.room_B


def folder_of(question: Question, out: str) -> Path:
    """Return the folder of a question's answer."""
    return Path(out) / digest([msgspec.to_builtins(question)])[:16]


def keep(answer: Answer, question: Question, folder: Path) -> None:
    """Write answer.json, with the question, whole or not at all; raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {**on_disk(answer), "question": msgspec.to_builtins(question)}
    part = folder / f"answer.json.{os.getpid()}"
    try:
        part.write_text(json.dumps(content, indent=1) + "\n")
        part.replace(folder / "answer.json")
    finally:
        part.unlink(missing_ok=True)


def oom_lines(words: CommandWords) -> list[str]:
    """Return the lines that explain an out-of-memory message; raises ConfigError."""
    from harness.frameworks.oom import read_oom

    path = Path(words.values["oom"])
    question = question_from(words) if "config" in words or "model" in words else None
    given = [key for key in words.values if key != "oom"]
    if question is None and given:
        raise ConfigError(f"{given[0]}: needs model= or config=, to name the tensor of oom={path}")
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"oom={path}: {error.strerror or error}") from error
    shape_of = import_module("suites.training.layouts.shape_of_config").shape_of_config
    with mistake(f"oom={path}: "):
        return list(explained(read_oom(text, question, shape_of)))


def explained(found: OomExplained) -> Iterator[str]:
    """Yield what an out-of-memory message says, in sentences."""
    message, where = found.message, found.where
    rank = "" if message.rank is None else f" on rank {message.rank}"
    line = f" ({where.line})" if where.line else ""
    place = f", at {where.place}{line}" if where.place else line
    phase = f" in {where.phase}{' (recomputed)' if where.recomputed else ''}" if where.phase else ""
    yield from wrapped(
        f"{message.backend} ran out of memory{rank}{phase}{place}: {message.asked.text} asked for.", "  "
    )
    yield from wrapped(f"Fragmentation: {FRAGMENTATION[message.fragmentation]}.", "  ")
    for one in found.tensors[:3]:
        yield from wrapped(f"Of this size: {one.name}, {one.size_B / 1e9:.2f} GB = {one.formula}.", "  ")
    if found.missing:
        yield from wrapped(f"Not known: {found.missing}.", "  ")
    yield "What would change it, cheapest first:"
    for number, remedy in enumerate(found.remedies, 1):
        technique = f" [{remedy.technique}]" if remedy.technique else ""
        yield from wrapped(f"{number}. {remedy.change}{technique}: costs {remedy.cost}.", "     ")
