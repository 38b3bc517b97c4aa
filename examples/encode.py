"""Encode a question and two passages with the native JSON and rank them: `python examples/encode.py`."""

import os

import httpx

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
QUESTION = "What makes energy in a cell?"
PASSAGES = ["The mitochondria is the powerhouse of the cell.", "A pumpkin pie wants nutmeg."]

key = os.environ.get("SHOAL_API_KEY")
headers = {"Authorization": f"Bearer {key}"} if key else {}
with httpx.Client(
    base_url=os.environ.get("SHOAL_URL", "http://127.0.0.1:8080"), headers=headers, timeout=120
) as client:
    answer = client.post(f"/v1/encode/{MODEL}", json={"items": [{"text": text} for text in (QUESTION, *PASSAGES)]})
    answer.raise_for_status()

question, *passages = [item["dense"]["values"] for item in answer.json()["items"]]
for text, vector in zip(PASSAGES, passages, strict=True):
    score = sum(a * b for a, b in zip(question, vector, strict=True))
    print(f"{score:.3f}  {text}")
