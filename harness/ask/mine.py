"""`mine=` of `harness.advise`: the user's own step, and what would explain how long it takes.

A step is seconds, TFLOP/s, a log or a trace of torch.profiler. Seconds alone leave open what they went to; a
trace, or the seconds of some places next to those of the step, says much more.
"""

from __future__ import annotations

import gzip
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.answer import Answer, StepCause
from harness.ask.certainty import NORMAL_90
from harness.ask.lines import wrapped
from harness.ask.words import mistake
from harness.commands.grammar import CommandWords
from harness.instruments.transformer import CONVENTIONS, flop_per_token, model_flop_per_token, reconciled
from harness.question import Question
from harness.records import Unavailable

if TYPE_CHECKING:
    from harness.frameworks.logs import OwnLog, Steady
    from harness.instruments.transformer import TransformerShape

DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min)")

SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0}

RATE = re.compile(r"(\d+(?:\.\d+)?)\s*tflops?(?:/s)?", re.IGNORECASE)

LISTED = 5
"""Causes that are listed."""


class OwnStep(NamedTuple):
    """The user's own step."""

    seconds: float
    said: tuple[str, ...]  # what a log says, in lines
    places_s: Mapping[str, float] = {}  # those that are known, as of `StepCause`
    counts: Mapping[str, float] = {}  # of TFLOP/s: this answer's FLOP over those of other formulas
    reserved_B: float | None = None  # by torch's allocator at most, as a log says
    program: str = ""  # whose code trains


class CauseFamily(NamedTuple):
    """Causes of one kind: how likely before one looks, and how to find out."""

    prior: float
    find_out: str


FAMILIES: Mapping[str, CauseFamily] = {
    "network": CauseFamily(0.2, "time nccl-tests' all_reduce_perf over all nodes"),
    "overlap": CauseFamily(0.1, "look for the program's switch of it, or for collectives alone in a trace"),
    "recompute": CauseFamily(0.05, "look up the recomputation in the run's own arguments"),
    "launches": CauseFamily(0.15, "look for gaps between kernels in a trace: harness.profile trace=FILE"),
    "imbalance": CauseFamily(0.17, "compare the ranks' own step times, clocks and tokens per expert"),
    "loader": CauseFamily(0.2, "train on synthetic data"),
    "allocator": CauseFamily(0.2, "read num_alloc_retries of torch.cuda.memory_stats()"),
    "batch": CauseFamily(0.02, "compare the tokens of an update with the run's own"),
    "clocks": CauseFamily(0.15, "read power and clocks with nvidia-smi -q -d CLOCK,POWER"),
    "count": CauseFamily(0.3, "look up which FLOP the program counts"),
}
"""By family of cause. Priors are set by hand and order causes alone; none is printed. The allocator and the
count of FLOP are causes only where memory is nearly full, and of TFLOP/s."""

PLACES: Mapping[str, float] = {
    "computing": 0.08, "communication": 0.06, "gaps": 0.03, "ranks": 0.05, "data": 0.02, "idle": 0.05
}  # fmt: skip
"""Where seconds go, and the standard deviation of its share of the step between predicted and own: set by
hand. Hardly a step waits for data or launches by itself."""

TIMERS: Mapping[str, float] = {
    "forward": 0.05, "backward": 0.08, "reduction": 0.04, "optimizer": 0.03, "spread": 0.05
}  # fmt: skip
"""The same of what a program's own timers show: passes with their waits, and their spread over ranks."""

DEVIATION: Mapping[str, float] = {**PLACES, **TIMERS}

PRINTS_TIMERS: Mapping[str, str] = {
    "megatron": "a log with --timing-log-level 2",
    "deepspeed": "a log with wall_clock_breakdown",
}
"""By program: what makes its log show `TIMERS`, and the wait for data. Others print none."""


def own_step(words: CommandWords, question: Question) -> OwnStep | None:
    """Return `mine=`, None where it is not there; raises ConfigError."""
    if "mine" not in words:
        return None
    with mistake(f"{words.typed['mine']}: "):
        return step_of(words.values["mine"], question)._replace(program=question.program_of())


def step_of(text: str, question: Question) -> OwnStep:
    """Return the step that a text or the file of its name describes; raises ValueError."""
    if (parts := seconds_of_text(text)) is not None:
        seconds = parts.pop("")
        return OwnStep(seconds, tuple(other_counts(question, seconds)), parts)
    if match := RATE.fullmatch(text.strip()):
        if not float(match[1]):
            raise ValueError("expected a rate above 0")
        return of_rate(float(match[1]) * 1e12, question)
    path = Path(text)
    if not path.exists():
        raise ValueError("expected the seconds of your step, as 4.1s or 850ms, or a log's file or a trace")
    if path.is_dir() or '"traceEvents"' in head(path):
        return of_trace(path)
    from harness.frameworks.logs import read_log

    log = read_log(path.read_text(encoding="utf-8", errors="replace"), question)
    steady = seconds_of(log, question)
    said = [*of_log(path, log, steady, question), *other_counts(question, steady.median)]
    timers_s = timers_of_log(log, steady.median)
    return OwnStep(steady.median, tuple(said), timers_s, {}, log.value("memory_B"))


def timers_of_log(log: OwnLog, step_s: float) -> dict[str, float]:
    """Return the seconds that a log's timers show: of Megatron's (min, max) over ranks the mean.

    Megatron's forward-compute has the batch generator in it. DeepSpeed times no loader: what is left of the
    step is put down to it.
    """
    ends: dict[str, tuple[float, float]] = {}
    for name in ("forward", "backward", "reduction", "optimizer", "data"):
        if (most := log.value(f"{name}_s")) is not None:
            least = log.value(f"{name}_least_s")
            ends[name] = (most if least is None else least, most)
    found = {name: sum(each) / 2 for name, each in ends.items()}
    if log.framework == "megatron" and "forward" in found:
        found["forward"] -= found.get("data", 0.0)
        spread = {name: most - least for name, (least, most) in ends.items()}
        if log.value("forward_least_s") is not None:
            passes = spread["forward"] + spread.get("backward", 0.0) - spread.get("data", 0.0)
            found["spread"] = max(passes, 0.0)
    if log.framework == "deepspeed" and {"forward", "backward", "optimizer"} <= found.keys():
        found["data"] = max(step_s - sum(found.values()), 0.0)
    return found


def seconds_of_text(text: str) -> dict[str, float] | None:
    """Return the seconds of `4.1s` or of `4.1s,data:0.3s`, the step's under ""; None where it is neither.

    Raises ValueError for a place that is none of `PLACES` and `TIMERS`.
    """
    found: dict[str, float] = {}
    for part in text.split(","):
        place, _, size = part.strip().rpartition(":")
        match = DURATION.fullmatch(size)
        if match is None or (not place and (found or not float(match[1]))):
            return None
        if place and place not in DEVIATION:
            raise ValueError(f"{place}: where seconds go is one of {', '.join(DEVIATION)}")
        if place in found:
            raise ValueError(f"{place}: given twice")
        found[place] = float(match[1]) * SECONDS[match[2]]
    return found if "" in found and sum(found.values()) <= 2.02 * found[""] else None


def head(path: Path) -> str:
    """Return the beginning of a file, unpacked."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open(errors="replace") as file:
        return file.read(1 << 16)


def of_rate(FLOP_per_s: float, question: Question) -> OwnStep:
    """Return the step of a rate per GPU by this answer's formula; raises ValueError where it has none."""
    shape, seq_len = shape_of(question), question.seq_len or 0
    if shape is None or not seq_len or question.global_batch_size is None:
        raise ValueError("TFLOP/s need the batch of a step; give global_batch_size=, or seconds")
    ours = model_flop_per_token(shape, seq_len)
    seconds = question.global_batch_size * seq_len * ours / question.all_devices() / FLOP_per_s
    counts = {f"by {name}'s formula": ours / flop_per_token(name, shape, seq_len) for name in CONVENTIONS}
    if question.recompute == "full":
        counts["recomputation included"] = 3 / 4
    said = (f"{FLOP_per_s / 1e12:g} TFLOP/s per GPU are taken as this answer counts FLOP.",)
    return OwnStep(seconds, said, {}, counts)


def of_trace(path: Path) -> OwnStep:
    """Return the step of a trace, or of a folder of ranks, with where its seconds go; raises TraceError."""
    from harness.instruments.traces.breakdown import breakdown
    from harness.instruments.traces.kineto import read_traces
    from harness.instruments.traces.segments import State

    named = {
        **dict.fromkeys((State.COMPUTING, State.COPYING), "computing"),
        **dict.fromkeys((State.PREPARING, State.CALLING), "gaps"),
        State.COMMUNICATION: "communication",
        State.WAITING_FOR_RANK: "ranks",
        State.WAITING_FOR_DATA: "data",
        State.IDLE: "idle",
    }
    of = breakdown(read_traces(path))
    places = dict.fromkeys(PLACES, 0.0)
    for share in of.shares:
        places[named[share.state]] += share.mean_s
    shown = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in places.items() if seconds)
    return OwnStep(of.step_s, tuple(wrapped(f"{path.name}: {of.step_s:.3g} s per step; {shown}.")), places)


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
            f"Its {flop / 1e12:.0f} TFLOP/s count {log.convention}; by this answer's formula they "
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
    assert answer.seconds is not None
    predicted_s = answer.seconds.places_s
    places = [
        f"{place} {own:.3g} s, predicted {predicted_s.get(place, 0.0):.3g} s"
        for place, own in mine.places_s.items()
    ]
    if places:
        yield from wrapped(f"Where yours go: {'; '.join(places)}.")
    found = likely_causes(answer.seconds.causes, mine, answer)
    if found:
        inside = "; the model's own error suffices, too" if low <= own_s <= high else ""
        yield from wrapped(
            f"What would explain it, the likeliest first, with the seconds it predicts{inside}"
        )
    for cause in found[:LISTED]:
        reaches = ""
        if not low <= own_s * step_s / cause.step_s <= high:
            less = (cause.step_s < own_s) == (own_s > step_s)
            reaches = ", which does not suffice" if less else ", which is more than yours"
        yield from wrapped(
            f"  {cause.title}: {cause.step_s:.3g} s{reaches}; {FAMILIES[cause.family].find_out}", "    "
        )
    rest = "Or another" if found else "What is tried here makes no step that much faster. Perhaps another"
    yield from wrapped(f"  {rest} count of FLOP, tokens or steps than this answer's.", "    ")
    if found and not mine.places_s:
        reaching = sum(low <= own_s * step_s / cause.step_s <= high for cause in found)
        yield from wrapped(f"  {told_apart(found, reaching, mine)}", "    ")


def told_apart(found: Sequence[StepCause], reaching: int, mine: OwnStep) -> str:
    """Return which measurement would decide between the first two causes, in words.

    `reaching`: of the causes, those of which a size takes as long as the user's own step.
    """
    first, second = found[0].places_s, (*found, found[0])[1].places_s
    timers = PRINTS_TIMERS.get(mine.program)
    shown = DEVIATION if timers else PLACES
    place = max(shown, key=lambda name: abs(first.get(name, 0.0) - second.get(name, 0.0)) / DEVIATION[name])
    sizes = f"{first.get(place, 0.0):.2g} s and {second.get(place, 0.0):.2g} s"
    which = f"{reaching} of {len(found)} causes reach yours" if reaching > 1 else "Seconds alone say little"
    how = f"a trace or {timers}" if timers else "a trace"
    differ = f" The first two differ most in {place}: {sizes}." if len(found) > 1 else ""
    return f"{which}.{differ} Give {how} as mine=FILE, or mine={mine.seconds:.3g}s,{place}:…s by itself."


def likely_causes(causes: Sequence[StepCause], mine: OwnStep, answer: Answer) -> list[StepCause]:
    """Return the best size of each family of causes on the user's side, the likeliest family first.

    A family is as likely as its prior times the mean over its sizes of two normal densities: of the user's
    own seconds around what a size predicts, by the interval of the answer, and of each known place's share of
    the step around the predicted one. Where no size reaches the interval, they are ranked
    by the places of what is more than predicted.
    """
    interval = answer.layouts[0].step_s
    assert interval is not None
    low, step_s, high = interval
    sigma = math.log(high / low) / (2 * NORMAL_90)
    counted = [
        StepCause(family="count", title=f"TFLOP/s {how}", step_s=step_s * factor, weight=1 / len(mine.counts))
        for how, factor in mine.counts.items()
        if abs(factor - 1) >= 0.01
    ]
    longer, known = mine.seconds > step_s, mine.places_s.items()
    plain_s = answer.seconds.places_s if answer.seconds else {}
    alike = [one for one in (*causes, *counted) if (one.step_s > step_s) == longer]
    if mine.reserved_B is not None and mine.reserved_B < RESERVED * answer.layouts[0].room_B:
        alike = [one for one in alike if one.family != "allocator"]
    reached = any(low <= mine.seconds * step_s / one.step_s <= high for one in alike)
    by_places = bool(mine.places_s) and not reached

    def log_likelihood(cause: StepCause) -> float:
        plain, own, its = plain_s, mine.seconds - step_s, cause.step_s - step_s
        if not by_places:
            plain, own, its = dict[str, float](), mine.seconds, mine.seconds

        def deviation(place: str, own_s: float, its_s: float) -> float:
            usual = plain.get(place, 0.0)
            return ((own_s - usual) / own - (its_s - usual) / its) / DEVIATION[place]

        seen = max(
            -sum(deviation(place, own_s, places.get(place, 0.0)) ** 2 / 2 for place, own_s in known)
            for places in seen_on_ranks(cause, plain_s)
        )
        return seen if by_places else seen - (math.log(mine.seconds / cause.step_s) / sigma) ** 2 / 2

    def log_posterior(family: str) -> float:
        sizes = [log_likelihood(one) + math.log(one.weight) for one in alike if one.family == family]
        best = max(sizes)
        return math.log(FAMILIES[family].prior) + best + math.log(sum(math.exp(one - best) for one in sizes))

    in_order = sorted({one.family for one in alike})  # which those that are as likely as each other keep
    families = sorted(in_order, key=log_posterior, reverse=True)
    return [max((one for one in alike if one.family == each), key=log_likelihood) for each in families]


RESERVED = 0.9
"""Share of the room below which no allocator has freed its cache: a block that finds no room is smaller than
the rest."""

ON_RANKS = (1.0, 0.5, 0.25, 0.0)
"""Share of the ranks that have a cause themselves, while the others wait for them."""


def seen_on_ranks(cause: StepCause, plain_s: Mapping[str, float]) -> Iterator[Mapping[str, float]]:
    """Yield the seconds by place in the mean over ranks, where all of them have a cause or only some.

    The others wait, by timers in their own passes, or for a slow rank's gradients: passes then differ by all
    that it takes longer.
    """
    added = {place: seconds - plain_s.get(place, 0.0) for place, seconds in cause.places_s.items()}
    whole = sum(seconds for place, seconds in added.items() if place in PLACES)
    uneven = cause.family == "imbalance"
    for share in ON_RANKS[1:] if uneven else ON_RANKS[:-1]:
        places = {place: plain_s.get(place, 0.0) + share * seconds for place, seconds in added.items()}
        waited = (1 - share) * whole
        places["ranks"] = places.get("ranks", 0.0) + waited
        in_passes = {"forward": waited / 3, "backward": 2 * waited / 3}
        apart = {"reduction": waited, "spread": whole - share * added.get("spread", 0.0)}
        for shown in (in_passes, apart) if uneven else (in_passes,):
            yield {**places, **{name: places.get(name, 0.0) + each for name, each in shown.items()}}
