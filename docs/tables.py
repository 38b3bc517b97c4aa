"""The tables that docs/generate.py puts into pages, each built from the code that it documents.

What a thing means is a sentence here; which things there are comes from the code, and one without a sentence is an
error. So a new setting or error code cannot be forgotten.
"""

import ast
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from catalog import loader, schema
from docs import meanings
from protocol import errors
from workers import families

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = ("base", "gateway")


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; cells may hold anything but line breaks."""
    lines = [list(head)]
    lines.append(["---"] * len(lines[0]))
    lines += [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def error_classes(root: type[errors.ShoalError] = errors.ShoalError) -> list[type[errors.ShoalError]]:
    """`root` and every class below it, parents before children."""
    return [root, *(kind for child in root.__subclasses__() for kind in error_classes(child))]


def error_table() -> str:
    rows = (
        (
            str(kind.status),
            f"`{kind.code}`",
            "yes" if kind.default_retry_after is not None else "",
            meanings.ERRORS[kind.__name__],
        )
        for kind in sorted(error_classes(), key=lambda kind: kind.status)
    )
    return table(("status", "code", "retry", "meaning"), rows)


def setting_calls() -> Iterator[ast.Call]:
    """Every `env.kind("NAME", default, …)` in the settings modules, in the order they stand there."""
    for module in SETTINGS:
        tree = ast.parse((ROOT / "project" / "settings" / f"{module}.py").read_text())
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _reads_env(node)]
        yield from sorted(calls, key=lambda call: call.lineno)


def _reads_env(call: ast.Call) -> bool:
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    first = call.args[0] if call.args else None
    is_read = isinstance(owner, ast.Name) and owner.id == "env" and isinstance(first, ast.Constant)
    return is_read and isinstance(call.func, ast.Attribute) and call.func.attr != "make_folder"


def setting_table() -> str:
    rows = {}
    for call in setting_calls():
        name = str(ast.literal_eval(call.args[0]))
        default, meaning = meanings.SETTINGS[name]
        rows[name] = (f"`{name}`", default or _literal(call.args[1]), meaning)
    return table(("variable", "default", "meaning"), rows.values())


def _literal(node: ast.expr) -> str:
    value = ast.literal_eval(node)
    if isinstance(value, bool):
        return str(int(value))
    shown = ",".join(value) if isinstance(value, list) else str(value)
    return f"`{shown}`" if shown else "none"


def entry_table() -> str:
    return table(("key", "needed", "meaning"), ((f"`{name}`", *meanings.ENTRY[name]) for name in schema.KEYS))


def model_table() -> str:
    """What ships: the entries below catalog/entries."""
    rows = (
        (
            f"`{entry.model.spec.model}`",
            ", ".join(entry.model.spec.primitives),
            ", ".join(f"{output} {width}" for output, width in entry.model.spec.dims.items()),
            str(entry.model.spec.max_tokens or ""),
            ", ".join(f"`:{profile}`" for profile in entry.model.profiles if profile != "default") or "–",
            _weights(entry),
            str(entry.document.get("license", "")),
        )
        for entry in loader.load([loader.ENTRIES])
    )
    return table(("model", "primitives", "width", "longest input", "profiles", "weights from", "licence"), rows)


def _weights(entry: loader.Entry) -> str:
    if "source" not in entry.document:
        family = entry.model.spec.family
        return f"[see {family}](#{family})"
    package = entry.model.spec.source.package
    return f"`{package}`" if package else "hub"


def family_table() -> str:
    rows = ((f"`{name}`", meanings.FAMILIES[name]) for name in families.FAMILIES)
    return table(("family", "what it runs"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "errors": error_table,
    "settings": setting_table,
    "entry": entry_table,
    "models": model_table,
    "families": family_table,
}
