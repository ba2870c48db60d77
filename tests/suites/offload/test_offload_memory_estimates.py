"""The offload suite's memory estimates, compared with their sources' examples and independent sums."""

from dataclasses import replace
from functools import partial

import offload_ranks
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_ranks import placed

from harness.instruments.distributed.fake_process_group import fake_process_group
from harness.instruments.memory.allocator import watch
from harness.records import Unavailable
from suites.offload import memory_estimates
from suites.offload.memory_estimates import METHODS, largest, with_activations_B, zero_formula_B
from suites.offload.subject import DISK, HOST, MemoryPlacement
from suites.training.dry_run import dry_run as training_dry_run
from suites.training.models.model import Transformer
from suites.training.on_rank import wait_for_threads
from suites.training.trainer import Trainer

DS = "deepspeed"

LLAMA = replace(
    offload_ranks.WORKLOAD, num_hidden_layers=4, num_key_value_heads=4, intermediate_size=256, vocab_size=200,
    seq_len=32, precision="bf16", dp_size=4,
)  # fmt: skip


def counted(workload):
    """Return parameters of the model, and those of its largest module, counted one by one."""
    with torch.device("meta"):
        model = Transformer(workload.shape)
    of_modules = [sum(one.numel() for one in m.parameters(recurse=False)) for m in model.modules()]
    return sum(one.numel() for one in model.parameters()), max(of_modules)


BY_HAND = {  # of P parameters and four ranks in bf16 and fp32, and whether the largest operator is gathered
    MemoryPlacement(): (16, 16, False),
    MemoryPlacement("fsdp2"): (4, 4, False),
    MemoryPlacement("fsdp2", optimizer=HOST, parameters=HOST): (0, 0, True),
    MemoryPlacement("host_update", optimizer=HOST): (2, 4, False),
    MemoryPlacement("managed", resident=0.5): (8, 8, False),
    MemoryPlacement(DS, 1): (2 + 2 + 3, 4 + 4 + 3, False),
    MemoryPlacement(DS, 1, HOST): (4, 8, False),
    MemoryPlacement(DS, 2): (2 + 0.5 + 3, 4 + 1 + 3, False),
    MemoryPlacement(DS, 2, HOST): (2, 4, False),
    MemoryPlacement(DS, 3): (4, 4, False),
    MemoryPlacement(DS, 3, HOST): (0.5, 1, True),
    MemoryPlacement(DS, 3, HOST, ratio=0.0): (4, 5, True),
    MemoryPlacement(DS, 3, HOST, ratio=0.75): (0.5 + 0.125 + 0.75, 1 + 0.25 + 0.75, True),
    MemoryPlacement(DS, 3, HOST, HOST): (0, 0, True),
    MemoryPlacement(DS, 3, DISK, DISK): (0, 0, True),
}


@pytest.mark.parametrize("plan", BY_HAND, ids=str)
def test_bytes_by_hand(plan):
    *each, gathered = BY_HAND[plan]
    for precision, per_parameter, working in (("bf16", each[0], 4), ("fp32", each[1], 8)):
        workload = replace(LLAMA, precision=precision)
        parameters, of_largest = counted(workload)
        due_B = per_parameter * parameters + (working * of_largest if gathered else 0)
        assert zero_formula_B(workload, plan) == pytest.approx(due_B)


def test_deepspeeds_own_values():
    """As its code has them: 18 bytes where the paper has 16, four for each parameter of the largest layer."""
    p, of_largest = counted(LLAMA)
    for plan, said_B in {
        MemoryPlacement(DS, 2): 2 * p + 18 * p / 4,
        MemoryPlacement(DS, 2, HOST): 2 * p,
        MemoryPlacement(DS, 3): 4 * of_largest + 18 * p / 4,
        MemoryPlacement(DS, 3, HOST): 4 * of_largest + 2 * p / 4,
        MemoryPlacement(DS, 3, DISK, DISK): 4 * of_largest,
    }.items():
        assert METHODS["deepspeed estimator"](placed(LLAMA, plan)) == pytest.approx(said_B, abs=1)


@pytest.mark.parametrize(("precision", "factor"), [("bf16", 1), ("fp32", 2)])
def test_activations_are_those_of_its_source(precision, factor):
    """arXiv 2205.05198, section 4.1, tensor by tensor in units of sbh bytes, without the scores."""
    workload = replace(LLAMA, precision=precision)
    # input, queries and keys, values, the projection's input, dropout's mask
    attention = 2 + 2 * 2 + 2 + 2 + 1
    mlp, norms = 2 + 8 + 8 + 1, 2 * 2
    sbh = factor * workload.seq_len * workload.micro_batch_size * workload.hidden_size
    loss_B = 12 * workload.seq_len * workload.micro_batch_size * workload.vocab_size
    whole = (attention + mlp + norms) * sbh
    expected = {
        "kept": 4 * whole,
        "recomputed": 4 * 2 * sbh + whole,
        "offloaded": whole,
        "offloaded_ahead": 2 * whole,
    }
    for how, layers_B in expected.items():
        plan = MemoryPlacement(activations=how)
        assert with_activations_B(workload, plan) - zero_formula_B(workload, plan) == layers_B + loss_B


workloads = st.builds(
    partial(replace, LLAMA),
    hidden_size=st.sampled_from([64, 256]),
    intermediate_size=st.integers(16, 4096),
    vocab_size=st.integers(8, 50_000),
    micro_batch_size=st.integers(1, 16),
    precision=st.sampled_from(["bf16", "fp32"]),
    dp_size=st.integers(1, 64),
)
closed = st.sampled_from([name for name in METHODS if name != "fake_step"])


@settings(max_examples=40, deadline=None)
@given(workloads, st.sampled_from([*BY_HAND]), closed, st.integers(1, 200), st.floats(1e3, 1e12))
def test_more_layers_never_take_less_and_one_more_than_the_largest_does_not_fit(
    workload, plan, method, layers, budget_B
):
    def bytes_of(num_hidden_layers):
        return METHODS[method](placed(replace(workload, num_hidden_layers=num_hidden_layers), plan))

    try:
        assert bytes_of(layers) <= bytes_of(layers + 1)
        found = largest(placed(workload, plan), budget_B, METHODS[method])
    except Unavailable:
        return
    assert found == 0 or bytes_of(found) <= budget_B
    assert bytes_of(found + 1) > budget_B


CPU = torch.device("cpu")
CLOSE = 1e-5  # relative: numbers that torch makes tensors of, 8 bytes each

SMALL = replace(
    offload_ranks.WORKLOAD, num_hidden_layers=3, hidden_size=128, intermediate_size=344, vocab_size=1000,
    seq_len=48, precision="bf16", dp_size=1,
)  # fmt: skip


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
def without_gpu():
    if torch.cuda.is_available():
        pytest.skip("with a GPU the device is not the CPU")


@pytest.fixture
def sends_nothing(without_gpu, monkeypatch):
    """Make fake ranks keep no copies of what they pretend to send."""
    monkeypatch.setattr(training_dry_run, "TEMPORARY_B", {})
    memory_estimates._trace.cache_clear()
    yield
    memory_estimates._trace.cache_clear()


ON_HOST = MemoryPlacement("fsdp2", optimizer=HOST, parameters=HOST)
"""The host is emulated by mapped files, of which the allocator knows nothing."""


@pytest.mark.parametrize(
    ("ranks", "precision", "plan"),
    [
        (1, "bf16", MemoryPlacement("fsdp2")),
        (3, "fp32", MemoryPlacement("fsdp2", activations="recomputed")),
        (2, "bf16", ON_HOST),
        (2, "bf16", replace(ON_HOST, activations="offloaded")),
    ],
    ids=str,
)
def test_fsdp2_as_measured_of_one_of_many_ranks(sends_nothing, ranks, precision, plan):
    subject = placed(replace(SMALL, precision=precision, dp_size=ranks), plan)
    with fake_process_group(ranks):
        real_B = measured_B(subject)
    assert memory_estimates.fake_step_B(subject) == pytest.approx(real_B, rel=CLOSE)
