"""What is measured beyond loading: training on batches, plans for many clients, kills, wrong text."""
