"""Entry files are read strictly: what is wrong is named by file and key, everything wrong at once."""

from pathlib import Path
from typing import Any

import pytest

from catalog import loader, schema
from tests.catalog.conftest import ENTRIES, Write, document

COMMIT = "c9745ed1d9f207416be6d2e6f8de32d1f16199bf"


def problems(folder: Path) -> list[str]:
    with pytest.raises(loader.CatalogError) as caught:
        loader.load([folder])
    return caught.value.problems


TRAPS = {
    "alias": ("load: &a {b: 1}\nprofiles: *a\n", "an alias, which is not taken here"),
    "loop": ("load: &a {b: *a}\n", "an alias, which is not taken here"),
    "python": ("load: !!python/object/apply:os.getcwd []\n", "could not determine a constructor for the tag"),
    "no such day": ("description: 2001-02-30\n", "a date, a number or a tagged value"),
    "no such number": ("budget: !!int ''\n", "a date, a number or a tagged value"),
    "no such flag": ("pinned: !!bool maybe\n", "a date, a number or a tagged value"),
    "no such time": ("load: {a: !!timestamp x}\n", "a date, a number or a tagged value"),
    "endless digits": ("budget: " + "9" * 5000 + "\n", "a date, a number or a tagged value"),
    "deep": ("load: {a: " + "[" * 3000 + "]" * 3000 + "}\n", "nested too deeply"),
    "rather deep": ("load: {a: " + "[" * 40 + "]" * 40 + "}\n", "is nested more than 32 deep"),
    "zero byte": ('description: "a\\0b"\n', "description: holds a character that cannot be stored"),
    "half a pair": ('description: "\\ud800"\n', "description: holds a character that cannot be stored"),
    "half a pair inside": ('load: {a: ["\\ud800"]}\n', "load.a[0]: expected text"),
    "half a pair as key": ('load: {a: {"\\ud800": 1}}\n', "load.a: expected text as key"),
    "infinity": ("load: {a: .inf}\n", "load.a: expected text, a number"),
    "nothing": ("load: {a: .nan}\n", "load.a: expected text, a number"),
    "beyond 64 bits": ("load: {a: 1180591620717411303424}\n", "load.a: expected text, a number"),
    "beyond every device": ("budget: 1180591620717411303424\n", "budget: expected at most 9007199254740991"),
    "beyond every width": ("dims: {dense: 1180591620717411303424}\n", "dims.dense: expected at most"),
}


@pytest.mark.parametrize("name", TRAPS)
def test_what_no_worker_or_database_could_hold_is_refused(folder: Path, name: str) -> None:
    """One such entry, published, would end every worker that is asked for its model."""
    lines, problem = TRAPS[name]
    text = "id: org/model\nfamily: fake\nprimitives: [encode]\noutputs: [dense]\n" + lines
    (folder / "model.yaml").write_text(text)

    assert any(problem in told for told in problems(folder)), problems(folder)


def test_an_entry_becomes_a_model(folder: Path, write: Write) -> None:
    write(
        dims={"dense": 384},
        matryoshka=[64, 384],
        max_tokens=256,
        source={"repo": "org/weights", "revision": COMMIT, "package": "weights"},
        load={"dtype": "float16"},
        budget=4096,
        max_items=64,
        pool="gpu-a",
        bundle="transformers4",
        pinned=True,
        aliases=["short"],
        description="A model.",
        license="MIT",
        profiles={"query": {"is_query": True}},
    )

    [entry] = loader.load([folder])

    spec = entry.model.spec
    assert (spec.model, spec.family, spec.primitives, spec.outputs) == ("org/model", "fake", ("encode",), ("dense",))
    assert (spec.dims, spec.matryoshka, spec.max_tokens) == ({"dense": 384}, (64, 384), 256)
    assert (spec.source.repo, spec.source.revision, spec.source.package) == ("org/weights", COMMIT, "weights")
    assert (spec.load, spec.budget, spec.max_items) == ({"dtype": "float16"}, 4096, 64)
    assert (spec.pool, spec.bundle) == ("gpu-a", "transformers4")
    assert (entry.model.pinned, entry.model.aliases, entry.model.description) == (True, ("short",), "A model.")
    assert entry.model.profiles == {"default": {}, "query": {"is_query": True}}


def test_what_an_entry_leaves_out_has_the_defaults_of_a_spec(folder: Path, write: Write) -> None:
    write()

    [entry] = loader.load([folder])

    assert (entry.model.spec.pool, entry.model.spec.bundle, entry.model.spec.inputs) == ("default", "base", ("text",))
    assert entry.model.profiles == {"default": {}}
    assert not entry.model.pinned


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("unknown key, near", {"famly": "x"}, "unknown key 'famly'; did you mean 'family'?"),
    ("unknown key, far", {"zzz": 1}, "unknown key 'zzz'; there are: aliases, budget, bundle"),
    ("unknown key inside", {"source": {"revison": "x"}}, "source: unknown key 'revison'; did you mean 'revision'?"),
    ("missing", {"family": None}, "'family' is missing"),
    ("text for a number", {"max_tokens": "many"}, "max_tokens: expected a whole number of at least 1, got 'many'"),
    ("true for a number", {"budget": True}, "budget: expected a whole number of at least 1, got true"),
    ("zero", {"max_items": 0}, "max_items: expected a whole number of at least 1, got 0"),
    ("number for a flag", {"pinned": 1}, "pinned: expected true or false, got 1"),
    ("text for a list", {"primitives": "encode"}, "primitives: expected a list, got 'encode'"),
    ("list for a map", {"dims": [384]}, "dims: expected a map, got a list"),
    ("not a primitive", {"primitives": ["embed"]}, "primitives[0]: expected one of encode, score, extract, generate"),
    ("twice in a list", {"aliases": ["a", "a"]}, "aliases: 'a' stands there twice"),
    ("no primitive", {"primitives": []}, "primitives: names at least one of encode, score, extract, generate"),
    ("profile in an id", {"id": "org/name:query"}, "id: expected a model id such as 'org/name', without ':' or '__'"),
    ("queue name in an id", {"id": "org__name"}, "id: expected a model id such as 'org/name', without ':' or '__'"),
    ("digits only", {"source": {"repo": "a/b", "revision": 12345}}, "source.revision: expected text, got 12345"),
    ("relative folder", {"source": {"folder": "weights"}}, "source.folder: expected an absolute path, got 'weights'"),
    ("revision of nothing", {"source": {"revision": "x"}}, "source.revision: names a revision of no repo"),
    ("pool", {"pool": "GPU A"}, "pool: expected a pool name such as 'gpu-a', got 'GPU A'"),
    ("no outputs", {"outputs": None}, "outputs: a model that encodes names its outputs"),
    ("outputs of none", {"primitives": ["score"]}, "outputs: only models that encode have outputs"),
    ("dims of none", {"dims": {"sparse": 9}}, "dims: 'sparse' is not among the outputs"),
    ("too wide", {"dims": {"dense": 8}, "matryoshka": [16]}, "matryoshka: 16 is wider than dims.dense, 8"),
    ("no width", {"matryoshka": [16]}, "matryoshka: needs dims.dense, the width that it shortens"),
    ("own alias", {"aliases": ["org/model"]}, "aliases: 'org/model' is the id itself"),
    ("no such bundle", {"bundle": "transformers3"}, "bundle: there is no bundle 'transformers3'; there are: base, "),
    ("code of a branch", {"remote_code": True, "source": {"repo": "a/b", "revision": "main"}}, "remote_code: code is"),
    ("code of no revision", {"remote_code": True}, "remote_code: code is approved by revision"),
    (
        "option name",
        {"profiles": {"q": {"is_qury": True}}},
        "profiles.q: unknown key 'is_qury'; did you mean",
    ),
    ("option value", {"profiles": {"q": {"is_query": "yes"}}}, "profiles.q.is_query: must be true or false, not 'yes'"),
    ("other word", {"profiles": {"q": {"overflow_policy": "error"}}}, "profiles.q: unknown key 'overflow_policy'"),
    ("output", {"profiles": {"s": {"output_types": ["sparse"]}}}, "profiles.s.output_types: 'sparse' is not an output"),
    ("profile name", {"profiles": {"a b": {}}}, "profiles: expected a profile name such as 'query', got 'a b'"),
]


@pytest.mark.parametrize(("fields", "expected"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_mistakes_are_named_by_file_and_key(folder: Path, write: Write, fields: dict[str, Any], expected: str) -> None:
    write(**fields)

    assert any(problem.startswith(f"entry.yaml: {expected}") for problem in problems(folder)), problems(folder)


def test_all_problems_of_all_files_are_told_at_once(folder: Path, write: Write) -> None:
    write("a.yaml", "org/a", max_tokens="many", pinned="no")
    write("b.yaml", "org/b", poool="x")

    found = problems(folder)

    assert [problem.partition(": ")[0] for problem in found] == ["a.yaml", "a.yaml", "b.yaml"]


NOT_ENTRIES = [
    ("a list", "- id: x\n", "expected a map of keys, got a list"),
    ("empty", "", "expected a map of keys, got nothing"),
    ("open bracket", "id: [x\n", "is not valid YAML: expected ',' or ']'"),
    ("key given twice", "id: a\nid: b\n", "is not valid YAML: 'id' stands there twice in line 2"),
    ("python object", "id: !!python/name:os.system x\n", "is not valid YAML: could not determine a constructor"),
]


@pytest.mark.parametrize(("text", "expected"), [case[1:] for case in NOT_ENTRIES], ids=[c[0] for c in NOT_ENTRIES])
def test_files_that_are_no_entries_say_why(folder: Path, text: str, expected: str) -> None:
    (folder / "odd.yaml").write_text(text)

    [problem] = problems(folder)

    assert problem.startswith(f"odd.yaml: {expected}")


def test_bytes_that_are_not_text_say_so(folder: Path) -> None:
    (folder / "odd.yaml").write_bytes(b"id: \xff\xfe\x00")

    [problem] = problems(folder)

    assert problem.startswith("odd.yaml: is not valid YAML")


def test_a_date_in_load_options_is_refused(folder: Path) -> None:
    (folder / "odd.yaml").write_text("id: a\nfamily: fake\nprimitives: [score]\nload: {cut: 2024-01-01}\n")

    assert problems(folder) == [
        "odd.yaml: load.cut: expected text, a number, true, false, a list or a map, got datetime.date(2024, 1, 1)"
    ]


def test_an_id_given_twice_names_both_files(folder: Path, write: Write) -> None:
    write("a.yaml", "org/model")
    write("b.yaml", "org/model")

    assert problems(folder) == ["b.yaml: 'org/model' already names a model, in a.yaml"]


def test_an_alias_may_not_be_another_models_name(folder: Path, write: Write) -> None:
    write("a.yaml", "org/model")
    write("b.yaml", "org/other", aliases=["org/model"])

    assert problems(folder) == ["b.yaml: 'org/model' already names a model, in a.yaml"]


def test_entries_of_several_folders_share_their_names(folder: Path, write: Write, tmp_path: Path) -> None:
    write("a.yaml", "shoal/fake-small")

    with pytest.raises(loader.CatalogError, match=r"'shoal/fake-small' already names .* fake_small\.yaml"):
        loader.load([ENTRIES, folder])


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    assert problems(tmp_path / "none") == [f"{tmp_path / 'none'}: there is no such folder"]


def test_hidden_copies_of_a_mounted_configmap_are_not_read(folder: Path, write: Write) -> None:
    real = folder / "..2026_11_30"
    real.mkdir()
    write("a.yaml").rename(real / "a.yaml")
    (folder / "..data").symlink_to(real)
    (folder / "a.yaml").symlink_to(folder / "..data" / "a.yaml")

    assert [entry.file.name for entry in loader.load([folder])] == ["a.yaml"]


def test_files_in_subfolders_are_read(folder: Path, write: Write) -> None:
    (folder / "vision").mkdir()
    write("a.yaml").rename(folder / "vision" / "a.yml")

    assert [entry.model.spec.model for entry in loader.load([folder])] == ["org/model"]


def test_a_profile_has_the_options_of_every_primitive_of_its_model() -> None:
    both = document(primitives=["encode", "extract"], profiles={"strict": {"threshold": 0.7, "is_query": True}})

    assert schema.parse(both).profiles["strict"] == {"threshold": 0.7, "is_query": True}


def test_a_primitive_whose_options_are_not_known_takes_any() -> None:
    writer = document(primitives=["generate"], profiles={"warm": {"temperature": 1.5}})
    writer.pop("outputs", None)
    writer.pop("dims", None)

    assert schema.parse(writer).profiles["warm"] == {"temperature": 1.5}


def test_a_profile_keeps_options_as_a_caller_would_have_them_read() -> None:
    short = document(dims={"dense": 64}, matryoshka=[16, 64], profiles={"short": {"dimensions": 16, "prompt": ""}})

    assert schema.parse(short).profiles["short"] == {"dimensions": 16, "prompt": ""}


def test_every_shipped_entry_is_valid_and_of_a_family_that_exists() -> None:
    from workers.families import FAMILIES

    entries = loader.load([loader.ENTRIES])

    assert entries
    assert {entry.model.spec.family for entry in entries} <= FAMILIES.keys()


def test_the_entries_of_the_tests_are_valid() -> None:
    assert [entry.model.spec.model for entry in loader.load([ENTRIES])] == ["shoal/fake-large", "shoal/fake-small"]
