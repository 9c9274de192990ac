"""What transformers' tokenizer classes have in common: pieces, and how text becomes them."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tokenizers

from t5x_like.vocabularies.hugging_face.token_settings import Token

Scores = list[tuple[str, float]]  # the pieces of a Unigram model by id, with their log p
Settings = Mapping[str, Any]  # of the class, special tokens by their names included


@dataclasses.dataclass(frozen=True)
class Pieces:
    """The pieces of a tokenizer.

    Attributes:
        vocabulary: their ids, or for a Unigram model their scores in the order of their ids.
        merges: the pairs of BPE, in the order in which they are merged.
        charsmap: the compiled normalization of a SentencePiece model; b"" for none.
        unknown: the id of the unknown piece by a SentencePiece model; None where the file is not
            such a model.
        stored_unknown: the same by a tokenizer.json; None likewise.
        tokens: what a SentencePiece model calls control symbols and symbols of the user; None as
            for `unknown`.
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
            ValueError: they are of another kind of model.
        """
        if not isinstance(self.vocabulary, dict):
            raise ValueError("has scores of pieces, and its tokenizer_class needs ids.")
        return self.vocabulary

    @property
    def scores(self) -> Scores:
        """The pieces of a Unigram model.

        Raises:
            ValueError: they are of another kind.
        """
        if isinstance(self.vocabulary, dict):
            raise ValueError("has no scores of pieces, which its tokenizer_class needs.")
        return self.vocabulary


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a class of transformers makes its tokenizer.

    Attributes:
        model: the kind of model: "BPE", "WordPiece" or "Unigram".
        files: the names of its vocabulary's files, apart from tokenizer.json.
        named: its special tokens by their names where a folder does not name them.
        make: from pieces and settings to the tokenizer, without added tokens.
        template: from the texts of the named tokens and the settings to the tokens before and after
            a text; None where `add_bos_token` and `add_eos_token` decide.
        yields: whether the post-processor of a tokenizer.json, and these two settings, take
            precedence over the template.
        reorder: the pieces of a SentencePiece model in the order of the network's ids.
        additional: special tokens without a name, from those that are given; None for none given.
        end: the piece that ends a text in a class without such a token.
        begins_word: whether a piece begins a word, where that is not its mark of a blank.
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
    """A template of named tokens, as "cls_token" and "sep_token"; "" for none."""

    def template(named: Mapping[str, str], settings: Settings) -> tuple[list[str], list[str]]:
        del settings
        first, last = ([named[name]] if name in named else [] for name in (before, after))
        return first, last

    return template


def text(settings: Settings, name: str, otherwise: str) -> str:
    """The text of a named token."""
    found = settings.get(name)
    return otherwise if found is None else str(found)
