"""`mine=` of `harness.advise`: the user's own step, from seconds or a log, and what would explain a gap."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.answer import Answer, StepCause
from harness.ask.lines import wrapped
from harness.ask.words import mistake
from harness.commands.grammar import CommandWords
from harness.config.validation import ConfigError
from harness.instruments.transformer import CONVENTIONS, flop_per_token, reconciled
from harness.question import Question
from harness.records import Unavailable

if TYPE_CHECKING:
    from harness.frameworks.logs import OwnLog, Steady
    from harness.instruments.transformer import TransformerShape

DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min)")

LISTED = 5
"""Causes that are listed."""

NORMAL_90 = 1.645
"""Standard deviations between the middle and either end of a 90 % interval of a normal distribution."""


class OwnStep(NamedTuple):
    """The user's own step."""

    seconds: float
    said: tuple[str, ...]  # what a log says, in lines


class CauseFamily(NamedTuple):
    """Causes of one kind: how likely before one looks, and how to find out."""

    prior: float
    find_out: str


FAMILIES: Mapping[str, CauseFamily] = {
    "network": CauseFamily(0.2, "time nccl-tests' all_reduce_perf over all nodes"),
    "overlap": CauseFamily(0.15, "look for the program's switch of it, or for collectives alone in a trace"),
    "recompute": CauseFamily(0.15, "look up the recomputation in the run's own arguments"),
    "launches": CauseFamily(0.15, "look for gaps between kernels in a trace: harness.profile trace=FILE"),
    "straggler": CauseFamily(0.1, "compare the ranks' own step times and clocks"),
    "loader": CauseFamily(0.1, "train on synthetic data"),
    "allocator": CauseFamily(0.15, "read num_alloc_retries of torch.cuda.memory_stats()"),
    "batch": CauseFamily(0.05, "compare the tokens of an update with the run's own"),
    "power": CauseFamily(0.05, "read power and clocks with nvidia-smi -q -d CLOCK,POWER"),
}
"""By family of cause. Priors are set by hand and order causes alone; none is printed."""


def own_step(words: CommandWords, question: Question) -> OwnStep:
    """Return `mine=`; raises ConfigError."""
    text = words.values["mine"]
    match = DURATION.fullmatch(text)
    if match is not None and float(match[1]) > 0:
        seconds = float(match[1]) * {"ms": 1e-3, "s": 1.0, "min": 60.0}[match[2]]
        return OwnStep(seconds, tuple(other_counts(question, seconds)))
    path = Path(text)
    if not path.is_file():
        raise ConfigError(
            f"{words.typed['mine']}: expected the seconds of your step, as 4.1s or 850ms, or a log's file"
        )
    from harness.frameworks.logs import read_log

    with mistake(f"{words.typed['mine']}: "):
        log = read_log(path.read_text(encoding="utf-8", errors="replace"), question)
        steady = seconds_of(log, question)
        said = [*of_log(path, log, steady, question), *other_counts(question, steady.median)]
        return OwnStep(steady.median, tuple(said))


def shape_of(question: Question) -> TransformerShape | None:
    """Return the shape of a question's model; None where it has none, as the engine says in its refusal."""
    with suppress(Unavailable, ValueError):
        module = import_module("suites.training.layouts.shape_of_config")
        shape: TransformerShape = module.shape_of_config(question.config or {})
        return shape
    return None


def other_counts(question: Question, step_s: float) -> Iterator[str]:
    """Yield the step's TFLOP/s as each framework counts them: of another count, a lower number is no gap."""
    shape = shape_of(question)
    if question.global_batch_size is None or shape is None or not question.devices or not question.seq_len:
        return
    per_gpu = question.global_batch_size * question.seq_len / question.devices / step_s
    rates = {name: per_gpu * flop_per_token(name, shape, question.seq_len) for name in CONVENTIONS}
    counted = ", ".join(f"{rate / 1e12:.0f} as {name}" for name, rate in rates.items())
    yield from wrapped(f"Yours in TFLOP/s per GPU is {counted} counts FLOP: compare numbers of one count.")


def seconds_of(log: OwnLog, question: Question) -> Steady:
    """Return a log's seconds per step, from its TFLOP/s where it has neither them nor tokens.

    Raises ValueError where they do not follow.
    """
    from harness.frameworks.logs import Steady

    batch_known = question.global_batch_size is not None or question.gradient_accumulation_steps is not None
    found = log.metrics.get("step_s")
    if found is not None and (log.step_s_printed or batch_known):
        return found
    rate, shape = log.metrics.get("FLOP_per_s"), shape_of(question)
    if rate is None or log.convention is None or not batch_known or shape is None:
        raise ValueError(
            f"{log.framework}'s log has {', '.join(log.metrics)}, of which no seconds per step follow; "
            "global_batch_size= gives the sequences of one"
        )
    tokens = question.sequences_per_step() * (question.seq_len or 0) / question.all_devices()
    work = tokens * flop_per_token(log.framework, shape, question.seq_len or 0)
    return Steady(work / rate.median, work / rate.high, work / rate.low, rate.lines)


def of_log(path: Path, log: OwnLog, seconds: Steady, question: Question) -> Iterator[str]:
    """Yield what a log says, and its TFLOP/s by this command's formula."""
    rate = log.value("tokens_per_s")
    tokens = f", {rate:,.0f} tokens/s per GPU" if rate else ""
    yield from wrapped(
        f"{path.name}, {log.framework}'s: {seconds.median:.3g} s per step (half of {seconds.lines} lines: "
        f"{seconds.low:.3g} … {seconds.high:.3g}; the first {log.left_out} are left out){tokens}."
    )
    flop, shape = log.value("FLOP_per_s"), shape_of(question)
    if flop is not None and log.convention is not None and shape is not None:
        ours = reconciled(flop, log.framework, shape, question.seq_len or 0)
        yield from wrapped(
            f"Its {flop / 1e12:.0f} TFLOP/s count {log.convention.formula}; by this answer's formula they "
            f"are {ours / 1e12:.0f}."
        )
    elif flop is not None:
        yield from wrapped(f"How {log.framework} counts its {flop / 1e12:.0f} TFLOP/s is not known here.")
    for note in log.notes:
        yield from wrapped(f"{note[0].upper()}{note[1:]}.")


def lines(mine: OwnStep, answer: Answer) -> Iterator[str]:
    """Yield where the user's own step stands, and which causes would explain it, the likeliest first."""
    yield from mine.said
    one, own_s = answer.layouts[0], mine.seconds
    assert one.step_s is not None
    low, step_s, high = one.step_s
    where = "inside" if low <= own_s <= high else "above" if own_s > high else "below"
    rate = (one.model_FLOP_per_s or 0.0) * step_s / own_s / 1e12
    yield (
        f"Yours: {own_s:.3g} s, {own_s / step_s:.2f} times the prediction, {where} the 90 % interval; "
        f"{rate:.0f} TFLOP/s per GPU as this answer counts."
    )
    causes = answer.seconds.causes if answer.seconds else ()
    alike = [cause for cause in causes if (cause.step_s > step_s) == (own_s > step_s)]
    if not alike:
        return
    yield "What would explain it, the likeliest first, with the seconds that it predicts"
    for cause in likely_causes(alike, own_s, math.log(high / low) / (2 * NORMAL_90))[:LISTED]:
        reaches = ""
        if not low <= own_s * step_s / cause.step_s <= high:
            less = (cause.step_s < own_s) == (own_s > step_s)
            reaches = ", which does not suffice" if less else ", which is more than yours"
        yield from wrapped(
            f"  {cause.title}: {cause.step_s:.3g} s{reaches}; {FAMILIES[cause.family].find_out}", "    "
        )
    yield from wrapped(
        "  Or another count of FLOP, tokens or steps than this answer's, which no cause changes.", "    "
    )


def likely_causes(causes: Sequence[StepCause], own_s: float, sigma: float) -> list[StepCause]:
    """Return the best size of each family, the likeliest first.

    `sigma`: of the logarithm of published over predicted seconds. A cause is as likely as its prior, divided
    among the sizes of its family, times the normal density of the user's own seconds around what it predicts.
    """
    sizes = {cause.family: sum(one.family == cause.family for one in causes) for cause in causes}

    def log_likelihood(cause: StepCause) -> float:
        prior = math.log(FAMILIES[cause.family].prior / sizes[cause.family])
        return prior - (math.log(own_s / cause.step_s) / sigma) ** 2 / 2

    ordered = sorted(causes, key=log_likelihood, reverse=True)
    first = {cause.family: cause for cause in reversed(ordered)}
    return sorted(first.values(), key=log_likelihood, reverse=True)
