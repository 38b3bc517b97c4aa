"""Text classifiers: how likely a text is of each class the model knows, or of classes that the caller names.

A model of natural language inference judges each label as a sentence about the text (zero-shot), as transformers'
pipeline does. Long texts are read in windows. A window's scores count by its length, unless the entry names an
`alarm`: a class for which the window counts where it is likeliest, so that no harmless page hides a harmful one.

The entry's `load:` may say `hypothesis_template`, with `{}` in it for the label, and `alarm`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from protocol.errors import InputTooLong, InvalidInput, ShoalError
from protocol.messages import Payload
from protocol.options import ExtractOptions
from protocol.spec import ModelSpec
from workers.families import Parts, Prepared, refuse_unread
from workers.layers import labelled, parking, transformer
from workers.layers.labelled import SIGMOID, SOFTMAX, Labelled
from workers.layers.pairs import PairTokenizer
from workers.layers.tokenizing import TextTokenizer
from workers.layers.windows import Reach, Window, plan
from workers.weights.failures import UNSUPPORTED, load_failed

OPTIONS = frozenset({"labels", "multi_label", "threshold", "top_k", "overflow"})

LOAD_OPTIONS = ("hypothesis_template", "alarm")  # beside dtype
_TEMPLATE = "This example is {}."  # the pipeline's
_OVERLAP = 64  # tokens
_LEAST_ROOM = 8  # tokens of the text beside a label
_MAX_PARTS = 4096  # windows times labels of one text
_MAX_CALL_PARTS = 1 << 15  # of all its texts


class ClassPreparer:
    """Texts in, classes with scores out. No option changes how a forward runs, only how many there are."""

    def __init__(self, spec: ModelSpec, folder: Path) -> None:
        self._model = spec.model
        about = labelled.read(spec, folder, LOAD_OPTIONS)
        self._labels = about.labels
        self._how = labelled.activation(about.config, len(about.labels))
        self._entailment = entailment_of(about)
        self._template = str(spec.load.get("hypothesis_template", _TEMPLATE))
        self._alarm = spec.load.get("alarm")
        if "{}" not in self._template:
            raise load_failed(spec.model, UNSUPPORTED, "its entry's load.hypothesis_template lacks {}")
        if self._alarm is not None and self._alarm not in self._labels:
            known = ", ".join(self._labels)
            raise load_failed(spec.model, UNSUPPORTED, f"its entry's load.alarm is none of its classes: {known}")
        self._texts = TextTokenizer(spec.model, about.checkpoint)
        self._texts.take_literally()
        self._pairs = None if self._entailment is None else PairTokenizer(spec.model, about.checkpoint)

    def prepare(self, payload: Payload) -> list[Parts | ShoalError]:
        refuse_unread(payload.options, OPTIONS, self._model)
        wanted = ExtractOptions.from_wire(payload.options)
        hypotheses = self._read_labels(wanted.labels)
        if len(payload.items) * len(hypotheses or "1") > _MAX_CALL_PARTS:
            raise InvalidInput(
                f"{len(payload.items)} texts times {len(hypotheses or '1')} labels are more than "
                f"{_MAX_CALL_PARTS} forwards; send fewer of them at once",
                param="items",
            )
        read = iter(self._texts.read([item["text"] for item in payload.items if isinstance(item.get("text"), str)]))
        found: list[Parts | ShoalError] = []
        for item in payload.items:
            if not isinstance(item.get("text"), str):
                found.append(InvalidInput(f"model {self._model!r} reads text", param="text"))
                continue
            try:
                found.append(self._parts(next(read), hypotheses, wanted.overflow))
            except InputTooLong as error:
                found.append(error)
        return found

    def finish(self, outputs: Sequence[Mapping[str, Any]], parts: Parts, options: Mapping[str, Any]) -> dict[str, Any]:
        wanted = ExtractOptions.from_wire(options)
        labels = wanted.labels or self._labels
        logits = np.stack([output["logits"] for output in outputs])
        if wanted.labels is None:
            how = {None: self._how, True: SIGMOID, False: SOFTMAX}[wanted.multi_label]
            rows = labelled.scores(self._model, logits, how)
        else:
            rows = self._entailed(logits.reshape(-1, len(labels), logits.shape[-1]), bool(wanted.multi_label))
        scores = self._join(rows, [part.about for part in parts[:: len(parts) // len(rows)]])
        order = sorted(range(len(labels)), key=lambda place: -scores[place])
        kept = [place for place in order if wanted.threshold is None or scores[place] >= wanted.threshold]
        return {
            "classifications": [
                {"label": labels[place], "score": float(scores[place])} for place in kept[: wanted.top_k]
            ]
        }

    def _read_labels(self, labels: tuple[str, ...] | None) -> list[list[int]] | None:
        """Each label's hypothesis as tokens; None for a model with classes of its own."""
        if self._pairs is None:
            if labels is not None:
                known = ", ".join(self._labels[:20])
                raise InvalidInput(
                    f"model {self._model!r} takes no labels; its classes are {known}", param="options.labels"
                )
            return None
        if labels is None:
            raise InvalidInput(f"model {self._model!r} needs labels to choose from", param="options.labels")
        read = self._pairs.read([self._template.replace("{}", label) for label in labels])
        most = self._pairs.room - _LEAST_ROOM
        for index, tokens in enumerate(read):
            if len(tokens) > most:
                raise InvalidInput(
                    f"label {index} has {len(tokens)} tokens with its template; model {self._model!r} reads {most}",
                    param="options.labels",
                )
        return read

    def _parts(self, text: list[int], hypotheses: list[list[int]] | None, overflow: str | None) -> Parts:
        """Window by window, label by label."""
        room = self._texts.room
        if self._pairs is not None and hypotheses is not None:
            room = self._pairs.room - max(map(len, hypotheses))
        reach = Reach(most=room, room=room, overlap=min(_OVERLAP, room // 4), unit="tokens")
        windows = plan(self._model, [1] * len(text), reach, overflow) or [Window(0, 0)]
        if len(windows) * len(hypotheses or "1") > _MAX_PARTS:
            raise InputTooLong(
                f"the text has {len(text)} tokens: windows times labels would be more than {_MAX_PARTS} forwards",
                extra={"tokens": len(text)},
            )
        if overflow == "truncate":
            windows = [Window(0, len(text), is_cut=windows[0].is_cut)]  # each label leaves a room of its own
        return [
            part for window in windows for part in self._of_window(text[window.start : window.end], window, hypotheses)
        ]

    def _of_window(self, content: list[int], window: Window, hypotheses: list[list[int]] | None) -> Parts:
        if self._pairs is None or hypotheses is None:
            made = [{"ids": self._texts.wrap(content).ids}]
        else:
            made = [self._pairs.wrap_cutting_first(content, hypothesis).inputs for hypothesis in hypotheses]
        return [
            Prepared(inputs, len(inputs["ids"]), len(inputs["ids"]), truncated=window.is_cut, about=len(content))
            for inputs in made
        ]

    def _entailed(self, logits: np.ndarray, several: bool) -> np.ndarray:
        """Windows × labels: against contradiction if several labels may hold, else against each other."""
        entailment = self._entailment or 0
        if several or logits.shape[1] == 1:
            contradiction = -1 if entailment == 0 else 0
            return labelled.scores(self._model, logits[..., [contradiction, entailment]], SOFTMAX)[..., 1]
        return labelled.scores(self._model, logits[..., entailment], SOFTMAX)

    def _join(self, rows: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
        """The scores of a text from those of its windows."""
        if self._alarm is not None:
            loudest: np.ndarray = rows[int(rows[:, self._labels.index(self._alarm)].argmax())]
            return loudest
        joined: np.ndarray = np.average(rows, axis=0, weights=np.maximum(sizes, 1))
        return joined


def entailment_of(about: Labelled) -> int | None:
    """Which logit says that the second text follows from the first; None for a model that is not asked that."""
    found = (index for index, label in enumerate(about.labels) if label.lower().startswith("entail"))
    return next(found, None)


class TextClassifier:
    """The model as loaded. `forward` is called by one thread at a time."""

    def __init__(self, classifier: Any, about: Labelled) -> None:
        self.packed: bool = classifier.way.packed
        self.bytes: int = classifier.way.bytes
        self.host_copy = parking.TorchCopy.of(*classifier.way.modules)
        self._classifier = classifier
        self._about = about

    def forward(self, batch: Sequence[Mapping[str, Any]], key: Any) -> list[Mapping[str, Any]]:
        return [{"logits": row} for row in self._classifier.logits(batch)]

    def facts(self) -> Mapping[str, Any]:
        kind = "any label" if entailment_of(self._about) is not None else ", ".join(self._about.labels[:20])
        return {**self._classifier.facts(), "classes": kind, "max_tokens": self._about.checkpoint.max_tokens}


def warm() -> None:
    import workers.layers.classifying  # noqa: F401  # and with it torch and transformers


def preparer(spec: ModelSpec, folder: Path | None) -> ClassPreparer:
    return ClassPreparer(spec, transformer.needed(spec, folder))


def estimate_bytes(spec: ModelSpec, folder: Path | None, device: str) -> int:
    return transformer.estimate_bytes(spec, labelled.read(spec, folder, LOAD_OPTIONS).checkpoint.folder, device)


def load(spec: ModelSpec, folder: Path | None, device: str, report: Callable[[float], None]) -> TextClassifier:
    from workers.layers import classifying

    about = labelled.read(spec, folder, LOAD_OPTIONS)
    with_types = entailment_of(about) is not None and PairTokenizer(spec.model, about.checkpoint).has_types
    return TextClassifier(classifying.load(spec, about.checkpoint, device, with_types, report), about)
