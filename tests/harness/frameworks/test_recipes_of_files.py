"""Questions as techniques: the lists are accepted by this project, and what they leave out is named."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from harness.config.techniques import combination
from harness.frameworks.techniques import STEADY, techniques_of
from harness.question import Adapters, question_of

SHARED = [("ddp", 0), ("fsdp1", 2), ("fsdp1", 3), ("fsdp2", 2), ("fsdp2", 3), ("zero", 1), ("zero", 3)]
ZERO = {"sharing": "zero", "zero": 1}


def asked(**values):
    return techniques_of(question_of(**{"devices": 8, **values}))


def techniques(**values):
    return dict(asked(**values).techniques)


@settings(max_examples=60, deadline=None)
@given(
    shared=st.sampled_from(SHARED),
    recomputed=st.sampled_from([("none", 1), ("full", 1), ("full", 2), ("selective", 1)]),
    others=st.fixed_dictionaries(
        {
            "precision": st.sampled_from(["bf16", "fp16", "fp32"]),
            "attention": st.sampled_from(["flash", "explicit"]),
            "fused_loss": st.booleans(),
            "loss_chunks": st.sampled_from([1, 8]),
            "gradient_accumulation_steps": st.sampled_from([1, 4]),
            "optimizer_impl": st.sampled_from(["fused", "foreach", "for_loop"]),
        }
    ),
)
def test_every_list_is_a_combination_of_techniques(shared, recomputed, others):
    (sharing, zero), (recompute, every) = shared, recomputed
    listed = techniques(sharing=sharing, zero=zero, recompute=recompute, recompute_every=every, **others)
    accepted = dict(combination([{name: own} if own else name for name, own in listed.items()]))
    assert accepted.keys() == listed.keys()
    for name, own in listed.items():
        assert own.items() <= dict(accepted[name]).items()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"sharing": "fsdp2", "zero": 3}, {"fsdp2": {}}),
        ({"sharing": "fsdp2", "zero": 2}, {"fsdp2": {"reshard_after_forward": False}}),
        ({"sharing": "fsdp2", "zero": 3, "replicas": 2}, {"fsdp2": {"shard_within": 4}}),
        (
            {"sharing": "fsdp2", "zero": 3, "offload": ("optimizer", "parameters")},
            {"fsdp2": {"cpu_offload": True}},
        ),
        ({"sharing": "fsdp1", "zero": 2}, {"fsdp1": {"strategy": "shard_grad_op"}}),
        (
            {"sharing": "zero", "zero": 2, "offload": ("optimizer",)},
            {"zero": {"stage": 2, "optimizer": "host"}},
        ),
        (
            {"sharing": "zero", "zero": 3, "offload": ("optimizer:disk",)},
            {"zero": {"stage": 3, "optimizer": "disk"}},
        ),
        ({}, {"ddp": {}}),
        ({"offload": ("activations",)}, {"activation_offload": {}}),
        ({"recompute": "selective"}, {"activation_checkpointing": {"mode": "per_op"}}),
        (
            {"recompute": "selective", "sharing": "zero", "zero": 1},
            {"activation_checkpointing": {"mode": "selective"}},
        ),
        ({"gradient_accumulation_steps": 9}, {"gradient_accumulation": {"steps": STEADY, "split": False}}),
        ({"compile": True, "optimizer_in_backward": True}, {"compile": {}, "optimizer_in_backward": {}}),
        ({"loss_chunks": 4}, {"loss": {"chunks": 4}}),
        (
            {"adapters": Adapters(rank=16, targets=("q_proj", "v_proj"), base="nf4")},
            {"lora": {"rank": 16, "base": "nf4", "adapter_dtype": "fp32", "targets": ["q_proj", "v_proj"]}},
        ),
    ],
)
def test_a_field_is_the_technique_of_the_same_meaning(values, expected):
    assert expected.items() <= techniques(**values).items()


def test_precisions_are_techniques():
    assert "bf16_states" in techniques(states="bf16")
    assert "mixed_precision" not in techniques(states="bf16")
    assert {"float8", "mixed_precision"} <= techniques(precision="fp8").keys()


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"adapters": Adapters(rank=8, targets=("model.*mlp",))}, "pattern"),
        ({"adapters": Adapters(rank=8, base="nf4"), "sharing": "fsdp2", "zero": 3}, "quantized base"),
        ({"recompute": "full", "offload": ("activations",)}, "activations"),
        ({"sharing": "megatron", "zero": 1}, "zero 1"),
        ({"precision": "nvfp4"}, "nvfp4"),
        ({"gradient_accumulation_steps": 9}, "micro-batches 3 to 9"),
    ],
)
def test_what_the_list_leaves_out_is_named(values, names):
    assert names in "; ".join(asked(**values).left_out)


@pytest.mark.parametrize("size", ["tp", "pp", "cp", "ep"])
def test_a_layout_is_refused_with_its_sizes(size):
    refused(lambda: asked(**{size: 2}), f"{size} 2")
