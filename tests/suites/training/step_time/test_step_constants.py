"""Every constant says where it comes from, and programs and devices find theirs."""

import pytest

from suites.training.step_time.constants import (
    CONSTANT_NAMES,
    FACTS,
    StepConstants,
    best_share,
    entries,
    fitted_to_whole_steps,
)
from suites.training.step_time.gpu import device_names, gpu_of


@pytest.mark.parametrize(("name", "entry"), entries().items())
def test_each_constant_has_a_value_and_one_origin(name, entry):
    assert isinstance(entry["value"], float)
    assert len({"source", "fitted_to"} & entry.keys()) == 1
    assert len(str(entry.get("source") or entry.get("fitted_to"))) > 10


def test_constants_of_whole_steps_are_named():
    named = fitted_to_whole_steps()
    assert "sustained.ampere" in named
    assert "matmul.ampere.typical_share" not in named


@pytest.mark.parametrize("program", FACTS)
def test_each_program_has_all_its_constants(program):
    constants = StepConstants.read(**{f"{program}.logit_B": 7.0}).program(program)
    assert constants.logit_B == 7.0
    assert all(getattr(constants, name) >= 0 for name in CONSTANT_NAMES)


@pytest.mark.parametrize("device", device_names())
def test_each_device_reaches_a_share_of_its_rate(device):
    gpu = gpu_of(device)
    assert 0.4 < best_share(gpu, "bf16") < 1
    assert 0.3 < StepConstants.read().matmul(gpu, "bf16").peak_share < 1


def test_less_power_means_lower_rates():
    constants = StepConstants.read()
    usual, weak = gpu_of("h100_80gb"), gpu_of("h100_80gb_500w")
    assert constants.matmul(weak, "bf16").peak_share < constants.matmul(usual, "bf16").peak_share
