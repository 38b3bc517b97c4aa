"""Reads folders of entry files, one YAML document per model, and refuses all of them when one is wrong."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from catalog import schema
from catalog.reading import shown
from catalog.snapshot import Model

ENTRIES = Path(__file__).parent / "entries"  # what ships with Shoal
_ENDINGS = (".yaml", ".yml")


class CatalogError(ValueError):
    """Entry files that are not valid; `problems` holds one sentence each, beginning with the file's name."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


@dataclass(frozen=True, slots=True)
class Entry:
    """One valid file: the document as it stands there, and the model it describes."""

    file: Path
    document: dict[str, Any]
    model: Model


def load(folders: Iterable[Path]) -> list[Entry]:
    """Every entry below these folders, by file name. Raises CatalogError naming every problem in every file."""
    entries: list[Entry] = []
    problems: list[str] = []
    for file in (file for folder in folders for file in _files(folder, problems)):
        try:
            document = _read(file)
            entries.append(Entry(file, document, schema.parse(document)))
        except schema.EntryError as error:
            problems += [f"{file.name}: {problem}" for problem in error.problems]
    problems += _collisions(entries)
    if problems:
        raise CatalogError(problems)
    return entries


def _files(folder: Path, problems: list[str]) -> list[Path]:
    if not folder.is_dir():
        problems.append(f"{folder}: there is no such folder")
        return []
    # A mounted ConfigMap keeps its files a second time in a hidden folder.
    return sorted(
        file
        for file in folder.rglob("*")
        if file.suffix in _ENDINGS and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        return read(file.read_bytes())
    except OSError as error:
        raise schema.EntryError([f"cannot be read: {error.strerror}"]) from None


def read(text: str | bytes) -> dict[str, Any]:
    """The document in a text of YAML, not yet checked against the schema. Raises EntryError."""
    try:
        document = yaml.load(text, Loader=_StrictLoader)  # a SafeLoader
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise schema.EntryError([f"is not valid YAML: {_one_line(error)}"]) from None
    except RecursionError:
        raise schema.EntryError(["is nested too deeply"]) from None
    except (ValueError, LookupError, AttributeError):  # of constructors that trust a tag, or that a date is one
        raise schema.EntryError(["holds a date, a number or a tagged value that is not what it looks like"]) from None
    if not isinstance(document, dict):
        raise schema.EntryError([f"expected a map of keys, got {shown(document)}"])
    return document


def _one_line(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem} in line {error.problem_mark.line + 1}"
    return str(error).splitlines()[0]


def _collisions(entries: Iterable[Entry]) -> list[str]:
    """Ids and aliases share one space of names across all files."""
    problems: list[str] = []
    owners: dict[str, Path] = {}
    for entry in entries:
        for name in (entry.model.spec.model, *entry.model.aliases):
            owner = owners.setdefault(name, entry.file)
            if owner is not entry.file:
                problems.append(f"{entry.file.name}: {name!r} already names a model, in {owner.name}")
    return problems


class _StrictLoader(yaml.SafeLoader):
    """YAML without the silent kind of mistake, a key given twice, and without aliases, which make bombs and loops."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "an alias, which is not taken here: repeat the value", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} stands there twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)
