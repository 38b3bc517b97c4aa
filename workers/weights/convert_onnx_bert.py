"""Takes the weights of a BERT encoder out of an ONNX export of sentence-transformers; needs neither onnx nor protobuf.

Exporters keep the names of biases and norms but fold each Linear's transposed weight into an initializer without a
meaningful name. The MatMul node that reads it has one: `/model/model.0/auto_model/encoder/layer.0/…/query/MatMul`.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from workers.weights import folders
from workers.weights.files import Damaged

_INNER = "model.0.auto_model."
_MATMUL = re.compile(r"/model/model\.0/auto_model/(encoder/layer\.\d+/[a-z/]+)/MatMul")
_FLOAT32 = 1
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# field numbers of onnx.proto
_MODEL_GRAPH = 7
_GRAPH_NODE, _GRAPH_INITIALIZER = 1, 5
_NODE_INPUT, _NODE_NAME, _NODE_TYPE = 1, 3, 4
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_NAME, _TENSOR_RAW = 1, 2, 8, 9

Value = int | memoryview


def convert(source: Path, folder: Path, *, vocabulary: Path) -> None:
    """Fill `folder` with the encoder in `source` and a WordPiece tokenizer. Raises Damaged if it is another model."""
    try:
        weights = _weights(memoryview(source.read_bytes()))
        config = _config(weights)
    except (KeyError, ValueError, IndexError) as error:
        raise Damaged(f"the ONNX file does not hold the encoder it should ({error})") from error
    encoder = folders.TextEncoder(
        config=config,
        max_tokens=128,  # as the checkpoint was published
        special_tokens={f"{token[1:-1].lower()}_token": token for token in _SPECIAL},
        normalize=False,
    )
    folders.write(folder, encoder, weights, _tokenizer(vocabulary))


def _fields(message: memoryview) -> Iterator[tuple[int, Value]]:
    """Field number and value of each field in one protobuf message."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        match key & 7:
            case 0:
                value, at = _varint(message, at)
                yield key >> 3, value
            case 2:
                size, at = _varint(message, at)
                yield key >> 3, message[at : at + size]
                at += size
            case 1 | 5 as kind:
                at += 8 if kind == 1 else 4  # fixed-width numbers, none of which we read
            case _:
                raise ValueError("not a protobuf message")


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def _of(message: memoryview, number: int) -> list[memoryview]:
    return [value for key, value in _fields(message) if key == number and not isinstance(value, int)]


def _text(message: memoryview, number: int) -> str:
    found = _of(message, number)
    return bytes(found[0]).decode() if found else ""


def _weights(model: memoryview) -> dict[str, np.ndarray]:
    """The encoder's tensors under the names that transformers gives them."""
    (graph,) = _of(model, _MODEL_GRAPH)
    initializers = dict(_tensor(tensor) for tensor in _of(graph, _GRAPH_INITIALIZER))
    weights = {name[len(_INNER) :]: array for name, array in initializers.items() if name.startswith(_INNER)}
    for node in _of(graph, _GRAPH_NODE):
        named = _MATMUL.fullmatch(_text(node, _NODE_NAME))
        if named is None or _text(node, _NODE_TYPE) != "MatMul":
            continue
        weight = bytes(_of(node, _NODE_INPUT)[1]).decode()
        if weight in initializers:  # the products inside attention read no weight
            weights[named.group(1).replace("/", ".") + ".weight"] = initializers[weight].T
    return weights


def _tensor(message: memoryview) -> tuple[str, np.ndarray]:
    shape = [value for key, value in _fields(message) if key == _TENSOR_DIMS and isinstance(value, int)]
    (raw,) = _of(message, _TENSOR_RAW)
    if (_TENSOR_TYPE, _FLOAT32) not in _fields(message):
        raise ValueError("weights that are not float32")
    return _text(message, _TENSOR_NAME), np.frombuffer(raw, "<f4").reshape(shape)


def _config(weights: dict[str, np.ndarray]) -> dict[str, object]:
    """Read off the shapes; refuses anything but a whole BERT encoder with heads of 32, as all small MiniLMs have."""
    words, positions = weights["embeddings.word_embeddings.weight"], weights["embeddings.position_embeddings.weight"]
    layers = len({name.split(".")[2] for name in weights if name.startswith("encoder.layer.")})
    hidden = words.shape[1]
    first = weights["encoder.layer.0.intermediate.dense.weight"]
    if len(weights) != 5 + 16 * layers or first.shape[1] != hidden or hidden % 32:
        raise ValueError(f"{len(weights)} tensors for {layers} layers")
    return folders.bert_config(
        hidden=hidden,
        layers=layers,
        heads=hidden // 32,
        intermediate=first.shape[0],
        vocabulary=words.shape[0],
        max_position_embeddings=positions.shape[0],
        type_vocab_size=2,
        layer_norm_eps=1e-12,
        pad_token_id=0,
    )


def _tokenizer(vocabulary: Path) -> Tokenizer:
    """Uncased BERT's."""
    tokens = {token: index for index, token in enumerate(vocabulary.read_text(encoding="utf-8").splitlines())}
    tokenizer = Tokenizer(models.WordPiece(tokens, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, tokens[token]) for token in ("[CLS]", "[SEP]")],
    )
    tokenizer.add_special_tokens(list(_SPECIAL))
    return tokenizer
