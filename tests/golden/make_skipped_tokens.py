"""Freezes what transformers decodes without special tokens: skipped_tokens.json.xz.

python tests/golden/make_skipped_tokens.py   (made with transformers 5.24.0, tokenizers 0.23.3)

The folders and texts are from tokenizer_folders.json.xz. The ids are the text's, with the tokens
around it, and padding.
"""

import json
import lzma
import sys
import tempfile
from pathlib import Path

import transformers

GOLDEN = Path(__file__).parent
TEXTS = (2, 3, 5, 9, 17, 18, 19, 20, 21, 22, 25)  # most have the names of special tokens


def main() -> None:
    frozen = json.loads(lzma.decompress((GOLDEN / "tokenizer_folders.json.xz").read_bytes()))
    made = {}
    for name, own in frozen["folders"].items():
        with tempfile.TemporaryDirectory() as folder:
            for file, number in own["files"].items():
                encoding = "latin-1" if file.endswith((".model", ".spm")) else "utf-8"
                Path(folder, file).write_bytes(frozen["blobs"][number].encode(encoding))
            tokenizer = getattr(transformers, own["class"]).from_pretrained(folder)
            padding = [] if tokenizer.pad_token_id is None else [tokenizer.pad_token_id] * 2
            rows = []
            for number in TEXTS:
                ids = [*tokenizer(frozen["texts"][number]).input_ids, *padding]
                rows.append([ids, tokenizer.decode(ids, skip_special_tokens=True)])
        made[name] = rows
    content = json.dumps(made, ensure_ascii=False, separators=(",", ":")).encode()
    (GOLDEN / "skipped_tokens.json.xz").write_bytes(lzma.compress(content, preset=9))
    sys.stdout.write(f"{len(made)} folders\n")


if __name__ == "__main__":
    main()
