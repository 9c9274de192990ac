"""The common form of transformers' tokenizer classes: their pieces, and how they split text."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tokenizers

from t5x_like.vocabularies.hugging_face.token_settings import Token

Scores = list[tuple[str, float]]  # the pieces of a Unigram model in order of id, with their log p
Settings = Mapping[str, Any]  # the settings of a class, including special tokens by their names


@dataclasses.dataclass(frozen=True)
class Pieces:
    """The pieces of a tokenizer.

    Attributes:
        vocabulary: {piece: id}, or for a Unigram model the scores in the order of the ids.
        merges: the pairs of BPE, in the order in which they are merged.
        charsmap: the compiled normalization of a SentencePiece model; b"" for none.
        unknown: the id of the unknown piece in a SentencePiece model; None for other files.
        stored_unknown: the id of the unknown piece in a tokenizer.json; None for other files.
        tokens: the control symbols and user-defined symbols of a SentencePiece model; None for
            other files.
    """

    vocabulary: dict[str, int] | Scores
    merges: Sequence[tuple[str, str]] = ()
    charsmap: bytes = b""
    unknown: int | None = None
    stored_unknown: int | None = None
    tokens: Sequence[Token] | None = None

    @property
    def ids(self) -> dict[str, int]:
        """The ids of the pieces of WordPiece or BPE.

        Raises:
            ValueError: it is another kind of model.
        """
        if not isinstance(self.vocabulary, dict):
            raise ValueError("has scores of pieces, and its tokenizer_class needs ids.")
        return self.vocabulary

    @property
    def scores(self) -> Scores:
        """The pieces of a Unigram model, with their scores.

        Raises:
            ValueError: it is another kind of model.
        """
        if isinstance(self.vocabulary, dict):
            raise ValueError("has no scores of pieces, which its tokenizer_class needs.")
        return self.vocabulary


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The rules by which a class of transformers makes its tokenizer.

    Attributes:
        model: the kind of model: "BPE", "WordPiece" or "Unigram".
        files: the names of its vocabulary files, apart from tokenizer.json.
        named: {name: special token}, for names that a folder does not set.
        make: returns the tokenizer without added tokens, from pieces and settings.
        template: returns the tokens before and after a text, from the texts of the named tokens and
            the settings; None if `add_bos_token` and `add_eos_token` decide.
        yields: whether the post-processor of a tokenizer.json, and these two settings, take
            precedence over the template.
        reorder: puts the pieces of a SentencePiece model in the order of the network's ids.
        additional: returns the special tokens without a name, from the given tokens (None if none
            are given) and the settings.
        end: the piece that ends a text, for a class without an end token.
        begins_word: returns whether a piece begins a word; None if its mark of a blank decides.
    """

    model: str
    files: tuple[str, ...]
    named: Mapping[str, Token | None]
    make: Callable[[Pieces, Settings], tokenizers.Tokenizer]
    template: Callable[[Mapping[str, str], Settings], tuple[list[str], list[str]]] | None = None
    yields: bool = False
    reorder: Callable[[Scores, Settings], Scores] = lambda scores, settings: scores
    additional: Callable[[Sequence[Token] | None, Settings], Sequence[Token] | None] = (
        lambda given, settings: given
    )
    end: str = ""
    begins_word: Callable[[str], bool] | None = None


def around(before: str, after: str) -> Callable[..., tuple[list[str], list[str]]]:
    """Return a template with named tokens around a text, such as "cls_token"; "" for none."""

    def template(named: Mapping[str, str], settings: Settings) -> tuple[list[str], list[str]]:
        del settings
        first, last = ([named[name]] if name in named else [] for name in (before, after))
        return first, last

    return template


def text(settings: Settings, name: str, otherwise: str) -> str:
    """Return the text of a named token in the settings, or `otherwise`."""
    found = settings.get(name)
    return otherwise if found is None else str(found)
