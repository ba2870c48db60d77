"""`serve=` of `harness.advise`: a page on this machine that shows a predicted step and lets it be changed."""
