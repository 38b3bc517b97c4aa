"""What a catalog entry may say: the schema of one YAML document, and the model that a valid one describes."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from catalog import bundles, reading
from catalog.reading import WrongValue, mapping, one_of, record, several
from catalog.snapshot import DEFAULT_PROFILE, Model
from protocol.errors import InvalidInput
from protocol.options import OUTPUTS, VOCABULARIES, parse_options
from protocol.spec import PRIMITIVES, ModelSpec, Source

POOL_NAME = r"^[a-z0-9][a-z0-9_-]{0,49}\Z"
PROFILE_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,49}\Z"

# No colon, which begins a profile; no "__", which stands for "/" in queue names.
_MODEL_ID = re.compile(r"(?!.*__)[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)*")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_INPUTS = ("text", "image", "audio", "video", "document")


class EntryError(ValueError):
    """An entry that is not valid; `problems` holds one sentence each, naming the key."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def _is_model_id(value: str) -> bool:
    return len(value) <= 150 and _MODEL_ID.fullmatch(value) is not None


def _lower_name(value: str) -> object:
    return re.fullmatch(r"[a-z][a-z0-9_]{0,49}", value)


def _absolute(value: str) -> bool:
    return value.startswith("/")


_model_id = reading.matching(_is_model_id, "a model id such as 'org/name', without ':' or '__'")
_name = reading.matching(_lower_name, "a lower-case name such as 'text_encoder'")
_profile_name = reading.matching(re.compile(PROFILE_NAME).match, "a profile name such as 'query'")
_free_map = mapping(reading.text, reading.json_value)

_FIELDS: Mapping[str, reading.Reader] = {
    "id": _model_id,
    "family": _name,
    "bundle": _name,
    "primitives": several(one_of(PRIMITIVES)),
    "inputs": several(one_of(_INPUTS)),
    "outputs": several(one_of(OUTPUTS)),
    "dims": mapping(one_of(OUTPUTS), reading.whole_number),
    "matryoshka": several(reading.whole_number),
    "max_tokens": reading.whole_number,
    "source": record(
        {
            "repo": _model_id,
            "revision": reading.text,
            "folder": reading.matching(_absolute, "an absolute path"),
            "package": reading.text,
        }
    ),
    "load": _free_map,
    "budget": reading.whole_number,
    "max_items": reading.whole_number,
    "pool": reading.matching(re.compile(POOL_NAME).match, "a pool name such as 'gpu-a'"),
    "pinned": reading.flag,
    "aliases": several(_model_id),
    "description": reading.text,
    "license": reading.text,
    "remote_code": reading.flag,
    "profiles": mapping(_profile_name, _free_map),
}
KEYS = tuple(_FIELDS)  # all that an entry may have
_SPEC_FIELDS = tuple(ModelSpec.__dataclass_fields__.keys() & _FIELDS.keys() - {"source"})
_read_entry = record(_FIELDS, required=("id", "family", "primitives"))


def parse(document: Any) -> Model:
    """The model that an entry describes; raises EntryError naming every problem found."""
    try:
        entry = _read_entry(document)
        _check_together(entry)
        spec = ModelSpec(
            model=entry["id"],
            source=Source(**entry.get("source", {})),
            **{name: entry[name] for name in _SPEC_FIELDS if name in entry},
        )
        profiles = _read_profiles(entry.get("profiles", {}), spec)
    except WrongValue as error:
        raise EntryError([f"{place}: {what}" if place else what for place, what in error.problems]) from None
    return Model(
        spec=spec,
        profiles={DEFAULT_PROFILE: {}, **profiles},
        aliases=entry.get("aliases", ()),
        pinned=entry.get("pinned", False),
        description=entry.get("description", ""),
    )


def _read_profiles(profiles: Mapping[str, Mapping[str, Any]], spec: ModelSpec) -> Mapping[str, Mapping[str, Any]]:
    """A primitive whose options this release does not know takes any."""
    if set(spec.primitives) - VOCABULARIES.keys():
        return profiles
    read, problems = {}, []
    for name, options in profiles.items():
        try:
            read[name] = _read_options(options, spec)
        except WrongValue as error:
            problems += [(f"profiles.{name}{place and '.' + place}", what) for place, what in error.problems]
    if problems:
        raise WrongValue(problems)
    return read


def _read_options(options: Mapping[str, Any], spec: ModelSpec) -> dict[str, Any]:
    """As a caller's own would be read, so that a profile cannot say what a caller could not."""
    known = {name for primitive in spec.primitives for name in VOCABULARIES[primitive].readers}
    problems = [("", reading.unknown(name, sorted(known))) for name in options if name not in known]
    read: dict[str, Any] = {}
    for primitive in spec.primitives:
        for name in options.keys() & VOCABULARIES[primitive].readers.keys():
            try:
                wire = parse_options(primitive, {name: options[name]}, spec, paths={name: name})
            except InvalidInput as error:
                problems.append((name, error.message.removeprefix(f"{name}: ")))
            else:
                read[name] = wire.get(name)
    if problems:
        raise WrongValue(list(dict.fromkeys(problems)))
    return {name: read[name] for name in options if options[name] is not None}


def _check_together(entry: Mapping[str, Any]) -> None:
    """What no key can get wrong alone."""
    problems: list[tuple[str, str]] = []
    for check in (_check_outputs, _check_source, _check_names, _check_bundle):
        check(entry, lambda place, what: problems.append((place, what)))
    if problems:
        raise WrongValue(problems)


Complain = Callable[[str, str], None]


def _check_outputs(entry: Mapping[str, Any], complain: Complain) -> None:
    outputs, dims = entry.get("outputs", ()), entry.get("dims", {})
    if "encode" in entry["primitives"] and not outputs:
        complain("outputs", f"a model that encodes names its outputs, of {', '.join(OUTPUTS)}")
    if "encode" not in entry["primitives"] and outputs:
        complain("outputs", "only models that encode have outputs; 'primitives' does not list encode")
    for output in dims:
        if output not in outputs:
            complain("dims", f"{output!r} is not among the outputs")
    widest = max(entry.get("matryoshka", ()), default=0)
    if widest and "dense" not in dims:
        complain("matryoshka", "needs dims.dense, the width that it shortens")
    elif widest > dims.get("dense", widest):
        complain("matryoshka", f"{widest} is wider than dims.dense, {dims['dense']}")


def _check_source(entry: Mapping[str, Any], complain: Complain) -> None:
    source = entry.get("source", {})
    if "revision" in source and "repo" not in source:
        complain("source.revision", "names a revision of no repo; add source.repo")
    if entry.get("remote_code") and not _COMMIT.fullmatch(source.get("revision", "")):
        complain("remote_code", "code is approved by revision: set source.revision to the commit, 40 hex digits")


def _check_names(entry: Mapping[str, Any], complain: Complain) -> None:
    if not entry["primitives"]:
        complain("primitives", f"names at least one of {', '.join(PRIMITIVES)}")
    if entry["id"] in entry.get("aliases", ()):
        complain("aliases", f"{entry['id']!r} is the id itself")


def _check_bundle(entry: Mapping[str, Any], complain: Complain) -> None:
    name, known = entry.get("bundle", bundles.BASE), bundles.known()
    if name not in known:
        complain("bundle", f"there is no bundle {name!r}; there are: {', '.join(known)}")
