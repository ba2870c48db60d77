"""Words of a command and the files of conf/, read into one checked run."""
