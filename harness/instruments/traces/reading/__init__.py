"""A trace's file as one table of events, whatever wrote it."""
