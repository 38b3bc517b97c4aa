"""Small checkpoints with random weights and true architectures, each made by the library of its family.

Tests compare their answers with that library's; `bench.stand_ins` puts them where published weights would be.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

library: Any = transformers  # its types fit its own use of them

SHAPE = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
CHAT_MARKS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
BERT_MARKS = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
QUERIES = 12  # boxes that the detector always has
_LOUDER = 8  # times: weights large enough for scores to differ


def wordpiece(file: Path, limit: int, pair: str = "[CLS] $A [SEP] $B [SEP]") -> Any:
    """A tokenizer of BERT's vocabulary from its `tokenizer.json`, that joins two texts as `pair` says."""
    made = Tokenizer.from_file(str(file))
    made.no_padding()
    made.no_truncation()
    special = [(mark, made.token_to_id(mark)) for mark in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair=pair, special_tokens=special)
    return library.PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_max_length=limit,
        model_input_names=["input_ids", "attention_mask"],
        **BERT_MARKS,
    )


def config(kind: str, tokenizer: Any, **more: Any) -> Any:
    """Of transformers' `<kind>Config`, for the tokenizer's words and as many tokens as it allows."""
    marks = {"pad_token_id": tokenizer.pad_token_id, "bos_token_id": tokenizer.cls_token_id}
    limit = tokenizer.model_max_length + 2  # the RoBERTa kind counts positions from the one after padding's
    return getattr(library, f"{kind}Config")(
        vocab_size=len(tokenizer), **SHAPE, max_position_embeddings=limit, **marks, **more
    )


def encoder(folder: Path, config: Any, tokenizer: Any) -> Path:
    torch.manual_seed(0)
    library.AutoModel.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def classifier(folder: Path, config: Any, tokenizer: Any, labels: Sequence[str] = ("relevance",)) -> Path:
    """A sequence classifier; with one label it is a reranker."""
    torch.manual_seed(0)
    named = dict(enumerate(labels))
    config.update({"id2label": named, "label2id": {label: index for index, label in named.items()}})
    model = library.AutoModelForSequenceClassification.from_config(config)
    for weights in model.parameters():
        weights.data *= _LOUDER if weights.dim() > 1 else 1
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def yes_no_reranker(
    folder: Path, kind: str = "Qwen3", words: Sequence[str] = ("yes", "no"), tied: bool = True, limit: int = 400
) -> Path:
    """A chat model of `limit` tokens whose vocabulary has the answers as tokens of their own."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=alphabet, special_tokens=CHAT_MARKS, show_progress=False
    )
    tokenizer.train_from_iterator([*words, "query document relevance judge"] * 50, trainer)
    made = library.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=CHAT_MARKS[0], eos_token=CHAT_MARKS[2])
    made.save_pretrained(folder)
    shape = {**SHAPE, "num_key_value_heads": 2, "max_position_embeddings": limit, "tie_word_embeddings": tied}
    special = {"vocab_size": len(made), "pad_token_id": 0, "eos_token_id": 2}
    torch.manual_seed(0)
    config = getattr(library, f"{kind}Config")(**shape, **special)
    model = getattr(library, f"{kind}ForCausalLM")(config)
    for weights in model.parameters():
        weights.data *= 6 if weights.dim() > 1 else 1
    model.save_pretrained(folder)
    return folder


def gliclass(folder: Path, config: Any, tokenizer: Any, **changes: Any) -> Path:
    """`config` is the encoder's; the library's three markers join the tokenizer."""
    from gliclass import GLiClassModel, GLiClassModelConfig

    tokenizer.add_tokens(["<<LABEL>>", "<<SEP>>", "<<EXAMPLE>>"], special_tokens=True)
    made = GLiClassModelConfig(encoder_config=config, encoder_model="org/encoder", dropout=0.0, **changes)
    torch.manual_seed(2)
    model = GLiClassModel(made)
    model.resize_token_embeddings(len(tokenizer))
    for name, weight in model.named_parameters():
        if "encoder_model" not in name:
            weight.data *= 3  # so that no two scores are nearly the same
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def gliner2(folder: Path, body: Path) -> Path:
    """On the encoder in the folder `body`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's own
        from gliner2.configuration import ExtractorConfig
        from gliner2.inference.engine import GLiNER2

        torch.manual_seed(4)
        config = ExtractorConfig(model_name=str(body), max_width=4, counting_layer="count_lstm")
        model = GLiNER2(config)
        for name, weight in model.named_parameters():
            if "encoder" not in name and weight.dim() > 1:
                weight.data *= 2
        model.count_pred[-1].bias.data[2] = 9.0  # two instances, whatever the text
        model.save_pretrained(str(folder))
    return folder


def grounding_dino(folder: Path, tokenizer: Any) -> Path:
    torch.manual_seed(0)
    swin = {"embed_dim": 8, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2], "window_size": 4}
    backbone = library.SwinConfig(image_size=128, patch_size=4, out_features=["stage2", "stage3", "stage4"], **swin)
    text = library.BertConfig(vocab_size=len(tokenizer), **SHAPE, max_position_embeddings=256)
    sizes = {"encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "d_model": 32}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "num_queries": QUERIES}
    made = library.GroundingDinoForObjectDetection(
        library.GroundingDinoConfig(backbone_config=backbone, text_config=text, max_text_len=256, **sizes, **heads)
    )
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    library.GroundingDinoImageProcessorPil(size={"shortest_edge": 128, "longest_edge": 192}).save_pretrained(folder)
    return folder
