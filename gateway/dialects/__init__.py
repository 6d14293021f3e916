"""API dialects, one module each."""
