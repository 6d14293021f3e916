"""Several worker processes on one host, under one supervisor (``workers`` over 1)."""
