"""Where a report goes: Markdown, one page, the terminal, and files of data."""
