"""The harness: plan cells, run each in a child process, store records, judge claims, write reports."""
