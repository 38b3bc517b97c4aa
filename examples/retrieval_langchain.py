"""Ask a policy in LangChain, whose OpenAIEmbeddings need nothing but Shoal's address.

pip install langchain-core langchain-openai langchain-text-splitters openai numpy
python examples/retrieval_langchain.py [URL]
"""

import os
import sys

from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import OpenAIEmbeddings
from langchain_text_splitters import RecursiveCharacterTextSplitter
from retrieval import KEPT, MODEL, QUESTIONS, SECTIONS, heading, show

SIZE = 400  # characters of a chunk


def main(url: str) -> None:
    vectors = OpenAIEmbeddings(
        model=MODEL,
        base_url=f"{url}/v1",
        api_key=os.environ.get("SHOAL_API_KEY", "not needed on loopback"),
        check_embedding_ctx_length=False,  # else it sends the token ids of OpenAI's own vocabulary
    )
    splitter = RecursiveCharacterTextSplitter(chunk_size=SIZE, chunk_overlap=50)
    chunks = splitter.create_documents(SECTIONS, [{"section": heading(text)} for text in SECTIONS])
    store = InMemoryVectorStore(vectors)
    store.add_documents(chunks)
    print(f"{len(chunks)} chunks of {len(vectors.embed_query('a'))} dimensions in LangChain's store")
    for question in QUESTIONS:
        found = store.similarity_search_with_score(question, k=KEPT)
        show(question, [(document.metadata["section"], score) for document, score in found])


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080")
