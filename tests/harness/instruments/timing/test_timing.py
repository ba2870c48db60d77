"""The stopwatch, with a clock and a device of the test's own."""

import pytest

from harness.instruments.timing.device_telemetry import DeviceState, Telemetry
from harness.instruments.timing.stopwatch import ClockTimer, Stopwatch


class Machine:
    def __init__(self, call_s, look_s=0.0):
        self.now_s, self.call_s, self.look_s, self.calls = 0.0, call_s, look_s, 0

    def clock(self):
        self.now_s += self.look_s
        return self.now_s

    def work(self):
        self.calls += 1
        self.now_s += self.call_s


@pytest.mark.parametrize("call_s", [2e-6, 50e-6, 3e-3, 0.5])
def test_a_window_gives_what_one_call_takes_by_a_number_of_calls_that_is_settled_once(call_s):
    machine = Machine(call_s, look_s=1e-7)
    watch = Stopwatch(machine.work, ClockTimer(machine.clock), window_s=0.01)
    (reading,) = watch.window()
    assert (reading.metric, reading.method) == ("time", "warm")
    assert reading.value == pytest.approx(call_s, rel=1e-4)
    assert watch.calls == pytest.approx(max(1, round(0.01 / call_s)), rel=0.05)
    before = machine.calls
    list(watch.window())
    assert machine.calls - before == watch.calls


class ColdTimer(ClockTimer):
    """As a GPU's: with a cold cache each call takes a millisecond more."""

    def seconds_cold(self, work, calls):
        return self.seconds(work, calls) + 1e-3 * calls


def test_cold_and_warm_and_what_was_watched_stand_side_by_side():
    machine = Machine(1e-4)
    telemetry = Telemetry(lambda: DeviceState(clock_Hz=1.98e9, power_W=700.0, throttled=1.0), "nvml")
    watch = Stopwatch(machine.work, ColdTimer(machine.clock), telemetry)
    found = {(r.metric, r.method): (r.value, r.unit) for r in watch.window()}
    assert found.pop(("time", "warm"))[0] == pytest.approx(1e-4)
    assert found.pop(("time", "cold"))[0] == pytest.approx(1.1e-3)
    assert found == {("sm_clock", "nvml"): (1.98e9, "Hz"), ("throttled", "nvml"): (1.0, "1")}
