"""Review a contract against a company's rules with nine models; by the published `sie-sdk`.

    pip install sie-sdk                      (it wants Python 3.12)
    python examples/contract.py [URL]

The contract is a scanned page in `examples/data`. docs/examples.md says how to run it without a hub.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from printed import begin, checked, missing_generate, step
from sie_sdk import SIEClient

OCR = "RapidAI/RapidOCR"
GUARD = "protectai/deberta-v3-base-prompt-injection-v2"
ENTITIES = "urchade/gliner_multi-v2.1"
STRUCTURE = "fastino/gliner2-base-v1"
CLASSES = "knowledgator/gliclass-edge-v3.0"
COMPARER = "sentence-transformers/all-MiniLM-L6-v2"
RETRIEVER = "BAAI/bge-small-en-v1.5"
RERANKER = "Qwen/Qwen3-Reranker-0.6B"
POLICY = "cross-encoder/nli-deberta-v3-base"

PAGE = Path(__file__).with_name("data") / "contract.png"
KINDS = ["fees", "term", "liability", "confidentiality", "personal data", "applicable law", "other"]
KEYS = {
    "title": "contract",
    "type": "object",
    "properties": {
        "customer": {"type": "string"},
        "supplier": {"type": "string"},
        "monthly_fee": {"type": "string"},
        "law": {"type": "string"},
    },
}

# How the company words such clauses itself
STANDARD = [
    {"id": "fees", "text": "The customer pays the fees within 30 days of the date of the invoice."},
    {"id": "term", "text": "The agreement runs for one year and ends without notice."},
    {"id": "liability", "text": "Liability is limited to the fees of twelve months, except for intent."},
    {"id": "confidentiality", "text": "Each party keeps the other's information secret for five years."},
    {"id": "personal data", "text": "Personal data is processed in the European Union alone, as instructed."},
    {"id": "applicable law", "text": "The law of Germany applies and the courts of Hamburg decide."},
]
# What its lawyers want to see, and what each rule forbids, for the policy check
RULES = {
    "R1": ("Payment terms may not be longer than 60 days.", "payment later than 60 days"),
    "R2": ("A contract may not renew itself without our consent.", "automatic renewal of the contract"),
    "R3": ("A cap on liability may not lie below the fees of a year.", "a cap on liability below a year's fees"),
    "R4": ("Secrets are kept for at least three years.", "secrets kept for less than three years"),
    "R5": ("Personal data may not leave the European Union.", "personal data outside the European Union"),
    "R6": ("German law applies, or that of another member state.", "the law of a country outside Europe"),
}
KEPT = 3  # of the rules, by vector
TASK = "Given a clause of a contract, find the company's rule that governs it"
SURE = 0.5
SHOWN = 12  # entities; random weights find one in every word

Clause = dict[str, str]


def read_page(client: SIEClient) -> tuple[str, list[Clause]]:
    """The page's text and its numbered clauses."""
    result = checked(client.extract(OCR, {"id": PAGE.name, "images": [PAGE.read_bytes()]}))
    text = result["data"]["text"].replace("\n", " ")
    parts = re.split(r"(?=\b\d\. [A-Z])", text)[1:]
    print(f"{PAGE.name}: {len(result['entities'])} lines, {len(parts)} clauses")
    return text, [{"id": f"clause {part[0]}", "text": part.strip()} for part in parts]


def best_class(result: Mapping[str, Any]) -> tuple[str, float]:
    first = checked(result)["classifications"][0]
    return first["label"], first["score"]


def guard(client: SIEClient, clauses: list[Clause]) -> list[Clause]:
    """Text that speaks to language models instead of people must not reach one."""
    kept = []
    for clause, result in zip(clauses, client.extract(GUARD, clauses), strict=True):
        verdict, score = best_class(result)
        print(f"{clause['id']}: {verdict} {score:.2f}")
        kept += [clause] if verdict == "SAFE" else []
    print(f"{len(kept)} of {len(clauses)} clauses may go to a language model")
    return kept


def find_entities(client: SIEClient, text: str) -> None:
    labels = ["organization", "date", "amount"]
    found = checked(client.extract(ENTITIES, {"text": text}, labels=labels, options={"threshold": 0.4}))["entities"]
    for one in found[:SHOWN]:
        print(f"{one['label']}: {one['text']!r} at {one['start']}-{one['end']}, {one['score']:.2f}")
    print(f"{len(found)} entities, {min(len(found), SHOWN)} of them shown")


def find_structure(client: SIEClient, text: str) -> dict[str, str | None]:
    data = checked(client.extract(STRUCTURE, {"text": text}, output_schema=KEYS))["data"]
    for key, value in data.items():
        print(f"{key}: {value!r}")
    return dict(data)


def classify(client: SIEClient, clauses: list[Clause]) -> list[str]:
    kinds = []
    results = client.extract(CLASSES, clauses, labels=KINDS, options={"top_k": 1})
    for clause, result in zip(clauses, results, strict=True):
        kind, score = best_class(result)
        print(f"{clause['id']}: {kind} {score:.2f}")
        kinds.append(kind)
    return kinds


def compare(client: SIEClient, clauses: list[Clause]) -> list[str]:
    """Each clause beside the company's own wording that is nearest to it."""
    own = client.encode(COMPARER, STANDARD)
    nearest = []
    for clause in client.encode(COMPARER, clauses):
        likeness = {one["id"]: float(clause["dense"] @ one["dense"]) for one in own}
        best = max(likeness, key=lambda name: likeness[name])
        print(f"{clause['id']}: {likeness[best]:.2f} like our clause on {best}")
        nearest.append(f"{best} {likeness[best]:.2f}")
    return nearest


def retrieve(client: SIEClient, clauses: list[Clause]) -> list[list[Clause]]:
    """For each clause the rules whose vectors are nearest."""
    rules = [{"id": name, "text": rule} for name, (rule, _) in RULES.items()]
    vectors = client.encode(RETRIEVER, rules, is_query=False)
    candidates = []
    for clause in client.encode(RETRIEVER, clauses, is_query=True):
        order = sorted(range(len(rules)), key=lambda at: -float(clause["dense"] @ vectors[at]["dense"]))
        candidates.append([rules[at] for at in order[:KEPT]])
        print(f"{clause['id']}: {', '.join(rule['id'] for rule in candidates[-1])}")
    return candidates


def rerank(client: SIEClient, clauses: list[Clause], candidates: Sequence[list[Clause]]) -> list[str]:
    """The rule that governs each clause."""
    chosen = []
    for clause, rules in zip(clauses, candidates, strict=True):
        ranked = client.score(RERANKER, clause, rules, instruction=TASK)["scores"]
        print(f"{clause['id']}: " + ", ".join(f"{entry['item_id']} {entry['score']:.3f}" for entry in ranked))
        chosen.append(ranked[0]["item_id"])
    return chosen


def check_policy(client: SIEClient, clauses: list[Clause], rules: Sequence[str]) -> list[bool]:
    """Whether each clause says what its rule forbids, by inference."""
    breaks = []
    for clause, rule in zip(clauses, rules, strict=True):
        forbidden = RULES[rule][1]
        _, score = best_class(client.extract(POLICY, clause, labels=[forbidden], options={"multi_label": True}))
        breaks.append(score > SURE)
        print(f"{clause['id']}: {'breaks' if breaks[-1] else 'keeps'} {rule} ({forbidden!r} {score:.2f})")
    return breaks


def main(url: str) -> None:
    models = [OCR, GUARD, ENTITIES, STRUCTURE, CLASSES, COMPARER, RETRIEVER, RERANKER, POLICY]
    begin("A contract, reviewed by nine models:", models)
    with SIEClient(url) as client:
        step(1, "the scanned page as text", OCR)
        text, clauses = read_page(client)
        step(2, "clauses that speak to a language model", GUARD)
        safe = guard(client, clauses)
        step(3, "who, when, how much", ENTITIES)
        find_entities(client, text)
        step(4, "the contract as an object", STRUCTURE)
        facts = find_structure(client, text)
        step(5, "what each clause is about", CLASSES)
        kinds = classify(client, clauses)
        step(6, "how far each clause is from our own wording", COMPARER)
        nearest = compare(client, clauses)
        step(7, "rules that may govern a clause", RETRIEVER)
        candidates = retrieve(client, clauses)
        step(8, "the rule that does", RERANKER)
        rules = rerank(client, clauses, candidates)
        step(9, "whether the clause keeps it", POLICY)
        breaks = check_policy(client, clauses, rules)
    rows = [
        f"{clause['id']}: {kind}; nearest to our {near}; {'BREAKS' if broken else 'keeps'} {rule}"
        for clause, kind, near, rule, broken in zip(clauses, kinds, nearest, rules, breaks, strict=True)
    ]
    print("\n10. summary, put together from the results")
    print("\n".join([*(f"{key}: {value or 'not found'}" for key, value in facts.items()), *rows]))
    told = "\n".join(["Summarise the review of this contract for its buyer.", *rows, *(one["text"] for one in safe)])
    missing_generate("11. the summary in sentences", told, max_new_tokens=300)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080")
