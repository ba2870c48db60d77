"""A limit on the processor time that a process may use per period, by the kernel's CPU bandwidth control.

Imposes a known speed: a process that may run 4 ms in every 10 ms computes at 40 % of a core's speed.
"""

from __future__ import annotations

from typing import NamedTuple

from harness.instruments.control_group import ControlGroup, Controller

CPU = Controller("cpu", "CPU cgroup", "a CPU quota", "harness-cpu-")

PERIOD_S = 0.01
"""The period. Short, so that a step spans many. The kernel allows 1 ms to 1 s
(Documentation/scheduler/sched-bwc.rst)."""

LEAST_QUOTA_S = 1e-3
"""The kernel's least (kernel/sched/core.c, min_cfs_quota_period)."""


class QuotaAccount(NamedTuple):
    """What the kernel counted since the group was made."""

    periods: int  # in which a process of the group wanted to run
    throttled_periods: int
    throttled_s: float  # over all processors


class CpuQuota(ControlGroup):
    """A group whose processes share one quota.

    `share` is what they may use of one core, and may be above 1 on several cores. Raises `Unavailable`.
    """

    def __init__(self) -> None:
        super().__init__(CPU)

    def limit(self, share: float | None, period_s: float = PERIOD_S) -> None:
        """Allow `share` of one core's time from now on; None removes the limit.

        Raises ValueError for a quota below the kernel's least.
        """
        if share is not None and share * period_s < LEAST_QUOTA_S:
            raise ValueError(f"{share:g} of {period_s:g} s is below the kernel's {LEAST_QUOTA_S:g} s")
        period_us, quota_us = round(period_s * 1e6), -1 if share is None else round(share * period_s * 1e6)
        if self._version == 2:
            (self.path / "cpu.max").write_text(f"{'max' if share is None else quota_us} {period_us}")
            return
        if share is None or self._period_us() != period_us:  # no period is refused for the old quota
            (self.path / "cpu.cfs_quota_us").write_text("-1")
            (self.path / "cpu.cfs_period_us").write_text(str(period_us))
        (self.path / "cpu.cfs_quota_us").write_text(str(quota_us))

    def account(self) -> QuotaAccount:
        """Return the kernel's counts."""
        lines = (self.path / "cpu.stat").read_text().splitlines()
        stat = {name: int(count) for name, count in (line.split() for line in lines)}
        throttled_s = stat["throttled_time"] / 1e9 if self._version == 1 else stat["throttled_usec"] / 1e6
        return QuotaAccount(stat["nr_periods"], stat["nr_throttled"], throttled_s)

    def _period_us(self) -> int:
        return int((self.path / "cpu.cfs_period_us").read_text())
