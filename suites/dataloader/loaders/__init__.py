"""The loaders: the baseline's, the disaggregated ones, and those of other libraries."""
