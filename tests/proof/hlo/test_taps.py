"""Taps of a convolution that fall on its input, against looking at every one."""

from hypothesis import given
from hypothesis import strategies as st

from muster.proof.hlo.flops import _taps, _Window

small = st.integers(min_value=1, max_value=7)
WINDOWS = st.builds(
    _Window,
    size=small,
    stride=small,
    before=st.integers(min_value=-9, max_value=30),
    input_dilation=small,
    window_dilation=small,
)


@given(inputs=small, results=st.integers(min_value=1, max_value=12), window=WINDOWS)
def test_each_tap_that_falls_on_a_number_counts_once(
    inputs: int, results: int, window: _Window
) -> None:
    numbers = {place * window.input_dilation for place in range(inputs)}
    taps = (
        result * window.stride + tap * window.window_dilation - window.before
        for result in range(results)
        for tap in range(window.size)
    )
    assert _taps(inputs, results, window) == sum(place in numbers for place in taps)


def test_no_window_is_too_large_to_be_counted() -> None:
    window = _Window(size=10**9, stride=1, before=0, input_dilation=1, window_dilation=1)
    assert _taps(10**9, 10**9, window) == 10**18
    assert _taps(10**9, 3, window) == 10**9 + (10**9 - 1) + (10**9 - 2)
