"""Ask a policy in Qdrant's local mode, with vectors from Shoal.

pip install qdrant-client
python examples/retrieval_qdrant.py [URL]
"""

import sys

from qdrant_client import QdrantClient
from qdrant_client.models import Distance, PointStruct, VectorParams
from retrieval import KEPT, QUESTIONS, SECTIONS, embed, heading, show

NAME = "policy"


def main(url: str) -> None:
    store = QdrantClient(":memory:")
    vectors = embed(url, SECTIONS)
    store.create_collection(NAME, vectors_config=VectorParams(size=len(vectors[0]), distance=Distance.COSINE))
    points = [
        PointStruct(id=number, vector=vector, payload={"section": heading(text), "text": text})
        for number, (text, vector) in enumerate(zip(SECTIONS, vectors, strict=True))
    ]
    store.upsert(NAME, points)
    print(f"{store.count(NAME).count} sections of {len(vectors[0])} dimensions in Qdrant")
    for question, vector in zip(QUESTIONS, embed(url, QUESTIONS), strict=True):
        found = store.query_points(NAME, query=vector, limit=KEPT).points
        show(question, [(point.payload["section"], point.score) for point in found])
    store.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080")
