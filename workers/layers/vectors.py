"""What happens to a vector after the forward: cut, normalise, quantise. NumPy only; a dozen microseconds."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from protocol.errors import NonFiniteOutput
from protocol.options import EncodeOptions


def finish(
    model: str, vector: np.ndarray, *, precision: str, dimensions: int | None, normalize: bool, dtype: str
) -> dict[str, Any]:
    """The `dense` map of a result. Raises NonFiniteOutput; `precision` is what the model computed in.

    Cutting comes first, so that a shortened vector is of unit length too. Scaled dtypes carry what undoes them:
    `values * scale + offset`. `dims` is the width before bits are packed.
    """
    cut = vector[:dimensions]
    norm = float(np.sqrt(np.dot(cut, cut)))  # not finite if any number is not
    if not np.isfinite(norm):
        raise _non_finite(model, precision)
    if normalize:
        cut = cut / max(norm, 1e-12)
    values, scaling = _QUANTISE[dtype](cut)
    if values.dtype.kind == "f" and dtype != "float32" and not np.isfinite(values).all():
        raise _non_finite(model, dtype)
    return {"dims": len(cut), "dtype": dtype, "values": values, **scaling}


def finish_many(model: str, rows: np.ndarray, *, precision: str, dtype: str) -> dict[str, Any]:
    """The `multivector` map of a result, from float32 rows (tokens, width). Raises NonFiniteOutput.

    Scaled dtypes are scaled row by row: `values * scale[:, None] + offset[:, None]`. `token_dims` is the width before
    bits are packed.
    """
    if not np.isfinite(rows).all():
        raise _non_finite(model, precision)
    values, scaling = (_SCALED_ROWS.get(dtype) or _QUANTISE[dtype])(rows)
    if values.dtype == np.float16 and not np.isfinite(values).all():
        raise _non_finite(model, dtype)
    return {"token_dims": rows.shape[1], "num_tokens": len(rows), "dtype": dtype, "values": values, **scaling}


def finish_sparse(model: str, output: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """The `sparse` map of a result: `dims` is the vocabulary's size, `indices` ascend. Only float16 changes values.

    Raises NonFiniteOutput.
    """
    values = output["values"]
    if not np.isfinite(values).all():
        raise NonFiniteOutput(f"model {model!r} gave a sparse vector with numbers that are not finite")
    dtype = dtype if dtype == "float16" else "float32"
    return {"dims": output["dims"], "dtype": dtype, "indices": output["indices"], "values": values.astype(dtype)}


def encoded(model: str, output: Mapping[str, Any], options: Mapping[str, Any], normalize: bool) -> dict[str, Any]:
    """The result map of an item whose raw output is one `dense` vector, computed in `precision`; `normalize` is the
    checkpoint's own word. Raises NonFiniteOutput.
    """
    wanted = EncodeOptions.from_wire(options)
    dense = finish(
        model,
        output["dense"],
        precision=output["precision"],
        dimensions=wanted.dimensions,
        normalize=normalize if wanted.normalize is None else wanted.normalize,
        dtype=wanted.output_dtype,
    )
    return {"dense": dense}


def _non_finite(model: str, precision: str) -> NonFiniteOutput:
    return NonFiniteOutput(
        f"model {model!r} ({precision}) gave a vector with numbers that are not finite",
        extra={"model": model, "dtype": precision},
    )


def _float32(vector: np.ndarray) -> tuple[np.ndarray, dict[str, float]]:
    return np.asarray(vector, np.float32), {}


def _float16(vector: np.ndarray) -> tuple[np.ndarray, dict[str, float]]:
    with np.errstate(over="ignore"):  # too large becomes infinite, which is refused above
        return vector.astype(np.float16), {}


def _int8(vector: np.ndarray) -> tuple[np.ndarray, dict[str, float]]:
    """Symmetric: the largest magnitude becomes 127."""
    scale = float(np.abs(vector).max()) / 127 or 1.0
    return np.round(vector / scale).astype(np.int8), {"scale": scale, "offset": 0.0}


def _uint8(vector: np.ndarray) -> tuple[np.ndarray, dict[str, float]]:
    """From the least number to the greatest; 128 throughout where those are one."""
    least, greatest = float(vector.min()), float(vector.max())
    scale = (greatest - least) / 255
    if scale == 0.0:
        return np.full(len(vector), 128, np.uint8), {"scale": 0.0, "offset": least}
    return np.round((vector - least) / scale).astype(np.uint8), {"scale": scale, "offset": least}


def _binary(vectors: np.ndarray) -> tuple[np.ndarray, dict[str, float]]:
    return np.packbits(vectors > 0, axis=-1), {}


def _int8_rows(rows: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    scale = np.abs(rows).max(1, initial=0) / 127
    scale[scale == 0] = 1
    return np.round(rows / scale[:, None]).astype(np.int8), {"scale": scale, "offset": np.zeros_like(scale)}


def _uint8_rows(rows: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    least = rows.min(1, initial=np.inf)
    scale = (rows.max(1, initial=-np.inf) - least) / 255
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = np.round((rows - least[:, None]) / scale[:, None])
    shares[scale == 0] = 128
    return shares.astype(np.uint8), {"scale": scale, "offset": least}


_SCALED_ROWS = {"int8": _int8_rows, "uint8": _uint8_rows}
_QUANTISE = {"float32": _float32, "float16": _float16, "int8": _int8, "uint8": _uint8, "binary": _binary}
