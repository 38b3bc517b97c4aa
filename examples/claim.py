"""Review a flood-insurance claim: documents, fields, the policy's passage, a photo; by the published `sie-sdk`.

    pip install sie-sdk                      (it wants Python 3.12)
    python examples/claim.py [URL]

What lies in `examples/data` was made for this example. docs/examples.md says how to run it without a hub.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from printed import begin, checked, missing_generate, step
from sie_sdk import SIEClient

READER = "docling"
FIELDS = "fastino/gliner2-large-v1"
RERANKER = "BAAI/bge-reranker-v2-m3"
DETECTOR = "IDEA-Research/grounding-dino-tiny"

DATA = Path(__file__).with_name("data")
WANTED = ["insured name", "loss date", "policy number", "address"]
QUESTION = "Are warped floor boards, soaked carpet and a stained wall insured in a room above ground level?"
KEYWORDS = {"above", "boards", "carpet", "floor", "ground", "level", "stain", "wall", "warped"}
KEPT = 5  # of the policy's sections, by keywords
DAMAGE = ["water stain", "warped floor board", "soaked carpet"]
SURE = 0.3

REVIEW = {
    "type": "object",
    "properties": {
        "decision": {"enum": ["pay", "pay in part", "deny", "ask"]},
        "amount": {"type": "number"},
        "section": {"type": "string"},
        "reasons": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["decision", "amount", "section", "reasons"],
}


def read_documents(client: SIEClient) -> list[str]:
    """The form is a scan and read line by line; the other two have text. All of them as Markdown."""
    scan = {"id": "proof_of_loss.png", "images": [(DATA / "proof_of_loss.png").read_bytes()]}
    files = [{"id": name, "document": DATA / name} for name in ("estimate.xlsx", "policy.pdf")]
    read = [client.extract(f"{READER}:ocr", scan), *client.extract(f"{READER}:fast", files)]
    for result in read:
        data = checked(result)["data"]
        pages = f"{data['pages']} page{'' if data['pages'] == 1 else 's'}"
        print(f"{result['id']}: {pages}, {len(data['markdown'])} characters of Markdown")
    return [result["data"]["markdown"] for result in read]


def find_fields(client: SIEClient, form: str) -> dict[str, str | None]:
    """Of each kind of entity the one that the model is surest of."""
    found = checked(client.extract(FIELDS, {"text": form}, labels=WANTED))["entities"]
    fields: dict[str, str | None] = {}
    for label in WANTED:
        best = max((one for one in found if one["label"] == label), key=lambda one: one["score"], default=None)
        fields[label] = best and best["text"]
        print(f"{label}: " + (f"{best['text']!r}, {best['score']:.2f}" if best else "not found"))
    return fields


def sections(policy: str) -> list[dict[str, str]]:
    """A text layer has lines, not paragraphs; the sections are found by their headings."""
    parts = re.split(r"(?=\bSection \d+\. [A-Z])", " ".join(policy.split()))
    return [{"id": part[: part.index(".")], "text": part.strip()} for part in parts if part.startswith("Section")]


def with_keywords(passages: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Those with most of the keywords: fewer pairs for the reranker to read."""
    counts = {one["id"]: len(KEYWORDS & set(re.findall(r"[a-z]+", one["text"].lower()))) for one in passages}
    kept = sorted((one for one in passages if counts[one["id"]]), key=lambda one: -counts[one["id"]])[:KEPT]
    print(f"{len(passages)} sections, by keywords: {', '.join(one['id'] for one in kept)}")
    return kept


def find_passage(client: SIEClient, passages: list[dict[str, str]]) -> str:
    ranked = client.score(RERANKER, {"text": QUESTION}, passages)["scores"]
    for entry in ranked:
        print(f"rank {entry['rank']}: {entry['item_id']:10} {entry['score']:.3f}")
    return next(one["text"] for one in passages if one["id"] == ranked[0]["item_id"])


def find_damage(client: SIEClient) -> list[Mapping[str, Any]]:
    photo = {"id": "photo.jpg", "images": [(DATA / "photo.jpg").read_bytes()]}
    found = checked(client.extract(DETECTOR, photo, labels=DAMAGE, options={"threshold": SURE}))["objects"]
    objects = sorted(found, key=lambda one: -one["score"])
    for one in objects:
        box = ", ".join(f"{edge:.0f}" for edge in one["bbox"])
        print(f"{one['label']}: {one['score']:.2f} at ({box})")
    print(f"photo.jpg: {len(objects)} objects above {SURE}")
    return objects


def prompt(fields: Mapping[str, Any], estimate: str, passage: str, damage: Sequence[Mapping[str, Any]]) -> str:
    seen = sorted({one["label"] for one in damage})
    return "\n\n".join(
        [
            "Review this flood claim. Rely on the policy's passage alone.",
            "\n".join(f"{label}: {value or 'not found'}" for label, value in fields.items()),
            f"Estimate:\n{estimate}",
            f"Policy: {passage}",
            f"Seen in the photo: {', '.join(seen) or 'nothing'}",
        ]
    )


def main(url: str) -> None:
    begin("A flood claim, read by four models:", [READER, FIELDS, RERANKER, DETECTOR])
    with SIEClient(url) as client:
        step(1, "documents as Markdown", READER)
        form, estimate, policy = read_documents(client)
        step(2, "fields of the proof of loss", FIELDS)
        fields = find_fields(client, form)
        step(3, "the passage of the policy that answers", RERANKER)
        passage = find_passage(client, with_keywords(sections(policy)))
        print(f"passage: {passage[:80]}…")
        step(4, "damage in the photo", DETECTOR)
        damage = find_damage(client)
    asked = prompt(fields, estimate, passage, damage)
    missing_generate("5. the review as JSON", asked, max_new_tokens=300, grammar={"json_schema": REVIEW})


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080")
