"""Models that load at once in one process: transformers changes itself while it makes one."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import transformers

from protocol.spec import ModelSpec
from tests.models import test_sparse
from workers.layers import transformer


def test_models_that_load_at_once_leave_the_library_as_it_was(tmp_path: Path) -> None:
    folder = test_sparse.masked("bert", tmp_path, test_sparse.TestSplade.pooling)
    spec = ModelSpec("org/sparse", "sparse_encoder", ("encode",), outputs=("sparse",))
    before = transformers.PreTrainedModel.tie_weights

    def read(_: int) -> str:
        return type(transformer.read(spec, folder, "cpu", auto="AutoModelForMaskedLM")).__name__

    with ThreadPoolExecutor(8) as pool:
        names = list(pool.map(read, range(48)))

    assert set(names) == {"BertForMaskedLM"}
    assert transformers.PreTrainedModel.tie_weights is before
