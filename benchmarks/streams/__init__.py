"""Many streams at once: how late each event arrives, and what a stream costs a proxy."""
