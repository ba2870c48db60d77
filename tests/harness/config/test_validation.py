"""The name that was probably meant."""

import pytest

from harness.config.validation import nearest

DEVICES = ("a100_80gb", "gh200", "h100_80gb", "h200", "v100_16gb")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("h200_141gb", "h200"), ("h10", "h100_80gb"), ("a100_08gb", "a100_80gb"), ("tpu", None)],
)
def test_a_name_that_begins_alike_is_nearer_than_a_similar_one(typed, meant):
    assert nearest(typed, DEVICES) == meant
