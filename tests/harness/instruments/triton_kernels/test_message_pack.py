"""MessagePack, compared with the examples of its specification and with the package msgpack."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.instruments.triton_kernels.message_pack import unpacked


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\x82\xa7compact\xc3\xa6schema\x00", {"compact": True, "schema": 0}),  # msgpack.org's example
        (b"\xff", -1),
        (b"\xe0", -32),
        (b"\xd1\xff\x00", -256),
        (b"\xcb\x3f\xf8" + b"\0" * 6, 1.5),
        (b"\xdc\x00\x02\xc0\xc2", [None, False]),
        (b"\xc4\x02ab", b"ab"),
    ],
)
def test_bytes_of_the_specification(data, value):
    assert unpacked(data) == value


@pytest.mark.parametrize(
    "data", [b"", b"\xa5abc", b"\x92\x01", b"\xcd\x01", b"\xd9", b"\xc1", b"\xd4\x01\x00"]
)
def test_what_ends_early_or_is_no_json_is_refused(data):
    with pytest.raises(ValueError, match="MessagePack"):
        unpacked(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=20),
    max_leaves=40,
)


@given(JSON)
def test_any_value_comes_back_as_the_package_packed_it(value):
    msgpack = pytest.importorskip("msgpack")
    again = unpacked(msgpack.packb(value))
    assert again == value or repr(again) == repr(value) or (isinstance(value, float) and math.isnan(value))


@given(st.lists(st.integers(0, 9), min_size=15, max_size=70_000) | st.text(min_size=31, max_size=70_000))
def test_long_ones_have_sizes_of_their_own(value):
    msgpack = pytest.importorskip("msgpack")
    assert unpacked(msgpack.packb(value)) == value
