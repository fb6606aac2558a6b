#!/usr/bin/env python3
"""Writes tests/text/data: small tokenizers of every form, with the ids and texts that the reference libraries give.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3
    tools/make_tokenizer_fixtures.py tests/text/data
"""
import io
import json
import os
import sys

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "Training a language model takes text, patience and many GPUs.",
    "The learning rate rises during the warmup and falls to zero after it.",
    "Gradients are averaged over all ranks; the optimizer's state is sharded.",
    "def step(x, y=0):\n    return x ** 2 + y  # squared\n",
    "训练语言模型需要文本、耐心和很多显卡。学习率先升后降。",
    "梯度在所有进程上求平均，优化器的状态被切分。",
    "1 12 123 1234 3.14159 2024-02-29 $1,000.00",
    "Überraschung: naïve façade, coöperate, señor, Ελλάδα, Привет мир, こんにちは",
] * 3
TEXTS = CORPUS[:8] + [
    "", " ", "  ", "\n", " leading", "trailing ", "two  spaces   three", "tab\tand\r\nline\n\n end",
    "it's we'LL don'T 'ſ o'clock", "ALL CAPS and CamelCase words", "中文English混合123数字", "e\u0301 \u00e9 ﬁ Å İ ß",
    "😀👩‍👧 emoji", "<s> text </s>", "a<|end|>b", " <|end|> ", "x [mask] y", "[mask]", "word,words word", "ＦＵＬＬ　ｗｉｄｔｈ",
    "▁already▁marked", "nul\u0000byte", "مرحبا שלום हिन्दी", "a.b,c!d?e", "_under_score", "٣٤٥ Ⅷ ½",
]


def train(model, normalizer, pre_tokenizer, decoder, vocab_size=420, **kwargs):
    tokenizer = Tokenizer(model)
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    if decoder:
        tokenizer.decoder = decoder
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False, **kwargs))
    tokenizer.add_tokens([AddedToken("[mask]", lstrip=True, normalized=False), AddedToken("word", single_word=True)])
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


def byte_level(**kwargs):
    return pre_tokenizers.ByteLevel(**{"add_prefix_space": False, **kwargs})


def tokenizers():
    letters = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    bytes_256 = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
    fallback = {"unk_token": "<unk>", "byte_fallback": True, "fuse_unk": True}
    llama_decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                       decoders.Strip(" ", 1, 0)])
    yield "byte_level_prefix_space", train(models.BPE(), None, byte_level(add_prefix_space=True), decoders.ByteLevel(),
                                           **letters)
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.Punctuation(), byte_level()])
    yield "digits_punctuation", train(models.BPE(), normalizers.NFKC(), digits, decoders.ByteLevel(), **letters)
    words = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"), pre_tokenizers.Split(Regex("[一-龥]+"), "isolated"),
        pre_tokenizers.Split(Regex(r"[\r\n]|\s?\p{L}+|\s?\p{P}+|\s+$"), "removed", invert=True),
        byte_level(use_regex=False)])
    yield "split_sequence", train(models.BPE(), None, words, decoders.ByteLevel(), **letters)
    llama = train(models.BPE(**fallback), normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
                  None, llama_decoder, 480, special_tokens=bytes_256, max_token_length=8)
    llama.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B",
                                                         special_tokens=[("<s>", 1)])
    yield "byte_fallback", llama
    yield "metaspace_first", train(models.BPE(unk_token="<unk>"), normalizers.NFC(), pre_tokenizers.Metaspace("▁", "first"),
                                   decoders.Metaspace("▁", "first"), 300, special_tokens=["<unk>"], limit_alphabet=90)
    yield "merged_with_previous", train(models.BPE(**fallback), normalizers.Replace(" ", "▁"),
                                        pre_tokenizers.Split(" ", "merged_with_previous"),
                                        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                                           decoders.Fuse()]), 460, special_tokens=bytes_256,
                                        max_token_length=8)
    yield "bert_suffix", train(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"), normalizers.BertNormalizer(),
                               pre_tokenizers.BertPreTokenizer(), decoders.BPEDecoder("</w>"), 300,
                               special_tokens=["<unk>"], limit_alphabet=120, end_of_word_suffix="</w>")
    yield "whitespace_prefix", train(models.BPE(unk_token="<unk>", continuing_subword_prefix="##", fuse_unk=True),
                                     normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(),
                                                           normalizers.Lowercase(), normalizers.Strip()]),
                                     pre_tokenizers.Whitespace(), None, 300, special_tokens=["<unk>"], limit_alphabet=60,
                                     continuing_subword_prefix="##")


def write(path, value):
    with open(path, "w", encoding="utf-8") as out:
        json.dump(value, out, ensure_ascii=True, indent=0)
        out.write("\n")


def main():
    root = sys.argv[1]
    for name, tokenizer in tokenizers():
        folder = os.path.join(root, name)
        os.makedirs(folder, exist_ok=True)
        tokenizer.save(os.path.join(folder, "tokenizer.json"), pretty=False)
        cases = []
        for text in TEXTS:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            cases.append({"text": text, "ids": ids, "special_ids": tokenizer.encode(text).ids,
                          "decoded": tokenizer.decode(ids, skip_special_tokens=False),
                          "decoded_skip": tokenizer.decode(ids, skip_special_tokens=True)})
        write(os.path.join(folder, "cases.json"), cases)

    folder = os.path.join(root, "sentencepiece")
    os.makedirs(folder, exist_ok=True)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in CORPUS for line in text.split("\n") if line]), model_writer=model,
        model_type="bpe", vocab_size=440, byte_fallback=True, character_coverage=0.98, normalization_rule_name="identity",
        remove_extra_whitespaces=False, split_digits=True, minloglevel=2)
    with open(os.path.join(folder, "tokenizer.model"), "wb") as out:
        out.write(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    plain = [text for text in TEXTS if "<s>" not in text]
    write(os.path.join(folder, "cases.json"), [
        {"text": text, "ids": processor.encode(text), "decoded": processor.decode(processor.encode(text))} for text in plain])


if __name__ == "__main__":
    main()
