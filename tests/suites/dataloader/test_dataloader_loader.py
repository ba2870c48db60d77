"""The disaggregated loader: mixture and plans against sequential counting, and its actors on a real Ray."""

from __future__ import annotations

import importlib
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
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest

from harness.instruments.distributed.ray_session import LONGEST_PATH_B
from harness.records import Unavailable
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
from suites.dataloader.disaggregation.actors import Planner, SourceLoader, start_loader
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
from suites.dataloader.loader_ranks import LoaderRanks
from suites.dataloader.loaders import peers

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
        sources.append(
            Source(
                f"source {source}", (str(file),), "jsonl", samples, sum(len(one.encode()) for one in texts)
            )
        )
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


def test_counts_add_up_to_each_step_and_follow_weights_that_change(tmp_path: Path) -> None:
    mixture = Mixture(specification(corpus(tmp_path), mixture=CHANGING))
    counts = mixture.counts(0, 3000)
    assert (counts.sum(axis=1) == 10).all()
    assert (counts >= 0).all()
    expected = np.cumsum(np.repeat([phase.weights for phase in CHANGING], 1500, axis=0) * 10, axis=0)
    assert np.abs(np.cumsum(counts, axis=0) - expected).max() < 6
    assert (counts[1500:, 0] == 0).all()


@pytest.mark.parametrize("step", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 77])
def test_documents_taken_before_a_step_are_the_sum_of_its_counts(step: int, tmp_path: Path) -> None:
    mixture = Mixture(specification(corpus(tmp_path), mixture=CHANGING))
    assert (mixture.taken(step) == mixture.counts(0, step).sum(axis=0)).all()


@pytest.mark.parametrize(
    ("phases", "said"),
    [
        ((), "the first phase of the mixture must begin at step 0"),
        ((MixturePhase(0, (0.5, 0.5)),), "phase 0 of the mixture has 2 weights for 3 sources"),
        ((MixturePhase(0, (0.5, 0.25, 0.2)),), "the weights of phase 0 of the mixture sum to 0.95, not to 1"),
        ((MixturePhase(0, (1.5, -0.5, 0.0)),), "phase 0 of the mixture has a negative weight"),
        (
            (CHANGING[0], MixturePhase(0, CHANGING[0].weights)),
            "phase 1 of the mixture begins at step 0, not after",
        ),
    ],
)
def test_a_mixture_that_is_wrong_is_refused_in_one_line(
    phases: tuple[MixturePhase, ...], said: str, tmp_path: Path
) -> None:
    with pytest.raises(LoaderError, match=said):
        Mixture(specification(corpus(tmp_path), mixture=phases))


def test_an_empty_source_with_a_weight_is_refused(tmp_path: Path) -> None:
    sources = (*corpus(tmp_path)[:2], Source("empty", (), "jsonl", 0, 0))
    with pytest.raises(LoaderError, match=r"source empty has a weight of 0\.25 and no document"):
        Mixture(specification(sources, mixture=(MixturePhase(0, (0.5, 0.25, 0.25)),)))


@pytest.mark.parametrize("method", ["in_order", "greedy", "karmarkar_karp"])
def test_plans_have_each_document_once_whatever_steps_are_planned_together(
    method: str, tmp_path: Path
) -> None:
    spec = specification(corpus(tmp_path), dp_size=3, documents_per_step=12)
    mixture, balance = Mixture(spec), BalanceSettings(method, 1.0, 0.01)

    def lengths_of(wanted: Any) -> Any:
        return {
            source: np.array(
                [len(tokenize(text_of(source, (first + one) % SIZES[source]))) for one in range(count)]
            )
            for source, (first, count) in wanted.items()
        }

    once = plan_steps(spec, mixture, balance, 0, 30, lengths_of)
    apart = [plan_steps(spec, mixture, balance, step, 1, lengths_of)[0] for step in range(30)]
    for one, other in zip(once, apart, strict=True):
        for group, same in zip(one, other, strict=True):
            assert all((a == b).all() for a, b in zip(group, same, strict=True))
    seen = Counter(
        (int(source), int(sample), int(first))
        for step in once
        for group in step
        for source, sample, first in zip(group.sources, group.samples, group.firsts, strict=True)
    )
    assert set(seen.values()) == {1}
    for source, samples in enumerate(mixture.taken(30)):
        documents = {sample for one, sample, _ in seen if one == source}
        assert documents == set(range(samples))
    total = sum(int(group.lengths.sum()) for step in once for group in step)
    assert total == sum(
        len(tokenize(text_of(source, number % SIZES[source])))
        for source, samples in enumerate(mixture.taken(30))
        for number in range(samples)
    )


def test_any_document_can_be_read_again_and_after_others(tmp_path: Path) -> None:
    reader = SourceReader(specification(corpus(tmp_path)), open_readers=2)
    for source, number in [(0, 0), (0, 1), (1, 3), (2, 22), (2, 23), (0, 0), (1, 7 * 5 + 2), (1, 3), (0, 39)]:
        (length,) = reader.lengths({source: (number, 1)}, {source: number})[source]
        expected = tokenize(text_of(source, number % SIZES[source]))
        assert length == len(expected)


def test_documents_taken_do_not_depend_on_what_was_asked_before(tmp_path: Path) -> None:
    mixture = Mixture(specification(corpus(tmp_path), mixture=CHANGING))
    steps = [*range(1490, 1530), 3, 1500, 1499, BLOCK + 5, BLOCK, 2 * BLOCK + 1, *range(40)]
    for step in steps:
        assert (mixture.taken(step) == mixture.counts(0, step).sum(axis=0)).all()


def test_pieces_are_cut_from_the_text_and_its_end(tmp_path: Path) -> None:
    reader = SourceReader(specification(corpus(tmp_path)))
    whole = tokenize(text_of(1, 4))
    cuts = [(0, 5), (5, len(whole) - 6), (len(whole) - 1, 1)]
    columns = [np.array(one) for one in zip(*[(1, 4, first, length) for first, length in cuts], strict=True)]
    assert (reader.tokens(Pieces(*columns)) == whole).all()


def test_a_document_cut_inside_a_character_has_its_bytes_and_one_end(tmp_path: Path) -> None:
    text = "aé漢😀\0b"
    (tmp_path / "one.jsonl").write_text(json.dumps({"text": text}) + "\n")
    source = Source("one", (str(tmp_path / "one.jsonl"),), "jsonl", 1, len(text.encode()))
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


def test_what_was_planned_ahead_is_returned_while_more_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, settings = specification(corpus(tmp_path)), ActorSettings("planned")
    monkeypatch.setattr(actors, "start_loaders", lambda *_: None)
    monkeypatch.setattr(Planner, "_plan_ahead", lambda _: None)
    reader = SourceReader(spec)
    monkeypatch.setattr(Planner, "_lengths", lambda _, wanted: reader.lengths(wanted, {}))
    planner = Planner(spec, settings)
    first = planner.plan(0, 0, 4)
    with ThreadPoolExecutor(1) as pool, planner._lock:  # as while further steps are planned
        again = pool.submit(planner.plan, 0, 2, 2).result(60)
        further = pool.submit(planner.plan, 0, 3, 2)  # step 4 is not planned yet: it waits
        with pytest.raises(TimeoutError):
            further.result(0.2)
    for one, other in zip(first.steps[2:], again.steps, strict=True):
        assert all((a == b).all() for a, b in zip(one, other, strict=True))
    assert len(further.result(0).steps) == 2
    assert planner._asked == {0: 3}


def test_opening_a_source_counts_for_all_documents_up_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count()  # each look takes a second, so each document does
    monkeypatch.setattr(source_reader.time, "perf_counter", lambda: next(clock))
    reader = SourceReader(specification(corpus(tmp_path)))
    reader.lengths({1: (0, 3)}, {})
    assert reader.read_s[1] == (1 / SIZES[1] + 2, 3)


def test_readers_of_sources_that_are_read_elsewhere_are_closed(tmp_path: Path) -> None:
    reader = SourceReader(specification(corpus(tmp_path)))
    reader.lengths({0: (0, 1), 1: (0, 1), 2: (0, 1)}, {})
    reader.keep_only({1})
    assert set(reader._open) == {1}
    (length,) = reader.lengths({0: (1, 1)}, {})[0]
    assert length == len(tokenize(text_of(0, 1)))


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
    scaler, now_s, read = (
        Autoscaler(8, loaders=1, most=4, shadows=0),
        0.0,
        dict.fromkeys(range(8), (0.0, 0)),
    )

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


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    pytest.importorskip("ray")
    from harness.instruments.distributed.ray_session import RaySession

    one = RaySession()
    yield one
    one.close()


Opened = Callable[..., Any]


@pytest.fixture
def opened(session: Any, request: pytest.FixtureRequest) -> Iterator[Opened]:
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
    return [next(loader) for _ in range(steps)]


class Undisturbed(NamedTuple):
    """What a loader gives whose actors live."""

    spec: LoaderSpec
    batches: list[PackedBatch]


@pytest.fixture(scope="module")
def undisturbed(session: Any, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    from suites.dataloader.loaders.disaggregated import DisaggregatedLoader, end_actors

    spec = specification(corpus(tmp_path_factory.mktemp("texts")), mixture=CHANGING, prefetch=1)
    settings = ActorSettings("undisturbed")
    loader = DisaggregatedLoader(spec, FIRST, settings, session.address)
    batches = [
        one._replace(tokens=one.tokens.copy(), pieces=np.array(one.pieces)) for one in take(loader, 30)
    ]
    end_actors(settings, spec)
    return Undisturbed(spec, batches)


def test_batches_are_the_planned_pieces_of_the_texts(opened: Opened, tmp_path: Path) -> None:
    spec = specification(corpus(tmp_path), dp_size=2)
    seen: Counter[tuple[int, ...]] = Counter()
    for group in range(2):
        loader = opened(spec, RankPlace(group, 0), loaders=2)
        for _ in range(20):
            batch = next(loader)
            expected = []
            for source, sample, first, length in batch.pieces.tolist():
                whole = tokenize(text_of(source, sample % SIZES[source]))
                expected.append(whole[first : first + length])
                seen[source, sample, first] += 1
            tokens, segments = pack(expected, spec.context_length)
            assert (batch.tokens == tokens).all()
            assert (batch.segments == segments).all()
    assert set(seen.values()) == {1}
    taken = Mixture(spec).taken(20)
    assert {(source, sample) for source, sample, _ in seen} == {
        (source, sample) for source, samples in enumerate(taken) for sample in range(samples)
    }


def test_context_parallel_ranks_get_their_slices_of_the_same_rows(opened: Opened, tmp_path: Path) -> None:
    spec = specification(corpus(tmp_path), cp_size=2)
    one = opened(specification(corpus(tmp_path)), job="whole")
    ranks = [opened(spec, RankPlace(0, cp_rank)) for cp_rank in range(2)]
    for _ in range(12):
        whole, parts = next(one), [next(rank) for rank in ranks]
        for cp_rank, part in enumerate(parts):
            assert (part.tokens == context_slice(whole.tokens, 2, cp_rank)).all()
            assert (part.segments == context_slice(whole.segments, 2, cp_rank)).all()


def test_a_state_continues_bit_for_bit_and_another_specification_is_refused(
    opened: Opened, tmp_path: Path
) -> None:
    spec = specification(corpus(tmp_path), mixture=CHANGING)
    first = opened(spec)
    for _ in range(7):
        next(first)
    state = json.loads(json.dumps(first.state_dict()))
    rest = [next(first) for _ in range(15)]
    again = opened(spec, job="again")
    again.load_state_dict(state)
    for expected in rest:
        got = next(again)
        assert (got.tokens == expected.tokens).all()
        assert (got.pieces == expected.pieces).all()
    other = digest_of(specification(corpus(tmp_path), seed=4), again._settings)
    with pytest.raises(LoaderError, match=rf"the state is that of specification {other}, not of"):
        again.load_state_dict(state | {"specification": other})


def test_a_job_that_runs_with_another_specification_is_not_joined(opened: Opened, tmp_path: Path) -> None:
    sources = corpus(tmp_path)
    next(opened(specification(sources), job="taken"))
    with pytest.raises(LoaderError, match=r"job taken runs with specification \w+, not with"):
        opened(specification(sources, seed=9), job="taken")


def test_source_loaders_and_shadows_that_are_gone_for_good_are_started_again(
    opened: Opened, undisturbed: Undisturbed
) -> None:
    """As after the autoscaler has ended one whose place a shadow had taken, and the planner died."""
    import ray

    disturbed = opened(undisturbed.spec, loaders=2, shadows=1)
    job = disturbed._settings.job
    for step, expected in enumerate(undisturbed.batches):
        if step == 10:
            for number in range(3):
                ended(job, f"loader-{number}")
            ray.kill(found(job, "planner"), no_restart=False)
        got = next(disturbed)
        assert (got.tokens == expected.tokens).all()
        assert (got.pieces == expected.pieces).all()


def test_no_fewer_source_loaders_are_used_than_were_asked_for() -> None:
    scaler = Autoscaler(8, loaders=2, most=4, shadows=0)
    for step in range(4 * PATIENCE):
        scaler.asked(0, step, float(step))
        scaler.read(dict.fromkeys(range(8), (1e-06 * step, step)))
        assert scaler.scale(np.ones(8)) == ([], [])
    assert scaler.used == 2


@pytest.mark.parametrize("shadows", [0, 1])
def test_no_document_is_lost_or_doubled_when_any_actor_is_killed(
    shadows: int, opened: Opened, undisturbed: Undisturbed
) -> None:
    import ray

    loader = opened(undisturbed.spec, loaders=2, shadows=shadows, job=f"killed {shadows}")
    names = ["loader-0", "planner", "constructor-0", "loader-1"]
    for step, expected in enumerate(undisturbed.batches[:24]):
        if step % 6 == 3:
            actor = ray.get_actor(f"killed {shadows}-{names[step // 6]}")
            ray.kill(actor, no_restart=False)
        got = next(loader)
        assert (got.tokens == expected.tokens).all(), step
        assert (got.pieces == expected.pieces).all(), step


def test_bad_samples_are_skipped_and_counted_up_to_a_limit(opened: Opened, tmp_path: Path) -> None:
    import ray

    sources = corpus(tmp_path)
    lines = Path(sources[1].files[0]).read_text().splitlines()
    lines[2] = '{"text": 5}'
    Path(sources[1].files[0]).write_text("\n".join(lines) + "\n")
    spec = specification(sources)
    loader = opened(spec, job="some", most_bad_samples=1)
    pieces = np.concatenate([next(loader).pieces for _ in range(7)])
    assert loader.status()["bad_samples"] == 1
    assert {sample for source, sample, *_ in pieces.tolist() if source == 1} >= {0, 1, 3, 4, 5, 6}
    assert (1, 2) not in {(source, sample) for source, sample, *_ in pieces.tolist()}
    ray.kill(ray.get_actor("some-planner"), no_restart=False)  # it counts them again
    take(loader, 20)
    assert loader.status()["bad_samples"] == 1
    none = opened(spec, job="none")
    with pytest.raises(
        LoaderError, match=r"source 1, document 2 in .*1\.jsonl: .*bad samples: 1, allowed are 0"
    ):
        take(none, 7)


def test_a_source_that_hangs_is_named(opened: Opened, tmp_path: Path) -> None:
    import ray

    sources = corpus(tmp_path)
    file = Path(sources[1].files[0])
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


def test_a_cluster_that_is_not_there_is_named() -> None:
    code = (
        "from harness.instruments.distributed.ray_session import RayError, join\n"
        "try:\n    join('127.0.0.1:1')\n"
        "except RayError as error:\n    print(error)\n"
    )
    pytest.importorskip("ray")
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"RAY_gcs_rpc_server_reconnect_timeout_s": "1"},
        check=False,
    )
    assert "no Ray cluster at 127.0.0.1:1: " in done.stdout


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


def folders_watched(processes: list[psutil.Process]) -> list[str]:
    """Return the folder of each process that waits for a session's end to remove one."""
    found = []
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            words = one.cmdline()
            found += words[-1:] if "ray_watchdog" in " ".join(words) else []
    return found


def test_nothing_is_left_after_a_session_that_is_killed(tmp_path: Path) -> None:
    """Though the folder of temporary files is too long for a socket, and its processes are killed."""
    pytest.importorskip("ray")
    code = (
        "from harness.instruments.distributed.ray_session import RaySession\n"
        "session = RaySession()\nprint('up', flush=True)\ninput()"
    )
    temporary = tmp_path / ("x" * LONGEST_PATH_B)
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        started = psutil.Process(process.pid).children(recursive=True)
        (folder,) = folders_watched(started)
        assert Path(folder).is_dir()
        process.send_signal(signal.SIGKILL)
        kill_by_tmpdir(temporary)
    _, alive = psutil.wait_procs(started, timeout=30)
    assert not alive
    assert not Path(folder).exists()


def test_a_full_object_store_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")

    def full(*_: Any, **__: Any) -> None:
        raise ray.exceptions.ObjectStoreFullError(
            "Failed to put object 00ff\n in object store because it is full"
        )

    monkeypatch.setattr(ray, "get", full)
    with pytest.raises(LoaderError, match=r"^constructor 0: ObjectStoreFullError: .*it is full.*$") as caught:
        answer(None, "constructor 0", 1.0)
    assert "\n" not in str(caught.value)


def test_a_missing_ray_is_named_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(
        Unavailable, match=r"^ray cannot be imported .*: pip install throughput-harness\[dataloader\]"
    ):
        LoaderRanks("disaggregated", specification(corpus(tmp_path)))
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.mark.parametrize(
    "peer", ["spdl", "grain_map_mix", "webdataset", "torchdata_nodes", "ray_data", "mosaicml_streaming"]
)
def test_a_missing_peer_is_named(peer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    module = importlib.import_module(f"suites.dataloader.loaders.{peer}")
    assert "is not installed: " in module.unavailable(None)
