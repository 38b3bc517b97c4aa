"""Ask a policy in Chroma, in this process, with vectors from Shoal.

pip install chromadb
python examples/retrieval_chroma.py [URL]
"""

import sys

import chromadb
from chromadb.config import Settings
from retrieval import KEPT, QUESTIONS, SECTIONS, embed, heading, show


def main(url: str) -> None:
    store = chromadb.EphemeralClient(Settings(anonymized_telemetry=False))
    # Vectors come with the texts; without one of its own Chroma fetches no model
    policy = store.create_collection("policy", embedding_function=None, configuration={"hnsw": {"space": "cosine"}})
    vectors = embed(url, SECTIONS)
    policy.add(ids=[heading(section) for section in SECTIONS], documents=SECTIONS, embeddings=vectors)
    print(f"{policy.count()} sections of {len(vectors[0])} dimensions in Chroma")
    answers = policy.query(query_embeddings=embed(url, QUESTIONS), n_results=KEPT, include=["distances"])
    for question, ids, distances in zip(QUESTIONS, answers["ids"], answers["distances"], strict=True):
        show(question, [(name, 1 - distance) for name, distance in zip(ids, distances, strict=True)])


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080")
