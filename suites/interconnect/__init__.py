"""The interconnect suite (the paper's Table III): training over two nodes, behind links of a chosen speed.

The baseline is the workload's strategy over 10 Gbit/s Ethernet, scaled to this host. All variants of a
workload
share ranks on two nodes of a network of namespaces; the links are shaped anew for each turn. Where torchrun
or srun started the harness on several machines, variants share those ranks, on the machines' own network.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import lru_cache
from statistics import fmean

from harness.instruments.distributed.launcher_env import Launch, launch
from harness.records import Json, Note, Origin, Reading, Unavailable, WrongResult
from suites.interconnect import real_cluster
from suites.interconnect.correctness import check_losses
from suites.interconnect.emulated_cluster import Cluster
from suites.interconnect.replay import computed_s
from suites.interconnect.subject import Plan, Subject, Workload
from suites.interconnect.trainers import Trainers

KEYS = itertools.count()

FEWEST = 6
"""Losses of which it can be said whether they fall."""


def build(workload: Json, seed: int) -> Subject:
    """The baseline: the workload's strategy as it comes, over its own link."""
    given = Workload(**workload)
    refuse_misfits(given, launch())
    return Subject(given, seed, Plan(given.strategy), given.link_B_per_s)


def refuse_misfits(workload: Workload, here: Launch | None) -> None:
    """Raises `Unavailable` for nodes that are not there, and a head that rotary positions cannot halve."""
    if here is not None:
        real_cluster.refuse_other(workload, here)
    elif workload.nodes != 2:
        raise Unavailable(
            f"two nodes are made on one machine, not {workload.nodes}: more are had by torchrun or srun"
        )
    if (workload.hidden_size // workload.num_attention_heads) % 2:
        raise Unavailable(
            f"rotary halves a head: {workload.hidden_size // workload.num_attention_heads} elements are odd"
        )


def refuse_uneven(subject: Subject) -> None:
    """Raises `Unavailable` where losses would be of unequal numbers of tokens."""
    whole = subject.plan.accumulate * subject.updates_together
    if subject.workload.loss_steps % whole:
        raise Unavailable(
            f"loss_steps={subject.workload.loss_steps} must be a multiple of {whole} for this variant"
        )


def check(subject: Subject) -> None:
    """Start the variant's trainers on the ranks and hold their losses against plain PyTorch's."""
    refuse_uneven(subject)
    if launch() is not None:
        real_cluster.refuse_links(subject)
    cluster = cluster_for(subject)
    subject.held["key"] = f"{subject.plan.strategy}{next(KEYS)}"
    cluster.enter(subject.held["key"], subject.workload, subject.plan, subject.seed)
    subject.held["max_error"] = check_losses(subject, cluster)


def conditions(subject: Subject) -> Mapping[str, str]:
    """What a claim may ask after."""
    workload = subject.workload
    ranks = cluster_for(subject)
    own = ranks.conditions if isinstance(ranks, real_cluster.Machines) else None
    return {
        **(own or {"device": "cpu", "backend": "gloo", "network": "emulated"}),
        "strategy": subject.plan.strategy,
        "link_B_per_s": "unknown" if own else f"{subject.link_B_per_s:g}",
        "nodes": str(workload.nodes),
        "ranks_per_node": str(workload.ranks_per_node),
        "parameters": str(workload.shape.parameters),
    }


def read_once(subject: Subject) -> Iterator[Reading | Note]:
    """The link here, computation alone, bytes on the link, and the loss after so many batches."""
    cluster = cluster_for(subject)
    if isinstance(cluster, Cluster):
        yield from prepare_link(subject, cluster)
    yield Reading("tokens_per_step", "1", tokens(subject, cluster), Origin.CALCULATED)
    if subject.held["max_error"] is not None:
        yield Reading("max_error", "1", subject.held["max_error"], Origin.MEASURED, "plain PyTorch")
    loss = cluster.once(("loss", repr(subject.plan)), lambda: final_loss(subject, cluster))
    yield Reading("loss", "1", loss, Origin.MEASURED)


def prepare_link(subject: Subject, cluster: Cluster) -> Iterator[Reading | Note]:
    """The link here, what it carries, bytes on it; whether steps are foretold. Leaves links unshaped."""
    key, plan = subject.held["key"], subject.plan
    rate = cluster.rate(subject.link_B_per_s)
    yield Reading("link_rate", "B/s", subject.link_B_per_s, Origin.CALCULATED, "paper")
    yield Reading("link_rate", "B/s", rate, Origin.CALCULATED, "scaled")
    yield Reading("link_rate", "B/s", cluster.verified(rate), Origin.MEASURED, "carried")
    cluster.shape(None)
    link_B = cluster.link_B(key, subject.updates_together) / plan.accumulate
    yield Reading("link_bytes", "B", link_B, Origin.MEASURED)
    if plan.changes or plan.shard_within is not None or plan.accumulate > 1:
        yield Note("model: steps of one batch over all ranks, without a hook, are foretold; this is none")
        return
    try:
        if not cluster.foretells(plan):
            cluster.calibrate(subject.workload, plan, subject.seed)
        subject.held["foretold"] = True
    except ValueError as error:
        yield Note(f"model: {error}")
    cluster.shape(None)


def final_loss(subject: Subject, cluster: Trainers) -> float:
    """The loss after `loss_steps` batches a rank: the mean of the last eighth of them.

    Raises `WrongResult` where losses, averaged over ranks, do not fall: by a line through them, at the 1 %
    level. Fewer than `FEWEST` tell nothing.
    """
    from scipy.stats import linregress  # a second of every rank's start, which has no need of it

    plan, workload = subject.plan, subject.workload
    with cluster.trainer("loss", workload, plan, subject.seed):
        count = workload.loss_steps // plan.accumulate
        told = cluster.call("updates", key="loss", count=count)
    losses = [fmean(ranks) for ranks in zip(*(one["loss"] for one in told), strict=True)]
    if count >= FEWEST and not linregress(range(count), losses, alternative="less").pvalue < 0.01:
        raise WrongResult(
            f"it does not learn: loss {losses[0]:.4g} first, {losses[-1]:.4g} after {count} updates"
        )
    return fmean(losses[-max(count // 8, 1) :])


def tokens(subject: Subject, cluster: Trainers) -> int:
    """That all ranks together see a step; a variant that accumulates counts a step a batch."""
    return len(cluster.pool) * subject.workload.micro_batch_size * subject.workload.seq_len


def timed(subject: Subject) -> bool:
    """Return whether `sample` is to be called: every variant is timed."""
    return True


def sample(subject: Subject) -> Iterator[Reading | Note]:
    """Seconds a step, of the slowest rank; and on shaped links what the model makes of it.

    Before it a step without a network is traced, and what the model makes of that on this link.
    """
    cluster = cluster_for(subject)
    if not isinstance(cluster, Cluster):
        yield Reading("time", "s", step_s(subject, cluster), Origin.MEASURED, "packets")
        return
    rate = cluster.rate(subject.link_B_per_s)
    foretold = tuple(foretell(subject, cluster, rate)) if "foretold" in subject.held else ()
    cluster.shape(rate)
    slowest_s = step_s(subject, cluster)
    yield Reading("time", "s", slowest_s, Origin.EMULATED, "packets")
    for said in foretold:
        yield said
        if isinstance(said, Reading) and said.method == "model":
            yield Reading("model_error", "1", said.value / slowest_s - 1, Origin.SIMULATED, "model")


def step_s(subject: Subject, cluster: Trainers) -> float:
    """Seconds a batch: of as many updates as it takes for the ranks to agree again."""
    count = subject.updates_together
    told = cluster.call("updates", key=subject.held["key"], count=count)
    slowest_s: float = max(sum(one["seconds"]) for one in told)
    return slowest_s / (count * subject.plan.accumulate)


def foretell(subject: Subject, cluster: Cluster, rate_B_per_s: float) -> Iterator[Reading | Note]:
    """A step without a network, and what the model makes of it; a trace that does not fit is a remark."""
    batches = subject.plan.accumulate
    try:
        events = cluster.trace(subject.workload, subject.plan, subject.seed)
        foretold_s = cluster.predicted_s(events, subject.plan, rate_B_per_s) / batches
    except ValueError as error:
        del subject.held["foretold"]
        yield Note(f"model: {error}; not foretold from here on")
        return
    yield Reading("time", "s", foretold_s, Origin.SIMULATED, "model")
    yield Reading("time", "s", computed_s(events) / batches, Origin.MEASURED, "without network")


def cluster_for(subject: Subject) -> Trainers:
    """The ranks that the subject's workload shares."""
    return shared_ranks(subject.workload, subject.seed)


@lru_cache(maxsize=1)
def shared_ranks(workload: Workload, seed: int) -> Trainers:
    """The ranks that all variants of a workload share: those that were started, else on two nodes made
    here."""
    here = launch()
    return Cluster(workload, seed) if here is None else real_cluster.Machines(here)


def close(subject: Subject) -> None:
    """Let the variant's trainers go; with the last of them ranks and network end."""
    if shared_ranks.cache_info().currsize:
        cluster = cluster_for(subject)
        cluster.leave(subject.held.pop("key", None))
        if not cluster.variants:
            cluster.close()
            shared_ranks.cache_clear()
