"""Dry runs of steps that keep tensors on the host: only what is on the device counts."""

from dataclasses import replace

import pytest
import torch
from real_ranks import SMALL, dry_and_measured, sharded

from harness.instruments.memory.dry_run.fake_tensors import StorageLog, logged
from suites.training.dry_run.dry_run import Device, dry_run
from suites.training.host_memory import SimulatedHost
from suites.training.techniques import build_step

WORKLOAD = replace(SMALL, gradient_accumulation_steps=1, dp_size=4)
CUDA = Device("cuda")
PREFETCHED = {"activation_offload": {"prefetch": True}}
ON_HOST = {"fsdp2": {"cpu_offload": True}}


@pytest.mark.parametrize(
    "techniques",
    [
        ["activation_offload"],
        [PREFETCHED],
        ["activation_offload", "mixed_precision", "attention"],
        [ON_HOST],
        [ON_HOST, "mixed_precision", "attention"],
        [ON_HOST, "activation_offload"],
        [ON_HOST, "lora"],
    ],
    ids=str,
)
def test_the_dry_run_equals_what_the_allocator_sees(techniques):
    run, measured_B = dry_and_measured(sharded(techniques, WORKLOAD))
    assert run.peak_B == pytest.approx(measured_B, rel=1e-4)


@pytest.mark.parametrize("techniques", [["activation_offload"], [PREFETCHED], [ON_HOST]], ids=str)
def test_few_layers_stand_for_all(techniques):
    step = sharded([*techniques, "mixed_precision", "attention"], replace(WORKLOAD, num_hidden_layers=7))
    assert dry_run(step, CUDA).peak_B == dry_run(step, CUDA, full=True).peak_B


@pytest.mark.parametrize("offloaded", ["activation_offload", PREFETCHED], ids=str)
def test_blocks_of_transformers_are_given_arguments_by_name(offloaded):
    pytest.importorskip("transformers", reason="the extra `hf` brings it")
    names = ("hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size")
    sizes = {name: getattr(WORKLOAD, name) for name in names} | {"num_hidden_layers": 4}
    workload = replace(WORKLOAD, hf_config={"model_type": "llama", **sizes}, **sizes, seq_len=64)
    kept_B, offloaded_B = (
        dry_run(build_step(workload, [*one, "mixed_precision", "attention"]), CUDA).peak_B
        for one in ([], [offloaded])
    )
    assert offloaded_B < kept_B


def test_on_cuda_the_device_has_no_states_and_a_copy_of_what_it_gathers():
    """A block's shards are copied up before they are gathered: a fourth of its bytes, in fp32."""
    large = replace(WORKLOAD, hidden_size=512, intermediate_size=1536, seq_len=8, micro_batch_size=1)
    on_host, on_device = (dry_run(sharded([one], large), CUDA) for one in (ON_HOST, "fsdp2"))
    assert on_host.by_kind_B["optimizer_states"] < 20_000  # a counter per parameter, of 512 B
    shards_B = 4 * large.shape.parameters / 4
    assert on_device.by_kind_B["optimizer_states"] == pytest.approx(2 * shards_B, rel=0.01)
    gathered = [one for one in on_host.timeline.events if one.delta_B > 0 and one.stream == 1]
    copies_B = sum(one.delta_B for one in gathered if one.place.operation == "aten.empty.memory_format")
    assert copies_B >= 2 * shards_B  # in two passes at least


def test_without_prefetching_activations_do_not_grow_with_layers():
    def peak_B(layers, *techniques):
        workload = replace(WORKLOAD, num_hidden_layers=layers, seq_len=512, max_position_embeddings=512)
        return dry_run(sharded([*techniques, "mixed_precision", "attention"], workload), CUDA).by_kind_B

    kept, offloaded = (
        [peak_B(layers, *given)["activations"] for layers in (4, 8)]
        for given in ((), ("activation_offload",))
    )
    assert kept[1] > 1.5 * kept[0]
    assert offloaded[1] == pytest.approx(offloaded[0], abs=4096)


def test_results_of_tensors_below_the_device_are_below_it_on_cuda_alone():
    for cuda in (True, False):
        log = StorageLog(computes_below=cuda)
        with logged(log):
            host = SimulatedHost(log, cuda)
            below = host.empty((1000,), torch.float32)
            assert host.holds(below)
            assert not log.ledger.events
            assert host.holds(below + 1) is cuda
