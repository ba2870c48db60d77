"""The interconnect suite (the paper's Table III): training over two nodes, behind links of a chosen speed.

The baseline is the workload's strategy over 10 Gbit/s Ethernet, scaled to this host. All variants of a
workload share ranks on two nodes of a network of namespaces; the links are reshaped for each turn. Where
torchrun or srun started the harness on several machines, variants share those ranks, on the machines' own
network.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean

from harness.instruments.distributed.remote_ranks import Launch, launch
from harness.records import Json, Note, Origin, Reading, Unavailable
from suites.interconnect import training_cluster
from suites.interconnect.emulated_cluster import EmulatedCluster, computed_s, trace_key
from suites.interconnect.training_cluster import SHARED, Subject, TrainingCluster, strategy_step
from suites.interconnect.workload import Workload
from suites.training.correctness import FEWEST, check_on_ranks, mean_over_ranks, require_learning
from suites.training.shared_trainers import shared
from suites.training.techniques import Techniques
from suites.training.workload import refuse_odd_heads

KEYS = itertools.count()


def build(workload: Json, seed: int) -> Subject:
    """Return the baseline: the workload's strategy over its own link."""
    given = Workload(**workload)
    refuse_odd_heads(given)
    validate(given, launch())
    return Subject(given, seed, strategy_step(given, seed), given.link_B_per_s)


def apply_techniques(subject: Subject, techniques: Techniques) -> Subject:
    """Return the subject with the techniques of an optimization's list; raises `Unavailable`."""
    return subject.with_techniques(techniques)


def bf16_FLOP(subject: Subject) -> float:
    """Return the FLOP of the bf16 matrix products in one sample: 6 per parameter and token; none in fp32."""
    step, workload = subject.step, subject.workload
    if step.features.precision == "fp32":
        return 0.0
    batches = workload.ranks * step.batches_per_update * step.updates_between_syncs
    tokens = batches * workload.micro_batch_size * workload.seq_len
    return 6.0 * workload.shape.parameters * tokens


def validate(workload: Workload, here: Launch | None) -> None:
    """Raise `Unavailable` for nodes that are not there."""
    if here is not None:
        training_cluster.validate_nodes(workload, here)
    elif workload.nodes != 2:
        raise Unavailable(
            f"nodes={workload.nodes}: this machine emulates two nodes; start more with torchrun or srun"
        )


def validate_loss_steps(subject: Subject) -> None:
    """Raise `Unavailable` where losses would be of unequal numbers of tokens."""
    multiple = subject.step.batches_per_update * subject.step.updates_between_syncs
    if subject.workload.loss_steps % multiple:
        raise Unavailable(f"loss_steps={subject.workload.loss_steps}: expected a multiple of {multiple} here")


@dataclass(slots=True)
class Session:
    """A variant's trainers on the ranks that all variants of its workload share; `key` names them there."""

    subject: Subject
    cluster: TrainingCluster
    key: str
    max_error: float | None = None  # of a loss, once checked
    predicted: bool = False  # whether the model predicts the step's time


def prepare(subject: Subject) -> Session:
    """Start the ranks if no variant has, and the variant's trainers on them."""
    validate_loss_steps(subject)
    if launch() is not None:
        training_cluster.validate_link(subject)
    cluster = shared(started_ranks, subject.workload, subject.seed)
    session = Session(subject, cluster, f"{subject.strategy}{next(KEYS)}")
    cluster.enter(session.key, subject.step)
    return session


def check(session: Session) -> None:
    """Compare the variant's losses and gradients with plain PyTorch's; raises `WrongResult`."""
    call = session.cluster.call
    session.max_error = check_on_ranks(session.subject.step, call, session.key, SHARED)


def conditions(session: Session) -> Mapping[str, str]:
    """Return the conditions that a claim may name."""
    subject, ranks = session.subject, session.cluster
    workload = subject.workload
    own = ranks.conditions if isinstance(ranks, training_cluster.RealCluster) else None
    return {
        **(own or {"device": "cpu", "backend": "gloo", "network": "emulated"}),
        "strategy": subject.strategy,
        "precision": subject.step.features.precision,
        "link_B_per_s": "unknown" if own else f"{subject.link_B_per_s:g}",
        "nodes": str(workload.nodes),
        "ranks_per_node": str(workload.ranks_per_node),
        "parameters": str(workload.shape.parameters),
    }


def read_once(session: Session) -> Iterator[Reading | Note]:
    """Read the link here, bytes per step on it, peak memory, and the loss after `loss_steps` batches."""
    subject, cluster = session.subject, session.cluster
    if isinstance(cluster, EmulatedCluster):
        yield from read_link(session, cluster)
    yield Reading("tokens_per_step", "1", tokens_per_step(subject, cluster), Origin.CALCULATED)
    if session.max_error is not None:
        yield Reading("max_error", "1", session.max_error, Origin.MEASURED, "plain PyTorch")
    peak_B = cluster.once(f"peak {trace_key(subject.step)}", lambda: peak_memory(subject, cluster))
    yield Reading("peak_memory", "B", peak_B, Origin.MEASURED)
    loss = cluster.once(f"loss {trace_key(subject.step)}", lambda: final_loss(subject, cluster))
    yield Reading("loss", "1", loss, Origin.MEASURED)


def read_link(session: Session, cluster: EmulatedCluster) -> Iterator[Reading | Note]:
    """Read the link, what it carries and bytes on it; calibrate the model. Leaves links unshaped."""
    subject, step = session.subject, session.subject.step
    rate = cluster.rate(subject.link_B_per_s)
    yield Reading("link_rate", "B/s", subject.link_B_per_s, Origin.CALCULATED, "paper")
    yield Reading("link_rate", "B/s", rate, Origin.CALCULATED, "scaled")
    yield Reading("link_rate", "B/s", cluster.verified(rate), Origin.MEASURED, "carried")
    cluster.shape(None)
    link_B = cluster.link_B(session.key, step.updates_between_syncs) / step.batches_per_update
    yield Reading("link_bytes", "B", link_B, Origin.MEASURED)
    if not is_predictable(subject):
        yield Note("model: it predicts steps of one batch over all ranks without a communication hook")
        return
    try:
        if not cluster.is_calibrated(step):
            cluster.calibrate(step)
        session.predicted = True
    except ValueError as error:
        yield Note(f"model: {error}")
    cluster.shape(None)


def is_predictable(subject: Subject) -> bool:
    """Return whether the model covers such a step: all ranks take part in every collective, in one order."""
    step = subject.step
    hybrid = (step.settings_of("fsdp2") or {}).get("shard_within") is not None
    changed = any(step.settings_of(name) is not None for name in ("powersgd", "local_sgd"))
    return not (hybrid or changed or step.workload.gradient_accumulation_steps > 1)


def peak_memory(subject: Subject, cluster: TrainingCluster) -> float:
    """Return the peak live bytes of steady updates, of the rank with the highest peak."""
    return float(max(cluster.call("peak_memory", step=subject.step.described)))


def final_loss(subject: Subject, cluster: TrainingCluster) -> float:
    """Return the mean of the last eighth of the losses of `loss_steps` batches per rank.

    Raises `WrongResult` where losses, averaged over ranks, do not fall; see `require_learning`.
    """
    with cluster.trainer("loss", subject.step):
        count = subject.workload.loss_steps // subject.step.batches_per_update
        losses = mean_over_ranks(cluster.call("updates", key="loss", count=count))
    if count >= FEWEST:
        require_learning(losses)
    return fmean(losses[-max(count // 8, 1) :])


def tokens_per_step(subject: Subject, cluster: TrainingCluster) -> int:
    """Return the tokens that all ranks together see per step: one of the workload's batches per rank."""
    return len(cluster.pool) * subject.workload.micro_batch_size * subject.workload.seq_len


def sample(session: Session) -> Iterator[Reading | Note]:
    """Read seconds per step of the slowest rank, and on shaped links what the model predicts before."""
    cluster = session.cluster
    if not isinstance(cluster, EmulatedCluster):
        yield Reading("time", "s", step_s(session), Origin.MEASURED, "packets")
        return
    rate = cluster.rate(session.subject.link_B_per_s)
    predicted = tuple(predict(session, cluster, rate)) if session.predicted else ()
    cluster.shape(rate)
    slowest_s = step_s(session)
    yield Reading("time", "s", slowest_s, Origin.EMULATED, "packets")
    for reading in predicted:
        yield reading
        if isinstance(reading, Reading) and reading.method == "model":
            yield Reading("model_error", "1", reading.value / slowest_s - 1, Origin.SIMULATED, "model")


def step_s(session: Session) -> float:
    """Return seconds per batch of the workload, over as many updates as until the ranks agree again."""
    subject = session.subject
    count = subject.step.updates_between_syncs
    answers = session.cluster.call("updates", key=session.key, count=count)
    slowest_s: float = max(sum(one["seconds"]) for one in answers)
    return slowest_s / (count * subject.step.batches_per_update)


def predict(session: Session, cluster: EmulatedCluster, rate_B_per_s: float) -> Iterator[Reading | Note]:
    """Read a step without a network and the model's prediction; a trace that does not fit is a note."""
    subject = session.subject
    batches = subject.step.batches_per_update
    try:
        events = cluster.trace(subject.step)
        predicted_s = cluster.predicted_s(events, subject.step, rate_B_per_s) / batches
    except ValueError as error:
        session.predicted = False
        yield Note(f"model: {error}; no prediction from here on")
        return
    yield Reading("time", "s", predicted_s, Origin.SIMULATED, "model")
    yield Reading("time", "s", computed_s(events) / batches, Origin.MEASURED, "without network")


def started_ranks(workload: Workload, seed: int) -> TrainingCluster:
    """Return the ranks of all variants of a workload: those that a launcher started, else two nodes here."""
    here = launch()
    return EmulatedCluster(workload, seed) if here is None else training_cluster.RealCluster(here)


def close(session: Session) -> None:
    """Release the variant's trainers; with the last of them ranks and network end."""
    session.cluster.leave(session.key)
