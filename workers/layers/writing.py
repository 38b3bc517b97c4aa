"""What encoder-decoder models write about an image: token by token, always the likeliest next one.

Rows of one batch are written together and end each by itself, so that batch mates change nothing. What the checkpoint
says of generation counts, repeated n-grams or a forced first token; but no beams and no sampling, whatever it says.
"""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from protocol.errors import InvalidInput, NonFiniteOutput


def most_tokens(wanted: int | None, usual: int, room: int, model: str) -> int:
    """How many tokens an answer may have, `usual` or else `room` where the caller does not say. Raises InvalidInput."""
    if wanted is not None and wanted > room:
        wrong = f"must be at most {room}, the most that model {model!r} can write here, not {wanted}"
        raise InvalidInput(wrong, param="options.max_new_tokens")
    return min(usual, room) if wanted is None else wanted


def written(output: Mapping[str, Any], model: str) -> list[int]:
    """The ids of one row that `Writer.write` answered. Raises NonFiniteOutput."""
    if not output["finite"]:
        raise NonFiniteOutput(f"model {model!r} gave scores of its next token that are no numbers")
    ids: list[int] = output["ids"].tolist()
    return ids


class Writer:
    """A model with its head. `settings` are more words of transformers' GenerationConfig, for every call."""

    def __init__(self, model: Any, **settings: Any) -> None:
        model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
        config = copy.deepcopy(model.generation_config)
        self._forced = config.forced_eos_token_id is not None
        greedy = {"do_sample": False, "num_beams": 1, "early_stopping": False, "num_return_sequences": 1}
        config.update(**greedy, forced_eos_token_id=None, **settings)
        ends = config.eos_token_id
        self._ends = np.atleast_1d([] if ends is None else ends)
        model.generation_config = config
        self._model = model

    def write(self, asked: Mapping[str, Any], most: int, lead: int = 1) -> list[Mapping[str, Any]]:
        """`asked` is what the model reads, tensors on its device; an answer has at most `most` tokens.

        `lead` tokens stand in front of it in the decoder. A row is `ids` (int32, without the end), `ended` (whether it
        came to an end by itself) and `finite`. One that did not is cut where transformers' own would be: a checkpoint
        that forces an end has it in the place of the last token.
        """
        import torch

        watch = _Watch()
        with torch.inference_mode():
            found = self._model.generate(**asked, max_new_tokens=most, logits_processor=[watch])
        rows = found[:, lead:].int().cpu().numpy()
        finite = watch.finite()
        return [{**self._cut(row, most), "finite": bool(good)} for row, good in zip(rows, finite, strict=True)]

    def _cut(self, row: np.ndarray, most: int) -> dict[str, Any]:
        ends = np.flatnonzero(np.isin(row, self._ends))
        if len(ends):
            return {"ids": row[: ends[0]], "ended": True}
        return {"ids": row[: most - self._forced], "ended": False}


class _Watch:
    """Looks at the scores of every token, as a logits processor that changes none."""

    def __init__(self) -> None:
        self._bad: Any = None

    def __call__(self, ids: Any, scores: Any) -> Any:
        bad = scores.isnan().any(-1)
        self._bad = bad if self._bad is None else self._bad | bad
        return scores

    def finite(self) -> np.ndarray:
        good: np.ndarray = ~self._bad.cpu().numpy()
        return good
