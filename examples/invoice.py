"""Find the invoice that answers a question and read it: encode, score and extract, by the published `sie-sdk`.

    pip install sie-sdk                      (it wants Python 3.12)
    python examples/invoice.py [URL]

docs/examples.md says how to run it without a hub.
"""

import sys

from printed import begin, missing_generate
from sie_sdk import SIEClient

ENCODER = "sentence-transformers/all-MiniLM-L6-v2"
RERANKER = "cross-encoder/ms-marco-MiniLM-L-6-v2"
READER = "urchade/gliner_multi-v2.1"

QUESTION = "How much do we owe Northwind for the office chairs, and when?"
PASSAGES = [
    {"id": "chairs", "text": "Invoice 2041 of Northwind Ltd: 12 office chairs, 1,440.00 EUR, due on 14 May 2026."},
    {"id": "paper", "text": "Invoice 77 of Papeterie Blanc: printer paper, 96.50 EUR, paid on 2 March 2026."},
    {"id": "lease", "text": "The lease of the warehouse in Rotterdam ends on 31 December 2027."},
]
KEPT = 2  # of the passages, by their vectors
LABELS = ["organization", "date", "amount"]


def main(url: str) -> None:
    begin("Which invoice, and what is in it:", [ENCODER, RERANKER, READER])
    with SIEClient(url) as client:
        question = client.encode(ENCODER, {"text": QUESTION}, is_query=True)["dense"]
        vectors = client.encode(ENCODER, PASSAGES)
        nearest = sorted(vectors, key=lambda vector: -float(question @ vector["dense"]))
        print("nearest by vector: ", ", ".join(vector["id"] for vector in nearest))

        candidates = [passage for passage in PASSAGES if passage["id"] in {vector["id"] for vector in nearest[:KEPT]}]
        ranked = client.score(RERANKER, {"text": QUESTION}, candidates)["scores"]
        for entry in ranked:
            print(f"rank {entry['rank']}: {entry['item_id']:8} {entry['score']:.3f}")

        best = next(passage for passage in candidates if passage["id"] == ranked[0]["item_id"])
        found = client.extract(READER, best, labels=LABELS)
        for entity in found["entities"]:
            print(f"{entity['label']}: {entity['text']!r} at {entity['start']}-{entity['end']}, {entity['score']:.2f}")
        print(f"read from {best['id']}: {len(found['entities'])} entities")
    missing_generate("The answer in a sentence", f"{QUESTION}\n{best['text']}", max_new_tokens=60)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080")
