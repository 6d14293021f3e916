"""``python -m gateway`` is the ``poolgate`` command."""

from gateway.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
