"""Tables of pytest-benchmark by name, which puts each baseline first, unless another order is asked for."""


def pytest_configure(config):
    asked = any(word.startswith("--benchmark-sort") for word in config.invocation_params.args)
    if hasattr(config.option, "benchmark_sort") and not asked:
        config.option.benchmark_sort = "name"
