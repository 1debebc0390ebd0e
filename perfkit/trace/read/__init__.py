"""From trace files to columns, and back to files."""
