"""Training steps that others published, each as a question with its published answer."""
