"""An optimization's list of techniques means the same in every suite that trains."""

from importlib import import_module

import pytest

from harness.config.optimizations import code_of
from harness.config.run import load
from harness.config.techniques import check_functions, names, settings_of
from harness.config.validation import ConfigError, Role
from harness.records import Unavailable
from suites.kernels.training_step import step_of
from suites.training.declared import Level, technique
from suites.training.techniques import build_step, combined, named, role_of
from suites.training.workload import Workload

SMALL = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
SMALL |= {"intermediate_size": 24, "vocab_size": 32, "micro_batch_size": 2, "seq_len": 8}
PLAIN, ON_RANKS = ["memory llama_12m", "kernels step_5m_128"], ["interconnect fsdp2", "interconnect zero3"]
ON_RANKS += ["interconnect ddp", "offload llama_5m"]
LISTS = {
    "no role": ["attention", "mixed_precision", {"optimizer": {"impl": "foreach"}}],
    "activations": [{"activation_checkpointing": {"mode": "selective"}}],
    "split batch": [{"gradient_accumulation": {"steps": 2}}],
    "another strategy": ["fsdp2", "mixed_precision"],
    "what another needs": [{"ddp": {"buckets": 1}}, {"powersgd": {"rank": 1}}],
}


def subject_of(where):
    """The suite, and the baseline of one of its workloads, made small."""
    suite, workload = where.split()
    module = import_module(code_of(suite).module)
    return module, module.build({**load([f"suite={suite}"])[0].workloads[workload], **SMALL}, 1)


def step_with(where, further):
    """Return the baseline's step, and the step with further techniques."""
    suite, subject = subject_of(where)
    both = (subject, suite.apply_techniques(subject, named(further)))
    return [step_of(one) if where.startswith("kernels") else one.step for one in both]


@pytest.mark.parametrize("given", LISTS)
@pytest.mark.parametrize("where", PLAIN + ON_RANKS)
def test_a_list_means_the_same_in_every_suite(where, given):
    further = LISTS[given]
    if "kernels" in where and any(role_of(name) is Role.PARALLELISM for name, _ in named(further)):
        with pytest.raises(Unavailable, match="this step runs in one process"):
            step_with(where, further)
        return
    plain, changed = step_with(where, further)
    assert changed.techniques == combined(plain.techniques, further)
    assert changed.ranks == plain.ranks or plain.ranks == 1
    kept = [(name, own) for name, own in plain.techniques if role_of(name) is None]
    for name, settings in (*named(further), *kept):
        assert changed.settings_of(name).items() >= settings.items()


@pytest.mark.parametrize(
    ("where", "further", "words"),
    [
        ("interconnect fsdp2", ["powersgd"], "powersgd needs ddp, and this step has fsdp2; list ddp too"),
        ("offload llama_5m", ["powersgd"], "powersgd needs ddp: {buckets: 1}"),
        ("offload llama_5m", ["fsdp2", "tensor_parallel"], "and this step has tp_size=1"),
        ("interconnect fsdp2", ["context_parallel"], "needs several ranks per sequence"),
        ("kernels step_5m_128", [{"gradient_accumulation": {"split": False}}], "more sequences than"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_in_one_line(where, further, words):
    with pytest.raises(Unavailable) as caught:
        step_with(where, further)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_of_an_own_technique_are_joined_and_what_needs_a_replaced_one_is_refused():
    own = [{"ddp": {"buckets": 4, "reduce_dtype": "fp32"}}, "attention"]
    joined = dict(combined(own, [{"ddp": {"buckets": 1}}]))
    assert joined == {"ddp": {"buckets": 1, "reduce_dtype": "fp32"}, "attention": {}}
    replaced = combined([{"ddp": {"buckets": 1}}, "powersgd"], ["fsdp2"])
    assert dict(replaced).keys() == {"powersgd", "fsdp2"}
    with pytest.raises(Unavailable, match="powersgd needs ddp, and this step has fsdp2"):
        build_step(Workload(**SMALL), replaced)


def test_every_technique_of_the_project_is_complete():
    for name in names():
        check_functions(name)
        assert all("default" in field for field in settings_of(name).values()), name


def test_a_technique_without_a_function_or_with_anothers_name_is_refused(monkeypatch):
    with pytest.raises(ValueError, match="two techniques are called fsdp2"):
        technique("fsdp2", Level.PARALLELISM)(object)
    monkeypatch.delattr("suites.training.techniques.fsdp2.apply")
    with pytest.raises(
        ConfigError, match=r"^suites/training/techniques/fsdp2\.py: apply\(step, settings\) is mis"
    ):
        check_functions("fsdp2")
