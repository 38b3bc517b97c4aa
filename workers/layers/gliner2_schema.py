"""What GLiNER2 is asked, in its own words, and its answers as result maps. No torch.

The library checks a schema in full when it builds it, in the engine; here stands what it would not notice.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from protocol.errors import InvalidInput
from protocol.options import ExtractOptions
from workers.layers.redaction import REDACT

ENTITIES, CLASSIFICATION = "entities", "classification"
TASKS = (ENTITIES, CLASSIFICATION, REDACT)

_SECTIONS = ("entities", "classifications", "structures", "relations")
_MARKERS = ("[SEP_STRUCT]", "[SEP_TEXT]", "[P]", "[C]", "[E]", "[R]", "[L]", "[EXAMPLE]", "[OUTPUT]", "[DESCRIPTION]")
_WORDS = frozenset(
    {*_SECTIONS, "task", "labels", "multi_label", "cls_threshold", "class_act", "top_k", "prompt", "examples"}
    | {"fields", "name", "dtype", "str", "list", "choices", "description", "threshold", "softmax", "sigmoid"}
)
_RESERVED = ("entities", "relation_extraction")  # keys of the library's own answers
_OBJECT = "object"  # the structure that a JSON Schema without a title becomes


def asked(model: str, wanted: ExtractOptions) -> dict[str, Any]:
    """The schema for the library. Raises InvalidInput."""
    if wanted.task is not None and wanted.task not in TASKS:
        raise InvalidInput(f"must be one of {', '.join(TASKS)}, not {wanted.task!r}", param="options.task")
    if wanted.output_schema is not None:
        schema = _from_caller(model, wanted)
    elif not wanted.labels:
        raise InvalidInput(f"model {model!r} needs labels or an output_schema", param="options.labels")
    elif wanted.task == CLASSIFICATION:
        schema = {"classifications": [_classification(wanted)]}
    else:
        schema = {"entities": list(wanted.labels)}
    for text in texts(schema):
        marker = next((marker for marker in _MARKERS if marker in text), None)
        if marker is not None:
            where = "labels" if wanted.output_schema is None else "output_schema"
            raise InvalidInput(f"may not have {marker} in it, a marker of the model", param=f"options.{where}")
    return schema


def _classification(wanted: ExtractOptions) -> dict[str, Any]:
    """All classes are scored: which are given is decided by the threshold afterwards."""
    how = "sigmoid" if wanted.multi_label else "softmax"
    labels = list(wanted.labels or ())
    return {
        "task": CLASSIFICATION,
        "labels": labels,
        "multi_label": True,
        "class_act": how,
        "cls_threshold": 0.0,
    }


def _from_caller(model: str, wanted: ExtractOptions) -> dict[str, Any]:
    given = dict(wanted.output_schema or {})
    if wanted.task == CLASSIFICATION:
        raise InvalidInput("is not read with an output_schema, which has classifications", param="options.task")
    schema = _from_json_schema(given) if is_json_schema(given) else given
    for name in schema:
        if name not in _SECTIONS:
            known = ", ".join(_SECTIONS)
            what = f"{name!r} is not a section that model {model!r} knows: {known}, or a JSON Schema with properties"
            raise InvalidInput(what, param="options.output_schema")
    if wanted.labels:
        if "entities" in schema:
            raise InvalidInput("may not be given beside entities in the output_schema", param="options.labels")
        schema = {**schema, "entities": list(wanted.labels)}
    tasks = [one.get("task") for one in schema.get("classifications", ()) if isinstance(one, dict)]
    for name in (*tasks, *(schema.get("structures") or ())):
        if name in _RESERVED:
            raise InvalidInput(f"may not call a part {name!r}", param="options.output_schema")
    return schema


def is_json_schema(schema: Mapping[str, Any]) -> bool:
    return "properties" in schema


def _from_json_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    properties = schema["properties"]
    if schema.get("type", "object") != "object" or not isinstance(properties, dict) or not properties:
        raise InvalidInput("must be of an object with properties", param="options.output_schema")
    fields = [_field(name, about) for name, about in properties.items()]
    return {"structures": {structure(schema): {"fields": fields}}}


def structure(schema: Mapping[str, Any]) -> str:
    """What the library is to call the object of a JSON Schema: the title says what to look for."""
    title = schema.get("title")
    return title if isinstance(title, str) and title.strip() else _OBJECT


def _field(name: str, about: Any) -> dict[str, Any]:
    about = about if isinstance(about, dict) else {}
    is_list = about.get("type") == "array"
    value = about.get("items", {"type": "string"}) if is_list else about
    choices = value.get("enum") if isinstance(value, dict) else None
    is_text = isinstance(value, dict) and (value.get("type", "string" if choices else None) == "string")
    if not is_text or not (choices is None or all(isinstance(choice, str) for choice in choices)):
        raise InvalidInput(
            f"the property {name!r} must be a string, an enum of strings or an array of these",
            param="options.output_schema",
        )
    field: dict[str, Any] = {"name": name, "dtype": "list" if is_list else "str"}
    described = about.get("description")
    return {
        **field,
        **({"choices": choices} if choices else {}),
        **({"description": described} if isinstance(described, str) else {}),
    }


def texts(value: Any) -> Iterator[str]:
    """Every string in a schema, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield str(key)
            yield from texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from texts(inner)


def prompt_texts(schema: Mapping[str, Any]) -> list[str]:
    """What of a schema the model reads: the caller's words, without those the schema is written in."""
    return [text for text in texts(schema) if text not in _WORDS]


def data(answers: Sequence[Mapping[str, Any]], schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The structures of all windows as plain values; None where none was asked for."""
    if is_json_schema(schema):
        return _one(instances(answers, structure(schema)), schema["properties"])
    names = schema.get("structures")
    return {name: instances(answers, name) for name in names} if names else None


def instances(answers: Sequence[Mapping[str, Any]], name: str) -> list[dict[str, Any]]:
    """Each once, however many windows show it."""
    found: list[dict[str, Any]] = []
    for answer in answers:
        for instance in answer.get(name) or ():
            plain = {field: _plain(value) for field, value in instance.items()}
            if plain not in found:
                found.append(plain)
    return found


def _one(found: Sequence[Mapping[str, Any]], properties: Mapping[str, Any]) -> dict[str, Any]:
    """One object of all that was found: the first value of each property, all values of an array."""
    merged: dict[str, Any] = {}
    for name, about in properties.items():
        values = [instance[name] for instance in found if instance.get(name)]
        if about.get("type") == "array":
            merged[name] = list(dict.fromkeys(text for value in values for text in value))
        else:
            merged[name] = values[0] if values else None
    return merged


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return value.get("text")
    return [_plain(one) for one in value] if isinstance(value, list) else value


def classifications(answers: Sequence[Mapping[str, Any]], tasks: Sequence[str]) -> list[dict[str, Any]]:
    """The classes of every task, the likeliest first, each with the highest score of any window."""
    best: dict[tuple[str, str], float] = {}
    for answer in answers:
        for task in tasks:
            chosen = answer.get(task) or ()
            for one in [chosen] if isinstance(chosen, Mapping) else chosen:
                place = task, one["label"]
                best[place] = max(best.get(place, 0.0), float(one["confidence"]))
    ranked = sorted(best.items(), key=lambda pair: (tasks.index(pair[0][0]), -pair[1]))
    return [{"label": label, "score": score} for (_, label), score in ranked]


def relations(answers: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each once, with its best score: that of its less sure end."""
    best: dict[tuple[str, str, str], float] = {}
    for answer in answers:
        for name, found in (answer.get("relation_extraction") or {}).items():
            for one in found:
                head, tail = one["head"], one["tail"]
                place = head["text"], tail["text"], name
                score = float(min(head["confidence"], tail["confidence"]))
                best[place] = max(best.get(place, 0.0), score)
    ranked = sorted(best.items(), key=lambda pair: -pair[1])
    return [{"head": head, "tail": tail, "relation": name, "score": score} for (head, tail, name), score in ranked]
