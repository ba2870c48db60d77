"""How sure an answer is: intervals of its bytes, a verdict of three values, and what may turn it.

The interval of bytes has the engine's recorded error (conf/engine_errors.yaml) and is widened by each key
that is read and not modelled, in the direction that its framework's table names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import log
from statistics import NormalDist
from typing import Any, cast

import msgspec

from harness.answer import SCORES, Answer, EngineName, FitVerdict, Interval, Memory, Turn
from harness.config.optimizations import CONF, read_yaml
from harness.question import KeyRead, Question, lowering


@cache
def recorded() -> Mapping[str, Any]:
    """Return conf/engine_errors.yaml."""
    return read_yaml(CONF / "engine_errors.yaml")


def error_of(engine: EngineName | None, question: Question, kind: str) -> Mapping[str, Any]:
    """Return the recorded error of an engine's bytes; `kind`: allocated or reserved.

    `low` and `high` are the ends of the interval of published over predicted bytes, of `n` published peaks:
    of runs that a page describes in its own words, or of steps that were asked for as they are run.
    """
    name: EngineName = "dry run" if engine == "dry run" else "account"
    adapters = question.adapters
    of_pages = adapters is not None and (
        name == "account" or (question.zero == 3 and (adapters.base != "bf16" or question.sharing == "fsdp1"))
    )
    if is_described(question) or of_pages:  # the only peaks of such adapters that were published
        as_asked: Mapping[str, Mapping[str, Any]] = recorded()["as_asked"][name]
        for which in (kind, *as_asked):  # where no peak of the kind was published, those of the other
            if kind_of(question) in as_asked[which]:
                return cast("Mapping[str, Any]", as_asked[which][kind_of(question)])
    if name == "dry run":
        names = (f"{kind}{'_several' if (question.devices or 1) > 1 else '_one'}", kind)
    else:
        of = "_experts" if question.has_experts else "_deepspeed" if question.sharing == "zero" else ""
        names = (f"{kind}{of}", kind)
    table = recorded()[name]
    return next(table[one] for one in names if one in table)


def bytes_error(question: Question) -> Interval:
    """Return published over predicted reserved bytes of questions of its kind, asked of the account.

    Ends are widened by keys that are not modelled.
    """
    error, (lowers, raises) = error_of("account", question, "reserved"), of_keys(unmodelled(question))
    return Interval(error["low"] * lowers, error.get("likely", 1.0), error["high"] * raises)


def of_keys(keys: Sequence[KeyRead]) -> tuple[float, float]:
    """Return what keys that are not modelled may do to the ends of an interval of bytes."""
    usual = recorded()["keys"]
    lowers = min((key.least or usual["lowers"] for key in keys if key.memory != "raises"), default=1.0)
    return lowers, max((usual["raises"] for key in keys if key.memory != "lowers"), default=1.0)


def is_described(question: Question) -> bool:
    """Return whether a page describes what runs, which is neither listed nor stated by its own file."""
    of_page = question.framework and not question.format
    return bool(of_page) and question.origin("techniques").kind != "command"


def kind_of(question: Question) -> str:
    """Return the kind of a question, of which an engine's error is recorded."""
    if question.adapters is not None:
        return "adapters" if question.adapters.base == "bf16" else "adapters on a quantized base"
    if question.has_experts:
        return "experts"
    return "several devices" if (question.devices or 1) > 1 else "one device"


def unmodelled(question: Question) -> list[KeyRead]:
    """Return the keys of a file that are read, not modelled, and change the bytes."""
    return [key for key in question.keys if key.status == "not modelled" and key.memory != "none"]


EXPLICIT = lowering("attention", "explicit attention is taken, which keeps every score", value="flash")
"""A kernel that a program has and its model's code in transformers does not have."""

OWN_MODELS = ("litgpt", "llm_foundry", "olmo_core", "torchtitan", "torchtune")
"""Formats whose programs have models of their own, which fuse attention without a key that asks for it."""

FROZEN = lowering("adapters", "activations are those of a step that trains every weight", seconds="none")
"""What the account takes of a step with adapters alone."""


COUNTED = lowering("offload", "DeepSpeed's states on the host are counted as the device's", seconds="raises")
"""What a dry run takes of DeepSpeed's offload, unless stage 3 has parameters on the host, too."""


def with_certainty(answer: Answer, question: Question) -> Answer:
    """Return an engine's answer with intervals of its bytes, its verdict, and what may turn it."""
    memory = answer.memory
    if answer.verdict == "refused" or memory is None:
        return answer
    keys = list(question.keys)
    fused = question.origin("attention").kind == "key" or question.format in OWN_MODELS
    if "attention" in answer.without and fused and question.attention != "explicit":
        keys.append(EXPLICIT)
    if answer.engine != "dry run" and question.adapters is not None:
        keys.append(FROZEN)
    on_host = {one.partition(":")[0] for one in question.offload} & {"optimizer", "parameters"}
    if answer.engine == "dry run" and question.sharing == "zero" and on_host:
        keys += [COUNTED] if question.zero < 3 or len(on_host) == 1 else []
    question = msgspec.structs.replace(question, keys=tuple(keys))
    by_error, sized = (sized_by(answer, memory, question, with_keys) for with_keys in (False, True))
    fits = answer.verdict == "fits" if answer.likely_fits is None else answer.likely_fits
    answer = answer.with_(likely_fits=fits)
    if question.search:
        return answer.with_(memory=sized)
    which = "allocated" if answer.engine == "dry run" else "reserved"
    peak = memory.peak_at(question.micro_batch_size)
    if not (fits and peak is not None and peak.fits_with_slack):  # else the allocator frees its cache
        chance = chance_to_fit(memory, error_of(answer.engine, question, which))
        sized = msgspec.structs.replace(sized, chance_to_fit=chance)
    verdict, turns = judged(answer, sized, by_error, question)
    return answer.with_(memory=sized, verdict=verdict, turns=turns, asked_as=kind_of(question))


NORMAL_90 = 1.645
"""Standard deviations between the middle and either end of a 90 % interval of a normal distribution."""

AT_LOW, AT_HIGH = 0.05, 0.95
"""Shares of published values below the ends of an interval, where its row does not say."""

FIRM = 0.9
"""Chance from which on a step is said to fit; at 0.8, ten of 39 public runs that failed were said to. "Does
not fit" keeps somebody from trying, and takes more: the lower end of the 90 % interval."""

FEWEST_PEAKS, FEWEST_HELD = 10, 0.8
"""Published peaks, and the share of those of sources left out between the ends, that a chance rests on."""


def chance_to_fit(memory: Memory, error: Mapping[str, Any]) -> float | None:
    """Return how likely what is reserved has room: by an engine's recorded error, normal on either side.

    `at_low` and `at_high` of the error say which quantiles its ends are. None where that error is chosen, of
    few published peaks, or does not hold for sources left out.
    """
    if error["n"] < FEWEST_PEAKS or error.get("held", 1.0) < FEWEST_HELD:
        return None
    likely = error.get("likely", 1.0)
    free = log(memory.room_B / (memory.reserved_B.likely * likely))
    below, above = error.get("at_low", AT_LOW), error.get("at_high", AT_HIGH)
    end, share = (error["high"] / likely, above) if free > 0 else (likely / error["low"], 1 - below)
    return NormalDist().cdf(NormalDist().inv_cdf(share) * free / log(end))


def sized_by(answer: Answer, memory: Memory, question: Question, keys: bool) -> Memory:
    """Return memory with intervals from the engine's error; `keys`: also from keys that are not modelled."""
    left_out = unmodelled(question) if keys else []
    scores_B = scores_of(memory, question) if EXPLICIT in left_out else 0.0
    lowers, _ = of_keys([key for key in left_out if not scores_B or key != EXPLICIT])
    _, raises = of_keys([key for key in left_out if key.most_B is None])
    added_B = sum(key.most_B or 0.0 for key in left_out)
    sizes = {}
    for kind, was in (("allocated_B", memory.allocated_B), ("reserved_B", memory.reserved_B)):
        error, likely = error_of(answer.engine, question, kind.removesuffix("_B")), was.likely
        scored = 1 - scores_B / memory.allocated_B.likely if scores_B else 1.0
        low_B = likely * scored * (error["low"] * lowers)
        states_B = states_of(memory, question)
        if states_B and any(key.to_states for key in left_out):
            low_B = min(low_B, states_B * error["low"])
        sizes[kind] = Interval(low_B, likely, likely * (error["high"] * raises) + added_B)
    return msgspec.structs.replace(memory, **sizes)


def judged(
    answer: Answer, memory: Memory, by_error: Memory, question: Question
) -> tuple[FitVerdict, tuple[Turn, ...]]:
    """Return the verdict, and what may turn it, the likeliest first.

    `by_error`: the memory with intervals from the engine's error alone.
    """
    fits, peak = bool(answer.likely_fits), memory.peak_at(question.micro_batch_size)
    turns = []
    for choice in answer.others:  # than what the question leaves open and the engine assumed
        if choice.fits != fits:
            name, _, value = choice.choice.partition("=")
            turns.append(Turn(kind="assumption", name=name, other=value))
    sharded = not fits and sharded_would_fit(memory, question)
    if sharded:
        turns.append(Turn(kind="assumption", name="sharing", other="fsdp2"))
    turns += unstated(memory, question) if not fits else ()
    for name, size_B in (("even", memory.even_routing_B), ("uneven", memory.uneven_routing_B)):
        needed_B = None if size_B is None else memory.needed(size_B)
        if needed_B is not None and (needed_B <= memory.room_B) != fits:
            turns.append(Turn(kind="routing", name="routing", other=name, peak_B=needed_B))
    if peak is not None and peak.fits_expandable and not peak.fits:  # the question leaves them open
        turns.append(Turn(kind="allocator", name="expandable_segments", other="True"))
    if turned(memory, fits):
        turning = ("raises" if fits else "lowers", "either")
        keys = [key for key in unmodelled(question) if key.memory in turning]
        named = [
            Turn(kind="key", name=key.key, value="" if key.value is None else str(key.value), why=key.means)
            for key in keys
            if not (sharded and key.field == "sharing")  # said already
        ]
        turns = [*named, *turns]
    frees_its_cache = fits and peak is not None and peak.fits_with_slack
    is_likely = fits and memory.chance_to_fit is not None and memory.chance_to_fit >= FIRM
    if turned(by_error, fits) and not frees_its_cache and not is_likely:
        turns.append(of_error(answer, question))
    return ("depends" if turns else "fits" if fits else "does not fit"), tuple(turns)


def sharded_would_fit(memory: Memory, question: Question) -> bool:
    """Return whether a file that leaves sharding to its launcher is taken as DDP, and shards would fit.

    Of what is reserved, each of n ranks then has 1/n of parameters, gradients, which DDP has in buckets, and
    states; what is gathered for one layer at a time is left out.
    """
    peak, ranks = memory.peak_at(question.micro_batch_size), question.devices or 1
    of_file = question.format and question.origin("sharing").kind == "assumption"
    if peak is None or not of_file or question.sharing != "ddp" or ranks == 1:
        return False
    return memory.reserved_B.likely - states_of(memory, question) * (1 - 1 / ranks) <= memory.room_B


RECOMPUTED = 2 / 34
"""Of a layer's activations its input, all that full recomputation keeps (arXiv 2205.05198, equation 2)."""


def unstated(memory: Memory, question: Question) -> Iterator[Turn]:
    """Yield what would make a published run fit and is not stated: all recomputation, no whole logits."""
    kept_B = memory.parts_B.get("activations", 0.0) if question.recompute == "none" else 0.0
    whole = not question.fused_loss and question.loss_chunks == 1
    saved_B = {
        "recompute": (1 - RECOMPUTED) * kept_B,
        "fused_loss": memory.parts_B.get("logits", 0.0) * whole,
    }
    for name, other in (("recompute", "full"), ("fused_loss", "True")):
        open_ = is_described(question) and question.origin(name).kind == "assumption"
        if open_ and saved_B[name] and memory.reserved_B.low - saved_B[name] <= memory.room_B:
            yield Turn(kind="assumption", name=name, other=other)


def states_of(memory: Memory, question: Question) -> float:
    """Return the bytes of parameters, gradients with what carries them, and optimizer states, of the peak."""
    peak = memory.peak_at(question.micro_batch_size)
    if peak is None:
        return memory.parts_B.get("states", 0.0)
    kinds = ("parameters", "gradients", "communication", "optimizer_states", "reference")
    return sum(peak.by_kind_B.get(kind, 0.0) for kind in kinds)


def scores_of(memory: Memory, question: Question) -> float:
    """Return the bytes of attention's scores at the peak, which a fused kernel does not have."""
    peak = memory.peak_at(question.micro_batch_size)
    live_B = {} if peak is None else peak.live_B
    return sum(size_B for label, size_B in live_B.items() if label.partition(": ")[0] == SCORES)


def turned(memory: Memory, fits: bool) -> bool:
    """Return whether the room lies between what is likely reserved and the end of its interval.

    A step may still fit where more is reserved without a limit than there is room, since the allocator then
    frees its cache: a dry run replays that, with its error, in `Peak.fits_with_slack`.
    """
    return (memory.reserved_B.high > memory.room_B) if fits else (memory.reserved_B.low <= memory.room_B)


def of_error(answer: Answer, question: Question) -> Turn:
    """Return the engine's own error, which may turn the verdict.

    Of a dry run that of each allocation decides, which is replayed.
    """
    name: EngineName = "dry run" if answer.engine == "dry run" else "account"
    row = error_of(name, question, "allocated" if name == "dry run" else "reserved")
    ends = [f"{float(row[end]) - 1:+.0%}" for end in ("low", "high")]
    why = f"on {row['n']} published peaks" if row["n"] else "chosen, since no published peak shows it"
    return Turn(kind="error", name=name, value=" to ".join(ends), why=why)
