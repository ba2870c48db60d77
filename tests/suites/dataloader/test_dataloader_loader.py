"""The disaggregated loader: mixture and plans against sequential counting, and its actors on a real Ray."""

from __future__ import annotations

import ipaddress
import itertools
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest

from harness.instruments.distributed.ray_session import LONGEST_PATH_B
from harness.records import Unavailable, WrongResult
from harness.sweep.executors.child import kill_by_tmpdir
from suites.dataloader.batch import (
    END,
    LoaderError,
    LoaderSpec,
    MixturePhase,
    PackedBatch,
    RankPlace,
    Source,
    context_slice,
    pack,
    tokenize,
    with_ends,
)
from suites.dataloader.disaggregation import actors, source_reader
from suites.dataloader.disaggregation.actors import LoaderReport, Planner, SourceLoader, start_loader
from suites.dataloader.disaggregation.calls import answer, ended, found
from suites.dataloader.disaggregation.plan import (
    BLOCK,
    PATIENCE,
    ActorSettings,
    Autoscaler,
    BalanceSettings,
    Mixture,
    Pieces,
    digest_of,
    moved,
    plan_steps,
)
from suites.dataloader.disaggregation.source_reader import SourceReader
from suites.dataloader.failures import TakenBatch, checksum, recoveries_s, refuse_changed
from suites.dataloader.loader_ranks import LoaderRanks

SIZES = (40, 7, 23)
FIRST = RankPlace(0, 0)


def text_of(source: int, number: int) -> str:
    words = random.Random(source * 1000 + number)
    return f"{source}/{number} " + "".join(words.choices("abc é\n", k=words.randint(1, 300)))


def corpus(folder: Path, sizes: tuple[int, ...] = SIZES) -> tuple[Source, ...]:
    sources = []
    for source, samples in enumerate(sizes):
        file = folder / f"{source}.jsonl"
        texts = [text_of(source, number) for number in range(samples)]
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        text_B = sum(len(one.encode()) for one in texts)
        sources.append(Source(f"source {source}", str(file), "jsonl", samples, text_B))
    return tuple(sources)


def specification(sources: tuple[Source, ...], **more: Any) -> LoaderSpec:
    weights = tuple(one.samples / sum(each.samples for each in sources) for one in sources)
    given: dict[str, Any] = {
        "sources": sources,
        "mixture": (MixturePhase(0, weights),),
        "context_length": 128,
        "documents_per_step": 10,
        "seed": 3,
    }
    return LoaderSpec(**given | more)


CHANGING = (MixturePhase(0, (0.5, 0.25, 0.25)), MixturePhase(1500, (0.0, 0.1, 0.9)))


ARRAYS = ("tokens", "segments", "pieces")


def is_same(one: PackedBatch, other: PackedBatch) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ARRAYS)


def test_counts_add_up_to_each_step_and_follow_weights_that_change_whatever_was_asked_before(tmp_path):
    spec = specification(corpus(tmp_path), mixture=CHANGING)
    mixture = Mixture(spec)
    counts = mixture.counts(0, 3000)
    assert (counts.sum(axis=1) == 10).all()
    assert (counts >= 0).all()
    expected = np.cumsum(np.repeat([phase.weights for phase in CHANGING], 1500, axis=0) * 10, axis=0)
    assert np.abs(np.cumsum(counts, axis=0) - expected).max() < 6
    assert (counts[1500:, 0] == 0).all()
    for step in (0, BLOCK - 1, BLOCK + 1, *range(1490, 1530), 3, 1500, BLOCK, 2 * BLOCK + 77, *range(40)):
        before = counts[:step].sum(axis=0)
        assert (mixture.taken(step) == before).all()
        assert (Mixture(spec).taken(step) == before).all()


@pytest.mark.parametrize(
    ("phases", "said"),
    [
        ((), "the first phase of the mixture must begin at step 0"),
        ((MixturePhase(0, (0.5, 0.5)),), "phase 0 of the mixture has 2 weights for 3 sources"),
        ((MixturePhase(0, (0.5, 0.25, 0.2)),), "the weights of phase 0 of the mixture sum to 0.95, not to 1"),
        ((MixturePhase(0, (1.5, -0.5, 0.0)),), "phase 0 of the mixture has a negative weight"),
        ((MixturePhase(0, (0.5, 0.5, 0.0)),) * 2, "phase 1 of the mixture begins at step 0, not after"),
        ((CHANGING[0],), r"source empty has a weight of 0\.25 and no document"),
    ],
)
def test_a_mixture_that_is_wrong_is_refused_in_one_line(phases, said, tmp_path):
    sources = (*corpus(tmp_path)[:2], Source("empty", "", "jsonl", 0, 0))
    with pytest.raises(LoaderError, match=said):
        Mixture(specification(sources, mixture=phases))


@pytest.mark.parametrize("method", ["in_order", "greedy", "karmarkar_karp"])
def test_plans_have_each_document_once_whatever_steps_are_planned_together(method, tmp_path):
    spec = specification(corpus(tmp_path), dp_size=3, documents_per_step=12)
    mixture, balance = Mixture(spec), BalanceSettings(method, 1.0, 0.01)

    def length(source: int, sample: int) -> int:
        return len(tokenize(text_of(source, sample % SIZES[source])))

    def lengths_of(wanted: Any) -> Any:
        return {
            source: np.array([length(source, first + one) for one in range(count)])
            for source, (first, count) in wanted.items()
        }

    once = plan_steps(spec, mixture, balance, 0, 30, lengths_of)
    apart = [plan_steps(spec, mixture, balance, step, 1, lengths_of)[0] for step in range(30)]
    tokens, pieces = Counter[tuple[int, int]](), Counter[tuple[int, int, int]]()
    for one, other in zip(once, apart, strict=True):
        for group, same in zip(one, other, strict=True):
            assert all((a == b).all() for a, b in zip(group, same, strict=True))
            for source, sample, first, size in zip(*(column.tolist() for column in group), strict=True):
                pieces[source, sample, first] += 1
                tokens[source, sample] += size
    assert set(pieces.values()) == {1}
    assert tokens == {
        (source, sample): length(source, sample)
        for source, samples in enumerate(mixture.taken(30).tolist())
        for sample in range(samples)
    }


def test_any_document_can_be_read_again_and_after_others_and_opening_counts_for_all_up_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count()  # each look takes a second, so each document does
    monkeypatch.setattr(source_reader.time, "perf_counter", lambda: next(clock))
    reader = SourceReader(specification(corpus(tmp_path)))
    reader.lengths({1: (0, 3)}, {})
    assert reader.read_s[1] == (1 / SIZES[1] + 2, 3)
    for source, number in [(0, 0), (0, 1), (1, 3), (2, 22), (2, 23), (0, 0), (1, 7 * 5 + 2), (1, 3), (0, 39)]:
        (length,) = reader.lengths({source: (number, 1)}, {source: number})[source]
        assert length == len(tokenize(text_of(source, number % SIZES[source])))
    reader.keep_only({1})
    assert set(reader._open) == {1}
    (length,) = reader.lengths({0: (1, 1)}, {})[0]
    assert length == len(tokenize(text_of(0, 1)))


def test_a_document_cut_inside_a_character_has_its_bytes_and_one_end(tmp_path: Path) -> None:
    text = "aé漢😀\0b"
    (tmp_path / "one.jsonl").write_text(json.dumps({"text": text}) + "\n")
    source = Source("one", str(tmp_path / "one.jsonl"), "jsonl", 1, len(text.encode()))
    reader, whole = SourceReader(specification((source,))), [*text.encode(), END]
    for first, length in itertools.product(range(len(whole)), range(1, len(whole) + 1)):
        if first + length <= len(whole):
            piece = Pieces(*(np.array([one]) for one in (0, 0, first, length)))
            assert reader.tokens(piece).tolist() == whole[first : first + length]


def test_what_was_read_ahead_is_returned_while_more_is_read(tmp_path: Path) -> None:
    loader = SourceLoader(specification(corpus(tmp_path)))
    loader.lengths({1: (0, 3)}, {1: 0})
    whole = tokenize(text_of(1, 2))
    piece = Pieces(*(np.array([one]) for one in (1, 2, 0, len(whole))))
    with ThreadPoolExecutor(1) as pool, loader._lock:  # as while another call reads
        text = pool.submit(loader.text, piece).result(60)
    assert with_ends(text.astype(np.uint16)).tolist() == whole.tolist()
    assert loader._reader.kept_text(piece._replace(samples=np.array([3]))) is None


@pytest.fixture
def planned(monkeypatch):
    """Return a planner without other actors, which plans nothing ahead by itself."""

    def make(spec):
        reader = SourceReader(spec)
        monkeypatch.setattr(Planner, "_lengths", lambda _, wanted: reader.lengths(wanted, {}))
        return Planner(spec, ActorSettings("planned"))

    monkeypatch.setattr(actors, "start_loaders", lambda *_: None)
    monkeypatch.setattr(Planner, "_plan_ahead", lambda _: None)
    return make


def test_what_was_planned_ahead_is_returned_while_more_is_planned(planned, tmp_path):
    planner = planned(specification(corpus(tmp_path)))
    first = planner.plan(0, 0, 4)
    with ThreadPoolExecutor(1) as pool, planner._lock:  # as while further steps are planned
        again = pool.submit(planner.plan, 0, 2, 2).result(60)
        further = pool.submit(planner.plan, 0, 3, 2)  # step 4 is not planned yet: it waits
        with pytest.raises(TimeoutError):
            further.result(0.2)
    assert all(np.array_equal(one, other) for one, other in zip(first.steps[2:], again.steps, strict=True))
    assert len(further.result(0).steps) == 2
    assert planner._asked == {0: 3}


def test_few_sources_move_where_the_number_of_source_loaders_changes() -> None:
    load_s = np.array([4.0, 3.0, 3.0, 2.0, 0.0, 0.0])
    two = moved([0] * 6, load_s, 2)
    assert Counter(two) == {0: 4, 1: 2}  # as few as make both busy for 5 to 7 s; unread ones stay
    busy_s = np.bincount(two, load_s)
    assert busy_s.max() <= 7.0
    assert moved(two, load_s, 2) == two
    assert moved(two, load_s, 1) == [0] * 6
    three = moved(two, load_s, 3)
    assert sum(a != b for a, b in zip(two, three, strict=True)) <= 2


def test_a_failed_loader_gives_its_sources_to_a_shadow_once() -> None:
    scaler = Autoscaler(6, loaders=2, most=2, shadows=1)
    assert set(scaler.route.values()) == {0, 1}
    scaler.failed(1)
    scaler.failed(1)  # by another that noticed
    assert set(scaler.route.values()) == {0, 2}
    scaler.failed(0)
    assert set(scaler.route.values()) == {1, 2}


def test_loaders_are_added_where_reading_takes_longer_than_steps_and_ended_again() -> None:
    scaler, now_s = Autoscaler(8, loaders=1, most=4, shadows=0), 0.0
    read = dict.fromkeys(range(8), (0.0, 0))

    def steps(count: int, step_s: float) -> None:
        nonlocal now_s
        for _ in range(count):
            now_s += step_s
            for source, (taken_s, documents) in read.items():
                read[source] = (taken_s + 0.1, documents + 1)
            scaler.read(read)
            scaler.asked(0, round(now_s / step_s), now_s)
            scaler.scale(np.ones(8))

    steps(PATIENCE + 3, 0.5)  # reading takes 0.8 s per step, at most half of 0.5 s per loader
    assert scaler.used == 4
    assert sorted(Counter(scaler.route.values()).values()) == [2, 2, 2, 2]
    scaler._asked.clear()
    steps(80, 5.0)
    assert scaler.used == 1
    assert scaler.changes == 2
    asked_for = Autoscaler(8, loaders=2, most=4, shadows=0)
    for step in range(4 * PATIENCE):
        asked_for.asked(0, step, float(step))
        asked_for.read(dict.fromkeys(range(8), (1e-06 * step, step)))
        assert asked_for.scale(np.ones(8)) == ([], [])
    assert asked_for.used == 2


def taken_steps(spec: LoaderSpec, count: int) -> list[list[TakenBatch]]:
    reader, mixture = SourceReader(spec), Mixture(spec)
    plans = plan_steps(spec, mixture, BalanceSettings(), 0, count, lambda wanted: reader.lengths(wanted, {}))
    steps = []
    for groups in plans:
        batches = []
        for pieces in groups:
            parts = [reader.tokens(pieces.chosen(np.array([one]))) for one in range(len(pieces.lengths))]
            batches.append(TakenBatch(np.stack(pieces, axis=1), checksum(*pack(parts, spec.context_length))))
        steps.append(batches)
    return steps


def test_batches_of_the_plan_are_right_and_any_change_is_noticed(tmp_path: Path) -> None:
    spec = specification(corpus(tmp_path), dp_size=2)
    steps = taken_steps(spec, 9)
    assert refuse_changed(spec, steps) == 9 * spec.documents_per_step
    first, second = steps[4]
    for wrong, said in [
        ([first, first], "step 4 has"),
        ([first._replace(pieces=first.pieces[1:]), second], "step 4 has"),
        ([first._replace(checksum=first.checksum ^ 1), second], "step 4: the rows of group 0 differ"),
    ]:
        with pytest.raises(WrongResult, match=said):
            refuse_changed(spec, [*steps[:4], wrong, *steps[5:]])
    with pytest.raises(WrongResult, match="step 4 has"):
        refuse_changed(spec, [*steps[:4], *steps[5:]])


def test_recovery_is_the_time_until_throughput_is_never_low_again() -> None:
    steady_s = np.arange(0, 20, 0.1)
    paused_s = steady_s[(steady_s < 10) | (steady_s >= 13)]
    (at_once_s,) = recoveries_s(paused_s, [10.05], 20.0, 10.0)
    assert at_once_s == pytest.approx(13 - 10.05, abs=0.25)
    (hidden_s,) = recoveries_s(paused_s, [8.0], 20.0, 10.0)  # batches that were ready lasted for two seconds
    assert hidden_s == pytest.approx(13 - 8.0, abs=0.25)
    assert recoveries_s(steady_s, [10.05], 20.0, 10.0) == [0.0]
    slow_s = np.arange(0, 20, 1.0)  # never back at what it was before
    assert recoveries_s(slow_s, [5.0, 12.0], 20.0, 10.0) == pytest.approx([6.0, 7.0], abs=0.2)
    assert recoveries_s(paused_s, [9.0, 11.0], 20.0, 10.0) == pytest.approx([1.0, 2.0], abs=0.25)


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    pytest.importorskip("ray")
    from harness.instruments.distributed.ray_session import RaySession

    one = RaySession()
    yield one
    one.close()


@pytest.fixture
def opened(session: Any, request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Open a loader of this test's own job; its actors end with the test."""
    from suites.dataloader.loaders.disaggregated import DisaggregatedLoader, end_actors

    used: list[tuple[ActorSettings, LoaderSpec]] = []

    def open_loader(spec: LoaderSpec, place: RankPlace = FIRST, job: str = "", **settings: Any) -> Any:
        given = ActorSettings(job or request.node.name, **settings)
        used.append((given, spec))
        return DisaggregatedLoader(spec, place, given, session.address)

    yield open_loader
    for settings, spec in used:
        end_actors(settings, spec)


def take(loader: Any, steps: int) -> list[PackedBatch]:
    """Return the next batches, copied: a loader's own end with it."""
    taken = (next(loader) for _ in range(steps))
    return [one._replace(**{name: np.array(getattr(one, name)) for name in ARRAYS}) for one in taken]


class Undisturbed(NamedTuple):
    """What a loader gives whose actors live, and its state after six batches. Its job goes on."""

    spec: LoaderSpec
    state: dict[str, Any]
    batches: list[PackedBatch]


@pytest.fixture(scope="module")
def undisturbed(session: Any, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    from suites.dataloader.loaders.disaggregated import DisaggregatedLoader

    spec = specification(corpus(tmp_path_factory.mktemp("texts")), mixture=CHANGING, prefetch=1)
    loader = DisaggregatedLoader(spec, FIRST, ActorSettings("undisturbed"), session.address)
    batches = take(loader, 6)
    state = json.loads(json.dumps(loader.state_dict()))
    return Undisturbed(spec, state, batches + take(loader, 24))


def test_batches_are_the_planned_pieces_of_all_texts_but_bad_ones_in_slices_for_each_rank(opened, tmp_path):
    """Bad samples are counted, by a planner that was killed too."""
    import ray

    sources = corpus(tmp_path)
    with_bad_sample(sources)
    spec = specification(sources, cp_size=2)
    ranks = [opened(spec, RankPlace(0, cp_rank), most_bad_samples=1) for cp_rank in range(2)]
    seen: Counter[tuple[int, ...]] = Counter()
    for step in range(40):
        slices, expected = [next(rank) for rank in ranks], []
        for source, sample, first, length in slices[0].pieces.tolist():
            whole = tokenize(text_of(source, sample % SIZES[source]))
            expected.append(whole[first : first + length])
            seen[source, sample, first] += 1
        tokens, segments = pack(expected, spec.context_length)
        for cp_rank, batch in enumerate(slices):
            assert (batch.tokens == context_slice(tokens, 2, cp_rank)).all()
            assert (batch.segments == context_slice(segments, 2, cp_rank)).all()
        if step == 9:
            assert ranks[0].status()["bad_samples"] == 1
            ray.kill(ray.get_actor(f"{ranks[0]._settings.job}-planner"), no_restart=False)
    assert ranks[0].status()["bad_samples"] == 1
    assert set(seen.values()) == {1}
    assert {(source, sample) for source, sample, _ in seen} == {
        (source, sample)
        for source, samples in enumerate(Mixture(spec).taken(40).tolist())
        for sample in range(samples)
        if (source, sample % SIZES[source]) != (1, 2)
    }


def with_bad_sample(sources: tuple[Source, ...]) -> None:
    """Make the third document of the second source no text."""
    lines = Path(sources[1].file).read_text().splitlines()
    lines[2] = '{"text": 5}'
    Path(sources[1].file).write_text("\n".join(lines) + "\n")


def test_source_loaders_and_shadows_that_are_gone_for_good_are_started_again(opened, undisturbed):
    """As after the autoscaler has ended one whose place a shadow had taken, and the planner died."""
    import ray

    disturbed = opened(undisturbed.spec, loaders=2, shadows=1)
    job = disturbed._settings.job
    for step, expected in enumerate(undisturbed.batches):
        if step == 10:
            for number in range(3):
                ended(job, f"loader-{number}")
            ray.kill(found(job, "planner"), no_restart=False)
        assert is_same(next(disturbed), expected)


@pytest.mark.parametrize("shadows", [0, 1])
def test_a_state_continues_bit_for_bit_when_any_actor_is_killed(shadows, opened, undisturbed):
    import ray

    loader = opened(undisturbed.spec, loaders=2, shadows=shadows, job=f"killed {shadows}")
    loader.load_state_dict(undisturbed.state)
    names = ["loader-0", "planner", "constructor-0", "loader-1"]
    for step, expected in enumerate(undisturbed.batches[6:]):
        if step % 6 == 3:
            actor = ray.get_actor(f"killed {shadows}-{names[step // 6]}")
            ray.kill(actor, no_restart=False)
        assert is_same(next(loader), expected), step
    seeded = replace(undisturbed.spec, seed=4)
    other = digest_of(seeded, loader._settings)
    with pytest.raises(LoaderError, match=rf"the state is that of specification {other}, not of"):
        loader.load_state_dict(undisturbed.state | {"specification": other})
    with pytest.raises(LoaderError, match=rf"job killed {shadows} runs with specification \w+, not with"):
        opened(seeded, job=f"killed {shadows}")


def test_more_bad_samples_than_are_allowed_are_named(planned, tmp_path):
    sources = corpus(tmp_path)
    with_bad_sample(sources)
    spec = specification(sources)
    reader = SourceReader(spec)
    lengths = reader.lengths({1: (0, 4)}, {})[1]
    with pytest.raises(
        LoaderError, match=r"source 1, document 2 in .*1\.jsonl: .*bad samples: 1, allowed are 0"
    ):
        planned(spec)._note(LoaderReport(lengths, reader.bad_samples(), reader.read_s))


def test_a_source_that_hangs_is_named(opened, tmp_path: Path) -> None:
    import ray

    sources = corpus(tmp_path)
    file = Path(sources[1].file)
    file.unlink()
    os.mkfifo(file)
    spec, settings = specification(sources), ActorSettings("hangs", timeout_s=8.0)
    start_loader(0, spec, settings)
    ray.get(found("hangs", "loader-0").reading.remote())  # it has started: only the source takes long
    loader = opened(spec, job="hangs", timeout_s=8.0)
    with pytest.raises(
        LoaderError, match="source loader 0 gave no answer within 8 s; it is reading source source 1"
    ):
        take(loader, 3)
    with open(file, "w"):  # lets the reader go
        pass


def test_nothing_listens_but_on_the_loopback_address(session: Any) -> None:
    own, connections = psutil.Process(), []
    for process in (own, *own.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # Ray's come and go
            connections += process.net_connections(kind="inet")
    listening = [
        ipaddress.ip_address(one.laddr.ip.removeprefix("::ffff:"))
        for one in connections
        if one.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert all(one.is_loopback for one in listening), listening


def test_nothing_is_left_after_a_session_that_is_killed(tmp_path: Path) -> None:
    """Though the folder of temporary files is too long for a socket, and its processes are killed."""
    pytest.importorskip("ray")
    code = (
        "from harness.instruments.distributed.ray_session import RaySession\n"
        "session = RaySession()\nprint('up', flush=True)\ninput()"
    )
    temporary = tmp_path / ("x" * LONGEST_PATH_B)
    temporary.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        started = psutil.Process(process.pid).children(recursive=True)
        (folder,) = watched_folders(started)
        assert Path(folder).is_dir()
        process.send_signal(signal.SIGKILL)
        kill_by_tmpdir(temporary)
    _, alive = psutil.wait_procs(started, timeout=30)
    assert not alive
    assert not Path(folder).exists()


def watched_folders(processes: list[psutil.Process]) -> list[str]:
    """Return the folder of each process that waits for a session's end to remove one."""
    watched = []
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            words = one.cmdline()
            watched += words[-1:] if "ray_watchdog" in " ".join(words) else []
    return watched


def test_a_full_object_store_and_a_missing_ray_are_named_in_one_line(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")

    def full(*_: Any, **__: Any) -> None:
        raise ray.exceptions.ObjectStoreFullError(
            "Failed to put object 00ff\n in object store because it is full"
        )

    monkeypatch.setattr(ray, "get", full)
    with pytest.raises(LoaderError, match=r"^constructor 0: ObjectStoreFullError: .*it is full.*$") as caught:
        answer(None, "constructor 0", 1.0)
    assert "\n" not in str(caught.value)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(Unavailable, match=r"^ray cannot be imported .*: pip install throughput-harness"):
        LoaderRanks("disaggregated", specification(corpus(tmp_path)))
