"""How sure an answer is: intervals of its bytes, a verdict of three values, and what may turn it.

The interval of bytes has the engine's recorded error (conf/engine_errors.yaml) and is widened by each key
that is read and not modelled, in the direction that its framework's table names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import msgspec

from harness.answer import Answer, EngineName, FitVerdict, Interval, Memory, Peak, Turn
from harness.config.variants.optimizations import CONF, read_yaml
from harness.question import KeyRead, Question


class Error(NamedTuple):
    """Ends of the interval of published over predicted bytes."""

    low: float
    high: float


@cache
def recorded() -> Mapping[str, Any]:
    """Return conf/engine_errors.yaml."""
    return read_yaml(CONF / "engine_errors.yaml")


def row_of(engine: EngineName | None, question: Question, kind: str) -> Mapping[str, Any]:
    """Return the row of conf/engine_errors.yaml of an engine's bytes; `kind`: allocated or reserved."""
    table = recorded()["dry run" if engine == "dry run" else "account"]
    experts = "_experts" if has_experts(question) else ""
    several = "_several" if (question.devices or 1) > 1 else "_one"
    names = (f"{kind}{several}", kind) if engine == "dry run" else (f"{kind}{experts}", kind)
    return next(table[name] for name in names if name in table)


def error_of(engine: EngineName | None, question: Question, kind: str) -> Error:
    """Return the recorded error of an engine's bytes; `kind`: allocated or reserved."""
    row = row_of(engine, question, kind)
    return Error(float(row["low"]), float(row["high"]))


def has_experts(question: Question) -> bool:
    """Return whether a question's model is a mixture of experts."""
    config = question.config or {}
    return any(config.get(name) for name in ("num_experts", "num_local_experts", "n_routed_experts"))


def unmodelled(question: Question) -> list[KeyRead]:
    """Return the keys of a file that are read, not modelled, and change the bytes."""
    return [key for key in question.keys if key.status == "not modelled" and key.memory != "none"]


def with_certainty(answer: Answer, question: Question) -> Answer:
    """Return an engine's answer with intervals of its bytes, its verdict, and what may turn it."""
    memory = answer.memory
    if answer.verdict == "refused" or memory is None:
        return answer
    by_error, sized = (sized_by(answer, memory, question, keys) for keys in (False, True))
    fits = answer.verdict == "fits" if answer.likely_fits is None else answer.likely_fits
    answer = answer.with_(likely_fits=fits)
    if question.search:
        return answer.with_(memory=sized)
    verdict, turns = judged(answer, sized, by_error, question)
    return answer.with_(memory=sized, verdict=verdict, turns=turns)


def sized_by(answer: Answer, memory: Memory, question: Question, keys: bool) -> Memory:
    """Return memory with intervals from the engine's error; `keys`: also from keys that are not modelled."""
    sizes = {}
    for kind in ("allocated", "reserved"):
        error = error_of(answer.engine, question, kind)
        likely = getattr(memory, f"{kind}_B").likely
        sizes[f"{kind}_B"] = Interval(likely, likely, likely).times(
            *widened(error, question) if keys else error
        )
    return msgspec.structs.replace(memory, **sizes)


def widened(error: Error, question: Question) -> Error:
    """Return the error with what keys that are not modelled may do."""
    low, high = error
    directions = {key.memory for key in unmodelled(question)}
    if directions & {"lowers", "either"}:
        low *= float(recorded()["keys"]["lowers"])
    if directions & {"raises", "either"}:
        high *= float(recorded()["keys"]["raises"])
    return Error(low, high)


def judged(
    answer: Answer, memory: Memory, by_error: Memory, question: Question
) -> tuple[FitVerdict, tuple[Turn, ...]]:
    """Return the verdict, and what may turn it, the likeliest first.

    `by_error`: the memory with intervals from the engine's error alone.
    """
    fits = bool(answer.likely_fits)
    turns = [*of_choices(answer, fits), *of_routing(memory, fits), *of_allocator(memory, question)]
    keys = list(of_keys(question, fits))
    if keys and turned(memory, fits):
        turns = [*keys, *turns]
    peak = peak_at(memory, question.micro_batch_size)
    frees_its_cache = fits and peak is not None and peak.fits_with_slack
    if turned(by_error, fits) and not frees_its_cache:
        turns = [*turns, of_error(answer, question)]
    return ("depends" if turns else "fits" if fits else "does not fit"), tuple(turns)


def turned(memory: Memory, fits: bool) -> bool:
    """Return whether the room lies between what is likely reserved and the end of its interval.

    A step may still fit where more is reserved without a limit than there is room, since the allocator then
    frees its cache: a dry run replays that, with its error, in `Peak.fits_with_slack`.
    """
    return (memory.reserved_B.high > memory.room_B) if fits else (memory.reserved_B.low <= memory.room_B)


def of_choices(answer: Answer, fits: bool) -> Iterator[Turn]:
    """Yield what the question leaves open and the engine assumed, where another choice turns the verdict."""
    for other in answer.others:
        if other.fits != fits:
            name, _, value = other.choice.partition("=")
            yield Turn(kind="assumption", name=name, other=value)


def needed(memory: Memory, allocated_B: float) -> float:
    """Return the bytes that another rank or routing needs, with fragmentation as the peak's own."""
    return allocated_B * memory.reserved_B.likely / memory.allocated_B.likely


def of_allocator(memory: Memory, question: Question) -> Iterator[Turn]:
    """Yield expandable segments, where they alone let the step fit: the question leaves them open."""
    peak = peak_at(memory, question.micro_batch_size)
    if peak is not None and peak.fits_expandable and not peak.fits:
        yield Turn(kind="allocator", name="expandable_segments", other="True")


def of_routing(memory: Memory, fits: bool) -> Iterator[Turn]:
    """Yield the routing of tokens to experts, where an even or an uneven one turns the verdict."""
    for name, size_B in (("even", memory.even_routing_B), ("uneven", memory.uneven_routing_B)):
        needed_B = None if size_B is None else needed(memory, size_B)
        if needed_B is not None and (needed_B <= memory.room_B) != fits:
            yield Turn(kind="routing", name="routing", other=name, peak_B=needed_B)


def of_keys(question: Question, fits: bool) -> Iterator[Turn]:
    """Yield the keys that are not modelled and may turn the verdict."""
    turning = ("raises", "either") if fits else ("lowers", "either")
    for key in unmodelled(question):
        if key.memory in turning:
            yield Turn(kind="key", name=key.key, value=str(key.value), why=key.means)


def of_error(answer: Answer, question: Question) -> Turn:
    """Return the engine's own error, which may turn the verdict."""
    row = row_of(answer.engine, question, deciding(answer))
    ends = [f"{float(row[end]) - 1:+.0%}" for end in ("low", "high")]
    why = f"on {row['n']} published peaks" if row["n"] else "chosen, since no published peak shows it"
    return Turn(
        kind="error",
        name="dry run" if answer.engine == "dry run" else "account",
        value=" to ".join(ends),
        why=why,
    )


def deciding(answer: Answer) -> str:
    """Return which bytes' error decides: of a dry run that of each allocation, which is replayed."""
    return "allocated" if answer.engine == "dry run" else "reserved"


def peak_at(memory: Memory, micro_batch_size: int) -> Peak | None:
    """Return the peak of a dry run at a micro-batch."""
    return next((one for one in memory.peaks if one.micro_batch_size == micro_batch_size), None)
