"""All waiting, all sockets, all tasks."""
