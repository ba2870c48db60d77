"""`python -m harness.advise`: the fastest layouts of a training step on a cluster not rented yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from harness.answer import Answer, RankedLayout, StepAnswer
from harness.ask import mine as own
from harness.ask.lines import GB, apart, chance, shares, table, turns, what_was_asked, worth_of, wrapped
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
    from harness.ask.cost import rates_asked
    from harness.ask.engines import answer_to
    from harness.ask.fit import folder_of, keep, rest_lines

    rate = rates_asked(words)[0] if "rate" in words else None
    last = best = answer_to(question)
    if "config" in words and not question.search:
        best = answer_to(searching(question))
    mine = own.own_step(words, question)
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


LISTED = 8
"""Layouts that are listed; the others are in answer.json."""

MEMORY = {"does not fit": ", which does not fit", "depends": ", which may not fit"}
"""What an own layout's memory is said to do, by verdict."""


def answer_lines(
    answer: Answer, question: Question, rate: float | None, mine: own.OwnStep | None
) -> Iterator[str]:
    """Yield the layouts, the switches, the parts and what it rests on; `rate`: dollars per GPU-hour."""
    if not answer.layouts:
        yield f"no layout fits; {answer.layouts_tried or 0:,} were tried"
        yield from what_was_asked(answer, question)
        return
    best, seconds = answer.layouts[0], answer.seconds or StepAnswer()
    yield f"{'' if answer.verdict == 'fits' else f'{answer.verdict}: '}{step_words(best)}"
    yield from as_run(best)
    yield from () if question.search else turns(answer)
    yield from what_was_asked(answer, question)
    yield from apart(of_layouts(answer))
    if rate is not None:
        usd, low, high = (rate * hours for hours in best.gpu_hours(1e12))
        yield (
            f"At ${rate:g} per GPU-hour the first costs ${usd:,.0f} per 10^12 tokens "
            f"(90 %: {low:,.0f} … {high:,.0f})."
        )
    if mine is not None:
        yield from apart(own.lines(mine, answer))
    yield from apart(
        of_nearest(seconds), switches(seconds), parts(seconds.parts_s), conditions(best, question)
    )


def own_lines(name: str, answer: Answer, others: Answer, mine: own.OwnStep | None) -> Iterator[str]:
    """Yield the seconds of a file's own layout, how they compare, and how much others gain."""
    one, tokens_per_s = answer.layouts[0], answer.layouts[0].tokens_per_s_per_device
    assert tokens_per_s
    yield f"{name}: {step_words(one)}"
    yield (
        f"  {(one.model_FLOP_per_s or 0) / 1e12:.0f} TFLOP/s per GPU, {one.mfu or 0:.0%} MFU, "
        f"{tokens_per_s:,.0f} tokens/s per GPU; {GB(one.needed_B)} of {GB(one.room_B)} GB"
        f"{MEMORY.get(answer.verdict, '')}; it runs with a chance of {chance(one)}"
    )
    yield from as_run(one)
    yield from turns(answer)
    if mine is not None:
        yield from own.lines(mine, answer)
    yield from of_nearest(answer.seconds or StepAnswer())
    if others.layouts and others.layouts[0].tokens_per_s_per_device:
        gain = others.layouts[0].tokens_per_s_per_device / tokens_per_s
        yield from wrapped(
            f"The first of all layouts below has {gain:.2f} times its tokens/s."
            if gain > 1.005
            else "No layout below is predicted to be more than 0.5 % faster."
        )
    yield ""


def as_run(one: RankedLayout) -> Iterator[str]:
    """Yield how long the step takes as others run it, where that is known."""
    if one.as_run_s is not None:
        low, likely, high = one.as_run_s
        yield from wrapped(
            f"As others run it, by {one.as_run_of}: {likely:.3g} s per step (90 %: {low:.3g} … {high:.3g}).",
            "  ",
        )


def step_words(one: RankedLayout) -> str:
    """Return a layout with its seconds."""
    assert one.step_s is not None
    low, likely, high = one.step_s
    return f"{one.title}: {likely:.3g} s per step (90 %: {low:.3g} … {high:.3g})"


def of_layouts(answer: Answer) -> Iterator[str]:
    """Yield the layouts with the most expected tokens/s: rates, intervals, memory, chance to run."""
    rows = [["", "TFLOP/s per GPU", "90 %", "MFU", "s per step", "GB", "runs"]]
    for rank, one in enumerate(answer.layouts[:LISTED], 1):
        assert one.step_s is not None
        rate, (low, step_s, high) = (one.model_FLOP_per_s or 0.0) / 1e12, one.step_s
        span = f"{rate * step_s / high:.0f} … {rate * step_s / low:.0f}"
        memory = f"{GB(one.needed_B)} of {GB(one.room_B)}{' (retries)' if one.retries else ''}"
        title, mfu = f"{rank}. {one.title}", f"{one.mfu or 0.0:.0%}"
        rows.append([title, f"{rate:.0f}", span, mfu, f"{step_s:.3g}", memory, chance(one)])
    yield from table(rows)


def switches(seconds: StepAnswer) -> Iterator[str]:
    """Yield what each single switch of the first layout is worth, the best first."""
    if not seconds.switches:
        return
    yield "What each switch of the first is worth, in seconds per token"
    yield from (f"  {name}: {worth}" for name, worth in worth_of(seconds))
    if seconds.switches_that_do_not_fit:
        yield from wrapped(f"  do not fit: {', '.join(seconds.switches_that_do_not_fit)}", "    ")


def parts(parts_s: Mapping[str, float]) -> Iterator[str]:
    """Yield where the seconds of the first layout go."""
    if any(parts_s.values()):
        yield "Where its seconds go; communication as far as nothing hides it"
    yield from (f"  {share:>4.0%}  {words}" for words, _, share in shares(parts_s))


def of_nearest(seconds: StepAnswer) -> Iterator[str]:
    """Yield the published steps that are the nearest, with what the model predicts for them."""
    for step in seconds.nearest:
        published, predicted = (
            step.FLOP_per_device / one / 1e12 for one in (step.published_s, step.predicted_s)
        )
        yield from wrapped(
            f"Nearest published: {step.title}: {step.published_s:.3g} s, {published:.0f} TFLOP/s per GPU; "
            f"predicted for it {step.predicted_s:.3g} s, {predicted:.0f}."
        )


def conditions(best: RankedLayout, question: Question) -> list[str]:
    """Return what the answer rests on."""
    overlap = (
        " Assumed: tensor parallelism overlaps its communication (--tp-comm-overlap)."
        if question.program_of() == "megatron"
        else ""
    )
    return wrapped(
        f"Calculated. Interval: {best.basis}.{overlap} FLOP: 6 per matmul parameter and token and 12 Lsh of "
        "attention, without a mask's saving; MFU is of the datasheet's bf16 rate. Memory has the "
        "allocator's fragmentation. docs/commands/advise.md reports how far off it is."
    )
