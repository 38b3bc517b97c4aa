"""Small checkpoints with random weights and true architectures, written as sentence-transformers writes them."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from bench import checkpoints
from bench.checkpoints import SHAPE

library: Any = transformers  # its types fit its own use of them

WIDTH = SHAPE["hidden_size"]
VOCABULARY = 320

_BART = {
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 130,
}


def _configs() -> dict[str, Callable[[], Any]]:
    t = library
    encoder = {"vocab_size": VOCABULARY, **SHAPE}
    decoder = {**encoder, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    relative = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 16}
    return {
        "bert": lambda: t.BertConfig(**encoder),
        "roberta": lambda: t.RobertaConfig(**encoder, max_position_embeddings=130),
        "xlm-roberta": lambda: t.XLMRobertaConfig(**encoder, max_position_embeddings=130),
        "electra": lambda: t.ElectraConfig(**encoder, embedding_size=32),
        "distilbert": lambda: t.DistilBertConfig(vocab_size=VOCABULARY, dim=32, n_layers=3, n_heads=4, hidden_dim=64),
        "albert": lambda: t.AlbertConfig(**encoder, embedding_size=16),
        "modernbert": lambda: t.ModernBertConfig(**encoder, **special, local_attention=8, global_attn_every_n_layers=3),
        "qwen2": lambda: t.Qwen2Config(**decoder),
        "qwen3": lambda: t.Qwen3Config(**decoder),
        "mistral": lambda: t.MistralConfig(**decoder, sliding_window=6),
        "gemma3": lambda: t.Gemma3TextConfig(**decoder, sliding_window=6),
        "bart": lambda: t.BartConfig(vocab_size=VOCABULARY, **_BART, pad_token_id=0, bos_token_id=1, eos_token_id=2),
        "mpnet": lambda: t.MPNetConfig(**encoder, max_position_embeddings=130),
        "deberta-v2": lambda: t.DebertaV2Config(**encoder, **relative, max_relative_positions=64),
        "t5": lambda: t.T5Config(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=3, num_heads=4),
    }


def words(count: int = VOCABULARY) -> list[str]:
    """Short made-up words."""
    letters = "bcdfghjklmnpqrstvwxz"
    return [f"{a}a{b}o" for a in letters for b in letters][:count]


def word_tokenizer() -> Tokenizer:
    """One token per word; `<s> … </s>` around, ids 0 to 3 special."""
    vocabulary = {token: index for index, token in enumerate(["<pad>", "<s>", "</s>", "<unk>"])}
    for word in words(VOCABULARY - len(vocabulary)):
        vocabulary[word] = len(vocabulary)
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    tokenizer.add_special_tokens(["<pad>", "<s>", "</s>", "<unk>"])
    return tokenizer


def byte_tokenizer() -> Tokenizer:
    """Byte-level BPE as Qwen has it: nothing in front, the end token behind."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"])
    tokenizer.train_from_iterator(["the quick brown fox jumps over the lazy dog"] * 4, trainer)
    end = "<|endoftext|>"
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {end}", special_tokens=[(end, 0)])
    return tokenizer


# How two texts are joined, with the token type of each stretch
_PAIRS = {"bert": "<s> $A </s> $B:1 </s>:1", "roberta": "<s> $A </s> </s> $B </s>"}


def classifier(folder: Path, kind: str = "bert", labels: Sequence[str] = ("relevance",), **settings: Any) -> Path:
    """A sequence classifier with weights large enough for scores to differ; `settings` go into config.json."""
    made = config(kind)
    made.update(settings)
    pair = _PAIRS["roberta" if made.model_type in ("roberta", "xlm-roberta", "bart") else "bert"]
    tokenizer = word_tokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair=pair, special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    special = {"cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if kind == "bert" else [])]
    whole = library.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=64, model_input_names=names, **special
    )
    return checkpoints.classifier(folder, made, whole, labels)


def config(kind: str) -> Any:
    return _configs()[kind]()


def bare(kind: str, folder: Path) -> Path:
    """Weights and config only."""
    torch.manual_seed(0)
    made = config(kind)
    model = library.T5EncoderModel(made) if kind == "t5" else library.AutoModel.from_config(made)
    model.save_pretrained(folder)
    return folder


def tokenizer(kind: str, folder: Path, max_tokens: int | None = 64) -> None:
    """Its files."""
    made = byte_tokenizer() if kind.startswith("qwen") else word_tokenizer()
    special = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    if not kind.startswith("qwen"):
        special = {"cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    library.PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=max_tokens, **special).save_pretrained(
        folder
    )


def checkpoint(
    folder: Path,
    kind: str = "bert",
    pooling: Mapping[str, Any] | None = None,
    normalize: bool = True,
    max_tokens: int | None = 64,
    prompts: Mapping[str, str] | None = None,
    modules: Sequence[Mapping[str, str]] | None = None,
) -> Path:
    """A whole folder. `pooling` is 1_Pooling/config.json; None leaves modules.json out."""
    bare(kind, folder)
    tokenizer(kind, folder, max_tokens)
    if pooling is not None:
        write(folder / "1_Pooling/config.json", {"word_embedding_dimension": WIDTH, **pooling})
        names = [("", "Transformer"), ("1_Pooling", "Pooling"), *([("2_Normalize", "Normalize")] if normalize else [])]
        listed = modules or [{"path": path, "type": f"sentence_transformers.models.{name}"} for path, name in names]
        write(folder / "modules.json", [{"idx": i, "name": str(i), **each} for i, each in enumerate(listed)])
        if max_tokens is not None:
            write(folder / "sentence_bert_config.json", {"max_seq_length": max_tokens})
        write(folder / "config_sentence_transformers.json", {"prompts": dict(prompts or {})})
    return folder


def write(file: Path, document: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document))


def copy(source: Path, target: Path) -> Path:
    return Path(shutil.copytree(source, target))
