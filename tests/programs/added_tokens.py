"""Writes folders with added tokens: python -m tests.programs.added_tokens FOLDER."""

import pathlib
import shutil
import sys

from t5x_like.pretrained import from_pretrained, new_rows
from t5x_like.vocabularies import new_tokens
from tests.preprocessing import test_saved_tokenizers, test_tokenizer_folders
from tests.programs import written_models

TOKENS = ("<to-fr>", "<summarize>")
# Tokenizers as they are published, of each algorithm, and vocabularies of this package.
PUBLISHED = (
    *("gpt2/slow", "gpt2/added_config", "gpt2/json", "opt/slow", "gpt_neox/both", "qwen2/slow"),
    *("llama/slow", "llama/added_json", "llama/saved", "mixtral/saved", "gemma/added_config"),
    *("other/llama_3", "gpt/slow", "t5/both", "bart/slow"),
)
TRAINED = ("gpt2_bpe", "unigram_words", "llama", "palm", "bytes_decoder", "unigram", "wordpiece")
MODEL = "gpt2"
# Its table of 384 rows has room for 25 of them.
MORE = (*TOKENS, *(f"<task_{number}>" for number in range(30)))


def write(name: str, folder: pathlib.Path) -> pathlib.Path:
    """Write a folder with the added tokens; return it. A tokenizer is also in "before"."""
    if name == MODEL:
        model = from_pretrained(written_models.write(MODEL, folder / "plain"))
        new_rows.save_with_tokens(model, folder / MODEL, MORE)
        return folder / MODEL
    target = folder / name.replace("/", "-")
    target.mkdir(parents=True)
    if name in TRAINED:
        _, target = test_saved_tokenizers.save(name, target)
    else:
        test_tokenizer_folders.write(name, target)
    shutil.copytree(target, folder / "before" / name.replace("/", "-"))
    new_tokens.add(target, TOKENS)
    return target


if __name__ == "__main__":
    for one in (*PUBLISHED, *TRAINED, MODEL):
        print(one, write(one, pathlib.Path(sys.argv[1])))
