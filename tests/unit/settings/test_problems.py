from __future__ import annotations

from gateway.settings.problems import Problem, SettingsError


def test_a_problem_reads_as_path_and_message() -> None:
    assert str(Problem("a[0].b", "is wrong")) == "a[0].b: is wrong"
    assert str(Problem("", "is wrong")) == "is wrong"


def test_an_error_keeps_every_problem() -> None:
    problems = (Problem("a", "x"), Problem("b", "y"))
    error = SettingsError(iter(problems))
    assert error.problems == problems
    assert str(error) == "a: x\nb: y"
