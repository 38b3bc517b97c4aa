"""A text with what was found in it replaced by the label, in brackets. No torch."""

from collections.abc import Sequence

from workers.layers.windows import Entity

REDACT = "redact"  # the value of the option `task` that asks for it


def redact(text: str, entities: Sequence[Entity]) -> str:
    """Spans that overlap become one, labelled as the first of them, so that nothing found stays readable."""
    pieces: list[str] = []
    read = 0
    for entity in sorted(entities, key=lambda entity: (entity["start"], -entity["end"])):
        if entity["start"] >= read:
            pieces += [text[read : entity["start"]], f"[{entity['label']}]"]
        read = max(read, entity["end"])
    return "".join([*pieces, text[read:]])
