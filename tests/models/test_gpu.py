"""The same promises on a GPU. Written, like the attention it tests, without one at hand: see the skip reason."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bench import texts
from tests.models.conftest import MINILM, Encoder, cosines, shipped
from workers.families import text_encoder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; this has not been run on one yet"),
]


def on_gpu(encoder: Encoder, dtype: str) -> text_encoder.TextEncoder:
    spec = shipped(MINILM)
    return text_encoder.load(
        replace(spec, load={**spec.load, "dtype": dtype}), encoder.folder, "cuda", lambda share: None
    )


@pytest.mark.parametrize(("dtype", "least"), [("float32", 0.9999), ("float16", 0.999), ("bfloat16", 0.999)])
def test_vectors_equal_those_of_the_cpu(dtype: str, least: float, minilm: Encoder) -> None:
    sample = texts.spread(32)
    model = on_gpu(minilm, dtype)

    outputs = model.forward([item.inputs for item in minilm.prepare(sample)], None)

    found = np.stack([output["dense"] for output in outputs])
    assert cosines(found, minilm.vectors(sample, normalize=False)).min() > least


def test_a_parked_model_frees_the_device_and_wakes_as_it_was(minilm: Encoder) -> None:
    sample = texts.spread(8)
    model = on_gpu(minilm, "float16")
    inputs = [item.inputs for item in minilm.prepare(sample)]
    before, held = model.forward(inputs, None), torch.cuda.memory_allocated()
    assert model.host_copy is not None

    size = model.host_copy.park()

    assert torch.cuda.memory_allocated() <= held - 0.95 * size
    model.host_copy.wake()
    for one, other in zip(before, model.forward(inputs, None), strict=True):
        np.testing.assert_allclose(one["dense"], other["dense"], atol=1e-3)


def test_half_precision_is_packed_and_float32_says_why_not(minilm: Encoder) -> None:
    assert on_gpu(minilm, "float16").packed
    assert "needs float16 or bfloat16" in on_gpu(minilm, "float32").facts()["padded_because"]
