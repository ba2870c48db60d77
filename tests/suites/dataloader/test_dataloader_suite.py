"""The dataloader suite: its training step, its checks of batches, and the memory of several processes."""

import base64
import itertools
import json
import math
import mmap
import os
import subprocess
import sys
import tempfile
import threading
import types
from collections import Counter
from contextlib import closing, contextmanager
from pathlib import Path

import fed_on_rank
import numpy as np
import psutil
import pytest
import torch
from places import PYTHONPATH

import suites.dataloader.suite as suite
from harness.instruments.distributed.rank_pool import RankLocation, RankPool
from harness.instruments.memory.process_memory import nameless_files_B, pss_B, tree, unmapped_shared_B
from harness.records import Origin, Reading, Unavailable, WrongResult
from suites.dataloader.batch import (
    END,
    LoaderSpec,
    MixturePhase,
    RankPlace,
    Source,
    context_slice,
    flop_of_model,
    packed,
    tokenize,
)
from suites.dataloader.fed_step import DocumentModel, joined
from suites.dataloader.installed_files import generated
from suites.dataloader.loaded_text import check_steps, piece_index
from suites.dataloader.loader_ranks import MemorySampler, plain, specified
from suites.training.balance import cost

MIB = 1 << 20


# --- memory of processes


CHILD = """
import mmap, os, sys
kind, size = sys.argv[1], int(sys.argv[2])
def said(text):
    print(text, flush=True)
    sys.stdin.readline()
kept = b"x" if kind else b""
said("before")
if kind == "private":
    kept = b"x" * size
elif kind == "mapped":
    kept = mmap.mmap(-1, size)
    kept.write(b"x" * size)
    if os.fork() == 0:
        assert kept[: size].count(b"x") == size
        said("child")
        os._exit(0)
elif kind == "unmapped":
    kept = os.memfd_create("test")
    for _ in range(size >> 20):
        os.write(kept, b"x" * (1 << 20))
if kind == "mapped":
    os.wait()
else:
    said("after")
"""


@contextmanager
def process(kind, size_B=64 * MIB):
    given = subprocess.Popen(
        [sys.executable, "-c", CHILD, kind, str(size_B)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield given
    finally:
        for pid in tree(given.pid)[::-1]:
            psutil.Process(pid).kill()
        given.communicate()


def go_on(given):
    given.stdin.write("\n")
    given.stdin.flush()
    return given.stdout.readline()


@pytest.mark.parametrize(("kind", "processes"), [("private", 1), ("mapped", 2)])
def test_memory_grows_by_what_is_allocated_once_where_it_is_shared(kind, processes):
    with process(kind) as given:
        given.stdout.readline()
        before_B = pss_B(tree(given.pid))
        go_on(given)
        pids = tree(given.pid)
        assert len(pids) == processes
        assert pss_B(pids) - before_B == pytest.approx(64 * MIB, abs=4 * MIB)
        if kind == "mapped":
            rss_B = sum(psutil.Process(pid).memory_info().rss for pid in pids)
            assert rss_B > 2 * 64 * MIB  # each alone has all of it
            assert unmapped_shared_B(pids) == 0


def test_a_file_in_memory_that_is_open_and_not_mapped_counts_apart():
    with process("unmapped") as given:
        given.stdout.readline()
        before_B = pss_B([given.pid])
        go_on(given)
        assert pss_B([given.pid]) - before_B < 4 * MIB
        assert unmapped_shared_B(tree(given.pid)) == 64 * MIB


def test_a_file_in_memory_counts_once_where_a_part_is_mapped():
    descriptor = os.memfd_create("test")
    os.ftruncate(descriptor, 2 * MIB)
    before_B = unmapped_shared_B([os.getpid()])
    with mmap.mmap(descriptor, MIB) as mapped, open(descriptor, "wb", buffering=0) as file:
        mapped.write(b"x" * MIB)
        file.write(b"x" * 2 * MIB)
        assert unmapped_shared_B([os.getpid()]) - before_B == MIB


def test_a_file_without_a_name_counts_once_and_one_in_memory_does_not():
    before_B = nameless_files_B([os.getpid()])
    with tempfile.TemporaryFile(dir=Path.cwd(), buffering=0) as file, open(os.dup(file.fileno()), "rb"):
        file.write(b"x" * MIB)
        os.fsync(file.fileno())
        assert nameless_files_B([os.getpid()]) - before_B == MIB
        descriptor = os.memfd_create("test")
        os.ftruncate(descriptor, MIB)
        os.pwrite(descriptor, b"x" * MIB, 0)
        assert nameless_files_B([os.getpid()]) - before_B == MIB
        os.close(descriptor)


def test_processes_that_have_ended_take_no_memory():
    with process("private") as given:
        given.stdout.readline()
        pid = given.pid
    assert tree(pid) == []
    assert pss_B([pid]) == unmapped_shared_B([pid]) == 0


def test_a_process_of_someone_else_is_not_left_out(monkeypatch):
    def refused(path, *_, **__):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", refused)
    with pytest.raises(PermissionError):
        pss_B([os.getpid()])


# --- the training step


CONTEXT = 32
MODEL = {"hidden_size": 16, "layers": 2, "heads": 2}
LENGTHS = (29, 40, 5, 1, 17, 30, 3)


def texts(lengths, seed=0):
    random = np.random.default_rng(seed)
    return [bytes(random.integers(97, 123, length, np.uint8)) for length in lengths]


def batch_of(documents, cp_size=1, cp_rank=0):
    spec = LoaderSpec(
        sources=(),
        mixture=(),
        context_length=CONTEXT,
        documents_per_step=len(documents),
        cp_size=cp_size,
    )
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
    with RankPool(
        [RankLocation((), {"OMP_NUM_THREADS": "1", "PYTHONPATH": PYTHONPATH})] * 4, "127.0.0.1"
    ) as pool:
        yield pool


def gradients(pool, cp_size, groups):
    """Return loss and gradients of four ranks; `groups` has the documents of each data-parallel group."""
    batches = [batch_of(groups[rank // cp_size], cp_size, rank % cp_size) for rank in range(len(pool))]
    given = [[one.tokens.tolist(), one.segments.tolist(), one.documents, one.real_tokens] for one in batches]
    got = pool.call(f"{fed_on_rank.__name__}:gradients", model=MODEL, cp_size=cp_size, batches=given)
    assert all(one == got[0] for one in got)  # all ranks have the same sums
    return got[0]["loss"], torch.tensor(got[0]["gradients"], dtype=torch.float64)


@pytest.mark.parametrize("cp_size", [1, 2, 4])
def test_a_step_has_the_loss_and_gradients_of_each_document_alone(four, cp_size):
    groups = [texts(LENGTHS, seed) for seed in range(4 // cp_size)]
    loss, got = gradients(four, cp_size, groups)
    expected_loss, expected = reference([one for group in groups for one in group])
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert float((got - expected).norm() / expected.norm()) < 1e-5


def test_groups_of_unequal_size_count_by_their_tokens(four):
    groups = [texts((3,)), texts((25, 30, 60), 1)]
    loss, got = gradients(four, 2, groups)
    expected_loss, expected = reference([one for group in groups for one in group])
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert float((got - expected).norm() / expected.norm()) < 1e-5


def test_padding_contributes_nothing(four):
    documents = texts(LENGTHS)
    rows = batch_of(documents)
    assert (rows.segments == 0).any()
    changed = rows._replace(tokens=np.where(rows.segments > 0, rows.tokens, 7).astype(np.uint16))
    given = [[[one.tokens.tolist(), one.segments.tolist(), 1, 1]] * 4 for one in (rows, changed)]
    plain_rows, other = (
        four.call(f"{fed_on_rank.__name__}:gradients", model=MODEL, cp_size=1, batches=one)[0]
        for one in given
    )
    assert plain_rows == other


def test_steps_reduce_the_loss_on_all_ranks_alike(four):
    batches = [batch_of(texts(LENGTHS), 2, rank % 2) for rank in range(4)]
    given = [[one.tokens.tolist(), one.segments.tolist(), 1, 1] for one in batches]
    losses = four.call(f"{fed_on_rank.__name__}:losses", model=MODEL, cp_size=2, batches=given, steps=15)
    assert losses[1:] == losses[:-1]
    assert losses[0][-1] < losses[0][0] - 0.1


@pytest.mark.parametrize("cp_size", [1, 2, 4])
def test_the_flop_of_all_ranks_are_the_cost_of_the_documents(four, cp_size):
    groups = [texts(LENGTHS, seed) for seed in range(4 // cp_size)]
    batches = [batch_of(groups[rank // cp_size], cp_size, rank % cp_size) for rank in range(4)]
    given = [[one.tokens.tolist(), one.segments.tolist(), 1, 1] for one in batches]
    got = four.call(f"{fed_on_rank.__name__}:flop", model=MODEL, cp_size=cp_size, batches=given)
    pieces = [min(length + 1 - at, CONTEXT) for length in LENGTHS for at in range(0, length + 1, CONTEXT)]
    flop = flop_of_model(MODEL["hidden_size"], MODEL["layers"], MODEL["heads"])
    assert sum(got) == pytest.approx(len(groups) * cost(pieces, *flop).sum(), rel=1e-12)


def test_row_groups_are_small_where_the_workload_says_so(tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    files = {}
    for rows in (0, 8):
        fields = {**WORKLOAD, "format": "parquet", "row_group_documents": rows}
        session = suite.prepare(suite.build(fields, 1))
        files[rows] = session.corpus.sources[0].files[0]
        groups = parquet.read_metadata(files[rows]).num_row_groups
        assert groups == (-(-session.corpus.sources[0].samples // 8) if rows else 1)
    assert files[0] != files[8]


@pytest.mark.parametrize("cp_size", [2, 4])
def test_slices_of_a_row_are_put_together(cp_size):
    rows = np.arange(3 * 32, dtype=np.uint16).reshape(3, 32)
    slices = [
        torch.from_numpy(context_slice(rows, cp_size, rank).astype(np.int64)) for rank in range(cp_size)
    ]
    assert (joined(torch.stack(slices)).numpy() == rows).all()


# --- checks of what a loader returns


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    documents = generated(2, 60, seed=1, median_B=20)
    return documents, piece_index(documents, CONTEXT, tmp_path_factory.mktemp("index"))


def specified_for(documents, cp_size=1, per_step=4):
    sources = tuple(
        Source(name, (), "jsonl", len(documents.sizes_B(one)), 1) for one, name in enumerate(documents.names)
    )
    return LoaderSpec(
        sources=sources,
        mixture=(MixturePhase(0, (0.5, 0.5)),),
        context_length=CONTEXT,
        documents_per_step=per_step,
        dp_size=2,
        cp_size=cp_size,
        workers=1,
    )


def returned(documents, spec, numbers):
    """Return, as ranks do, one batch with these documents of source 0 for each group."""
    ranks = []
    for rank in range(spec.dp_size * spec.cp_size):
        group = [tokenize(documents.document(0, one)) for one in numbers[rank // spec.cp_size]]
        one = packed(group, spec, RankPlace.of(rank, spec.cp_size))
        ranks.append([plain_rows(one)])
    return ranks


def plain_rows(batch):
    return {
        "shape": list(batch.tokens.shape),
        "tokens": base64.b64encode(batch.tokens.tobytes()).decode(),
        "segments": base64.b64encode(batch.segments.tobytes()).decode(),
        "documents": batch.documents,
        "real_tokens": batch.real_tokens,
    }


def changed(rank, name, edit):
    array = np.frombuffer(base64.b64decode(rank[0][name]), "<u2").reshape(rank[0]["shape"]).copy()
    edit(array)
    rank[0][name] = base64.b64encode(array.tobytes()).decode()


@pytest.mark.parametrize("cp_size", [1, 2])
def test_batches_of_the_corpus_pass(corpus, cp_size):
    documents, index = corpus
    spec = specified_for(documents, cp_size)
    check_steps(spec, index, returned(documents, spec, [[0, 1], [2, 3]]))


def set_first(value):
    def edit(array):
        array[0, 0] = value

    return edit


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (
            lambda ranks: changed(ranks[1], "tokens", set_first(255)),
            "group 1, batch 0: .* are in no document",
        ),
        (lambda ranks: ranks[0][0].update(documents=3), "reports 5 documents"),
        (lambda ranks: ranks[0][0].update(real_tokens=1), "reported are 1"),
        (lambda ranks: changed(ranks[0], "segments", set_first(9)), "segments of a row are not 1 to 9"),
        (lambda ranks: changed(ranks[0], "segments", set_first(0)), "group 0, batch 0"),
    ],
)
def test_what_is_wrong_with_a_batch_is_named(corpus, spoil, named):
    documents, index = corpus
    spec = specified_for(documents)
    ranks = returned(documents, spec, [[0, 1], [2, 3]])
    spoil(ranks)
    with pytest.raises(WrongResult, match=named):
        check_steps(spec, index, ranks)


def test_groups_with_the_same_document_are_refused(corpus):
    documents, index = corpus
    spec = specified_for(documents)
    with pytest.raises(WrongResult, match="groups 0 and 1 both have a document of source generated-0000"):
        check_steps(spec, index, returned(documents, spec, [[0, 1], [1, 2]]))


def test_ranks_of_one_group_have_the_same_rows(corpus):
    documents, index = corpus
    spec = specified_for(documents, cp_size=2)
    ranks = returned(documents, spec, [[0, 1], [2, 3]])
    ranks[1] = returned(documents, spec, [[4, 5], [2, 3]])[1]
    with pytest.raises(WrongResult, match="group 0, batch 0"):
        check_steps(spec, index, ranks)


def test_the_index_has_each_piece_of_each_document_and_is_kept(corpus, tmp_path, monkeypatch):
    documents, index = corpus
    pieces = Counter()
    for source in range(2):
        for number in range(len(documents.sizes_B(source))):
            tokens = [*documents.document(source, number), END]
            pieces.update(tuple(tokens[at : at + CONTEXT]) for at in range(0, len(tokens), CONTEXT))
    assert len(index.hashes) == len(pieces)
    assert int(index.equal.sum()) == pieces.total()
    assert all(index.find(np.array(piece, np.uint16)) is not None for piece in pieces)
    first = piece_index(documents, CONTEXT, tmp_path)
    monkeypatch.setattr("suites.dataloader.loaded_text._indexed", None)
    kept = piece_index(documents, CONTEXT, tmp_path)
    assert all((one == other).all() for one, other in zip(first, kept, strict=True))


# --- the suite


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


def test_a_specification_survives_json():
    spec = specified_for(generated(2, 4))
    assert specified(json.loads(json.dumps(plain(spec)))) == spec


@pytest.mark.parametrize("mixture", ["even", "by_size", "changing"])
def test_weights_sum_to_one_in_every_phase(mixture, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    session = suite.prepare(suite.build({**WORKLOAD, "mixture": mixture, "steps": 10}, 1))
    phases = session.spec.mixture
    # In the middle of the 10 timed steps, after 24 that may be ready and 2 that warm up.
    assert [one.first_step for one in phases] == ([0, 24 + 2 + 5] if mixture == "changing" else [0])
    assert all(sum(one.weights) == pytest.approx(1) for one in phases)
    text_B = [sum(session.documents.sizes_B(source)) for source in range(5)]
    last = [0.2] * 5 if mixture == "even" else [one / sum(text_B) for one in text_B]
    assert phases[-1].weights == pytest.approx(last)


def test_an_odd_head_size_is_unavailable():
    with pytest.raises(Unavailable, match="even head size, not 3"):
        suite.build({**WORKLOAD, "kind": "training", "hidden_size": 6, "num_attention_heads": 2}, 1)


def test_a_loader_that_cannot_be_imported_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "suites.dataloader.loaders.baseline_loader", None)
    with pytest.raises(Unavailable, match=r"pip install throughput-harness\[dataloader\]"):
        suite.prepare(suite.build(WORKLOAD, 1))


def test_step_readings_are_those_of_the_slowest_rank():
    spec = specified_for(generated(2, 4), cp_size=2)
    every = {"places": 10, "tokens": 8, "documents": 2, "flop": 6.0}
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
    assert got[("document_rate", "")] == 2 * 2 * 2 / 8.0
    assert got[("flop_rate", "FLOP of the documents seen")] == 4 * 2 * 6 / 8.0  # of every rank
    assert got[("flop_per_step", "")] == 4 * 6
    assert got[("waiting_share", "slowest rank of each step")] == 1.0 / 4.0
    assert got[("waiting_share", "worst rank")] == 0.5
    assert got[("waiting_share", "mean over ranks")] == pytest.approx((0.25 + 0.5) / 4)


@pytest.mark.parametrize("kind", ["loading", "training"])
def test_the_baseline_is_right_and_is_measured(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = {"hidden_size": 16, "cp_size": 2, "dp_size": 1} if kind == "training" else {}
    session = suite.prepare(suite.build({**WORKLOAD, **model, "kind": kind}, 1))
    before = set(tree(os.getpid()))
    try:
        suite.check(session)
        readings = [one for one in suite.sample(session) if isinstance(one, Reading)]
    finally:
        suite.close(session)
    assert set(tree(os.getpid())) <= before  # no process is left
    got = {(one.metric, one.method): one.value for one in readings}
    assert got[("documents_per_step", "")] == 4
    assert 0 <= got[("padding_share", "")] < 1
    assert got[("time_to_first_batch", "")] > 0
    idle_B = got[("memory", "all processes and shared memory")] - got[("memory", "above idle ranks")]
    assert 0 < idle_B < got[("memory", "all processes")]
    assert {one.origin for one in readings} <= {Origin.MEASURED, Origin.CALCULATED}


def test_memory_is_sampled_until_the_sampler_is_closed():
    counted = itertools.count()
    second = threading.Event()

    def sample():
        number = next(counted)
        if number == 1:
            second.set()
        return number

    with closing(MemorySampler(sample)) as sampler:
        sampler.take()
        assert second.wait(60)
        sampler.take()
    assert sampler.samples == list(range(len(sampler.samples)))
    assert len(sampler.samples) >= 3


def test_what_ends_a_memory_sampler_is_raised():
    failed = threading.Event()

    def sample():
        failed.set()
        raise PermissionError("not ours")

    with closing(MemorySampler(sample)) as sampler:
        assert failed.wait(60)
        with pytest.raises(PermissionError, match="not ours"):
            sampler.take()


def test_batches_that_were_read_ahead_are_not_timed(monkeypatch):
    spec = LoaderSpec(sources=(), mixture=(), context_length=16, documents_per_step=64, dp_size=2, workers=8)
    assert suite.untimed("baseline_loader", spec) == 24
    monkeypatch.setattr(
        suite, "loader_module", lambda name: types.SimpleNamespace(read_ahead=lambda spec: 4001)
    )
    assert suite.untimed("any", spec) == 24 + 126  # 32 documents of a group in each
