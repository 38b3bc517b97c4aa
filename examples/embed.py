"""Embed two texts with the openai client: `python examples/embed.py`."""

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("SHOAL_URL", "http://127.0.0.1:8080") + "/v1",
    api_key=os.environ.get("SHOAL_API_KEY", "not needed on loopback"),
)
answer = client.embeddings.create(
    model="sentence-transformers/all-MiniLM-L6-v2",
    input=["The mitochondria is the powerhouse of the cell.", "A pumpkin pie wants nutmeg."],
)
for one in answer.data:
    print(one.index, len(one.embedding), one.embedding[:3])
print(answer.usage.prompt_tokens, "tokens")
