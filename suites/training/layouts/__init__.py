"""Memory of one GPU for any layout of a pretraining step, by a closed account of what its program keeps."""
