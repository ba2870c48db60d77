"""A predicted step as a timeline: what each pipeline rank does when, its schedule stepped through time.

`PassParts` has the seconds of the forward and of the backward pass of one micro-batch on each pipeline rank.
`seconds.rank_s` has both in one; here they are apart, with what is recomputed and with the communication that
nothing hides. They add up to the same.

The schedule: when each rank runs which pass of which micro-batch. 1F1B and interleaved 1F1B are in
Megatron-Core's order (core/pipeline_parallel/schedules.py), and all forward passes before all backward
passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from suites.training.layouts.layout import Floats, Layouts
from suites.training.step_time.layer import (
    BACKWARD_COLLECTIVES,
    FORWARD_COLLECTIVES,
    HeadSeconds,
    head_s,
    kinds_of_layers,
    layer_s,
    logits_B,
    neighbour_B_per_s,
    send_exposed_s,
    tensor_network_s,
)
from suites.training.step_time.seconds import FORWARD_SHARE, StepSeconds, blocks_of_ranks, one_layer, repeated
from suites.training.step_time.setting import LayerKind, StepSetting


class PassParts(NamedTuple):
    """Seconds of one micro-batch by pass. Computation counts with its waits for the host."""

    forward: Floats
    forward_exposed: Floats  # communication that nothing hides
    recompute: Floats
    backward: Floats
    backward_exposed: Floats

    @property
    def forward_s(self) -> Floats:
        """Return the seconds of the forward pass."""
        return self.forward + self.forward_exposed

    @property
    def backward_s(self) -> Floats:
        """Return the seconds of the backward pass, recomputation included."""
        return self.recompute + self.backward + self.backward_exposed

    def times(self, count: Floats | float) -> PassParts:
        """Return the seconds of so many."""
        return PassParts(*(part * count for part in self))

    def plus(self, other: PassParts) -> PassParts:
        """Return the seconds of both in turn."""
        return PassParts(*(one + two for one, two in zip(self, other, strict=True)))


def layer_passes(setting: StepSetting, layouts: Layouts, kind: LayerKind) -> PassParts:
    """Return the seconds of a layer of one kind, as arrays over layouts; they add up to `one_layer`.

    Where the model has one sum for both passes (waits for the host, keys and values, sharded parameters), a
    third of it is put into the forward pass, as of a stage in `seconds.FORWARD_SHARE`.
    """
    kernels, whole = layer_s(setting, layouts, kind), one_layer(setting, layouts, kind)
    shares = repeated(setting, layouts, kind)
    again = sum(part.forward * share for part, share in zip(kernels, shares, strict=False))
    network = tensor_network_s(setting, layouts, shares.sent)
    launch = (whole.launch - network) / (1 + shares.launched * FORWARD_SHARE)
    collectives = FORWARD_COLLECTIVES * (1 + shares.sent) + BACKWARD_COLLECTIVES
    tensor = (whole.tensor + network) / collectives
    either = whole.context + whole.shard
    forward_exposed = tensor * FORWARD_COLLECTIVES + whole.expert / 2 + either * FORWARD_SHARE
    exposed = whole.tensor + network + whole.expert + either
    return PassParts(
        np.asarray(sum(part.forward for part in kernels) + launch * FORWARD_SHARE),
        forward_exposed,
        np.asarray(again + launch * shares.launched * FORWARD_SHARE),
        np.asarray(sum(part.backward for part in kernels) + launch * (1 - FORWARD_SHARE)),
        exposed - forward_exposed,
    )


def mean_layer_passes(setting: StepSetting, layouts: Layouts) -> PassParts:
    """Return the seconds of a layer in the mean over the model's kinds of layers."""
    mean = PassParts(*(np.zeros(len(layouts.dp)) for _ in PassParts._fields))
    for kind, count in kinds_of_layers(setting).items():
        share = count / setting.shape.num_hidden_layers
        mean = mean.plus(layer_passes(setting, layouts, kind).times(share))
    return mean


def head_passes(head: HeadSeconds) -> PassParts:
    """Return the seconds of the output layer, without the loss."""
    none = np.zeros_like(head.added)
    return PassParts(head.matmul.forward, none, none, head.matmul.backward + head.added, none)


def loss_passes(loss_s: Floats) -> PassParts:
    """Return the seconds of the loss, of which the model has one sum for both passes."""
    none = np.zeros_like(loss_s)
    return PassParts(loss_s * FORWARD_SHARE, none, none, loss_s * (1 - FORWARD_SHARE), none)


def exposed_passes(each_s: Floats) -> PassParts:
    """Return the seconds of what is sent forward, and as much backward."""
    none = np.zeros_like(each_s)
    return PassParts(none, each_s, none, none, each_s)


def rank_passes(setting: StepSetting, layout: Layouts) -> PassParts:
    """Return the seconds of one micro-batch on each pipeline rank of one layout, as arrays over ranks."""
    pp = int(layout.pp[0])
    blocks = blocks_of_ranks(setting.shape, pp, setting.training.program)
    layer, head = mean_layer_passes(setting, layout), head_s(setting, layout)
    output, loss = head_passes(head), loss_passes(head.loss)
    ranks = np.arange(pp)
    total = layer.times(np.array(blocks.layers, dtype=float))
    total = total.plus(exposed_passes(send_exposed_s(setting, layout) / 2).times(np.ones(pp)))
    total = total.plus(output.times((ranks == blocks.head) * 1.0))
    at_loss = loss.plus(layer.plus(output).plus(loss).times(setting.shape.num_nextn_predict_layers))
    if blocks.head != blocks.loss:
        at_loss = at_loss.plus(exposed_passes(logits_B(setting, layout) / neighbour_B_per_s(setting, layout)))
    return total.plus(at_loss.times((ranks == blocks.loss) * 1.0))


PassOrder = Literal["1f1b", "afab"]


class StagePass(NamedTuple):
    """One pass of one micro-batch through one stage; a rank's stages are pp apart."""

    backward: bool
    micro_batch: int
    stage: int


class TimedPass(NamedTuple):
    """A pass, on which rank it ran, and when."""

    work: StagePass
    rank: int
    start_s: float
    end_s: float


def passes_of_rank(
    rank: int, pp: int, micro_batches: int, virtual_stages: int, order: PassOrder
) -> list[StagePass]:
    """Return a rank's passes in the order in which it runs them; raises ValueError where none is defined."""
    if virtual_stages > 1 and micro_batches % pp:
        raise ValueError(f"{micro_batches} micro-batches: interleaved stages take a multiple of pp={pp}")
    total = micro_batches * virtual_stages
    forward = [_nth(index, rank, pp, virtual_stages, False) for index in range(total)]
    backward = [_nth(index, rank, pp, virtual_stages, True) for index in range(total)]
    if order == "afab":
        return forward + backward
    ahead = pp - rank - 1
    if virtual_stages > 1:
        ahead = 2 * ahead + (virtual_stages - 1) * pp
    ahead = min(ahead, total)
    steady = [one for pair in zip(forward[ahead:], backward, strict=False) for one in pair]
    return forward[:ahead] + steady + backward[total - ahead :]


def _nth(index: int, rank: int, pp: int, virtual_stages: int, backward: bool) -> StagePass:
    """Return a rank's n-th forward or backward pass: pp micro-batches through each of its stages in turn."""
    turn = index // pp % virtual_stages
    chunk = virtual_stages - 1 - turn if backward else turn
    micro_batch = index // (pp * virtual_stages) * pp + index % pp
    return StagePass(backward, micro_batch if virtual_stages > 1 else index, chunk * pp + rank)


def stepped(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    micro_batches: int,
    virtual_stages: int = 1,
    order: PassOrder = "1f1b",
) -> list[TimedPass]:
    """Return every pass with its start and its end; seconds are those of one stage, per rank.

    A forward pass waits for that of the stage before, a backward pass for that of the stage after.
    """
    pp = len(forward_s)
    waiting = [passes_of_rank(rank, pp, micro_batches, virtual_stages, order) for rank in range(pp)]
    last, at, free = pp * virtual_stages - 1, [0] * pp, [0.0] * pp
    ended: dict[StagePass, float] = {}
    done: list[TimedPass] = []
    while len(done) < sum(map(len, waiting)):
        before = len(done)
        for rank in range(pp):
            while at[rank] < len(waiting[rank]):
                work = waiting[rank][at[rank]]
                needed = _needed(work, last)
                if needed is not None and needed not in ended:
                    break
                start = max(free[rank], ended[needed] if needed else 0.0)
                free[rank] = start + (backward_s if work.backward else forward_s)[rank]
                ended[work] = free[rank]
                done.append(TimedPass(work, rank, start, free[rank]))
                at[rank] += 1
        if len(done) == before:
            raise RuntimeError("a schedule in which every rank waits for another")
    return done


def _needed(work: StagePass, last: int) -> StagePass | None:
    """Return the pass whose result a pass needs."""
    if not work.backward:
        return work._replace(stage=work.stage - 1) if work.stage else None
    return work._replace(backward=False) if work.stage == last else work._replace(stage=work.stage + 1)


SpanKind = Literal["forward", "recompute", "backward", "exposed_communication", "optimizer", "other", "idle"]

MOST_SPANS = 1500
"""Spans that a timeline has at most; beyond that, passes that follow one another are summed up."""

MOST_SPANS_PER_RANK = 24
"""The same of one rank, where there are many."""

SPANS_PER_PASS = 3
"""Of one kind each, in the mean, idle ones included."""

MOST_PASSES = 60_000
"""Passes that are stepped through time at most, in a fraction of a second; beyond that, ranks have totals."""

SHORTEST_S = 1e-9
"""An idle span that is shorter is rounding."""

EXTRA_MICRO_BATCHES = 4
"""Micro-batches that a view of a step's start or end shows in addition to the pipeline's filling."""


class TimeSpan(NamedTuple):
    """What a rank does from when to when, in seconds from the start of the step."""

    kind: SpanKind
    start_s: float
    end_s: float


class StepTimeline(NamedTuple):
    """The spans of each pipeline rank in order, idle ones included."""

    ranks: list[list[TimeSpan]]
    passes_per_span: int  # passes summed up in one group of spans; 0: all of a rank
    drawn_over_stepped: float  # how much longer passes are drawn than the schedule has them


View = Literal["step", "start", "end", "totals"]

PartSeconds = Iterable[tuple[SpanKind, float]]


def timeline(
    setting: StepSetting, layout: Layouts, step: StepSeconds, total_s: float, view: View = "step"
) -> StepTimeline:
    """Return what each rank of one layout does in a step of `total_s` seconds, of which `step` are the parts.

    The schedule is stepped through time with each rank's own passes; the step's seconds come from a formula
    that is a few percent off with uneven stages, so passes are drawn as much longer or shorter. Gradients are
    reduced and parameters updated after the pipeline has drained. `view`: all of the step, its start or its
    end, or totals per rank in place of an order.
    """
    parts, micro_batches = rank_passes(setting, layout), int(layout.micro_batches[0])
    virtual, after = int(layout.virtual_stages[0]), _after(step, total_s)
    ranks = [PassParts(*(part[rank] for part in parts)) for rank in range(len(parts.forward))]
    pipelined_s = total_s - sum(seconds for _, seconds in after)
    if view == "totals" or 2 * micro_batches * virtual * len(ranks) > MOST_PASSES:
        rows = [
            _total(own.times(micro_batches), pipelined_s) + list(_in_turn(after, pipelined_s))
            for own in ranks
        ]
        return StepTimeline(rows, 0, 1.0)
    one = parts.times(1 / virtual)
    done = stepped(one.forward_s.tolist(), one.backward_s.tolist(), micro_batches, virtual)
    factor = pipelined_s / max(each.end_s for each in done)
    shown_s = (len(ranks) + EXTRA_MICRO_BATCHES) * float((parts.forward_s + parts.backward_s).max()) * factor
    window = _window(view, shown_s, pipelined_s, total_s)
    passes: list[list[TimedPass]] = [[] for _ in ranks]
    for one_pass in done:
        if one_pass.end_s * factor > window[0] and one_pass.start_s * factor < window[1]:
            passes[one_pass.rank].append(one_pass)
    at_once = _at_once(sum(map(len, passes)), len(ranks), virtual)
    rows = []
    for own_passes, own in zip(passes, ranks, strict=True):
        spans = _spans(own_passes, own.times(factor / virtual), at_once, factor, (window[0], pipelined_s))
        rows.append(_clipped([*spans, *_in_turn(after, pipelined_s)], window))
    return StepTimeline(rows, at_once, factor)


def _at_once(passes: int, ranks: int, virtual_stages: int) -> int:
    """Return how many passes are summed up: one, or those of whole micro-batches, forward and backward."""
    most = max(MOST_SPANS, MOST_SPANS_PER_RANK * ranks)
    if passes * SPANS_PER_PASS <= most:
        return 1
    turn = 2 * virtual_stages
    return turn * -(-passes * SPANS_PER_PASS // (most * turn))


def _after(step: StepSeconds, total_s: float) -> list[tuple[SpanKind, float]]:
    """Return what follows once the pipeline has drained: reduction, update, generation, stragglers.

    `total_s` also has the allocator's retries, which `step` has not.
    """
    rest = float(step.generation[0] + step.rest[0]) + total_s - float(step.total[0])
    return [
        ("exposed_communication", float(step.reduction[0])),
        ("optimizer", float(step.update[0])),
        ("other", rest),
    ]


def _pieces(own: PassParts, forward: int, backward: int) -> PartSeconds:
    """Yield the seconds of so many forward and backward passes of one rank by kind."""
    exposed = forward * own.forward_exposed + backward * own.backward_exposed
    yield "forward", float(forward * own.forward)
    yield "recompute", float(backward * own.recompute)
    yield "backward", float(backward * own.backward)
    yield "exposed_communication", float(exposed)


def _in_turn(pieces: PartSeconds, start_s: float) -> Iterator[TimeSpan]:
    """Yield pieces one after the other."""
    for kind, seconds in pieces:
        if seconds > 0:
            yield TimeSpan(kind, start_s, start_s + seconds)
            start_s += seconds


def _total(own: PassParts, pipelined_s: float) -> list[TimeSpan]:
    """Return the seconds of all passes of a rank by kind, and for how long it is idle."""
    spans = list(_in_turn(_pieces(own, 1, 1), 0.0))
    end_s = spans[-1].end_s if spans else 0.0
    return [*spans, TimeSpan("idle", end_s, max(pipelined_s, end_s))]


def _spans(
    passes: Iterable[TimedPass], own: PassParts, at_once: int, factor: float, ends_s: tuple[float, float]
) -> Iterator[TimeSpan]:
    """Yield the spans of one rank's passes between two ends, up to `at_once` of them summed up.

    Idle seconds between summed passes are drawn after them.
    """
    now_s, end_s = ends_s
    longest_s = at_once / 2 * float(own.forward_s) / factor
    for group in _groups(passes, at_once, longest_s):
        start_s = group[0].start_s * factor
        if start_s - now_s > SHORTEST_S:
            yield TimeSpan("idle", now_s, start_s)
        backward = sum(one.work.backward for one in group)
        spans = list(_in_turn(_pieces(own, len(group) - backward, backward), start_s))
        yield from spans
        now_s = spans[-1].end_s
    if end_s - now_s > SHORTEST_S:
        yield TimeSpan("idle", now_s, end_s)


def _groups(passes: Iterable[TimedPass], at_once: int, longest_s: float) -> Iterator[list[TimedPass]]:
    """Yield passes in groups of up to `at_once`; an idle time above `longest_s` ends a group, too."""
    group: list[TimedPass] = []
    for one in passes:
        if group and (len(group) == at_once or one.start_s - group[-1].end_s > longest_s):
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def _window(view: View, shown_s: float, pipelined_s: float, total_s: float) -> tuple[float, float]:
    """Return the seconds that a view shows, from when to when."""
    if view == "start":
        return 0.0, min(shown_s, total_s)
    if view == "end":
        return max(pipelined_s - shown_s, 0.0), total_s
    return 0.0, total_s


def _clipped(spans: Iterable[TimeSpan], window: tuple[float, float]) -> list[TimeSpan]:
    """Return the spans that a window shows, cut at its ends."""
    low, high = window
    return [
        TimeSpan(one.kind, max(one.start_s, low), min(one.end_s, high))
        for one in spans
        if one.end_s > low and one.start_s < high
    ]
