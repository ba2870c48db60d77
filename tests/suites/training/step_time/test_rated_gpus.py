"""GPUs by the names of conf/hardware and by what a name adds to one."""

import pytest
import yaml

from suites.training.step_time.gpu import HARDWARE, device_names, gpu_of


@pytest.mark.parametrize("name", device_names())
def test_every_datasheet_is_read(name):
    sheet = yaml.safe_load((HARDWARE / f"{name}.yaml").read_text())
    gpu = gpu_of(name)
    assert gpu.memory_B == float(sheet["memory_B"])
    assert gpu.matmul_FLOP_per_s.keys() == sheet.get("matmul_FLOP_per_s", {}).keys()


def test_a_name_may_say_what_its_memory_and_its_power_differ_in():
    usual, weak = gpu_of("h100_80gb"), gpu_of("h100_80gb_500w")
    assert (weak.power_share, weak.memory_B) == (pytest.approx(5 / 7), usual.memory_B)
    poor = gpu_of("h100_96gb")
    assert poor.memory_B == pytest.approx(96e9)
    assert poor.memory_B_per_s < usual.memory_B_per_s
    assert gpu_of("A800-80GB").link_B_per_s < gpu_of("a100_80gb").link_B_per_s


def test_a_chip_that_is_like_no_other_is_not_known():
    assert gpu_of("tpu_v5p") is None


def test_narrow_formats_double_the_rate_where_no_datasheet_lists_them():
    assert gpu_of("h100_80gb").peak_FLOP_per_s("fp8") == 2 * gpu_of("h100_80gb").peak_FLOP_per_s("bf16")
    assert gpu_of("gb300").peak_FLOP_per_s("nvfp4") == 15e15  # the datasheet's own
    with pytest.raises(KeyError, match="a100_80gb has no matmuls in fp8"):
        gpu_of("a100_80gb").peak_FLOP_per_s("fp8")
