"""The answer to a suite's question at the top of its report."""
