"""The models that suites train: the own transformer, Hugging Face configs, and users' code."""
