"""The processes that load: ranks, their workers, and their memory."""
