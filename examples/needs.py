"""What each example's client needs: for `python -m examples`, and for the tests that run them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Client:
    """Packages of a virtual environment, and the oldest Python that they take."""

    packages: tuple[str, ...]
    oldest: tuple[int, int] = (3, 11)


SDK = Client(("sie-sdk==0.10.1",), (3, 12))

NEEDS = {
    "invoice": SDK,
    "claim": SDK,
    "contract": SDK,
    "retrieval_qdrant": Client(("qdrant-client==1.20.0",)),
    "retrieval_chroma": Client(("chromadb==1.5.9",)),
    "retrieval_langchain": Client(
        (
            "langchain-core==1.6.10",
            "langchain-openai==1.7.2",
            "langchain-text-splitters==1.1.3",
            "openai==3.63.0",
            "numpy==2.4.6",  # LangChain's own store wants it
        )
    ),
}
