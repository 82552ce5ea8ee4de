#!/usr/bin/env python3
"""Writes the reference of the Python package from its docstrings: one page, without network or imports.

    python3 tools/python_reference.py build/python_reference.html

Sources are parsed, so neither torch nor the compiled module is needed. A public name without a docstring is
an error."""

import ast
import html
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "python" / "armillary"
MODULES = ("armillary", "armillary.masks", "armillary.hf", "armillary.hf_trainer")
STYLE = """
body { font: 16px/1.5 sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
pre { white-space: pre-wrap; margin: .3rem 0 1rem 1.5rem; }
code, pre { font-family: monospace; font-size: 14px; }
h3 { margin: 1.5rem 0 .3rem; font-weight: normal; }
h3 a { color: inherit; text-decoration: none; }
.member { margin-left: 1.5rem; }
"""


def parsed(name):
    """The syntax tree of a module."""
    path = PACKAGE.joinpath(*name.split(".")[1:])
    return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())


def definitions(tree):
    """Functions and classes of a module by name."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {node.name: node for node in tree.body if isinstance(node, kinds)}


def public(name):
    """Pairs of a public name of a module and its definition; None for a module."""
    tree = parsed(name)
    imported = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            imported |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
    own = definitions(tree)
    lists = [node for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "__all__"]
    if not lists:
        return [(key, node) for key, node in own.items() if not key.startswith("_")]
    pairs = []
    for key in ast.literal_eval(lists[0].value):
        module, original = imported.get(key, (name, key))
        pairs.append((key, definitions(parsed(module)).get(original)))
    return [(key, node) for key, node in pairs if node is not None]


def signature(node):
    """Arguments and result as they are written."""
    if isinstance(node, ast.ClassDef):
        inits = [part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
        if not inits:
            fields = [part for part in node.body if isinstance(part, ast.AnnAssign)]
            return f"({', '.join(ast.unparse(field) for field in fields)})" if fields else ""
        return signature(inits[0]).removesuffix(" -> None")
    node.args.args = [arg for arg in node.args.args if arg.arg not in ("self", "cls")]
    if any("property" in ast.unparse(one) for one in node.decorator_list):
        return f": {ast.unparse(node.returns)}"
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"({ast.unparse(node.args)}){result}"


def entry(name, node, missing, style=""):
    """HTML of a function, a class or a method."""
    text = ast.get_docstring(node)
    if not text:
        missing.append(name)
    head = f"<b>{html.escape(name)}</b>{html.escape(signature(node))}"
    return (
        f'<div class="{style}"><h3 id="{name}"><a href="#{name}"><code>{head}</code></a></h3>'
        f"<pre>{html.escape(text or '')}</pre></div>"
    )


def section(module, missing):
    """HTML of a module."""
    lines = [f"<h2>{module}</h2>", f"<pre>{html.escape(ast.get_docstring(parsed(module)) or '')}</pre>"]
    for name, node in public(module):
        lines.append(entry(f"{module}.{name}", node, missing))
        for part in node.body if isinstance(node, ast.ClassDef) else []:
            if isinstance(part, ast.FunctionDef) and not part.name.startswith("_"):
                lines.append(entry(f"{module}.{name}.{part.name}", part, missing, "member"))
    return "\n".join(lines)


def page():
    """The whole page, and the public names that have no docstring."""
    missing = []
    body = "\n".join(section(module, missing) for module in MODULES)
    title = "Reference of the Python package armillary"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style><h1>{title}</h1>\n{body}\n</html>\n",
        missing,
    )


def main(arguments):
    """Writes the page; returns the exit code."""
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    text, missing = page()
    Path(arguments[0]).write_text(text)
    for name in missing:
        print(f"{name} has no docstring; one with shapes, errors and units is required", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
