"""Sums of several texts in templates, made at once: Jinja's code copies a text at each plus.

A long prompt stands in the middle of such a sum (``'<|im_start|>' + role + '\\n' + content + ...``)
and was copied with all that follows it, once for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

from jinja2 import Template, nodes
from jinja2.compiler import CodeGenerator, Frame

_TEXT = frozenset({str})
_FEW = 2  # operands: one plus copies no more than a join


def summing_at_once(template: Template, source: str) -> Template:
    """The same template of the same environment, with such sums made at once."""
    environment = template.environment
    environment.code_generator_class = _Summing
    environment.extend(total=total)
    return environment.from_string(source)


def total(operands: Sequence[Any]) -> Any:
    """``a + b + ...``; texts alone are joined."""
    return "".join(operands) if _TEXT.issuperset(map(type, operands)) else reduce(add, operands)


class _Summing(CodeGenerator):
    """Evaluates the operands of a sum before it adds: that differs only in which error is first."""

    def visit_Add(self, node: nodes.BinExpr, frame: Frame) -> None:  # noqa: N802 - Jinja's name
        operands: list[nodes.Expr] = [node.right]
        left = node.left
        while isinstance(left, nodes.Add):
            operands.append(left.right)
            left = left.left
        operands.append(left)
        if len(operands) == _FEW:
            super().visit_Add(node, frame)
            return
        self.write("environment.total((")
        for operand in reversed(operands):
            self.visit(operand, frame)
            self.write(", ")
        self.write("))")
