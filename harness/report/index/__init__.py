"""The pages over several runs: the index, and the answers on the paper's claims."""
