"""What Whisper hears in windows of sound: token by token, always the likeliest next one, under Whisper's own rules.

Rows of one batch are heard together, whatever their languages, tasks and prompts: each is fed its own forced tokens
first and ends by itself. With timestamps a window is heard in passes: what begins and does not end in a pass is heard
again from where it begins, as transformers' `generate` does it. No beams, no sampling, no second try.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MAX_PASSES = 16  # over one window; the last one keeps what does not end
_FRAMES_PER_POSITION = 2  # of the spectrogram; a timestamp names a position


@dataclass(frozen=True, slots=True)
class Marks:
    """Ids of the special tokens, and which tokens are never heard, as a checkpoint's generation config has them."""

    start: int
    end: int
    timestamps: int  # the first one; above it all are timestamps
    silence: int  # the token that says that nobody speaks
    languages: Mapping[str, int]  # by code; empty: a model of English alone
    tasks: Mapping[str, int]
    prompt: int  # what stands before a prompt
    never: tuple[int, ...]
    never_first: tuple[int, ...]
    latest_start: int | None  # position of the first timestamp at most


@dataclass(slots=True)
class _Row:
    """One window while it is heard."""

    place: int  # in the batch
    forced: Sequence[int]
    start: int  # where Whisper's own start stands among the forced
    most: int
    timed: bool
    frames: int  # of real sound
    seek: int = 0  # frames that are done
    passes: int = 0
    heard: list[int] = field(default_factory=list)  # of this pass
    kept: list[int] = field(default_factory=list)  # of all passes, timestamps counted from the window's beginning
    ended: bool = True
    chance: float = 0.0  # sum of logarithms
    count: int = 0
    silence: float = 0.0  # of the first pass
    finite: bool = True

    def forbidden(self, marks: Marks) -> list[slice]:
        """Ids that may not come next: timestamps stand in pairs but for the last, and never go back."""
        first = marks.timestamps
        if not self.timed:
            return [slice(first, None)]
        never = [slice(first - 1, first)]
        if not self.heard:
            latest = [] if marks.latest_start is None else [slice(first + marks.latest_start + 1, None)]
            return [*never, slice(0, first), *latest]
        opened = self.heard[-1] >= first
        paired = len(self.heard) < 2 or self.heard[-2] >= first
        if opened:
            never.append(slice(first, None) if paired else slice(0, marks.end))
        last = max(token for token in self.heard if token >= first)
        never.append(slice(first, last if opened and not paired else last + 1))
        return never


class Listener:
    """A model with its head, and the marks that order it."""

    def __init__(self, model: Any, marks: Marks) -> None:
        import torch

        model.set_attn_implementation("sdpa")
        self._model = model
        self._marks = marks
        self._never, self._never_first, self._languages = (
            torch.tensor(list(ids), dtype=torch.long, device=model.device)
            for ids in (marks.never, marks.never_first, marks.languages.values())
        )
        self._frames = _FRAMES_PER_POSITION * int(model.config.max_source_positions)

    def hear(self, windows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Each window has `features` (bins, frames), `frames` of real sound, `prompt` (ids, its mark first, or none),
        `language` and `task` (ids or None), `timed`, and `most` tokens of a pass.

        Answers `ids` (int32, without the end), `language`, `ended`, `silence` (the chance that nobody speaks),
        `chance` (the mean logarithm of the tokens' chances) and `finite`.
        """
        import torch

        with torch.inference_mode():
            stacked = torch.from_numpy(np.stack([window["features"] for window in windows]))
            features = stacked.to(self._model.device, self._model.dtype)
            states = self._encoded(features)
            languages = self._named(states, [window["language"] for window in windows])
            rows = [self._row(place, *pair) for place, pair in enumerate(zip(windows, languages, strict=True))]
            left = rows
            while left:
                self._write(states, left)
                left = [row for row in left if self._has_more(row)]
                if left:
                    states = self._encoded(torch.stack([self._from(features[row.place], row.seek) for row in left]))
        return [_heard(row, language) for row, language in zip(rows, languages, strict=True)]

    def _row(self, place: int, window: Mapping[str, Any], language: int | None) -> _Row:
        marks, timed = self._marks, bool(window["timed"])
        before = [int(token) for token in window["prompt"]]
        told = [token for token in (language, window["task"]) if token is not None]
        forced = [*before, marks.start, *told, *([] if timed else [marks.timestamps - 1])]
        return _Row(place, forced, len(before), window["most"], timed, window["frames"])

    def _encoded(self, features: Any) -> Any:
        return self._model.model.encoder(features).last_hidden_state

    def _from(self, features: Any, seek: int) -> Any:
        import torch

        return torch.nn.functional.pad(features[:, seek:], (0, seek))

    def _named(self, states: Any, given: Sequence[int | None]) -> list[int | None]:
        """The likeliest language of each row that names none, looked at without its prompt."""
        import torch

        unknown = [place for place, language in enumerate(given) if language is None]
        if not unknown or not self._marks.languages:
            return list(given)
        starts = torch.full((len(unknown), 1), self._marks.start, device=states.device)
        found = self._model.model.decoder(input_ids=starts, encoder_hidden_states=states[unknown], use_cache=False)
        logits = self._model.proj_out(found.last_hidden_state[:, -1]).float()
        best = self._languages[logits[:, self._languages].argmax(-1)].tolist()
        languages = list(given)
        for place, language in zip(unknown, best, strict=True):
            languages[place] = language
        return languages

    def _write(self, states: Any, rows: Sequence[_Row]) -> None:
        """One pass over all rows; those that have ended go on unheard until half of them have."""
        import torch

        for row in rows:
            row.heard, row.ended, row.passes = [], False, row.passes + 1
        fed, living, cache = 0, list(rows), None
        while not all(_is_done(row) for row in living):
            if cache is not None and sum(not _is_done(row) for row in living) * 2 <= len(living):
                places = torch.tensor([at for at, row in enumerate(living) if not _is_done(row)], device=states.device)
                cache.batch_select_indices(places)
                states, living = states[places], [row for row in living if not _is_done(row)]
            tokens = torch.tensor([[self._token(row, fed)] for row in living], device=states.device)
            found = self._model.model.decoder(
                input_ids=tokens, encoder_hidden_states=states, past_key_values=cache, use_cache=True
            )
            cache, fed = found.past_key_values, fed + 1
            self._listen(found.last_hidden_state[:, -1], living, fed)

    def _token(self, row: _Row, fed: int) -> int:
        if fed < len(row.forced):
            return row.forced[fed]
        return self._marks.end if _is_done(row) else row.heard[-1]

    def _listen(self, states: Any, rows: Sequence[_Row], fed: int) -> None:
        """What every row makes of its newest state: the next token where its forced ones are used up."""
        starting = [at for at, row in enumerate(rows) if row.passes == 1 and fed == row.start + 1]
        writing = [at for at, row in enumerate(rows) if fed >= len(row.forced) and not _is_done(row)]
        if starting:
            shares = self._model.proj_out(states[starting]).float().softmax(-1)[:, self._marks.silence]
            for at, share in zip(starting, shares.tolist(), strict=True):
                rows[at].silence = share
        if writing:
            logits = self._model.proj_out(states[writing]).float()
            self._choose(logits, [rows[at] for at in writing])

    def _choose(self, logits: Any, rows: Sequence[_Row]) -> None:
        import torch

        finite = logits.isfinite().all(-1)
        self._forbid(logits, rows)
        values, ids = logits.max(-1)
        chances = values - logits.logsumexp(-1)
        packed = torch.stack([ids.double(), chances.double(), finite.double()]).tolist()
        for row, token, chance, good in zip(rows, *packed, strict=True):
            row.finite = row.finite and bool(good)
            row.chance, row.count = row.chance + chance, row.count + 1
            if int(token) == self._marks.end or not good:
                row.ended = True
            else:
                row.heard.append(int(token))

    def _forbid(self, logits: Any, rows: Sequence[_Row]) -> None:
        """-inf for what Whisper's rules do not let a row say next."""
        marks, lowest = self._marks, float("-inf")
        logits[:, self._never] = lowest
        for at, row in enumerate(rows):
            if not row.heard:
                logits[at, self._never_first] = lowest
            for ids in row.forbidden(marks):
                logits[at, ids] = lowest
        timed = [at for at, row in enumerate(rows) if row.timed]
        if timed:  # any timestamp being likelier than the likeliest word, it is one
            within = logits[timed]
            surer = within[:, marks.timestamps :].logsumexp(-1) > within[:, : marks.timestamps].amax(-1)
            for at, is_surer in zip(timed, surer.tolist(), strict=True):
                if is_surer:
                    logits[at, : marks.timestamps] = lowest

    def _has_more(self, row: _Row) -> bool:
        """Keep what this pass heard, and say whether the window is to be heard on from where it did not end."""
        first, heard = self._marks.timestamps, row.heard
        offset = row.seek // _FRAMES_PER_POSITION
        pairs = [at for at in range(1, len(heard)) if heard[at - 1] >= first and heard[at] >= first]
        is_whole = len(heard) >= 2 and heard[-1] >= first > heard[-2]
        if row.timed and pairs and not is_whole and row.passes < MAX_PASSES:
            heard = heard[: pairs[-1] + 1]
            row.seek += (heard[-2] - first) * _FRAMES_PER_POSITION
        else:
            row.seek = self._frames
        row.kept += [token + offset if token >= first else token for token in heard]
        return row.seek < min(row.frames, self._frames) and row.finite


def _is_done(row: _Row) -> bool:
    return row.ended or len(row.heard) >= row.most


def _heard(row: _Row, language: int | None) -> Mapping[str, Any]:
    return {
        "ids": np.array(row.kept, np.int32),
        "language": language,
        "ended": row.ended,
        "silence": row.silence,
        "chance": row.chance / max(row.count, 1),
        "finite": row.finite,
    }
