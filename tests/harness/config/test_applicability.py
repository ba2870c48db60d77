"""What cannot apply is not planned, and is counted; a mistake in `applies_to` is refused in one line."""

import pytest

from harness.config.optimizations import applies, checked_alternatives
from harness.config.validation import ConfigError

FIELDS = {"operation": {"type": "str", "one_of": ["softmax", "attention"]}, "size": {"type": "int"}}


def alternatives(*given):
    return checked_alternatives("suite.applies_to", given, FIELDS)


def test_one_alternative_must_be_met_in_every_field():
    allowed = alternatives({"operation": "softmax", "size": [1, 2]}, {"operation": "attention", "gpu": True})
    assert applies(allowed, {"operation": "softmax", "size": 2}, gpu=False)
    assert not applies(allowed, {"operation": "softmax", "size": 3}, gpu=False)
    assert not applies(allowed, {"operation": "attention", "size": 3}, gpu=False)
    assert applies(allowed, {"operation": "attention", "size": 3}, gpu=True)
    assert applies((), {"operation": "softmax"}, gpu=False)
    for ends, sizes in (({"at_least": 2}, {2, 3, 9}), ({"at_least": 2, "at_most": 3}, {2, 3})):
        allowed = alternatives({"size": ends})
        assert {one for one in (1, 2, 3, 9, None) if applies(allowed, {"size": one}, gpu=False)} == sizes


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"operatoin": "softmax"}, ".operatoin: no such name; did you mean operation"),
        ({"operation": ["softmax", 3]}, ".operation=3: expected text"),
        ({"operation": "matmul"}, ".operation='matmul': expected one of softmax, attention"),
        ({"size": {"at_mots": 3}}, ".size={'at_mots': 3}: expected a value, a list, or of a number"),
        ({"gpu": False}, ".gpu=False: expected true"),
        ("softmax", "='softmax': expected fields of a workload"),
    ],
)
def test_a_mistake_is_refused_in_one_line(given, said):
    with pytest.raises(ConfigError) as error:
        alternatives(given)
    assert str(error.value).startswith(f"suite.applies_to[0]{said.removesuffix(' text')}")
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match=r"\[0\]\.gpu: here it is the host's GPU, so no field may be named"):
        checked_alternatives("suite.applies_to", [{"gpu": True}], {"gpu": {"type": "bool"}})
