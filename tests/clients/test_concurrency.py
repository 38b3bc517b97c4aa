"""S011: who else is being served changes nobody's vector."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai
import pytest

from bench import texts
from bench.system import Serving

MODEL = "shoal-tests/minilm"
TEXT = "tide table for the north quay"
COPIES = 200


@pytest.mark.parametrize("clients", [1, 2, 4, 8])
def test_a_text_has_one_vector_whatever_runs_beside_it(shoal: Serving, clients: int) -> None:
    others = texts.mixed(COPIES)
    with (
        openai.OpenAI(base_url=f"{shoal.url}/v1", api_key="any word", max_retries=0) as client,
        ThreadPoolExecutor(clients) as pool,
    ):

        def embed(text: str) -> np.ndarray:
            answer = client.embeddings.create(model=MODEL, input=text)
            return np.array(answer.data[0].embedding, np.float32)

        alone = embed(TEXT)
        found = list(pool.map(embed, [text for pair in zip([TEXT] * COPIES, others, strict=True) for text in pair]))

    copies, rest = np.array(found[::2]), np.array(found[1::2])
    assert np.abs(copies - alone).max() < 1e-4
    assert (rest @ alone).max() < 0.999
