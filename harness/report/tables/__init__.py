"""Tables of a report, made of text; `output` sets them."""
