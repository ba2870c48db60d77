"""Shares, factors, causes and steps of made-up traces, compared with a count of every single nanosecond."""

import gzip
import json
import random
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from kineto_traces import EPOCH_NS, Writer

from harness.config.code_fingerprint import ROOT
from harness.instruments.traces import TraceError
from harness.instruments.traces.activity import Activity, find_steps
from harness.instruments.traces.breakdown import breakdown
from harness.instruments.traces.causes import causes, sentence
from harness.instruments.traces.factors import OF_KERNELS, factors
from harness.instruments.traces.kineto import read_trace, read_traces
from harness.instruments.traces.output import critical_path
from harness.instruments.traces.segments import State
from harness.instruments.traces.trace import EventKind

STEP_NS, STEPS = 120, 3
NCCL = "ncclDevKernel_AllGather_RING_LL"
WORKING = {"compute": State.COMPUTING, "communicate": State.COMMUNICATION, "copy": State.COPYING}
"""By what runs, the first that applies."""


class RandomRank:
    """A rank with random work: what was written is kept as plain tuples for the count."""

    def __init__(self, seed, on_gpu, rank=0, world_size=1):
        draw = random.Random(seed)
        self.writer = Writer(rank=rank, world_size=world_size)
        self.on_gpu = on_gpu
        self.events = []  # (kind, start, end, called); in the order written
        self.loading = []
        for number in range(STEPS):
            begin = number * STEP_NS
            self.writer.step(number, begin, begin + STEP_NS)
            if draw.random() < 0.7:
                start = begin + draw.randrange(30)
                self.loading.append((start, start + draw.randrange(1, 40)))
                self.writer.annotation("enumerate(DataLoader)#_Iter.__next__", *self.loading[-1])
            for _ in range(draw.randrange(1, 9)):
                kind = draw.choice(["compute", "compute", "communicate", "copy"][: 4 if on_gpu else 3])
                start = begin + draw.randrange(STEP_NS - 2)
                end = min(start + draw.randrange(1, 60), STEPS * STEP_NS)  # may reach into the next step
                self.write(kind, start, end, start - draw.randrange(1, 20) if draw.random() < 0.8 else None)
        self.write("compute", STEP_NS // 2, STEP_NS // 2 + 5, STEP_NS // 2 - 3)

    def write(self, kind, start, end, called):
        loads = not self.on_gpu and kind == "compute" and self.is_loading(start)
        self.events.append(("load" if loads else kind, start, end, called))
        if self.on_gpu:
            name = {"compute": "gemm", "communicate": NCCL, "copy": "Memcpy HtoD"}[kind]
            category = "gpu_memcpy" if kind == "copy" else "kernel"
            stream = {"compute": 7, "communicate": 13, "copy": 14}[kind]
            self.writer.kernel(name, start, end, called=called, stream=stream, category=category)
        elif kind == "compute":
            self.writer.host_event("aten::mm", start, end)
        else:
            self.writer.gloo("all_gather", start, end)

    def running(self, at):
        return {kind for kind, start, end, _ in self.events if start <= at < end}

    def state(self, at):
        """Return what the rank does in the nanosecond that begins at an instant, by the definition."""
        running = self.running(at)
        for kind, state in WORKING.items():
            if kind in running:
                return state
        later = [
            (start, -end, i, called)
            for i, (kind, start, end, called) in enumerate(self.events)
            if start > at and kind != "load"
        ]
        called = (min(later)[3] if self.on_gpu else STEPS * STEP_NS) if later else None
        if called is not None and at >= called:
            return State.CALLING
        if self.is_loading(at):
            return State.WAITING_FOR_DATA
        return State.IDLE if called is None else State.PREPARING

    def is_loading(self, at):
        return any(start <= at < end for start, end in self.loading)


@pytest.mark.parametrize("on_gpu", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_shares_are_what_a_count_of_every_nanosecond_gives(tmp_path, seed, on_gpu):
    rank = RandomRank(seed, on_gpu)
    found = breakdown(read_traces(rank.writer.write(tmp_path)))
    counted = Counter((at // STEP_NS, rank.state(at)) for at in range(STEPS * STEP_NS))
    shares = Counter()
    for share in found.ranks[0].shares:
        for step, time_ns in enumerate(share.by_step_ns):
            shares[step, share.state] += time_ns
    assert +shares == counted
    both = sum(rank.running(at) >= {"compute", "communicate"} for at in range(STEPS * STEP_NS))
    assert found.ranks[0].overlapped_s * 1e9 * STEPS == pytest.approx(both, abs=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_shares_sum_to_the_step_and_factors_multiply_to_it(tmp_path, seed):
    draw = random.Random(seed)
    world = draw.choice([1, 2, 3])
    for rank in range(world):
        RandomRank(1000 * seed + rank, seed % 2 == 0, rank, world).writer.write(tmp_path)
    known = {name: draw.uniform(0.5, 3) for name in OF_KERNELS if draw.random() < 0.5}
    theory = {"model_FLOP": 30.0, "peak_FLOP_per_s": 1e9} if draw.random() < 0.5 else {}
    found = breakdown(read_traces(tmp_path), known_factors=known, **theory)
    for one in found.ranks:
        for parts in (one.shares, one.work):
            by_step = np.sum([part.by_step_ns for part in parts], axis=0)
            assert by_step.tolist() == list(one.step_ns) == [STEP_NS] * STEPS
    assert sum(share.mean_s for share in found.shares) == pytest.approx(found.step_s, rel=1e-12)
    assert found.factors.observed_s == pytest.approx(found.step_s, rel=1e-9)
    assert not theory or found.factors.base_s == pytest.approx(30e-9)
    assert missing(found, "theoretical") == (not theory)
    for name in ("instruction", "utilisation", "frequency"):
        assert missing(found, name) == (name not in known)


def test_factors_by_hand(tmp_path):
    """1000 FLOP at 100 FLOP/ns take 10 ns, and the kernel 40; a factor of 2 is known. Gaps take 60."""
    one = Writer()
    one.step(0, 0, 100)
    one.kernel("gemm", 20, 60, called=10)
    one.kernel("tail", 100, 101, called=95)
    found = breakdown(
        read_traces(one.write(tmp_path)),
        model_FLOP=1000,
        peak_FLOP_per_s=100e9,
        known_factors={"frequency": 2.0},
    )
    value = {factor.name: factor.value for factor in found.factors.factors}
    assert found.factors.base_s == pytest.approx(10e-9)
    # The last kernel was launched in the step and lengthens it by one nanosecond of computing.
    assert (value["overlap"], value["frequency"]) == (1.0, 2.0)
    assert value["not separated: instruction, utilisation"] == pytest.approx(41 / 20)
    assert value["launch gap, prepare"] == pytest.approx((41 + 10 + 35) / 41)
    assert value["launch gap, call"] == pytest.approx((86 + 15) / 86)


def test_overlap_compares_kernels_of_one_size_with_and_without_communication(tmp_path):
    """20 ns alone and 30 ns overlapped; kernels of another grid run alone and do not count."""
    one = Writer()
    one.step(0, 0, 1000)
    for start, length, grid in ((0, 20, 1), (100, 20, 1), (200, 30, 1), (300, 30, 1), (400, 90, 2)):
        one.kernel("gemm", start, start + length, called=max(start - 5, 0), grid=[grid, 1, 1])
    one.kernel(NCCL, 190, 340, called=150, stream=13)
    found = breakdown(read_traces(one.write(tmp_path)))
    overlap = next(factor for factor in found.factors.factors if factor.name == "overlap")
    assert overlap.value == pytest.approx(100 / 80)
    assert found.ranks[0].overlapped_s == pytest.approx(60e-9)


def late_ranks(tmp_path, lateness, shifts=(0, 0, 0), hosts=("", "", ""), world_size=None):
    """Write ranks that compute, then gather together; one arrives `lateness[r]` ns later than it could."""
    for rank, late in enumerate(lateness):
        one = Writer(rank=rank, world_size=world_size or len(lateness), host=hosts[rank])
        one.shift_ns = shifts[rank]
        for number in range(4):
            begin = number * 1000
            one.step(number, begin, begin + 1000)
            one.kernel("gemm", begin + 20, begin + 300 + late, called=begin + 10)
            one.kernel(NCCL, begin + 300 + late, begin + 900, called=begin + 15, stream=13)
            one.kernel("gemm", begin + 900, begin + 1000, called=begin + 800)
        one.write(tmp_path)
    return read_traces(tmp_path)


def waits_of(found):
    return {
        (rank.rank, share.detail): share.by_step_ns
        for rank in found.ranks
        for share in rank.shares
        if share.state == State.WAITING_FOR_RANK
    }


def missing(found, text):
    return any(text in line for line in found.missing)


def test_time_before_the_last_rank_arrives_is_waiting_for_it(tmp_path):
    found = breakdown(late_ranks(tmp_path, [0, 50, 200], world_size=4))
    assert waits_of(found) == {(0, "rank 2"): (200,) * 4, (1, "rank 2"): (150,) * 4}
    exposed = [one.share_of(State.COMMUNICATION) for one in found.ranks]
    assert exposed == pytest.approx([0.4, 0.4, 0.4])
    assert found.matching.collectives == 4
    assert missing(found, "3 of 4 ranks were given")


@pytest.mark.parametrize("shift", [1_500, -1_500])
def test_clocks_that_contradict_each_other_are_aligned_by_the_ends_or_on_one_host_missing(tmp_path, shift):
    """Steps are 1000 ns, so no rank could end a collective before another has called it."""
    found = breakdown(late_ranks(tmp_path, [0, 200], shifts=[0, shift]))
    assert "aligned by the ends of 4 collectives" in found.matching.clocks
    assert found.matching.offsets_ns == (0, shift)
    assert waits_of(found) == {(0, "rank 1"): (200,) * 4}
    found = breakdown(late_ranks(tmp_path, [0, 200], shifts=[0, shift], hosts="aa"))
    assert missing(found, "contradict each other in 4 of 4")
    assert missing(found, "clocks=aligned")


@pytest.mark.parametrize("named", [False, True])
def test_collectives_are_matched_by_sequence_number_in_each_group_if_it_is_known(tmp_path, named):
    """Rank 1 calls the collectives of two groups in the other order."""
    for rank, order in enumerate([("tp", "dp"), ("dp", "tp")]):
        one = Writer(rank=rank, world_size=2)
        one.groups = [{"pg_name": str(i), "ranks": [0, i]} for i in (1, 2)]
        one.step(0, 0, 100)
        one.kernel("gemm", 1, 5, called=0)
        for i, group in enumerate(order):
            given = {"Collective name": "all_gather", "Process Group Name": group, "Seq": 7} if named else {}
            one.kernel(NCCL, 10 + 40 * i, 20 + 40 * i, called=9, stream=13, **given)
        one.write(tmp_path)
    found = breakdown(read_traces(tmp_path), align_clocks=False)
    assert missing(found, "several process groups") != named
    if named:
        assert found.matching.collectives == 2
        # each group's kernel starts 40 ns later on the other rank; a wait ends with the kernel
        assert waits_of(found) == {(0, "rank 1"): (10,), (1, "rank 0"): (10,)}
    else:
        assert not waits_of(found)


def test_the_time_of_kernels_of_an_h100_is_that_of_their_union():
    """Counted from the file's own events, to the microsecond; the shares sum to the step."""
    path = ROOT / "results/reference/traces/h100_two_steps.json.gz"
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    kernels = sorted((one["ts"], one["ts"] + one["dur"]) for one in events if one.get("cat") == "kernel")
    union_us, end_us = 0.0, 0.0
    for begin, end in kernels:
        union_us += max(0.0, end - max(begin, end_us))
        end_us = max(end_us, end)
    found = breakdown(read_traces(path))
    computing_ns = sum(sum(one.by_step_ns) for one in found.shares if one.state is State.COMPUTING)
    assert computing_ns / 1e3 == pytest.approx(union_us, abs=1.0)
    every_ns = sum(sum(one.by_step_ns) for one in found.shares)
    assert every_ns / 1e9 / 2 == pytest.approx(found.step_s)


US = 1000


def training(
    folder, seed, steps=12, world=4, slow_rank=-1, slow=0, loading=0, gap=0, communication=300, host=""
):
    """Write ranks of 500 us of noisy products, then a gather; `slow`, `loading` and `gap` add us."""
    folder.mkdir(exist_ok=True)
    draw = random.Random(seed)
    writers = [Writer(rank=rank, world_size=world, host=host) for rank in range(world)]
    begin = 0
    for number in range(steps):
        ready = []
        for rank, one in enumerate(writers):
            at = begin + (10 + loading) * US
            if loading:
                one.annotation("enumerate(DataLoader)#_Iter.__next__", begin, at)
            for i in range(5):
                if i % 2:
                    at += gap * US
                length = round(draw.gauss(100, 8) * US) + (slow * US // 5 if rank == slow_rank else 0)
                one.kernel("gemm", at + 2 * US, at + 2 * US + length, called=at)
                at += 2 * US + length
            ready.append(at)
        end = max(ready) + round(draw.gauss(communication, 10) * US)
        for rank, one in enumerate(writers):
            one.kernel(NCCL, ready[rank], end, called=ready[rank] - US, stream=13)
            one.step(number, begin, end + 10 * US)
        begin = end + 10 * US
    for one in writers:
        one.write(folder)
    return breakdown(read_traces(folder))


def test_nothing_is_named_where_nothing_was_put_in(tmp_path):
    """One named cause in 40 traces would be more than the promised one in 100; the bound allows for luck."""
    runs = [training(tmp_path / str(seed), seed, world=2) for seed in range(40)]
    assert sum(bool(causes(run)) for run in runs) <= 1
    assert not any(causes(a, b) for a, b in pairwise(runs[:12]))


def test_a_slow_rank_is_named_with_its_own_reason_and_the_others_waiting(tmp_path):
    found = training(tmp_path, 1, slow_rank=2, slow=200)
    named = {(cause.state, cause.rank): cause for cause in causes(found)}
    assert named.keys() == {(State.WAITING_FOR_RANK, 2), (State.COMPUTING, 2)}
    for cause in named.values():
        assert cause.share == pytest.approx(200e-6 / found.step_s, abs=0.03)
    assert 0 < named[State.COMPUTING, 2].at_least < named[State.COMPUTING, 2].share
    text = sentence(found, causes(found))
    assert "waiting for rank 2" in text
    assert "computing of rank 2 longer than with the other ranks by" in text
    ranks = [part.rank for part in critical_path(found, 3)]
    assert ranks == [2, 0]  # all end together, after the gather in which rank 2 came last


@pytest.mark.parametrize(
    ("given", "state", "put_in_us"),
    [
        ({"loading": 150}, State.WAITING_FOR_DATA, 150),
        ({"gap": 60}, State.PREPARING, 120),
        ({"communication": 500}, State.COMMUNICATION, 200),
    ],
)
def test_what_all_ranks_have_is_named_against_a_reference(tmp_path, given, state, put_in_us):
    reference = training(tmp_path / "reference", 5)
    found = training(tmp_path / "found", 6, **given)
    named = [cause for cause in causes(found, reference) if cause.compared_with == "the reference"]
    assert [cause.state for cause in named] == [state]
    assert named[0].share == pytest.approx(put_in_us * 1e-6 / found.step_s, abs=0.03)
    if state == State.WAITING_FOR_DATA:
        assert any(cause.state == state and not cause.compared_with for cause in causes(found))


@pytest.mark.parametrize("version", ["2.1", "2.4", "rocm"])
def test_nanoseconds_are_exact_also_since_the_epoch(tmp_path, version):
    """Microseconds since 1970 with three decimals need 61 bits; a float64 has 53."""
    one = Writer(format=version)
    one.step(0, 1, 999_999_999)
    times = [(17, 18), (1_234_567, 1_234_571), (999_999_001, 999_999_998)]
    for start, end in times:
        one.host_event("aten::add", start, end)
    trace = read_trace(one.write(tmp_path))
    ops = trace.kind == EventKind.OP
    read = zip(trace.start_ns[ops] - EPOCH_NS, trace.end_ns[ops] - EPOCH_NS, strict=True)
    assert [(int(a), int(b)) for a, b in read] == times


def test_work_launched_in_the_last_step_belongs_to_it(tmp_path):
    one = Writer()
    one.step(1, 0, 100)
    one.step(2, 100, 200)
    one.kernel("late", 150, 230, called=120)
    one.kernel("of another time", 300, 400, called=210)
    found, _ = find_steps(read_trace(one.write(tmp_path)))
    assert [(s.start_ns - EPOCH_NS, s.end_ns - EPOCH_NS) for s in found] == [(0, 100), (100, 230)]


def test_on_a_cpu_outermost_operators_compute_and_gloo_communicates(tmp_path):
    one = Writer()
    one.step(0, 0, 100)
    one.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 10)
    one.host_event("aten::stack", 2, 8)
    one.host_event("aten::linear", 20, 30)
    one.host_event("aten::addmm", 22, 29)
    one.host_event("MmBackward0", 40, 50)  # a wrapper of the next
    one.host_event("aten::mm", 42, 48)
    one.host_event("graph_0_cpp_fused_add", 55, 60)  # of Inductor
    one.host_event("c10d::allreduce_", 60, 65)
    one.gloo("all_reduce", 61, 90)
    one.host_event("aten::pin_memory", 5, 95, thread=55)  # a thread of the loader
    trace = read_trace(one.write(tmp_path))
    activity = Activity(trace)
    names = sorted(trace.name(int(e)) for e in np.flatnonzero(activity.computing))
    assert names == ["aten::addmm", "aten::linear", "aten::mm", "graph_0_cpp_fused_add"]
    assert [trace.name(int(e)) for e in np.flatnonzero(activity.communication)] == ["gloo:all_reduce"]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([(2, 3, 0), (0, 3, 0), (1, 3, 0)], None),
        ([(0, 2, 0), (1, 4, 0)], "these are not of one run"),
        ([(1, 2, 0), (1, 2, 0)], "rank 1 is there twice"),
        ([(0, 2, 0), (1, 2, 10**9)], "these ranks do not belong together"),
        ([], "no trace (.json or .json.gz) in this folder"),
    ],
)
def test_ranks_come_in_order_and_those_that_do_not_belong_together_are_refused(tmp_path, ranks, expected):
    for i, (rank, world_size, late_ns) in enumerate(ranks):
        writer = Writer(rank=rank, world_size=world_size, shift_ns=late_ns)
        writer.step(3, 0, 100)
        writer.kernel("gemm", 10, 40, called=5)
        writer.write(tmp_path, gz=rank == 1, name=f"{i}.json")
    if expected is None:
        assert [trace.rank for trace in read_traces(tmp_path)] == [0, 1, 2]
        return
    with pytest.raises(TraceError) as error:
        read_traces(tmp_path)
    assert expected in str(error.value)


# Without ProfilerStep: steps of annotations, of the optimizer, of repeated kernels, or one step.

FORWARD = ["embed", *["qkv", "attn", "proj", "mlp"] * 6, "head", "loss"]


def train(one, steps, optimizer=True, annotated="", cut=0):
    """Write steps of 1000 ns of the same kernels; of the last one only what begins before `cut`."""
    for number in range(steps):
        at = number * 1_000
        last = cut and number == steps - 1
        if annotated:
            one.annotation(annotated.format(number), at, at + 990)
        for i, name in enumerate(FORWARD):
            if not last or 10 + 20 * i < cut:
                one.kernel(name, at + 15 + 20 * i, at + 30 + 20 * i, called=at + 10 + 20 * i)
        if optimizer and not last:
            one.annotation("Optimizer.step#AdamW.step", at + 800, at + 900)
            one.kernel("adam", at + 850, at + 880, called=at + 810)


def found(tmp_path, one):
    steps, how = find_steps(read_trace(one.write(tmp_path)))
    return [(step.start_ns - EPOCH_NS, step.end_ns - EPOCH_NS) for step in steps], how


@pytest.mark.parametrize(
    ("given", "starts", "how"),
    [
        ({"steps": 3, "annotated": "train_step {}"}, [0, 1_000, 2_000], "annotation 'train_step N'"),
        (
            {"steps": 4, "optimizer": False},
            [15, 1_015, 2_015, 3_015],
            "4 steps are repetitions of the same 27",
        ),
        ({"steps": 4, "optimizer": False, "cut": 300}, [15, 1_015, 2_015], "3 steps are repetitions"),
        ({"steps": 1, "optimizer": False}, [10], "whole trace"),  # layers that repeat are no steps
    ],
)
def test_steps_are_found_by_what_repeats(tmp_path, given, starts, how):
    one = Writer()
    train(one, **given)
    steps, said = found(tmp_path, one)
    assert [start for start, _ in steps] == starts
    assert how in said


@pytest.mark.parametrize("known", [{"speed": 2.0}, {"frequency": 0.0}, {"overlap": float("nan")}])
def test_a_factor_of_an_unknown_name_or_value_is_refused(known):
    with pytest.raises(ValueError, match="expected a positive factor"):
        factors([], known=known)


def test_work_is_by_phase_operation_and_state(tmp_path):
    one = Writer()
    one.step(0, 0, 100)
    one.host_event("aten::linear", 0, 10)
    one.kernel("gemm", 10, 40, called=5)
    one.annotation("Optimizer.step#AdamW.step", 50, 90)
    one.host_event("aten::_foreach_add_", 55, 60)
    one.kernel("multi_tensor", 70, 100, called=58)
    found = breakdown(read_traces(one.write(tmp_path)))
    work = {(w.phase, w.operation, w.state): w.by_step_ns[0] for w in found.work}
    assert work == {
        ("forward", "aten::linear", State.PREPARING): 5,
        ("forward", "aten::linear", State.CALLING): 5,
        ("forward", "aten::linear", State.COMPUTING): 30,
        ("optimizer", "aten::_foreach_add_", State.PREPARING): 18,
        ("optimizer", "aten::_foreach_add_", State.CALLING): 12,
        ("optimizer", "aten::_foreach_add_", State.COMPUTING): 30,
    }
