"""The offload suite's memory estimates, compared with their sources' examples and independent sums."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_ranks import placed
from torch import nn

from harness.instruments.memory.allocator import watch
from harness.records import Unavailable
from suites.offload.memory_estimates import METHODS, estimates_B, largest, with_activations_B, zero_formula_B
from suites.offload.subject import DISK, HOST, MemoryPlacement
from suites.offload.workload import Workload
from suites.training.dry_run.estimates import ModelStates, zero_states_bytes
from suites.training.models.model import Transformer

GB = 1e9
DS = "deepspeed"

LLAMA = Workload(
    num_hidden_layers=4,
    hidden_size=64,
    num_attention_heads=4,
    num_key_value_heads=4,
    intermediate_size=256,
    vocab_size=200,
    micro_batch_size=2,
    seq_len=32,
    precision="bf16",
    dp_size=4,
    learning_rate=1e-3,
    loss_steps=8,
)


def counted(workload):
    """Return parameters of the model, and those of its largest module, counted one by one."""
    with torch.device("meta"):
        model = Transformer(workload.shape)
    of_modules = [sum(one.numel() for one in m.parameters(recurse=False)) for m in model.modules()]
    return sum(one.numel() for one in model.parameters()), max(of_modules)


def test_zero_paper_example():
    """Figure 1 of arXiv 1910.02054: 7.5 B parameters, 64 ranks."""
    found = [zero_states_bytes(7.5e9, stage, 64) / GB for stage in range(4)]
    assert [round(x, 1) for x in found] == [120.0, 31.4, 16.6, 1.9]


def test_zero_offload_paper_table():
    """Table 1 of arXiv 2101.06840: nothing, gradients, states, both on the host."""
    shares = [ModelStates(1, 1, 1), ModelStates(1, 0, 1), ModelStates(1, 1, 0), ModelStates(1, 0, 0)]
    found = [zero_states_bytes(1, 0, 1, on_device=one) for one in shares]
    assert found == [16, 14, 4, 2]
    assert [round(found[0] / x, 2) for x in found] == [1, 1.14, 4, 8]


MIXED = {  # of P parameters and four ranks, and whether the largest operator is gathered
    MemoryPlacement(): (16, False),
    MemoryPlacement("fsdp2"): (4, False),
    MemoryPlacement("fsdp2", optimizer=HOST, parameters=HOST): (0, True),
    MemoryPlacement("host_update", optimizer=HOST): (2, False),
    MemoryPlacement("managed", resident=0.5): (8, False),
    MemoryPlacement("managed", resident=2.0): (16, False),
    MemoryPlacement(DS, 1): (2 + 2 + 3, False),
    MemoryPlacement(DS, 1, HOST): (4, False),
    MemoryPlacement(DS, 2): (2 + 0.5 + 3, False),
    MemoryPlacement(DS, 2, HOST): (2, False),
    MemoryPlacement(DS, 3): (4, False),
    MemoryPlacement(DS, 3, HOST): (0.5, True),
    MemoryPlacement(DS, 3, HOST, ratio=0.0): (4, True),
    MemoryPlacement(DS, 3, HOST, ratio=0.75): (0.5 + 0.125 + 0.75, True),
    MemoryPlacement(DS, 3, HOST, HOST): (0, True),
    MemoryPlacement(DS, 3, DISK, DISK): (0, True),
}
FP32 = {
    MemoryPlacement(): (16, False),
    MemoryPlacement("fsdp2"): (4, False),
    MemoryPlacement("fsdp2", optimizer=HOST, parameters=HOST): (0, True),
    MemoryPlacement("host_update", optimizer=HOST): (4, False),
    MemoryPlacement(DS, 1): (4 + 4 + 3, False),
    MemoryPlacement(DS, 1, HOST): (8, False),
    MemoryPlacement(DS, 2): (4 + 1 + 3, False),
    MemoryPlacement(DS, 2, HOST): (4, False),
    MemoryPlacement(DS, 3): (4, False),
    MemoryPlacement(DS, 3, HOST): (1, True),
    MemoryPlacement(DS, 3, HOST, HOST): (0, True),
}


@pytest.mark.parametrize(
    ("precision", "plan"), [*(("bf16", one) for one in MIXED), *(("fp32", one) for one in FP32)], ids=str
)
def test_bytes_by_hand(precision, plan):
    workload = replace(LLAMA, precision=precision)
    parameters, of_largest = counted(workload)
    each, gathered = (MIXED if precision == "bf16" else FP32)[plan]
    working = (4 if precision == "bf16" else 8) * of_largest if gathered else 0
    assert zero_formula_B(workload, plan) == pytest.approx(each * parameters + working)


def test_working_memory_is_zero_infinitys():
    """arXiv 2104.07857: 4 hd 4 hd bytes, where the MLP's matrix is the largest."""
    workload = replace(LLAMA, intermediate_size=4 * LLAMA.hidden_size, vocab_size=8)
    assert zero_formula_B(workload, MemoryPlacement(DS, 3, HOST, HOST)) == 4 * 64 * 4 * 64


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_deepspeeds_own_values(precision):
    """As its code has them: 18 bytes where the paper has 16, four for each parameter of the largest layer."""
    workload = replace(LLAMA, precision=precision)
    p, of_largest = counted(workload)
    expected = {
        MemoryPlacement(DS, 2): 2 * p + 18 * p / 4,
        MemoryPlacement(DS, 2, HOST): 2 * p,
        MemoryPlacement(DS, 3): 4 * of_largest + 18 * p / 4,
        MemoryPlacement(DS, 3, HOST): 4 * of_largest + 2 * p / 4,
        MemoryPlacement(DS, 3, HOST, HOST): 4 * of_largest,
        MemoryPlacement(DS, 3, DISK, DISK): 4 * of_largest,
    }
    for plan, said_B in expected.items():
        found, remark = by_method(workload, plan)["deepspeed estimator"]
        assert found == pytest.approx(said_B, abs=1)
        assert "activations" in remark
        assert ("fp32" in remark) == (precision == "fp32")


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (MemoryPlacement(DS, 1), "stage 1"),
        (MemoryPlacement(), "engine"),
        (MemoryPlacement("fsdp2"), "engine"),
        (MemoryPlacement(DS, 3, HOST, ratio=0.5), "share"),
    ],
)
def test_deepspeed_has_no_value(plan, reason):
    found, remark = by_method(LLAMA, plan)["deepspeed estimator"]
    assert found is None
    assert reason in remark


def by_method(workload, plan):
    found = list(estimates_B(placed(workload, plan)))
    assert [method for method, _, _ in found] == list(METHODS)
    assert all(value is not None or remark for _, value, remark in found)
    return {method: (value, remark) for method, value, remark in found}


@pytest.mark.parametrize(("precision", "factor"), [("bf16", 1), ("fp32", 2)])
def test_activations_are_those_of_its_source(precision, factor):
    """arXiv 2205.05198, section 4.1, tensor by tensor in units of sbh bytes, without the scores."""
    workload = replace(LLAMA, precision=precision)
    attention = (
        2 + 2 * 2 + 2 + 2 + 1
    )  # input, queries and keys, values, the projection's input, dropout's mask
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_allocates_what_the_formula_states(dtype):
    """By the allocator: forward and backward of a head that is itself small beside tokens x vocab."""
    tokens, vocab_size, hidden_size = 400, 4000, 2
    head = nn.Linear(hidden_size, vocab_size, bias=False, dtype=dtype)
    x, targets = torch.randn(tokens, hidden_size, dtype=dtype), torch.zeros(tokens, dtype=torch.int64)

    def loss():
        return F.cross_entropy(head(x).float(), targets)  # as the model has it

    with watch(torch.device("cpu")) as allocator:
        allocator.mark("step")
        loss().backward()
    assert allocator.peaks[0].live_B == pytest.approx(12 * tokens * vocab_size, rel=0.01)


@given(st.integers(1, 10**12), st.integers(1, 4096))
def test_stages_only_lessen_and_reach_everything_over_n(parameters, ranks):
    found = [zero_states_bytes(parameters, stage, ranks) for stage in range(4)]
    assert found[0] == 16 * parameters
    assert sorted(found, reverse=True) == pytest.approx(found)
    assert found[3] * ranks == pytest.approx(16 * parameters)


plans = st.sampled_from([*MIXED])
closed = st.sampled_from([name for name in METHODS if name != "fake_step"])
workloads = st.builds(
    lambda num_attention_heads, size, **rest: replace(
        LLAMA,
        num_attention_heads=num_attention_heads,
        num_key_value_heads=num_attention_heads,
        hidden_size=num_attention_heads * size,
        **rest,
    ),
    num_attention_heads=st.integers(1, 8),
    size=st.sampled_from([16, 64]),
    intermediate_size=st.integers(16, 4096),
    vocab_size=st.integers(8, 50_000),
    micro_batch_size=st.integers(1, 16),
    precision=st.sampled_from(["bf16", "fp32"]),
    dp_size=st.integers(1, 64),
)


@settings(deadline=None)
@given(workloads, plans, closed, st.integers(1, 200))
def test_more_layers_never_take_less(workload, plan, method, num_hidden_layers):
    try:
        found = [
            METHODS[method](placed(replace(workload, num_hidden_layers=n), plan))
            for n in (num_hidden_layers, num_hidden_layers + 1)
        ]
    except Unavailable:
        return
    assert found[0] <= found[1]


@settings(deadline=None)
@given(workloads, plans, closed, st.floats(1e3, 1e12))
def test_the_largest_fits_and_one_more_layer_does_not(workload, plan, method, budget_B):
    def bytes_of(num_hidden_layers):
        return METHODS[method](placed(replace(workload, num_hidden_layers=num_hidden_layers), plan))

    try:
        found = largest(placed(workload, plan), budget_B, METHODS[method])
    except Unavailable:
        return
    assert found == 0 or bytes_of(found) <= budget_B
    assert bytes_of(found + 1) > budget_B


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(0, 50))
def test_the_largest_is_what_counting_finds(steps, budget_B):
    """Any figures that do not fall; the last one goes on growing."""
    heights = sorted(steps)

    def estimate(subject):
        layers = subject.workload.num_hidden_layers
        return heights[layers - 1] if layers <= len(heights) else 51 + layers - len(heights)

    assert largest(placed(LLAMA, MemoryPlacement()), budget_B, estimate) == sum(
        height <= budget_B for height in heights
    )


def test_a_budget_that_the_device_does_not_bound():
    with pytest.raises(Unavailable, match="does not bound"):
        largest(placed(LLAMA, MemoryPlacement(DS, 3, HOST, HOST)), 1e9, METHODS["ZeRO formula"])
    with pytest.raises(Unavailable, match="stage 1"):
        largest(placed(LLAMA, MemoryPlacement(DS, 1)), 1e9, METHODS["deepspeed estimator"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="the walk is of the CPU's operations")
def test_the_largest_layer_agrees_with_a_count():
    workload, budget_B = replace(LLAMA, num_hidden_layers=1, dp_size=1), 6e6
    step = METHODS["fake_step"]
    fits = [
        step(placed(replace(workload, num_hidden_layers=n), MemoryPlacement())) <= budget_B
        for n in range(1, 12)
    ]
    assert 0 < sum(fits) < 11
    assert largest(placed(workload, MemoryPlacement()), budget_B, step) == sum(fits)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the walk is of the CPU's operations")
def test_every_method_speaks_of_the_baseline_but_deepspeeds():
    found = by_method(LLAMA, MemoryPlacement())
    assert {method for method, (value, _) in found.items() if value is None} == {"deepspeed estimator"}
    assert "DDP" in found["fake_step"][1]
    assert "states alone" in found["ZeRO formula"][1]
    assert found["formula + activations"][1] == ""  # this model's MLP is as wide as the formula's
    assert (
        "688"
        in by_method(replace(LLAMA, intermediate_size=688), MemoryPlacement())["formula + activations"][1]
    )
