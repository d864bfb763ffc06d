"""Writes `model`: a small DistilBERT classifier with random weights, in the place of a real one."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import DistilBertConfig, DistilBertForSequenceClassification

WORDS = [
    "a",
    "and",
    "bad",
    "book",
    "but",
    "food",
    "friendly",
    "good",
    "great",
    "i",
    "is",
    "it",
    "long",
    "not",
    "of",
    "order",
    "rain",
    "room",
    "service",
    "slow",
    "the",
    "very",
    "was",
]


def main(directory: Path = Path("model")) -> None:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: index for index, word in enumerate([*special, *WORDS])}
    torch.manual_seed(0)
    config = DistilBertConfig(
        vocab_size=len(vocabulary), dim=64, n_heads=4, n_layers=2, hidden_dim=128, max_position_embeddings=128,
        num_labels=2, id2label={0: "negative", 1: "positive"}, label2id={"negative": 0, "positive": 1},
    )  # fmt: skip
    DistilBertForSequenceClassification(config).save_pretrained(directory)
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "DistilBertTokenizerFast", "model_max_length": 128, "pad_token": "[PAD]"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


if __name__ == "__main__":
    main()
