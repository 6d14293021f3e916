"""Does a chat template loop over the parts of a message's content?

vLLM and SGLang read this off the template's syntax tree, and hand content over as parts or as one
string accordingly. The two look at different things, so both findings are offered.
"""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import nodes


def named_content_loops(tree: nodes.Template) -> frozenset[str]:
    """The variables ``x`` of every loop over ``x.content`` or ``x['content']``."""
    return frozenset(
        name
        for loop in tree.find_all(nodes.For)
        if (name := _owner_of_content(loop.iter)) is not None
    )


def iterates_content(tree: nodes.Template) -> bool:
    """Whether some loop goes over the content of a message taken from ``messages``.

    Followed: assignments that rename ``messages``, content handed to a macro's parameter, and a
    loop outside macros over a variable called ``content``.
    """
    messages = set(_names_of(tree, "messages"))
    message = {
        loop.target.name
        for loop in tree.find_all(nodes.For)
        if isinstance(loop.target, nodes.Name) and _variable(loop.iter) in messages
    }
    if named_content_loops(tree) & message:
        return True
    in_macros: set[int] = set()
    for macro in tree.find_all(nodes.Macro):
        parameters = _content_parameters(tree, macro, message)
        for loop in macro.find_all(nodes.For):
            in_macros.add(id(loop))
            if isinstance(loop.iter, nodes.Name) and loop.iter.name in parameters:
                return True
    return any(
        isinstance(loop.iter, nodes.Name) and loop.iter.name == "content"
        for loop in tree.find_all(nodes.For)
        if id(loop) not in in_macros
    )


def _names_of(tree: nodes.Template, name: str) -> Iterator[str]:
    """``name`` and every variable assigned from it, whole or sliced or filtered."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        yield current
        waiting += [
            assignment.target.name
            for assignment in tree.find_all(nodes.Assign)
            if isinstance(assignment.target, nodes.Name) and _variable(assignment.node) == current
        ]


def _content_parameters(
    tree: nodes.Template, macro: nodes.Macro, message: set[str]
) -> frozenset[str]:
    """The macro's parameters that some call hands a message's content."""
    names = [argument.name for argument in macro.args]
    found: set[str] = set()
    for call in tree.find_all(nodes.Call):
        if not (isinstance(call.node, nodes.Name) and call.node.name == macro.name):
            continue
        given = [*zip(names, call.args, strict=False)]
        given += [(keyword.key, keyword.value) for keyword in call.kwargs]
        found.update(name for name, value in given if _owner_of_content(value) in message)
    return frozenset(found & set(names))


def _unwrapped(node: nodes.Node | None) -> nodes.Node | None:
    """The expression under filters, tests and slices."""
    while True:
        if isinstance(node, nodes.Filter | nodes.Test) or (
            isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
        ):
            node = node.node
        else:
            return node


def _variable(node: nodes.Node) -> str | None:
    inner = _unwrapped(node)
    return inner.name if isinstance(inner, nodes.Name) and inner.ctx == "load" else None


def _owner_of_content(node: nodes.Node) -> str | None:
    """``x`` where the expression is ``x.content`` or ``x['content']``."""
    inner = _unwrapped(node)
    if isinstance(inner, nodes.Getattr):
        key: object = inner.attr
    elif isinstance(inner, nodes.Getitem) and isinstance(inner.arg, nodes.Const):
        key = inner.arg.value
    else:
        return None
    owner = inner.node
    if key != "content" or not isinstance(owner, nodes.Name) or owner.ctx != "load":
        return None
    return owner.name
