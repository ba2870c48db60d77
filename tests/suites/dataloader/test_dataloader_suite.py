"""The dataloader suite: its training step, its checks of batches, and the memory of several processes."""

import base64
import json
import math
import mmap
import os
import subprocess
import sys
import tempfile
import types
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path

import fed_on_rank
import msgspec
import numpy as np
import psutil
import pytest
import torch
from places import PYTHONPATH

import suites.dataloader.suite as suite
from harness.instruments.distributed.rank_pool import RankLocation, RankPool
from harness.instruments.memory.process_memory import nameless_files_B, pss_B, tree, unmapped_shared_B
from harness.records import Origin, Reading, WrongResult
from suites.dataloader.batch import (
    LoaderSpec,
    MixturePhase,
    RankPlace,
    Source,
    flop_of_model,
    packed,
    tokenize,
)
from suites.dataloader.fed_step import DocumentModel
from suites.dataloader.installed_files import generated
from suites.dataloader.loaded_text import check_steps, piece_index
from suites.training.balance import cost

MIB = 1 << 20


KEEP = {
    "private": "kept = b'x' * SIZE",
    "mapped": "kept = mmap.mmap(-1, SIZE)\nkept.write(b'x' * SIZE)\nos.fork()\nkept[:].count(b'x')",
    "unmapped": "kept = os.memfd_create('test')\nfor _ in range(64): os.write(kept, b'x' * (SIZE // 64))",
}
CHILD = "import mmap, os\nSIZE = 64 << 20\nprint(flush=True)\ninput()\n{keep}\nprint(flush=True)\ninput()"


@pytest.mark.parametrize(
    ("kind", "processes", "mapped_B", "unmapped_B"),
    [("private", 1, 64 * MIB, 0), ("mapped", 2, 64 * MIB, 0), ("unmapped", 1, 0, 64 * MIB)],
)
def test_memory_grows_by_what_is_allocated_once_where_it_is_shared(kind, processes, mapped_B, unmapped_B):
    command = [sys.executable, "-c", CHILD.format(keep=KEEP[kind])]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as child:
        try:
            child.stdout.readline()
            before_B = pss_B(tree(child.pid))
            child.stdin.write("\n")
            child.stdin.flush()
            for _ in range(processes):
                child.stdout.readline()
            pids = tree(child.pid)
            assert len(pids) == processes
            assert pss_B(pids) - before_B == pytest.approx(mapped_B, abs=4 * MIB)
            assert unmapped_shared_B(pids) == unmapped_B
            if processes == 2:
                rss_B = sum(psutil.Process(pid).memory_info().rss for pid in pids)
                assert rss_B > 2 * 64 * MIB  # each alone has all of it
        finally:
            for pid in tree(child.pid)[::-1]:
                psutil.Process(pid).kill()
    assert tree(child.pid) == []
    assert pss_B([child.pid]) == unmapped_shared_B([child.pid]) == 0


def test_a_file_in_memory_counts_once_where_a_part_is_mapped_and_a_file_without_a_name_apart():
    own = [os.getpid()]
    descriptor = os.memfd_create("test")
    os.ftruncate(descriptor, 2 * MIB)
    before_B, nameless_B = unmapped_shared_B(own), nameless_files_B(own)
    with mmap.mmap(descriptor, MIB) as mapped, open(descriptor, "wb", buffering=0) as file:
        mapped.write(b"x" * MIB)
        file.write(b"x" * 2 * MIB)
        assert unmapped_shared_B(own) - before_B == MIB
        assert nameless_files_B(own) == nameless_B
    with tempfile.TemporaryFile(dir=Path.cwd(), buffering=0) as file, open(os.dup(file.fileno()), "rb"):
        file.write(b"x" * MIB)
        os.fsync(file.fileno())
        assert nameless_files_B(own) - nameless_B == MIB


CONTEXT = 32
MODEL = {"hidden_size": 16, "layers": 2, "heads": 2}
LENGTHS = (29, 40, 5, 1, 17, 30, 3)
BARE = LoaderSpec(sources=(), mixture=(), context_length=CONTEXT, documents_per_step=1)


def texts(lengths, seed=0):
    random = np.random.default_rng(seed)
    return [bytes(random.integers(97, 123, length, np.uint8)) for length in lengths]


def batch_of(documents, cp_size=1, cp_rank=0):
    spec = replace(BARE, documents_per_step=len(documents), cp_size=cp_size)
    return packed([tokenize(one) for one in documents], spec, RankPlace(0, cp_rank))


def reference(documents):
    """Return the mean loss and the gradients in float64, each piece alone with an explicit mask."""
    model = DocumentModel(**MODEL, seed=3).double()
    rows = batch_of(documents)
    total, count = 0, 0
    for tokens, segments in zip(rows.tokens, rows.segments, strict=True):
        for number in range(1, int(segments.max()) + 1):
            piece = torch.from_numpy(tokens[segments == number].astype(np.int64))
            if len(piece) > 1:
                logits = explicit(model, piece)
                total = total + torch.nn.functional.cross_entropy(logits[:-1], piece[1:], reduction="sum")
                count += len(piece) - 1
    loss = total / count
    loss.backward()
    return float(loss.detach()), torch.cat([one.grad.reshape(-1) for one in model.parameters()])


def explicit(model, tokens):
    """Return the logits of one document, whose positions count from 0, with attention written out."""
    x = model.embedding(tokens)
    count, heads = len(tokens), MODEL["heads"]
    size = MODEL["hidden_size"] // heads
    rate = 10000.0 ** (-torch.arange(size // 2, dtype=torch.float64) / (size // 2))
    turn = torch.polar(torch.ones(count, size // 2, dtype=torch.float64), torch.arange(count)[:, None] * rate)
    hidden = torch.full((count, count), -math.inf, dtype=torch.float64).triu(1)
    for block in model.blocks:
        parts = block.attention.qkv(block.norms[0](x)).reshape(count, 3, heads, size)
        attended = []
        for head in range(heads):
            query, key = (
                torch.view_as_real(torch.complex(one[:, : size // 2], one[:, size // 2 :]) * turn)
                .transpose(1, 2)
                .reshape(count, size)
                for one in (parts[:, 0, head], parts[:, 1, head])
            )
            attended.append(torch.softmax(query @ key.T / math.sqrt(size) + hidden, -1) @ parts[:, 2, head])
        x = x + block.attention.output(torch.cat(attended, 1))
        x = x + block.down(torch.nn.functional.gelu(block.up(block.norms[1](x))))
    return model.head(model.norm(x))


@pytest.fixture(scope="module")
def four():
    alone = RankLocation((), {"OMP_NUM_THREADS": "1", "PYTHONPATH": PYTHONPATH})
    with RankPool([alone] * 4, "127.0.0.1") as pool:
        yield pool


def on_ranks(pool, function, cp_size, groups):
    """Return what four ranks returned; `groups` has the documents of each data-parallel group."""
    batches = [batch_of(groups[rank // cp_size], cp_size, rank % cp_size) for rank in range(len(pool))]
    given = [[one.tokens.tolist(), one.segments.tolist(), 1, 1] for one in batches]
    return pool.call(f"{fed_on_rank.__name__}:{function}", model=MODEL, cp_size=cp_size, batches=given)


@pytest.mark.parametrize(
    ("cp_size", "lengths"),
    [(1, [LENGTHS] * 4), (2, [LENGTHS] * 2), (4, [LENGTHS]), (2, [(3,), (25, 30, 60)])],
)
def test_a_step_has_the_loss_the_gradients_and_the_flop_of_each_document_alone(four, cp_size, lengths):
    groups = [texts(one, seed) for seed, one in enumerate(lengths)]
    first, *others = on_ranks(four, "gradients", cp_size, groups)
    assert all(one == first for one in others)  # all ranks have the same sums
    got = torch.tensor(first["gradients"], dtype=torch.float64)
    expected_loss, expected = reference([one for group in groups for one in group])
    assert first["loss"] == pytest.approx(expected_loss, rel=1e-5)
    assert float((got - expected).norm() / expected.norm()) < 1e-5
    pieces = [
        min(length + 1 - at, CONTEXT)
        for one in lengths
        for length in one
        for at in range(0, length + 1, CONTEXT)
    ]
    flop = flop_of_model(MODEL["hidden_size"], MODEL["layers"], MODEL["heads"])
    counted = sum(on_ranks(four, "flop", cp_size, groups))
    assert counted == pytest.approx(cost(pieces, *flop).sum(), rel=1e-12)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    documents = generated(2, 60, seed=1, median_B=20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("index")))
        return documents, piece_index(documents, CONTEXT)


def specified_for(documents, cp_size=1):
    sources = tuple(
        Source(name, "", "jsonl", len(documents.sizes_B[one]), 1) for one, name in enumerate(documents.names)
    )
    even = (MixturePhase(0, (0.5, 0.5)),)
    return replace(
        BARE, sources=sources, mixture=even, documents_per_step=4, dp_size=2, cp_size=cp_size, workers=1
    )


def returned(documents, spec, numbers):
    """Return, as ranks do, one batch with these documents of source 0 for each group."""
    ranks = []
    for rank in range(spec.dp_size * spec.cp_size):
        group = [tokenize(documents.document(0, one)) for one in numbers[rank // spec.cp_size]]
        batch = packed(group, spec, RankPlace.of(rank, spec.cp_size))
        arrays = {name: base64.b64encode(getattr(batch, name).tobytes()).decode() for name in ARRAYS}
        counts = {"documents": batch.documents, "real_tokens": batch.real_tokens}
        ranks.append([{"shape": list(batch.tokens.shape), **arrays, **counts}])
    return ranks


ARRAYS = ("tokens", "segments")


def first_set(rank, name, value):
    """Change the first token or segment that a rank returned."""
    array = np.frombuffer(base64.b64decode(rank[0][name]), "<u2").copy()
    array[0] = value
    rank[0][name] = base64.b64encode(array.tobytes()).decode()


RIGHT = [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("cp_size", "numbers", "spoil", "named"),
    [
        (1, RIGHT, None, ""),
        (2, RIGHT, None, ""),
        (1, RIGHT, lambda ranks: first_set(ranks[1], "tokens", 255), "group 1, batch 0: .* in no document"),
        (1, RIGHT, lambda ranks: ranks[0][0].update(documents=3), "reports 5 documents"),
        (1, RIGHT, lambda ranks: ranks[0][0].update(real_tokens=1), "reported are 1"),
        (1, RIGHT, lambda ranks: first_set(ranks[0], "segments", 9), "segments of a row are not 1 to 9"),
        (1, RIGHT, lambda ranks: first_set(ranks[0], "segments", 0), "group 0, batch 0"),
        (1, [[0, 1], [1, 2]], None, "groups 0 and 1 both have a document of source generated-0000"),
        (2, RIGHT, lambda ranks: ranks[1][0].update(real_tokens=1), "differ in real_tokens"),
        (2, RIGHT, lambda ranks: ranks.__setitem__(1, ranks[3]), "group 0, batch 0"),
    ],
)
def test_what_is_wrong_with_a_batch_is_named(corpus, cp_size, numbers, spoil, named):
    documents, index = corpus
    spec = specified_for(documents, cp_size)
    ranks = returned(documents, spec, numbers)
    if spoil:
        spoil(ranks)
    with pytest.raises(WrongResult, match=named) if named else nullcontext():
        check_steps(spec, index, ranks)


WORKLOAD = {
    "kind": "loading",
    "sources": 5,
    "text": "generated",
    "format": "jsonl",
    "workers": 1,
    "context_length": 256,
    "documents_per_step": 4,
    "steps": 2,
}


def test_weights_sum_to_one_in_every_phase(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    built = suite.build({**WORKLOAD, "steps": 10}, 1)
    session = suite.prepare(built)
    text_B = [sum(session.documents.sizes_B[source]) for source in range(5)]
    by_size = [one / sum(text_B) for one in text_B]
    # In the middle of the 10 timed steps, after 24 that may be ready and 2 that warm up.
    for mixture, firsts, last in (
        ("even", [0], [0.2] * 5),
        ("by_size", [0], by_size),
        ("changing", [0, 24 + 2 + 5], by_size),
    ):
        phases = suite.phases(replace(built.workload, mixture=mixture), session.corpus)
        assert [one.first_step for one in phases] == firsts
        assert phases[0].weights == pytest.approx([0.2] * 5 if mixture == "changing" else last)
        assert phases[-1].weights == pytest.approx(last)


def test_step_readings_are_those_of_the_slowest_rank():
    spec = specified_for(generated(2, 4), cp_size=2)
    assert msgspec.convert(json.loads(json.dumps(asdict(spec))), LoaderSpec) == spec
    every = {"tokens": 8, "documents": 2, "flop": 6.0}
    ranks = [
        [{"step_s": 2.0, "wait_s": 0.5, "cpu_s": 1.0, **every}] * 2,
        [{"step_s": 2.0, "wait_s": 1.0, "cpu_s": 1.0, **every}] * 2,
        [{"step_s": 4.0, "wait_s": 0.0, "cpu_s": 3.0, **every}] * 2,
        [{"step_s": 2.0, "wait_s": 0.0, "cpu_s": 3.0, **every}] * 2,
    ]
    got = {(one.metric, one.method): one.value for one in suite.step_readings(ranks, spec, Origin.MEASURED)}
    assert got[("step_time", "")] == 4.0
    assert got[("step_time", "computation, a core per rank")] == 3.0
    assert got[("imbalance", "")] == 1.5
    assert got[("throughput", "")] == 2 * 2 * 8 / 8.0  # of one rank per group
    assert got[("flop_rate", "FLOP of the documents seen")] == 4 * 2 * 6 / 8.0  # of every rank
    assert got[("waiting_share", "slowest rank of each step")] == 1.0 / 4.0
    assert got[("waiting_share", "worst rank")] == 0.5
    assert got[("waiting_share", "mean over ranks")] == pytest.approx((0.25 + 0.5) / 4)


def test_the_baseline_is_right_and_is_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fields = {**WORKLOAD, "kind": "training", "hidden_size": 16, "cp_size": 2, "dp_size": 1}
    session = suite.prepare(suite.build(fields, 1))
    before = set(tree(os.getpid()))
    try:
        suite.check(session)
        readings = [one for one in suite.sample(session) if isinstance(one, Reading)]
    finally:
        suite.close(session)
    assert set(tree(os.getpid())) <= before  # no process is left
    got = {(one.metric, one.method): one.value for one in readings}
    assert got[("documents_per_step", "")] == 4
    assert got[("time_to_first_batch", "")] > 0
    idle_B = got[("memory", "all processes and shared memory")] - got[("memory", "above idle ranks")]
    assert 0 < idle_B < got[("memory", "all processes")]
    assert {one.origin for one in readings} <= {Origin.MEASURED, Origin.CALCULATED}


def test_batches_that_were_read_ahead_are_not_timed(monkeypatch):
    spec = replace(BARE, documents_per_step=64, dp_size=2, workers=8)
    assert suite.untimed("baseline_loader", spec) == 24
    monkeypatch.setattr(
        suite, "loader_module", lambda name: types.SimpleNamespace(read_ahead=lambda spec: 4001)
    )
    assert suite.untimed("any", spec) == 24 + 126  # 32 documents of a group in each
