"""The ``poolgate`` command, one module a subcommand."""
