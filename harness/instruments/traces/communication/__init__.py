"""Which events of a trace move data between ranks."""
