"""What tables and figures look values up in: indexed records and their comparisons."""
