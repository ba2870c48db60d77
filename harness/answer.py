"""What an engine answers to a `Question`: bytes and seconds as intervals, a verdict, and what may turn it.

Everything that is printed, drawn, written as a framework's file or recorded comes from an `Answer`'s fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

FitVerdict = Literal["fits", "does not fit", "depends", "refused"]
EngineName = Literal["dry run", "account", "step time"]


class Interval(NamedTuple):
    """A prediction with the ends of its 90 % interval."""

    low: float
    likely: float
    high: float


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """What may turn a verdict: an assumption, a key that is not modelled, or the engine's own error."""

    kind: Literal["assumption", "key", "error", "routing", "allocator"]
    name: str  # the field, the key, or the engine
    value: str = ""  # what was taken, or the key's value
    other: str = ""  # under what the verdict is another; in words
    peak_B: float | None = None  # then
    why: str = ""


SCORES = "attention scores"  # what live bytes of a peak are of, where attention is explicit


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's peak at a micro-batch."""

    micro_batch_size: int
    fits: bool
    allocated_B: float  # of the allocator's blocks, as torch.cuda.max_memory_allocated counts them
    reserved_B: float  # by torch's allocator, had it no limit
    fits_expandable: bool = False  # with expandable segments
    fits_with_slack: bool = False  # were each allocation as much larger as the engine's error allows
    retries: int = 0  # of the allocator, in two steps
    by_kind_B: dict[str, float] = {}
    live_B: dict[str, float] = {}  # by what it is of, largest first


class OtherChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The answer under another choice than one that the question leaves open."""

    choice: str
    fits: bool
    largest_micro_batch: int


class TriedChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the question with what it needs, or the reason why it was not tried."""

    title: str
    reason: str = ""
    peak_B: float | None = None
    fits: bool | None = None
    retries: bool = False
    largest_micro_batch: int | None = None


class HostStates(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank keeps in host memory."""

    rank_B: float
    pinned_B: float = 0.0
    reserved_B: float = 0.0  # what torch takes for it: pinned blocks are rounded up to powers of two


class RankedLayout(msgspec.Struct, frozen=True, kw_only=True):
    """A layout with its memory, and with its seconds where they were predicted."""

    title: str
    parts: dict[str, int]  # a row of suites.training.layouts.layout.Layouts
    needed_B: float
    room_B: float
    fits: bool
    retries: bool = False
    margin: float | None = None  # share of the room that one sequence per micro-batch leaves
    largest_micro_batch: int | None = None
    chance_to_run: float | None = None  # 0 to 1, by how far off bytes are and what else fails
    step_s: Interval | None = None
    basis: str = ""  # what the interval of the seconds rests on
    as_run_s: Interval | None = None  # as runs of its kind come out that others publish; step_s: as tuned
    as_run_of: str = ""  # which these are
    as_run_kind: str = ""  # of what kind, see suites.training.step_time.prediction
    tokens_per_s_per_device: float | None = None
    model_FLOP_per_s: float | None = None  # per device
    mfu: float | None = None

    def gpu_hours(self, tokens: float) -> tuple[float, float, float]:
        """Return the hours of one GPU that so many tokens take, and the ends of their 90 % interval."""
        assert self.step_s is not None
        hours = tokens / (self.tokens_per_s_per_device or 1.0) / 3600
        low, likely, high = self.step_s
        return hours, hours * low / likely, hours * high / likely


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of one rank, of the rank that needs the most."""

    usable_B: float  # of one device, by a process
    room_B: float  # of it, for torch's allocator
    outside_B: dict[str, float] = {}  # the rest: CUDA context, NCCL's buffers
    allocated_B: Interval  # peak
    reserved_B: Interval
    chance_to_fit: float | None = None  # 0 to 1, by the engine's recorded error alone
    peaks: tuple[Peak, ...] = ()  # by micro-batch, of a dry run
    parts_B: dict[str, float] = {}  # of the peak, of an account
    largest_micro_batch: int | None = None  # None: not known yet; 0: none fits
    stage: int = 0  # whose rank it is
    first_stage_B: float | None = None
    last_stage_B: float | None = None
    even_routing_B: float | None = None  # experts with equal shares
    uneven_routing_B: float | None = None  # the busiest with half as much again
    host: HostStates | None = None

    def peak_at(self, micro_batch_size: int) -> Peak | None:
        """Return the peak of a dry run at a micro-batch."""
        return next((one for one in self.peaks if one.micro_batch_size == micro_batch_size), None)

    def needed(self, allocated_B: float) -> float:
        """Return the bytes that another rank or routing needs, with fragmentation as the peak's own."""
        return allocated_B * self.reserved_B.likely / self.allocated_B.likely


class StepCause(msgspec.Struct, frozen=True, kw_only=True):
    """A cause of a slower or faster step, with the seconds that it predicts, and where they are seen.

    Places: computing, communication, gaps of launches, ranks waited for, data waited for, idle; and the same
    step by a program's timers: forward, backward, reduction, optimizer, spread of the passes over ranks.
    """

    family: str
    title: str
    step_s: float
    weight: float = 1.0  # how likely its size is among those of its family
    places_s: dict[str, float] = {}


class NearestStep(msgspec.Struct, frozen=True, kw_only=True):
    """A published step that is near, with what is predicted for it."""

    title: str
    published_s: float
    predicted_s: float
    FLOP_per_device: float


class StepAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The seconds of a step: of the first layout of an answer."""

    parts_s: dict[str, float] = {}
    places_s: dict[str, float] = {}  # the same by where a profiler shows them, see `StepCause`
    switches: dict[str, float] = {}  # seconds per token with one switch changed, over the layout's own
    switches_that_do_not_fit: tuple[str, ...] = ()
    causes: tuple[StepCause, ...] = ()
    nearest: tuple[NearestStep, ...] = ()


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What one question is answered with. A refused one has a `reason` alone."""

    verdict: FitVerdict
    likely_fits: bool | None = None  # by the engine's own value
    reason: str = ""  # of a refusal
    engine: EngineName | None = None
    why: str = ""  # this engine
    turns: tuple[Turn, ...] = ()
    parameters: float | None = None
    memory: Memory | None = None
    others: tuple[OtherChoice, ...] = ()
    changes: tuple[TriedChange, ...] = ()
    layouts_tried: int | None = None
    layouts_that_fit: int | None = None
    layouts: tuple[RankedLayout, ...] = ()  # the first is the one that is answered with
    seconds: StepAnswer | None = None
    conditions: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    usable_B: float | None = None  # of one device, by a process; of a search, which has no memory
    left_out: tuple[str, ...] = ()  # of the question, by the engine; in words
    asked_as: str = ""  # kind of question, of which the bytes' interval has the error
    without: tuple[str, ...] = ()  # techniques that were assumed and that this model or device cannot have
    answer_s: float | None = None

    def with_(self, **fields: Any) -> Answer:
        """Return the answer with other values of fields."""
        return msgspec.structs.replace(self, **fields)


def refused(reason: str) -> Answer:
    """Return the answer to a question that no engine answers."""
    return Answer(verdict="refused", reason=reason)


def on_disk(answer: Answer) -> Mapping[str, Any]:
    """Return the fields of answer.json: in base units, and on top what a reader looks for first, in GB."""
    first: dict[str, Any] = {"verdict": answer.verdict, "reason": answer.reason}
    memory = answer.memory
    if memory is not None:
        for name, interval in (("allocated", memory.allocated_B), ("reserved", memory.reserved_B)):
            first |= {
                f"peak_{name}_GB": interval.likely / 1e9,
                f"peak_{name}_low_GB": interval.low / 1e9,
                f"peak_{name}_high_GB": interval.high / 1e9,
            }
    tuned = answer.layouts[0].step_s if answer.layouts else None
    if tuned is not None:
        step = answer.layouts[0].as_run_s or tuned
        first |= {"step_s": step.likely, "step_low_s": step.low, "step_high_s": step.high}
        first["step_tuned_s"] = tuned.likely
    if answer.answer_s is not None:
        first["answer_seconds"] = answer.answer_s
    rest: Mapping[str, Any] = msgspec.to_builtins(answer)
    return first | {name: value for name, value in rest.items() if name not in {*first, "answer_s"}}
