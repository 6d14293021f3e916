from __future__ import annotations

from xml.etree import ElementTree as ET

from gateway.cli.junit import Case, write


def test_cases_become_a_suite(tmp_path):
    file = tmp_path / "out.xml"
    cases = (
        Case("fits & holds", "fine"),
        Case("leaks", "", failure='saw "<tag>"'),
        Case("salt", "", skipped="not told"),
    )
    write(file, "suite", cases)
    suite = ET.parse(file).getroot()
    assert (suite.tag, suite.get("name")) == ("testsuite", "suite")
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == [
        "3", "1", "0", "1",
    ]  # fmt: skip
    fine, leaks, salt = suite
    assert (fine.get("name"), fine.findtext("system-out")) == ("fits & holds", "fine")
    assert [child.tag for child in fine] == ["system-out"]
    assert leaks.find("failure").get("message") == 'saw "<tag>"'
    assert salt.find("skipped").get("message") == "not told"
