"""Set-ups as techniques: the lists are accepted by harness.fit, and what they leave out is named."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.commands.fit.own_file import in_hydras_grammar, named
from harness.commands.fit.recipe import recipe_of
from harness.config.own_files.setup import Adapters, OwnSetup
from harness.config.own_files.techniques import fit_question

flag = st.booleans()
ENGINES = st.sampled_from(
    [("ddp", 0), ("fsdp1", 2), ("fsdp1", 3), ("fsdp2", 2), ("fsdp2", 3), ("zero", 1), ("zero", 3)]
)


def asked(**values):
    return fit_question(OwnSetup(format="axolotl", framework="", **values), 8)


def techniques(**values):
    return {name: dict(settings) for one in asked(**values).techniques for name, settings in one.items()}


@settings(max_examples=60, deadline=None)
@given(
    engine=ENGINES,
    precision=st.sampled_from(["bf16", "fp16", "fp32"]),
    recompute=st.sampled_from([("none", 1), ("full", 1), ("full", 2), ("selective", 1)]),
    attention=st.sampled_from(["flash", "explicit"]),
    fused=flag,
    chunks=st.sampled_from([1, 8]),
    steps=st.sampled_from([1, 4]),
    impl=st.sampled_from(["fused", "foreach", "for_loop"]),
)
def test_every_list_is_accepted_by_fit(engine, precision, recompute, attention, fused, chunks, steps, impl):
    question = asked(
        engine=engine[0],
        zero=engine[1],
        precision=precision,
        recompute=recompute[0],
        recompute_every=recompute[1],
        attention=attention,
        fused_loss=fused,
        loss_chunks=chunks,
        gradient_accumulation_steps=steps,
        optimizer_impl=impl,
    )
    text = in_hydras_grammar([named(one) for one in question.techniques])
    recipe = recipe_of({"techniques": text, "optimizer": question.optimizer}, question.devices)
    assert {name for name, _ in recipe} >= {name for one in question.techniques for name in one} - {
        "optimizer"
    }


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"engine": "fsdp2", "zero": 3}, {"fsdp2": {}}),
        ({"engine": "fsdp2", "zero": 2}, {"fsdp2": {"reshard_after_forward": False}}),
        ({"engine": "fsdp2", "zero": 3, "replicas": 2}, {"fsdp2": {"shard_within": 4}}),
        (
            {"engine": "fsdp2", "zero": 3, "offload": ("optimizer", "parameters")},
            {"fsdp2": {"cpu_offload": True}},
        ),
        ({"engine": "fsdp1", "zero": 2}, {"fsdp1": {"strategy": "shard_grad_op"}}),
        (
            {"engine": "zero", "zero": 2, "offload": ("optimizer",)},
            {"zero": {"stage": 2, "optimizer": "host"}},
        ),
        (
            {"engine": "zero", "zero": 3, "offload": ("optimizer:disk",)},
            {"zero": {"stage": 3, "optimizer": "disk"}},
        ),
        ({}, {"ddp": {}}),
    ],
)
def test_sharding_is_the_technique_of_the_same_name(values, expected):
    assert expected.items() <= techniques(**values).items()


def test_adapters_and_states_are_techniques():
    adapters = Adapters(rank=16, targets=("q_proj", "v_proj"), base="nf4")
    found = techniques(adapters=adapters, engine="ddp")
    assert found["lora"] == {
        "rank": 16,
        "base": "nf4",
        "adapter_dtype": "fp32",
        "targets": ["q_proj", "v_proj"],
    }
    assert "bf16_states" in techniques(states="bf16")
    assert "mixed_precision" not in techniques(states="bf16")
    assert {"float8", "mixed_precision"} <= techniques(precision="fp8").keys()


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"adapters": Adapters(rank=8, targets=("model.*mlp",))}, "by a pattern"),
        ({"adapters": Adapters(rank=8, base="nf4"), "engine": "fsdp2", "zero": 3}, "quantized base"),
        ({"recompute": "full", "offload": ("activations",)}, "activations on the host"),
        ({"engine": "megatron", "zero": 1}, "deepspeed's zero 1"),
        ({"precision": "nvfp4"}, "products in nvfp4"),
    ],
)
def test_what_the_list_leaves_out_is_named(values, says):
    assert says in "; ".join(asked(**values).left_out)


@pytest.mark.parametrize("size", ["tp", "pp", "cp", "ep"])
def test_a_layout_is_refused_with_its_sizes(size):
    with pytest.raises(ValueError, match=f"{size} 2 is a layout"):
        asked(**{size: 2})
