"""docs/configuration.md, made from the models.

To renew it: ``python -m gateway.settings.reference > docs/configuration.md``.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from gateway.settings.models import Settings
from gateway.settings.notices import INACTIVE
from gateway.settings.schema import Entry, entries

_INTRODUCTION = """\
# Configuration

One YAML file, read by `poolgate serve --config FILE` and checked by `poolgate check-config FILE`,
which lists every fault with its path, or says in words what the file means. A complete example is
[config/poolgate.yaml](../config/poolgate.yaml); one for several customers is
[config/example-multi-tenant.yaml](../config/example-multi-tenant.yaml). SIGHUP reads the file
again; a faulty one changes nothing.

- **Unknown keys are errors**, and so is a key written twice.
- **Types are YAML 1.2's**: `off` is a word, not false, and `10:30` is not a number.
- **Durations** have a unit: `100ms`, `10s`, `2m`, `24h`, `7d`. **Sizes** are bytes, or `32MiB`
  (1024) and `32MB` (1000).
- **Secrets** (`api_key`, `salt_secret`) are `${NAME}` for an environment variable, `file:PATH` for
  a file's text without its last line break (a relative path starts at the configuration file), or
  the text itself. They are never shown, neither by `check-config` nor in logs. Tenants' keys are
  not in the file at all: only their SHA-256 is.
- **Rates** are buckets refilled evenly (GCRA). 600 requests a minute are 600 at once, or as many as
  `bursts` says, and then one every 0.1 s. A month is 30 days. In memory buckets start full after a
  restart; in a Redis-compatible store all gateways share them. What is charged when is in
  [tenants.md](tenants.md).
- **A salt without `salt_secret`** is random in each process: after a restart, and on each other
  gateway, no prefix cached before is found again.
- **Not active in this version**: these are read, but nothing acts on them yet. `check-config` and
  `serve` say so whenever the file holds one.

"""
_HEADINGS = ("| Key | Value | Default | Meaning |", "| --- | --- | --- | --- |")


def document() -> str:
    """The whole page."""
    return _INTRODUCTION + _inactive() + "\n## Every key\n\n" + table()


def table() -> str:
    """Every key as a Markdown table, sections before their members."""
    return "\n".join([*_HEADINGS, *_rows()]) + "\n"


def _inactive() -> str:
    return "".join(f"  - `{path}`: {reason}.\n" for path, reason in INACTIVE.items())


def _rows() -> Iterator[str]:
    for entry in entries(Settings):
        meaning = entry.info.description or ""
        if any(entry.path == path or entry.path.startswith(f"{path}.") for path in INACTIVE):
            meaning = f"*Not active.* {meaning}".replace(" Not in this version.", "")
        yield f"| `{entry.path}` | {entry.kind} | {_default(entry)} | {meaning} |"


def _default(entry: Entry) -> str:
    if entry.info.is_required():
        return "**required**"
    value = entry.info.default
    if value is None:
        return "null"
    if entry.section or isinstance(value, BaseModel | dict):
        return ""
    write = entry.value_kind.write if entry.value_kind else str
    if isinstance(value, tuple):
        items = ", ".join(f'"{write(item)}"' for item in value)
        return f"`[{items}]`"
    return f"`{write(value)}`"


if __name__ == "__main__":
    print(document(), end="")
