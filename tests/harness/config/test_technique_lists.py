"""An optimization's list of techniques means the same in every suite that trains."""

from importlib import import_module

import pytest

from harness.config.optimizations import code_of
from harness.config.run import load
from harness.config.techniques import check_functions, names, settings_of
from harness.config.validation import Role
from harness.records import Unavailable
from suites.kernels.training_step import step_of
from suites.training.techniques import build_step, combined, named, role_of
from suites.training.workload import Workload

SMALL = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
SMALL |= {"intermediate_size": 24, "vocab_size": 32, "micro_batch_size": 2, "seq_len": 8}
STEPS = ["memory llama_12m", "kernels step_5m_128", "interconnect fsdp2", "offload llama_5m"]
LISTS = {
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
@pytest.mark.parametrize("where", STEPS)
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
