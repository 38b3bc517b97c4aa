"""The pages say what the code does: tables are fresh, links lead somewhere, the family in CONTRIBUTING works."""

import ast
import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import yaml

from catalog import schema
from docs import generate, meanings, tables
from docs.generate import ROOT
from protocol.messages import Payload

PAGES = {str(page.relative_to(ROOT)): page.read_text() for page in generate.pages()}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)\)")
NUMBER = re.compile(r"^\s*\d+\. ")  # of a list
SENTENCE_END = re.compile(r"[.?!] [A-Z]")


def blocks(page: str, language: str) -> list[str]:
    return [body for name, body in FENCE.findall(PAGES[page]) if name == language]


def prose(text: str) -> list[str]:
    """Lines outside code blocks, tables and HTML comments, without inline code and links' addresses."""
    lines = FENCE.sub("", text).splitlines()
    return [re.sub(r"`[^`]*`", "code", NUMBER.sub("", line)) for line in lines if not line.startswith(("|", "<", "#"))]


def test_tables_are_fresh() -> None:
    assert list(generate.stale_pages(generate.pages())) == [], "run: python -m docs.generate"


def test_nothing_is_explained_that_is_gone() -> None:
    settings = {ast.literal_eval(call.args[0]) for call in tables.setting_calls()}
    errors = {kind.__name__ for kind in tables.error_classes()}

    assert meanings.SETTINGS.keys() - settings == set()
    assert meanings.ERRORS.keys() - errors == set()
    assert meanings.ENTRY.keys() - set(schema.KEYS) == set()


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    targets = [target for target in LINK.findall(PAGES[page]) if "://" not in target]

    assert [target for target in targets if not (ROOT / page).parent.joinpath(target).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_one_sentence_stands_on_a_line(page: str) -> None:
    assert [line for line in prose(PAGES[page]) if SENTENCE_END.search(line)] == []


@pytest.mark.parametrize("page", PAGES)
def test_json_in_pages_is_json(page: str) -> None:
    for block in blocks(page, "json"):
        json.loads(block)


@pytest.fixture
def letters(tmp_path: Path) -> ModuleType:
    """The family that CONTRIBUTING shows."""
    file = tmp_path / "letters.py"
    file.write_text(blocks("CONTRIBUTING.md", "python")[0])
    spec = importlib.util.spec_from_file_location("letters", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_family_in_contributing_works(letters: ModuleType) -> None:
    model = schema.parse(yaml.safe_load(blocks("CONTRIBUTING.md", "yaml")[0]))
    letters.warm()
    preparer = letters.preparer(model.spec, None)
    loaded = letters.load(model.spec, None, "cpu", lambda share: None)
    [parts] = preparer.prepare(Payload([{"text": "abba"}]))
    [prepared] = parts

    outputs = loaded.forward([prepared.inputs], prepared.key)
    result = preparer.finish(outputs, parts, {})

    assert model.spec.dims == {"dense": len(result["dense"])}
    assert np.array_equal(result["dense"][:3], [2, 2, 0])
    assert prepared.tokens == 4


def test_the_family_in_contributing_refuses_what_it_cannot_read(letters: ModuleType) -> None:
    model = schema.parse(yaml.safe_load(blocks("CONTRIBUTING.md", "yaml")[0]))

    [refused] = letters.preparer(model.spec, None).prepare(Payload([{"image": b""}]))

    assert refused.code == "INVALID_INPUT"
