"""What the suite asks of the formulas: published steps, walls, uncertainty, what-ifs."""
