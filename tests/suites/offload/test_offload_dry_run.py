"""The offload suite's `fake_step` against the allocator's own events of real steps by the variants'
trainers."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from offload_ranks import placed

from harness.instruments.distributed.fake_process_group import fake_process_group
from harness.instruments.memory.allocator import watch
from harness.records import Unavailable
from suites.offload import memory_estimates
from suites.offload.subject import HOST, MemoryPlacement
from suites.offload.workload import Workload
from suites.training.dry_run import dry_run as training_dry_run
from suites.training.on_rank import wait_for_threads
from suites.training.trainer import Trainer

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="without a GPU the device is the CPU"),
]

CPU = torch.device("cpu")
CLOSE = 1e-5  # relative: numbers that torch makes tensors of, 8 bytes each

SMALL = Workload(
    num_hidden_layers=3,
    hidden_size=128,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=344,
    vocab_size=1000,
    micro_batch_size=2,
    seq_len=48,
    precision="bf16",
    dp_size=1,
    learning_rate=1e-3,
    loss_steps=8,
)


MANY_TOKENS, FEW_TOKENS = {}, {"seq_len": 7, "micro_batch_size": 1}

TIMES = 3
"""At most. A release that gloo's thread was the last to do is lost to the profiler, now and then, and only
adds."""


def measured_B(subject, steps=3):
    """Return the peak of the last of a few steps on real tensors, in the present process group."""
    workload = subject.workload
    data = torch.Generator().manual_seed(0)
    with watch(CPU) as allocator:
        allocator.mark("build")
        trainer = Trainer(subject.step)
        for step in range(steps):
            allocator.mark(f"step {step}")
            size = (workload.micro_batch_size, workload.seq_len)
            drawn = [torch.randint(workload.vocab_size, size, generator=data) for _ in range(2)]
            trainer.train_step([tuple(drawn)])
            del drawn
            wait_for_threads()
        del trainer
    return allocator.peaks[-1].live_B


@pytest.fixture
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def sends_nothing(monkeypatch):
    """Make fake ranks keep no copies of what they pretend to send."""
    monkeypatch.setattr(training_dry_run, "TEMPORARY_B", {})
    memory_estimates._trace.cache_clear()
    yield
    memory_estimates._trace.cache_clear()


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("precision", "kept", "sizes"),
    [  # of each two, each pair once
        ("bf16", "kept", MANY_TOKENS),
        ("bf16", "recomputed", FEW_TOKENS),
        ("fp32", "kept", FEW_TOKENS),
        ("fp32", "recomputed", MANY_TOKENS),
    ],
)
def test_ddp_as_measured_with_ddp_itself(one_rank, precision, kept, sizes):
    """Also where the peak is in the optimizer, few tokens against many parameters."""
    workload, plan = replace(SMALL, precision=precision, **sizes), MemoryPlacement("ddp", activations=kept)
    subject = placed(workload, plan)
    found_B = memory_estimates.fake_step_B(subject)
    for _ in range(TIMES):
        real_B = measured_B(subject)
        if real_B <= found_B * (1 + CLOSE):
            break
    assert found_B == pytest.approx(real_B, rel=CLOSE)


@pytest.mark.parametrize(
    ("ranks", "precision", "kept"),
    [  # of the last two, each pair
        (1, "bf16", "kept"),
        (2, "fp32", "recomputed"),
        (3, "bf16", "recomputed"),
        (3, "fp32", "kept"),
    ],
)
def test_fsdp2_as_measured_of_one_of_many_ranks(sends_nothing, ranks, precision, kept):
    workload = replace(SMALL, precision=precision, dp_size=ranks)
    subject = placed(workload, MemoryPlacement("fsdp2", activations=kept))
    with fake_process_group(ranks):
        real_B = measured_B(subject)
    assert memory_estimates.fake_step_B(subject) == pytest.approx(real_B, rel=CLOSE)


@pytest.mark.parametrize(
    "plan",
    [
        MemoryPlacement("fsdp2", optimizer=HOST, parameters=HOST),
        MemoryPlacement("fsdp2", optimizer=HOST, parameters=HOST, activations="offloaded"),
    ],
    ids=str,
)
def test_what_is_on_the_host_does_not_count(sends_nothing, plan):
    """The host is emulated by mapped files, of which the allocator knows nothing."""
    subject = placed(replace(SMALL, dp_size=2), plan)
    with fake_process_group(2):
        real_B = measured_B(subject)
    assert memory_estimates.fake_step_B(subject) == pytest.approx(real_B, rel=CLOSE)


@pytest.mark.parametrize(
    ("collective", "operation"),
    [
        (dist.all_gather_into_tensor, torch.ops.c10d._allgather_base_),
        (dist.reduce_scatter_tensor, torch.ops.c10d._reduce_scatter_base_),
    ],
)
def test_what_a_single_rank_allocates_in_addition_to_the_buffers(one_rank, collective, operation):
    first, second = torch.ones(50_000), torch.ones(50_000)
    collective(first, second)
    with watch(CPU) as allocator:
        allocator.mark("collective")
        collective(first, second)
    said_B = training_dry_run.gloo_workspace(operation.default, (first, second), None)
    assert said_B == allocator.peaks[0].live_B == 200_000


def test_gloos_copies_count(sends_nothing, monkeypatch):
    subject = placed(replace(SMALL, dp_size=2), MemoryPlacement("fsdp2"))
    without_B = memory_estimates.fake_step_B(subject)
    monkeypatch.undo()
    memory_estimates._trace.cache_clear()
    assert memory_estimates.fake_step_B(subject) > without_B


STATES, ACTIVATIONS = {}, {"micro_batch_size": 16, "vocab_size": 50}


@pytest.mark.parametrize(
    ("plan", "sizes"),
    [(MemoryPlacement(), ACTIVATIONS), (MemoryPlacement("fsdp2", activations="recomputed"), STATES)],
)
def test_fewer_layers_say_what_a_full_trace_does(monkeypatch, plan, sizes):
    """Where the peak is in the optimizer, and where it is among activations."""
    walked = []
    original = memory_estimates.traced
    subject = placed(replace(SMALL, num_hidden_layers=6, dp_size=2, **sizes), plan)
    full_B = original(subject.step, 6).peak().total_B
    monkeypatch.setattr(
        memory_estimates, "traced", lambda step, layers: walked.append(layers) or original(step, layers)
    )
    assert memory_estimates.fake_step_B(subject) == full_B
    assert 0 < max(walked) < 6


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (MemoryPlacement("deepspeed", 2), "deepspeed"),
        (MemoryPlacement("host_update", optimizer=HOST), "host_update"),
    ],
)
def test_what_cannot_be_traced_says_why(plan, reason):
    with pytest.raises(Unavailable, match=reason):
        memory_estimates.fake_step_B(placed(SMALL, plan))


def test_a_rank_cannot_stand_for_others(one_rank):
    with pytest.raises(Unavailable, match="rank itself"):
        memory_estimates.fake_step_B(placed(SMALL, MemoryPlacement("fsdp2")))


def test_nothing_is_reported_of_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(Unavailable, match="GPU"):
        memory_estimates.fake_step_B(placed(SMALL, MemoryPlacement()))
