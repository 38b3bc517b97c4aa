"""What the three retrieval scripts share: a policy cut into sections, questions about it, and vectors from Shoal."""

import os
from pathlib import Path

import httpx

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
_POLICY = Path(__file__).with_name("data") / "policy.txt"
SECTIONS = [
    part.strip() for part in _POLICY.read_text().split("\n\n") if part.startswith("Section")
]  # a heading and its text each
QUESTIONS = [
    "Are finished floors in a basement insured?",
    "Who pays for sandbags and pumps bought before a flood?",
    "How do appraisers settle what a loss is worth?",
]
KEPT = 3  # answers to a question


def heading(section: str) -> str:
    return section.splitlines()[0]


def embed(url: str, texts: list[str]) -> list[list[float]]:
    """A vector of 384 numbers for each text."""
    key = os.environ.get("SHOAL_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    answer = httpx.post(f"{url}/v1/embeddings", json={"model": MODEL, "input": texts}, headers=headers, timeout=120)
    answer.raise_for_status()
    return [one["embedding"] for one in answer.json()["data"]]


def show(question: str, found: list[tuple[str, float]]) -> None:
    """`found` has the sections' headings and scores, best first."""
    print(f"\n{question}")
    for section, score in found:
        print(f"  {score:.3f}  {section}")
