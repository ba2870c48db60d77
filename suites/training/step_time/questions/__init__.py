"""Questions about published steps, in the format of a table of them, and answers by the model."""
