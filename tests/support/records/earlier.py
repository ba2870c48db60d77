"""A cell of an earlier run, for tests of estimates."""

from harness.sweep.estimate.history import Earlier


def before(cell, seconds, *, id="another", same_host=True, status="ok", timeout_s=100.0, **fields):
    workload = {**cell.config["workload"], **fields}
    cell = cell._replace(id=id, config={**cell.config, "workload": workload})
    return Earlier(cell, status, seconds, timeout_s, same_host)
