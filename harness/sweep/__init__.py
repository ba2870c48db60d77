"""From a checked run to one record per cell: plan, estimate, runner, store."""
