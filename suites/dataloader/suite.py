"""The dataloader suite (OVERLORD, MegaScale-Data): loaders of text from many sources, for ranks that train.

The baseline is torch's DataLoader in each rank, every worker with every source. Memory is proportional set
size over all processes, Ray's included, without the one that starts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import fmean

from harness.instruments.distributed.ray_session import RaySession
from harness.records import Json, Note, Origin, Reading, Unavailable
from suites.dataloader.batch import LoaderSpec, MixturePhase, Subject
from suites.dataloader.corpus import Corpus, Documents, sources_of_text, write
from suites.dataloader.installed_files import generated
from suites.dataloader.loaded_text import check_steps, piece_index
from suites.dataloader.loader_ranks import LoaderMemory, LoaderRanks, MemorySampler, loader_module
from suites.dataloader.workload import Workload
from suites.training.workload import refuse_odd_heads

GENERATED_DOCUMENTS = 40  # mean documents of a source of synthetic text
CHECKED = 3  # batches of each rank that are compared with the corpus

LEAST_AHEAD = 24
"""Batches that the disaggregated loader may have: two calls of 8 steps, and 8 planned ones."""

PREFETCH = 2  # batches that a worker loads ahead

OF_ACTORS = ("failures", "control_plane")
"""Kinds of workloads that only the disaggregated loader has."""

WARM_UP_STEPS = 2  # training steps before those that are timed


def build(workload: Json, seed: int) -> Subject:
    """Return the baseline: torch's DataLoader in each rank."""
    given = Workload(**workload)
    if given.trains:
        refuse_odd_heads(given)
    return Subject(given, seed)


@dataclass(slots=True)
class Session:
    """A loader and its corpus. `libraries`: what its ranks import, known once it was checked."""

    subject: Subject
    documents: Documents
    corpus: Corpus
    spec: LoaderSpec
    ranks: LoaderRanks | None = None
    libraries: Sequence[str] = ()


def prepare(subject: Subject) -> Session:
    """Write the corpus in the loader's format; raises `Unavailable` for what it cannot do or fit."""
    workload = subject.workload
    if workload.kind in OF_ACTORS and subject.loader != "disaggregated":
        raise Unavailable(f"{subject.loader} has no actors and no planner")
    if workload.text == "installed":
        documents: Documents = sources_of_text(workload.sources)
    else:
        documents = generated(workload.sources, workload.sources * GENERATED_DOCUMENTS, subject.seed)
    module = loader_module(subject.loader)
    format = workload.format if workload.format in module.FORMATS else module.FORMATS[0]
    corpus = write(None, format, documents, workload.row_group_documents if format == "parquet" else 0)
    spec = LoaderSpec(
        sources=corpus.sources,
        mixture=phases(workload, corpus),
        context_length=workload.context_length,
        documents_per_step=workload.documents_per_step,
        dp_size=workload.dp_size,
        cp_size=workload.cp_size,
        workers=workload.workers,
        prefetch=PREFETCH,
        seed=subject.seed,
        read_delay_s=workload.read_delay_s,
        read_B_per_s=workload.read_B_per_s,
        options=dict(subject.options),
    )
    if hasattr(module, "refuse_unfit"):
        module.refuse_unfit(spec)
    return Session(subject, documents, corpus, spec)


def phases(workload: Workload, corpus: Corpus) -> tuple[MixturePhase, ...]:
    """Return the weights of the sources over the steps that are timed."""
    even = (1 / len(corpus.sources),) * len(corpus.sources)
    by_size = tuple(one.text_B / corpus.text_B for one in corpus.sources)
    if workload.mixture == "changing":
        before = ahead(PREFETCH, workload.workers) + WARM_UP_STEPS
        return MixturePhase(0, even), MixturePhase(before + workload.steps // 2, by_size)
    return (MixturePhase(0, by_size if workload.mixture == "by_size" else even),)


def check(session: Session) -> None:
    """Compare the first batches of every rank with the corpus; raises `WrongResult`."""
    if session.subject.workload.kind in OF_ACTORS:
        return  # the batches are compared after they were taken
    index = piece_index(session.documents, session.spec.context_length)
    ranks = started(session)
    ranks.first_batch(session.subject.workload.first_batch_within_s)
    batches = ranks.call("rows", count=CHECKED)
    check_steps(session.spec, index, batches)
    session.libraries = sorted({name for one in ranks.call("libraries") for name in one})
    close(session)


def conditions(session: Session) -> Mapping[str, str]:
    """Return the conditions that a claim may name."""
    workload = session.subject.workload
    return {
        "device": "cpu",
        "backend": "gloo",
        "loader": session.subject.loader,
        "format": session.corpus.sources[0].format,
        "row_group_documents": str(workload.row_group_documents),
        "sources": str(workload.sources),
        "text": workload.text,
        "text_B": str(session.corpus.text_B),
        "corpus": session.corpus.digest[:16],
        "mixture": workload.mixture,
        "workers": str(workload.workers),
        "dp_size": str(workload.dp_size),
        "cp_size": str(workload.cp_size),
        "context_length": str(workload.context_length),
        "storage": "emulated" if workload.kind == "slow_storage" else "page cache",
    }


def sample(session: Session) -> Iterator[Reading | Note]:
    """Start fresh ranks; read the time to the first batch, memory, and batches or training steps."""
    workload, origin = session.subject.workload, origin_of(session.subject.workload)
    wanted = session.subject.workload.format
    if (read := session.corpus.sources[0].format) != wanted:
        yield Note(f"{session.subject.loader} cannot read {wanted}: it has read {read}")
    if workload.kind in OF_ACTORS:
        yield from of_actors(session)
        return
    ranks = started(session)
    if ranks.ray_start_s:
        yield Reading("ray_start", "s", ranks.ray_start_s, Origin.MEASURED)
    with closing(MemorySampler(ranks.memory)) as memory:
        first_s = ranks.first_batch(workload.first_batch_within_s)
        yield Reading("time_to_first_batch", "s", first_s, origin)
        memory.take()
        yield from trained(session, ranks) if workload.trains else loaded(session, ranks)
        memory.take()
    yield from memory_readings(memory.samples, ranks.idle_B, origin)
    close(session)


def of_actors(session: Session) -> Iterator[Reading]:
    """Kill actors while batches are taken, or deliver plans to simulated clients, in a fresh Ray."""
    from suites.dataloader import control_plane, failures

    workload = session.subject.workload
    with closing(RaySession()) as ray:
        if workload.kind == "control_plane":
            yield from control_plane.run(workload.clients, workload.documents_per_step)
        else:
            yield from failures.run(session.spec, ray.address, workload)


def loaded(session: Session, ranks: LoaderRanks) -> Iterator[Reading]:
    """Take batches as fast as they come, after those that were loaded or read ahead."""
    workload = session.subject.workload
    origin, first = origin_of(workload), untimed(session.subject.loader, session.spec)
    taken = ranks.call("take", first=first, count=workload.steps, least_s=workload.timed_s)
    own, slowest_s = taken[:: session.spec.cp_size], max(one["seconds"] for one in taken)
    yield Reading("throughput", "token/s", total(own, "tokens") / slowest_s, origin)
    yield from contents(own, int(taken[0]["batches"]))


def trained(session: Session, ranks: LoaderRanks) -> Iterator[Reading]:
    """Train on batches, after those that were loaded ahead and some steps."""
    workload = session.subject.workload
    sizes = [workload.hidden_size, workload.num_hidden_layers, workload.num_attention_heads]
    ranks.call("begin_training", sizes=sizes, seed=session.subject.seed)
    first = ahead(session.spec.prefetch, session.spec.workers)
    steps_of_ranks = ranks.call("train", first=first, warm_up=WARM_UP_STEPS, count=workload.steps)
    yield from step_readings(steps_of_ranks, session.spec, origin_of(workload))
    own = [step for steps in steps_of_ranks[:: session.spec.cp_size] for step in steps]
    yield from contents(own, workload.steps)


def step_readings(
    ranks: Sequence[Sequence[Mapping[str, float]]], spec: LoaderSpec, origin: Origin
) -> Iterator[Reading]:
    """Read what training steps took: `ranks` has each rank's steps as `on_rank.train` returns them.

    The processor time of the slowest is what a step would compute with a core per rank. FLOP per second
    compares loaders that draw different documents: a step's time grows with the squares of their lengths.
    """
    every = list(zip(*ranks, strict=True))
    step_s = [max(one["step_s"] for one in step) for step in every]
    for taken_s in step_s:
        yield Reading("step_time", "s", taken_s, origin)
    for step in every:
        slowest_s = max(one["cpu_s"] for one in step)
        yield Reading("step_time", "s", slowest_s, Origin.CALCULATED, "computation, a core per rank")
        yield Reading("imbalance", "1", slowest_s / fmean(one["cpu_s"] for one in step), Origin.MEASURED)
    own = [step for steps in ranks[:: spec.cp_size] for step in steps]
    yield Reading("throughput", "token/s", total(own, "tokens") / sum(step_s), origin)
    flop = sum(total(steps, "flop") for steps in ranks)
    yield Reading("flop_rate", "FLOP/s", flop / sum(step_s), origin, "FLOP of the documents seen")
    late = [max(one["wait_s"] for one in step) / taken_s for step, taken_s in zip(every, step_s, strict=True)]
    yield Reading("waiting_share", "1", fmean(late), origin, "slowest rank of each step")
    waiting = [total(steps, "wait_s") / total(steps, "step_s") for steps in ranks]
    yield Reading("waiting_share", "1", fmean(waiting), origin, "mean over ranks")
    yield Reading("waiting_share", "1", max(waiting), origin, "worst rank")


def contents(batches: Sequence[Mapping[str, float]], steps: int) -> Iterator[Reading]:
    """Read what full rows contained, of one rank per data-parallel group."""
    yield Reading("documents_per_step", "1", total(batches, "documents") / steps, Origin.MEASURED)
    yield Reading("tokens_per_step", "1", total(batches, "tokens") / steps, Origin.MEASURED)


def memory_readings(taken: Sequence[LoaderMemory], idle_B: int, origin: Origin) -> Iterator[Reading]:
    """Read the peak of the samples: over all processes, and beyond ranks that load nothing."""
    peak_B = max(one.pss_B + one.unmapped_B for one in taken)
    yield Reading("memory", "B", peak_B, origin, "all processes and shared memory")
    yield Reading("memory", "B", max(one.pss_B for one in taken), origin, "all processes")
    yield Reading("memory", "B", peak_B - idle_B, origin, "above idle ranks")
    yield Reading("temporary_files", "B", max(one.files_B for one in taken), origin)
    yield Reading("memory_samples", "1", len(taken), Origin.MEASURED)


def started(session: Session) -> LoaderRanks:
    """Return fresh ranks of the session, which `close` ends."""
    close(session)
    session.ranks = LoaderRanks(session.subject.loader, session.spec, session.libraries)
    return session.ranks


def ahead(prefetch: int, workers: int) -> int:
    """Return the batches that a loader may have ready, which are taken before any training step."""
    return max(prefetch * workers, LEAST_AHEAD)


def untimed(loader: str, spec: LoaderSpec) -> int:
    """Return the batches that a loader may have ready or have read, taken before any is timed.

    A module's `read_ahead` returns the documents that the loader reads ahead per rank, besides batches.
    """
    read_ahead = getattr(loader_module(loader), "read_ahead", None)
    documents = read_ahead(spec) if read_ahead else 0
    return ahead(spec.prefetch, spec.workers) + -(-documents // spec.documents_per_group)


def origin_of(workload: Workload) -> Origin:
    """Return whether the storage is real."""
    return Origin.EMULATED if workload.kind == "slow_storage" else Origin.MEASURED


def total(ones: Sequence[Mapping[str, float]], name: str) -> float:
    """Return the sum of one value."""
    return sum(one[name] for one in ones)


def close(session: Session) -> None:
    """End the ranks, and what they have started."""
    ranks, session.ranks = session.ranks, None
    if ranks is not None:
        ranks.close()
