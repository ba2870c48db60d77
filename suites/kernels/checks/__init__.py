"""A variant's results compared with float64's."""
