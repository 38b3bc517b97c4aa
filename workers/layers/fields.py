"""What Donut wrote, as its processor's `token2json` reads it: fields between `<s_name>` and `</s_name>`. No torch.

Fields may hold fields, and `<sep/>` stands between several values of one, or between records. Marks that open nothing
or close nothing are left out.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

from protocol.errors import InferenceError

SCORE = 1.0  # the model gives none
DEEPEST = 100  # fields in fields; what is deeper cannot be written as JSON by every library
CLASS = "class"  # the one field of what a checkpoint that classifies writes
RECORDS = "records"

_SEPARATOR = "<sep/>"
# Spaces that some tokenizers ask to have taken out of what they spell: before marks, and around apostrophes
_LOOSE = {f" {mark}": mark for mark in (".", "?", "!", ",")} | {" ' ": "'"}
_LOOSE |= {f" {end}": end for end in ("n't", "'m", "'s", "'ve", "'re")}
_OPENS = re.compile("<s_", re.IGNORECASE)

Known = Callable[[str], bool]


def read(text: str, is_token: Known) -> Any:
    """A map; a list where records are separated; `{"text_sequence": …}` where there are no fields.

    `is_token` says whether the vocabulary has a token of this name, such as `<yes/>`. Raises InferenceError.
    """
    records, separated, rest = _records(text, is_token, DEEPEST)
    if separated:
        return records
    return records[0] if records else {"text_sequence": rest}


def tidied(text: str) -> str:
    """As transformers' `clean_up_tokenization` does."""
    for loose, tight in _LOOSE.items():
        text = text.replace(loose, tight)
    return text


def result(found: Any, asked: bool) -> dict[str, Any]:
    """The result map: the fields themselves, and each value as an entity that is labelled by its path.

    What is one class and nothing else is given as such. A question that was `asked` is no finding.
    """
    data = {RECORDS: found} if isinstance(found, list) else found
    if data.keys() == {CLASS} and isinstance(data[CLASS], str):
        return {"data": data, "classifications": [{"label": data[CLASS], "score": SCORE}]}
    questions = {"question", f"{RECORDS}[0].question"} if asked else set()
    told = ((path, text) for path, text in _leaves(data, "") if path not in questions)
    entities = [{"text": text, "label": path, "score": SCORE} for path, text in told]
    return {"data": data, "entities": entities}


def _records(text: str, is_token: Known, deeper: int) -> tuple[list[Any], bool, str]:
    """The records, whether separators stood between them, and what was left unread."""
    records: list[Any] = []
    separated = False
    while True:
        record, text, goes_on = _record(text, is_token, deeper)
        if record or goes_on:
            records.append(record)
        if not goes_on:
            return records, separated, text
        separated = True


def _record(text: str, is_token: Known, deeper: int) -> tuple[dict[str, Any], str, bool]:
    """Fields up to a separator or the end, what is behind, and whether it was a separator."""
    if not deeper:
        raise InferenceError(f"the model wrote fields in fields, more than {DEEPEST} deep")
    record: dict[str, Any] = {}
    while text:
        found = _OPENS.search(text)
        end = text.find(">", found.start()) if found else -1
        if found is None or end < 0:
            break
        opening = text[found.start() : end + 1]
        name = opening[len("<s_") : -1]
        closed = re.search(f"</s_{re.escape(name)}>", text, re.IGNORECASE)
        if closed is None:
            text = text.replace(opening, "")
            continue
        closing = closed.group()
        between = re.search(f"{re.escape(opening)}(.*?){re.escape(closing)}", text, re.IGNORECASE | re.DOTALL)
        if between is not None:
            _put(record, name, between.group(1).strip(), is_token, deeper)
        text = text[closed.end() :].strip()
        if text.startswith(_SEPARATOR):
            return record, text[len(_SEPARATOR) :], True
    return record, text, False


def _put(record: dict[str, Any], name: str, content: str, is_token: Known, deeper: int) -> None:
    if "<s_" in content and "</s_" in content:
        values, _, _ = _records(content, is_token, deeper - 1)
    else:
        values = [_leaf(part.strip(), is_token) for part in content.split(_SEPARATOR)]
    if values:
        record[name] = values[0] if len(values) == 1 else values


def _leaf(text: str, is_token: Known) -> str:
    """A value that is a token of its own loses its brackets."""
    return text[1:-2] if text.startswith("<") and text.endswith("/>") and is_token(text) else text


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Every text with its path, as `menu[0].nm`."""
    if isinstance(value, str):
        if value:
            yield path, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else name)
    else:
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{index}]")
