"""Florence-2's tasks, and what it wrote as its processor's `post_process_generation` reads it. No torch.

A place is written as `<loc_0>` to `<loc_999>`, a thousandth of the width or height, and becomes a whole pixel.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

SCORE = 1.0  # the model gives none
OBJECT = "object"  # what has no name
STEPS = 1000  # of places, along each side

# What an answer is made of
TEXT, BOXES, PROPOSALS, PHRASES, LINES, POLYGONS, EITHER = (
    "text",
    "boxes",
    "proposals",
    "phrases",
    "lines",
    "polygons",
    "either",
)


@dataclass(frozen=True, slots=True)
class Task:
    prompt: str  # as the model was taught; `{input}` is the caller's part of it
    kind: str
    label: str = ""  # of entities

    @property
    def reads_input(self) -> bool:
        return "{input}" in self.prompt

    @property
    def reads_labels(self) -> bool:
        """Whether what is looked for may also be said as labels."""
        return self.kind in (PHRASES, EITHER)


TASKS: Mapping[str, Task] = {
    "<CAPTION>": Task("What does the image describe?", TEXT, "caption"),
    "<DETAILED_CAPTION>": Task("Describe in detail what is shown in the image.", TEXT, "caption"),
    "<MORE_DETAILED_CAPTION>": Task("Describe with a paragraph what is shown in the image.", TEXT, "caption"),
    "<OCR>": Task("What is the text in the image?", TEXT, "text"),
    "<OCR_WITH_REGION>": Task("What is the text in the image, with regions?", LINES, "text"),
    "<OD>": Task("Locate the objects with category name in the image.", BOXES),
    "<DENSE_REGION_CAPTION>": Task("Locate the objects in the image, with their descriptions.", BOXES),
    "<REGION_PROPOSAL>": Task("Locate the region proposals in the image.", PROPOSALS),
    "<CAPTION_TO_PHRASE_GROUNDING>": Task("Locate the phrases in the caption: {input}", PHRASES),
    "<OPEN_VOCABULARY_DETECTION>": Task("Locate {input} in the image.", EITHER),
    "<REFERRING_EXPRESSION_SEGMENTATION>": Task("Locate {input} in the image with mask", POLYGONS),
    "<REGION_TO_SEGMENTATION>": Task("What is the polygon mask of region {input}", POLYGONS),
    "<REGION_TO_CATEGORY>": Task("What is the region {input}?", TEXT, "category"),
    "<REGION_TO_DESCRIPTION>": Task("What does the region {input} describe?", TEXT, "caption"),
    "<REGION_TO_OCR>": Task("What text is in the region {input}?", TEXT, "text"),
}

Size = tuple[int, int]  # width and height of the image in pixels

_PLACE = re.compile(r"<loc_(\d+)>")
_BOXES = re.compile(r"([^<]+)((?:<loc_\d+>){4,})")
_PROPOSALS = re.compile(r"()((?:<loc_\d+>){4,})")
_LINES = re.compile(r"(.+?)" + r"<loc_(\d+)>" * 8)
_PIECE = r"(?:<loc_\d+>|<sep>|<poly>|</poly>){4,}"
_MASKS, _NAMED_MASKS = re.compile(_PIECE), re.compile(f"[^<]+{_PIECE}")
_MASK_NAME = re.compile(r"\s*(.*?)(?=</?od>|</?box>|</?bbox>|<loc_|<poly>)")
_MASK_PARTS = re.compile(r"<poly>(.*?)</poly>")
_OUTLINE = re.compile(r"((?:<loc_\d+>)+)(?:<sep>|$)")


def read(task: Task, text: str, size: Size, banned: Collection[str] = ()) -> Any:
    """The answer under the task's name; `banned` are phrases too vague to be given a place."""
    if task.kind == TEXT:
        return text.replace("<s>", "").replace("</s>", "").strip()
    text = _without_marks(text)
    if task.kind == LINES:
        found = _LINES.findall(text)
        quads = [_pixels(places, size) for _, *places in found]
        return {"quad_boxes": quads, "labels": [line.strip() for line, *_ in found]}
    if task.kind == POLYGONS:
        polygons, labels = _masks(text, size, _MASKS)
        return {"polygons": polygons, "labels": labels}
    if task.kind == EITHER:
        return _either(text, size)
    pattern = _PROPOSALS if task.kind == PROPOSALS else _BOXES
    boxes, labels = _boxes(text, size, pattern, banned if task.kind == PHRASES else ())
    return {"bboxes": boxes, "labels": labels}


def result(name: str, answer: Any) -> dict[str, Any]:
    """The result map of an answer to the task `name`: the answer itself, as entities, and as objects with boxes."""
    task = TASKS[name]
    found: dict[str, Any] = {"data": {name: answer}}
    if task.kind == TEXT:
        found["entities"] = [{"text": answer, "label": task.label, "score": SCORE}] if answer else []
    elif task.kind == LINES:
        pairs = zip(answer["labels"], answer["quad_boxes"], strict=True)
        found["entities"] = [
            {"text": text, "label": task.label, "score": SCORE, "bbox": _around(quad)} for text, quad in pairs
        ]
    else:
        found["objects"] = [
            {"label": label or OBJECT, "score": SCORE, "bbox": box} for label, box in _labelled(task, answer)
        ]
    return found


def _labelled(task: Task, answer: Mapping[str, Any]) -> list[tuple[str, list[int]]]:
    """Every object's name and box; an outline is told by the box around it."""
    names = "bboxes_labels" if task.kind == EITHER else "labels"
    boxes = list(zip(answer[names], answer["bboxes"], strict=True)) if "bboxes" in answer else []
    names = "polygons_labels" if task.kind == EITHER else "labels"
    masks = zip(answer[names], answer["polygons"], strict=True) if "polygons" in answer else ()
    joined = [(label, [side for outline in outlines for side in outline]) for label, outlines in masks]
    return [*boxes, *((label, _around(corners)) for label, corners in joined if corners)]


def _either(text: str, size: Size) -> dict[str, Any]:
    """All objects by outlines, if one has any; else all by boxes."""
    polygons, names = _masks(text, size, _NAMED_MASKS) if "<poly>" in text else ([], [])
    boxes, labels = _boxes(text, size, _BOXES, ()) if "<poly>" not in text else ([], [])
    return {"bboxes": boxes, "bboxes_labels": labels, "polygons": polygons, "polygons_labels": names}


def _boxes(
    text: str, size: Size, pattern: re.Pattern[str], banned: Collection[str]
) -> tuple[list[list[int]], list[str]]:
    boxes, labels = [], []
    for head, written in pattern.findall(text):
        name = head.strip()
        if "\n" in head.lstrip() or name in banned:
            continue
        places = _PLACE.findall(written)
        whole = [_pixels(places[at : at + 4], size) for at in range(0, len(places) - 3, 4)]
        boxes += whole
        labels += [_ascii(name)] * len(whole)
    return boxes, labels


def _masks(text: str, size: Size, pattern: re.Pattern[str]) -> tuple[list[list[list[int]]], list[str]]:
    """The outlines of each object, as x, y, x, y, …, and its name."""
    polygons, labels = [], []
    for phrase in pattern.findall(text):
        named = _MASK_NAME.match(re.sub(r"^<loc_\d+>", "", phrase, count=1))
        if named is None:
            continue
        parts = _MASK_PARTS.findall(phrase) if "<poly>" in phrase and "</poly>" in phrase else [phrase]
        for outlines in filter(None, map(_OUTLINE.findall, parts)):
            polygons.append([_points(places, size) for places in outlines])
            labels.append(named.group().strip())
    return polygons, labels


def _points(written: str, size: Size) -> list[int]:
    """A place without its partner is left out."""
    places = _PLACE.findall(written)
    return _pixels(places[: len(places) // 2 * 2], size)


def _pixels(places: Sequence[str], size: Size) -> list[int]:
    """The middle of each step, x and y in turn, in single precision as the library works it out."""
    steps = np.array([int(place) for place in places], np.float32).reshape(-1, 2)
    per_step = np.array([size[0] / STEPS, size[1] / STEPS], np.float32)
    pixels: list[int] = ((steps + np.float32(0.5)) * per_step).astype(np.int64).reshape(-1).tolist()
    return pixels


def _around(corners: Sequence[int]) -> list[int]:
    """The box around points x, y, x, y, …"""
    across, down = corners[0::2], corners[1::2]
    return [min(across), min(down), max(across), max(down)]


def _ascii(text: str) -> str:
    return text.encode("ascii", "ignore").decode("ascii")


def _without_marks(text: str) -> str:
    for mark in ("<s>", "</s>", "<pad>"):
        text = text.replace(mark, "")
    return text
