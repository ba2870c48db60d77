"""The timed operations as a rank runs them, one module each: with collectives, in chunks, and one-sided."""
