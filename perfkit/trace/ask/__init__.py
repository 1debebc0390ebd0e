"""Questions to a trace, one a file."""
