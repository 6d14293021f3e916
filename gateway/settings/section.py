"""What every section of the configuration is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A mapping of known keys. Its values never appear in what is said about its faults."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
