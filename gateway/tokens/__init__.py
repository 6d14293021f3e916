"""Counting: the only place that knows tokenizer and template libraries."""
