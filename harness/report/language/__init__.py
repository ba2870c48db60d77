"""The language of conf/report/: its schema, its reader, and its reference."""
