"""Units: base units as people read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.units import human, in_unit, number, times, without_unit


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (112e9, "B", "112 GB"),
        (7e12, "B", "7,000 GB"),
        (45e12, "B", "45 TB"),
        (999.6e6, "B", "1,000 MB"),
        (0.0, "B", "0 B"),
        (90.0, "s", "1.50 min"),
        (1234567.0, "1", "1,234,567"),
        (0.5, "1", "0.500"),
        (1.42, "USD/h", "1.42 $/h"),
        (0.72e-6, "USD/token", "0.720 $/Mtoken"),
        (0.18e-3, "USD/sample", "180 $/Msample"),
        (0.681, "sample/s", "0.681 sample/s"),
        (162e3, "USD", "162 k$"),
        (29.1e6, "USD", "29.1 M$"),
        (-2.5, "1", "−2.50"),
    ],
)
def test_values_as_people_read_them(value: float, unit: str, expected: str) -> None:
    assert human(value, unit) == expected


@given(st.floats(1e-6, 1e15))
def test_a_shown_number_is_the_value_to_three_digits(value: float) -> None:
    assert float(number(value).replace(",", "")) == pytest.approx(value, rel=5.1e-3)


@given(st.floats(-100, 100).filter(lambda share: abs(share) >= 1e-12))
def test_a_signed_percentage_keeps_sign_and_size(share: float) -> None:
    text = without_unit(share, "1", "%", signed=True)
    assert text[0] == ("+" if share > 0 else "−")
    digits = 0.51 if abs(share) < 1.1e-5 else 0.051
    assert float(text[1:].replace(",", "")) == pytest.approx(abs(100 * share), rel=digits)


def test_ratios_have_three_digits_and_a_unit_that_is_none_of_the_metrics_is_refused() -> None:
    with pytest.raises(ValueError, match="allowed: B, kB"):
        in_unit(1.0, "B", "s")
    assert (times(2.54), times(0.95), times(0.9)) == ("2.54×", "0.950×", "0.900×")
    assert times(2.03e28) == "2.0\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}10²⁸"
