"""Modules of the package import each other in one direction, also for type checkers."""

import ast
import pathlib

import armillary

PACKAGE = pathlib.Path(armillary.__file__).parent


def imports_of(tree, modules):
    """Modules of the package that a module imports when it is loaded or checked; not those of functions."""
    modules_used, inner = set(), [tree]
    while inner:
        node = inner.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.Import):
            modules_used |= {name.name.removeprefix("armillary.") for name in node.names}
        if isinstance(node, ast.ImportFrom) and node.module == "armillary":
            modules_used |= {name.name for name in node.names}
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("armillary."):
            modules_used.add(node.module.removeprefix("armillary."))
        inner += ast.iter_child_nodes(node)
    return modules_used & modules


def circle_of(graph):
    """Modules that import each other in a circle, the first once more at the end; [] if there is none."""
    finished = set()

    def search(module, path):
        if module in path:
            return [*path[path.index(module) :], module]
        if module in finished:
            return []
        circles = (search(one, [*path, module]) for one in sorted(graph[module]))
        circle = next((circle for circle in circles if circle), [])
        finished.add(module)
        return circle

    return next((circle for circle in (search(module, []) for module in sorted(graph)) if circle), [])


def graph_of(sources):
    return {name: imports_of(ast.parse(text), set(sources)) for name, text in sources.items()}


def test_no_module_imports_itself_by_way_of_others():
    sources = {path.stem: path.read_text() for path in PACKAGE.glob("*.py")}
    graph = graph_of(sources)
    assert {"_spread", "_sharding"} <= graph["sequence_parallel"], "imports are not found"
    circle = circle_of(graph)
    assert not circle, " -> ".join(circle)


def test_circles_are_found():
    sources = {
        "a": "from armillary import b",
        "b": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from armillary.c import C",
        "c": "import armillary.a",
        "d": "from armillary.a import A",
    }
    assert circle_of(graph_of(sources)) == ["a", "b", "c", "a"]
    sources["c"] = "def later():\n    import armillary.a"
    assert circle_of(graph_of(sources)) == []
