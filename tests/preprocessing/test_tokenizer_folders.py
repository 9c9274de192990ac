"""Folders in Hugging Face's format: ids, texts and special tokens equal those of transformers 5.24.

`golden/make_tokenizer_folders.py` froze the folders, which have the files of published folders of
each family, and what transformers makes of them.
"""

import json
import lzma
from pathlib import Path

import pytest

from t5x_like import vocabularies

GOLDEN = Path(__file__).parents[1] / "golden"
FROZEN = json.loads(lzma.decompress((GOLDEN / "tokenizer_folders.json.xz").read_bytes()))
FOLDERS = FROZEN["folders"]
FAMILIES = sorted({name.partition("/")[0] for name in FOLDERS})


def write(name, path):
    """Write a frozen folder, with what transformers makes of it."""
    for file, number in FOLDERS[name]["files"].items():
        encoding = "latin-1" if file.endswith((".model", ".spm")) else "utf-8"
        (path / file).write_bytes(FROZEN["blobs"][number].encode(encoding))
    return FOLDERS[name]


def change(path, name, **settings):
    """Change settings of a JSON file; None takes a setting away."""
    file = path / name
    stored = json.loads(file.read_text()) if file.exists() else {}
    kept = {key: value for key, value in (stored | settings).items() if value is not None}
    file.write_text(json.dumps(kept))


def frozen_of(family):
    return [name for name in FOLDERS if name.partition("/")[0] == family]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_is_read_as_transformers_reads_it(family, tmp_path):
    for name in frozen_of(family):
        path = tmp_path / name.partition("/")[2]
        path.mkdir()
        expected = write(name, path)
        vocabulary = vocabularies.load(path)
        # Marian's counts a token once that is a piece and an added token.
        assert vocabulary.vocab_size - expected["size"] == (name == "in_python/marian_added"), name
        rows = zip(FROZEN["texts"], expected["ids"], expected["decoded"], strict=True)
        for text, ids, decoded in rows:
            assert vocabulary.encode(text) == ids, (name, text)
            # Marian's and ByT5's texts end at the end token, and ByT5's show no padding.
            if family != "in_python" or not {0, 1, 2, vocabulary.pad_id} & set(ids):
                assert vocabulary.decode(ids) == decoded, (name, text)
        whole = [*vocabulary.prefix_ids, *vocabulary.encode("one two"), *vocabulary.suffix_ids]
        assert whole == expected["whole"], name
        named = {key: id_ for key, id_ in expected["named"].items() if id_ is not None}
        assert {key: getattr(vocabulary, f"{key}_id") for key in named} == named, name
        assert set(named.values()) <= set(vocabulary.special_ids), name
