"""A report of checks as JUnit XML, which CI systems show."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET


@dataclass(frozen=True, slots=True)
class Case:
    """One check. ``failure`` and ``skipped`` say why it is not passed; at most one is set."""

    name: str
    text: str
    failure: str | None = None
    skipped: str | None = None


def write(path: Path, suite: str, cases: Iterable[Case]) -> None:
    """Write one test suite. Raises ``OSError``."""
    cases = tuple(cases)
    root = ET.Element(
        "testsuite",
        name=suite,
        tests=str(len(cases)),
        failures=str(sum(case.failure is not None for case in cases)),
        errors="0",
        skipped=str(sum(case.skipped is not None for case in cases)),
    )
    for case in cases:
        element = ET.SubElement(root, "testcase", classname=suite, name=case.name)
        if case.failure is not None:
            ET.SubElement(element, "failure", message=case.failure)
        elif case.skipped is not None:
            ET.SubElement(element, "skipped", message=case.skipped)
        else:
            ET.SubElement(element, "system-out").text = case.text
    ET.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)
