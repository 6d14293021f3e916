"""A configuration handed to other processes is what it was when it was read."""

from __future__ import annotations

import msgspec
import pytest

from gateway.settings import SettingsError
from gateway.supervise.handover import Handover, Written, written

TEXT = """
backends:
  - {name: a, url: "http://h:1", api_key: "${KEY}", salt_secret: "file:salt"}
"""


class Source:
    def __init__(self, key="LEAKMARK-key", salt="LEAKMARK-salt-secret"):
        self.key, self.salt, self.asked = key, salt, []

    def env(self, name):
        self.asked.append(name)
        return self.key

    def file(self, path):
        self.asked.append(path)
        if self.salt is None:
            raise FileNotFoundError(path)
        return self.salt + "\n"


def test_the_settings_are_those_of_the_moment_it_was_read():
    source = Source()
    settings, handed = written(TEXT, source)
    source.key, source.salt = "another", "another-secret-of-length"
    (backend,) = settings.backends
    assert handed.settings() == settings
    assert backend.api_key.get_secret_value() == "LEAKMARK-key"
    assert backend.salt_secret.get_secret_value() == "LEAKMARK-salt-secret"
    assert source.asked == ["KEY", "salt"]  # each once


def test_it_survives_the_wire_and_no_text_form_shows_it():
    handover = Handover(written(TEXT, Source())[1], b"\x00\xffLEAKMARK", access_log=True)
    assert msgspec.json.decode(msgspec.json.encode(handover), type=Handover) == handover
    assert "LEAKMARK" not in repr(handover)
    assert b"\n" not in msgspec.json.encode(handover)  # one line on the socket pair


def test_what_is_no_configuration_is_not_handed_over():
    with pytest.raises(SettingsError, match="api_key"):
        written(TEXT, Source(key=None))
    with pytest.raises(SettingsError, match="cannot read salt"):
        written(TEXT, Source(salt=None))


def test_a_reference_that_was_not_looked_up_is_not_there():
    handed = Written(TEXT, {}, {})
    with pytest.raises(SettingsError, match=r"KEY is not set(.|\n)*cannot read salt"):
        handed.settings()
