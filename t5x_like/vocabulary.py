r"""Train a vocabulary on the text of a data module.

    python -m t5x_like.vocabulary --data=data/pydocs.py --size=8192 --output=runs/vocabulary.model
    python -m t5x_like.vocabulary --data=data/text_files.py --set files="corpus/*.jsonl.gz" \
        --size=32000 --byte_fallback --output=vocabulary.model
    python -m t5x_like.vocabulary --data=data/pydocs.py --kind=wordpiece --size=8192 \
        --output=runs/bert/vocab.txt

--kind sets the kind of vocabulary, and with it the format of --output:

    unigram        T5's: a SentencePiece .model
    albert         ALBERT's: the same with [CLS], [SEP] and [MASK], lower case
    wordpiece      BERT's: a file vocab.txt, lower case
    words          ELMo's: a file vocab.txt of whole words, the most frequent ones
    byte_bpe       RoBERTa's: a folder with vocab.json and merges.txt
    gpt2_bpe       GPT-2's: the same with <|endoftext|> as its only special token
    gpt_bpe        GPT's: the same two files, with pieces of lower-case words
    llama, palm    a SentencePiece .model that splits digits, keeps all blanks and falls back to
                   bytes

It is trained on the module's train split, cleaned as for training, up to --limit_chars characters;
the corpora in data/ are in random order, so that their beginning is a sample. The same text and
flags give the same file. Set the config's `data.vocabulary` to its path.
"""

import argparse
import ast
import contextlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5x_like.config import one_line_errors
from t5x_like.experiment import command_line, startup
from t5x_like.names import choose

KINDS = (
    "unigram",
    "albert",
    "wordpiece",
    "words",
    "byte_bpe",
    "gpt2_bpe",
    "gpt_bpe",
    "llama",
    "palm",
)
# No kind accepts all flags, so only those that differ from their default are passed.
_TRAINING = (
    "byte_fallback",
    "character_coverage",
    "split_digits",
    "keep_case",
    "keep_characters",
    "whole_words",
    "every_word",
)
_FLAGS: dict[str, dict[str, Any]] = {
    "--data": {"required": True, "metavar": "FILE", "help": "a module of data/"},
    "--size": {"required": True, "type": int, "help": "pieces, special tokens included"},
    "--output": {"required": True, "metavar": "FILE", "help": "the file or folder to write"},
    "--kind": {"default": "unigram", "help": f"{', '.join(KINDS)} (default: %(default)s)"},
    "--set": {
        "action": "append",
        "default": [],
        "metavar": "NAME=VALUE",
        "help": "a setting of the data module; may be repeated",
    },
    "--driver": {
        "default": "",
        "help": "what reads the module, seqio or grain, as data.driver (docs/data.md)",
    },
    "--limit_chars": {
        "type": int,
        "default": 10_000_000,
        "help": "characters to read at most (default: %(default)s)",
    },
    "--byte_fallback": {"action": "store_true", "help": "encode unknown characters as bytes"},
    "--character_coverage": {
        "type": float,
        "default": 0.9995,
        "help": "share of the text's characters that get a piece (default: %(default)s)",
    },
    "--split_digits": {"action": "store_true", "help": "each digit is a piece of its own"},
    "--keep_case": {"action": "store_true", "help": "do not lowercase the text"},
    "--keep_characters": {
        "action": "store_true",
        "help": "no NFKC normalization, for kind unigram",
    },
    "--whole_words": {
        "nargs": "+",
        "default": [],
        "metavar": "WORD",
        "help": "words that are one piece each, for kind unigram",
    },
    "--every_word": {
        "action": "store_true",
        "help": "each word of the text is one piece, for kinds unigram and albert",
    },
    "--overwrite": {
        "action": "store_true",
        "help": "replace a vocabulary trained with other settings",
    },
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; a bad argument prints one line on standard error and exits with status 2."""
    with one_line_errors():
        flags = _parse(arguments)
        of_this_call = ("overwrite", command_line.TRUST)
        settings = {name: value for name, value in vars(flags).items() if name not in of_this_call}
        # Round-trip through JSON (tuples become lists), to compare with the recorded settings.
        settings = json.loads(json.dumps(settings))
        if not flags.overwrite and _is_trained(flags.output, settings):
            print(f"{flags.output} was made with the same settings: nothing to do.")
        else:
            _train(flags)
            command_line.write_json(_record(flags.output), settings)


def _train(flags: argparse.Namespace) -> None:
    # These take seconds to import: after the flags have been checked, and not for --help.
    from t5x_like import vocabularies
    from t5x_like.batches import document_cleaning
    from t5x_like.vocabularies import trainers

    start = time.monotonic()
    texts = training_texts(flags.data, flags.set, driver=flags.driver)
    print(f"reading {flags.data}", flush=True)
    _record(flags.output).unlink(missing_ok=True)  # it describes the old vocabulary
    trainers.train(
        _limited(texts, limit=flags.limit_chars),
        vocab_size=flags.size,
        output=flags.output,
        kind=flags.kind,
        **{
            name: getattr(flags, name)
            for name in _TRAINING
            if getattr(flags, name) != _default(name)
        },
    )
    if counts := document_cleaning.describe_counts():
        print(f"cleaning: {counts}")
    size = f"{flags.size:,} pieces"
    if flags.kind == "unigram":
        size += f", to which {vocabularies.SENTINELS} sentinels come on loading"
    print(f"{flags.output}: {size}; {time.monotonic() - start:.0f} s")


def training_texts(path: str, settings: Mapping[str, Any], *, driver: str = "") -> Iterator[str]:
    """Yield the cleaned documents of the training split of a data module.

    Args:
        path: path of the module.
        settings: its settings.
        driver: what reads it, see `data_modules.driver_of`.

    Raises:
        ValueError: the module, the driver, a setting or a file does not exist.
    """
    startup.silence_tensorflow()
    from t5x_like.batches import data_modules

    module = data_modules.load(path)
    if data_modules.driver_of(module, driver) == "grain":
        from t5x_like.grain_pipeline.corpus_tasks import training_texts

        return training_texts(module, settings)
    from t5x_like.preprocessing import cleaning, line_datasets, sources

    sources.check_settings(module.documents, settings)
    tidy = settings.get("tidy", True)
    dataset = cleaning.clean(module.documents("train", **settings), tidy=tidy)
    rows = line_datasets.named(dataset.as_numpy_iterator())
    return (row["text"].decode() for row in rows)


def _limited(texts: Iterator[str], *, limit: int) -> Iterator[str]:
    """Yield texts until `limit` characters have been read, and print the progress."""
    start, characters, number, reported = time.monotonic(), 0, 0, 0
    for text in texts:
        if characters >= limit:
            break
        yield text
        characters, number = characters + len(text), number + 1
        if characters - reported >= limit / 5:
            reported = characters
            print(f"read {number:,} documents, {characters:,} characters", flush=True)
    seconds = time.monotonic() - start
    print(f"training on {number:,} documents, {characters:,} characters, read in {seconds:.0f} s")
    sys.stdout.flush()


def _default(name: str) -> Any:
    """Return the default value of a flag."""
    return _FLAGS[f"--{name}"].get("default", False)


def _record(output: str) -> Path:
    """Return the path of the JSON file that records the settings of a vocabulary."""
    return Path(output + ".json")


def _is_trained(output: str, settings: dict[str, Any]) -> bool:
    """Return whether the vocabulary exists already.

    Raises:
        ValueError: it was trained with other settings.
    """
    if not Path(output).exists():
        return False
    recorded: dict[str, Any] = {}
    with contextlib.suppress(FileNotFoundError):
        text = _record(output).read_text()
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            content = {}
        recorded = content if isinstance(content, dict) else {}
    other = [
        f"{name} was {before!r} and is now {value!r}"
        for name, value in settings.items()
        if (before := recorded.get(name, _default(name)))
        != value  # an older record may lack a newer flag
    ]
    if recorded and not other:
        return True
    how = "; ".join(other) if recorded else "its settings are not recorded"
    raise ValueError(
        f"--output={output!r} exists, with other settings ({how}): set another --output, or "
        "--overwrite, which makes the checkpoints that were trained with it unusable."
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command_line.ArgumentParser(__doc__, prog="python -m t5x_like.vocabulary")
    for name, options in _FLAGS.items():
        parser.add_argument(name, **options)
    flags = parser.parse_args(arguments)
    for name, least in (("size", 4), ("limit_chars", 1)):
        if getattr(flags, name) < least:
            raise ValueError(f"--{name}={getattr(flags, name)} must be {least} or more")
    if not 0 < flags.character_coverage <= 1:
        raise ValueError(
            f"--character_coverage={flags.character_coverage} must be above 0, up to 1"
        )
    choose("--kind", flags.kind, dict.fromkeys(KINDS))
    flags.output = flags.output.rstrip("/")
    # `vocabularies.load` recognizes the kind by the name of the file.
    ending = Path(flags.output).suffix
    is_list = flags.kind in ("wordpiece", "words")
    if ending != ".txt" if is_list else ending in (".txt", ".json"):
        needed = "end in .txt" if is_list else f"not end in {ending}"
        raise ValueError(f"--output={flags.output!r} must {needed} for --kind={flags.kind}")
    command_line.check_folder("--output", Path(flags.output).parent)
    flags.set = dict(_setting(text) for text in flags.set)
    return flags


def _setting(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE; a value that is not a Python literal is a string."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set={text!r} must be NAME=VALUE")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


if __name__ == "__main__":
    main()
