"""A folder of tokenized text, which is read instead of the text.

Every writer of such a folder writes tokenized.json last: it records everything that decides the
tokens, and the sizes of the files. Without it the folder is unfinished.
"""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

RECORD, UNFINISHED = "tokenized.json", "unfinished.json"


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describe how two identities differ, for the splits of the second; "" if they do not.

    Args:
        before, now: everything that decides the tokens, as JSON has it: "format", the version of
            the files and of the rules of cleaning; "vocabulary", its hash; "splits", a mapping for
            each "TASK/SPLIT".
    """
    if before["format"] != now["format"]:
        return f"its format is {before['format']!r}, and here it is {now['format']!r}"
    if before["vocabulary"] != now["vocabulary"]:
        return "data.vocabulary is another vocabulary"
    for key, own in now["splits"].items():
        was = before["splits"].get(key)
        if was is None:
            return f"it has {', '.join(before['splits'])}, and not {key}"
        for name in dict.fromkeys([*own, *was]):
            if own.get(name) != was.get(name):
                if name == "files":
                    return f"the files of {key} have changed"
                return f"{name} of {key} is {own.get(name)!r}, and was {was.get(name)!r}"
    return ""


def _is_record(made: Any) -> bool:
    """Return whether the content of a file has what `tokenized.json` must have."""
    if not isinstance(made, dict) or not isinstance(identity := made.get("identity"), dict):
        return False
    splits, files = identity.get("splits"), made.get("files")
    if not isinstance(splits, dict) or not isinstance(files, dict):
        return False
    inner = (*splits.values(), *files.values())
    return {"format", "vocabulary"} <= identity.keys() and all(isinstance(v, dict) for v in inner)


class TokenizedFolder:
    """A folder of tokenized text.

    Args:
        folder: `data.tokenized`.

    Raises:
        ValueError: it is not such a folder, or is unfinished.
    """

    def __init__(self, folder: str):
        self._name, self._folder = f"data.tokenized={folder!r}", pathlib.Path(folder).expanduser()
        try:
            self._made = json.loads((self._folder / RECORD).read_text())
        except FileNotFoundError:
            unfinished = (self._folder / UNFINISHED).exists()
            problem = "is unfinished: go on with it" if unfinished else f"has no {RECORD}: make it"
            raise ValueError(f"{self._name} {problem} by t5x-like tokenize") from None
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(f"{self._name}: {RECORD} cannot be read: {error}") from error
        if not _is_record(self._made):
            raise ValueError(
                f"{self._name}: {RECORD} is another file than t5x-like tokenize writes: copy the "
                "folder again, or make it anew"
            )

    def files(self, key: str, identity: Mapping[str, Any]) -> Sequence[str]:
        """Return the files of a split, in order.

        Args:
            key: "TASK/SPLIT".
            identity: the text and vocabulary that the folder must have been made from.

        Raises:
            ValueError: the folder was made from other text or with another vocabulary, or a file is
                missing or has another size.
        """
        if other := difference(self._made["identity"], identity):
            raise ValueError(
                f"{self._name} was made of other text or tokens: {other}; make another folder by "
                "t5x-like tokenize, or tokenize while training, data.tokenized=''"
            )
        sizes = self._made["files"][key]
        for name, size in sizes.items():
            file = self._folder / name
            found = file.stat().st_size if file.is_file() else 0
            if found != size:
                raise ValueError(
                    f"{self._name} is damaged: {name} has {found:,} bytes, and had {size:,}: copy "
                    "the folder again, or delete it and make it by t5x-like tokenize"
                )
        return [str(self._folder / name) for name in sizes]
