"""What an objective is: how text becomes examples, in Python and NumPy, whatever reads the text.

There are four kinds, by what an example is made from:

    RunningText   a chunk of all documents, one after the other: span corruption, language modeling
    Groups        some documents, split into sentences: masked tokens, BART, MASS, XLNet
    Pairs         an input and an output that belong together: text to text, translation
    Rows          a row of fields: labelled text, comparisons, prompts

An objective describes what its examples contain; planning and inference read this description
without data. Its `plan` takes what a run decides (`ExampleSpec`) and checks it; the result makes
examples. tf.data (`preprocessing.objectives`) and grain (`grain_pipeline`) call the same functions.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Int, Int32

from t5x_like.batches.conversion import Example as Example
from t5x_like.vocabularies import Vocabulary

AT_ONCE = 32  # chunks

FeatureNames = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Feature:
    """The vocabulary of a feature, and whether its sequences end with EOS."""

    vocabulary: Vocabulary
    add_eos: bool = True

    @property
    def end(self) -> Int32[np.ndarray, " 0..1"]:
        """The tokens that end a sequence: EOS, or nothing."""
        return np.array([self.vocabulary.eos_id] if self.add_eos else [], np.int32)


@dataclasses.dataclass(frozen=True)
class ExampleSpec:
    """What a run decides about the examples of an objective.

    Attributes:
        lengths: {feature: the most tokens of an example}.
        features: {feature: its vocabulary and end}.
    """

    lengths: Mapping[str, int]
    features: Mapping[str, Feature]

    def check(self, objective: str, *names: str) -> None:
        """Raise ValueError unless each feature has a length of 2 or more and can be ended."""
        for name in names:
            if name not in self.features:
                raise ValueError(
                    f"{objective} needs a feature {name!r}, the task's output_features have "
                    f"{sorted(self.features)}"
                )
            length = self.lengths.get(name)
            if length is None or length < 2:
                raise ValueError(f"{objective} needs lengths.{name} of 2 or more, got {length}")
            feature = self.features[name]
            if feature.add_eos and feature.vocabulary.eos_id is None:
                raise ValueError(
                    f"{objective}: feature {name!r} has add_eos=True, but its vocabulary has no "
                    "eos_id; use add_eos=False or a vocabulary with an end-of-sequence token"
                )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Objective(abc.ABC):
    """What the examples of an objective contain. An objective is only equal to itself.

    Attributes:
        name: its name in the registry and in configs.
        settings: all its settings, as a data position's fingerprint has them; `objectives.build`
            sets them to the arguments of the function that made the objective.
        features: the features of an example, each int32 [L] (a `value` is float32 [1]), with EOS
            if the task's feature has `add_eos`.
        converters: names of the converters that make batches of the features, the paper's
            converter first. "prefix_lm" puts targets after inputs; "encoder" needs targets that are
            aligned with the inputs token by token.
        converter_settings: default settings of those converters, which a config may override.
        ends_inputs: whether inputs end with the end token.
        special_tokens: whether inputs and targets begin with [CLS] and end with [SEP], or <s> and
            </s> as in BART.
        content: returns a hash of the files that the examples depend on.
    """

    name: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    features: FeatureNames
    converters: FeatureNames
    converter_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    ends_inputs: bool = True
    special_tokens: bool = False
    content: Callable[[], str] = str

    def identity(self, spec: ExampleSpec) -> str:
        """Return everything that decides the examples of a text, for a data position."""
        vocabularies = {name: of.vocabulary.digest for name, of in spec.features.items()}
        parts = (self.name, sorted(self.settings.items()), self.content())
        return f"{parts} {sorted(spec.lengths.items())} {vocabularies}"


# (int32 [B, L], random numbers) -> the examples of B chunks.
OfChunks = Callable[[Int32[np.ndarray, "B L"], np.random.Generator], list[Example]]
# (tokens of all documents, of each sentence, sentences of each document, random numbers) -> rows.
OfGroup = Callable[
    [
        Int[np.ndarray, " T"],
        Int[np.ndarray, " S"],
        Int[np.ndarray, " D"],
        np.random.Generator,
    ],
    list[Example],
]
# (tokens of the inputs, tokens of the targets, random numbers) -> an example, or None to drop it.
OfPair = Callable[
    [Int[np.ndarray, " S"], Int[np.ndarray, " T"], np.random.Generator], Example | None
]
# ({field: a text, a number, or a sequence of either}, random numbers) -> examples.
OfRow = Callable[[Mapping[str, Any], np.random.Generator], list[Example]]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RunningText(Objective):
    """Cut all documents, one after the other, into chunks; a chunk becomes an example.

    Attributes:
        plan: what a run decides -> (tokens of a chunk, the function that makes the examples of
            some chunks of one length). Only the last chunk of an epoch may be shorter; none is
            empty. Raises ValueError.
        end_documents: whether EOS follows each document that is not empty.
        encode: (text, vocabulary) -> what a document adds to the running text, int32 [any]; None
            for its tokens.
    """

    plan: Callable[[ExampleSpec], tuple[int, OfChunks]]
    end_documents: bool = False
    encode: Callable[[str, Vocabulary], Int32[np.ndarray, " L"]] | None = None

    def units(self, spec: ExampleSpec) -> tuple[int, Callable[..., list[Example]]]:
        """Return the tokens of `AT_ONCE` chunks, and the function from chunks to examples.

        A call from TensorFlow costs as much as the noise of several chunks, so many are made at
        once.

        Raises:
            ValueError: see `plan`.
        """
        length, make = self.plan(spec)

        def examples(
            tokens: Int32[np.ndarray, " L"], generator: np.random.Generator
        ) -> list[Example]:
            count = len(tokens) // length
            chunks = tokens[: count * length].reshape(count, length)
            of_chunks = make(chunks, generator) if count else []
            rest = tokens[None, count * length :]
            return [*of_chunks, *(make(rest, generator) if rest.size else [])]

        return AT_ONCE * length, examples


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Groups(Objective):
    """Make rows of some documents, which are split into sentences.

    Attributes:
        plan: what a run decides -> the function that makes the rows of a group; raises ValueError.
        documents: the number of consecutive documents of a group.
        between: inserted before every sentence but the first: a space if the model generates text,
            since tokens of byte-level BPE include spaces.
    """

    plan: Callable[[ExampleSpec], OfGroup]
    documents: int = 1
    between: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Pairs(Objective):
    """Make one example of the tokens of "inputs" and "targets".

    Attributes:
        plan: what a run decides -> the function that makes an example; raises ValueError.
        continued: whether the targets continue the text of the inputs, and are tokenized with it
            (`Vocabulary.encode_continued`).
    """

    plan: Callable[[ExampleSpec], OfPair]
    continued: bool = False

    def check_fields(self, fields: Mapping[str, Any] | FeatureNames) -> None:
        """Raise ValueError unless raw rows have both sides."""
        if missing := [side for side in PAIR if side not in fields]:
            raise ValueError(f"{self.name} needs pairs; the task's rows lack {', '.join(missing)}")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Rows(Objective):
    """Make examples of a raw row.

    Attributes:
        plan: what a run decides -> the function that makes examples; raises ValueError.
        fields: the fields of a row that it reads.
        optional: the fields that rows need not have.
        has_rows: a data module whose rows have these fields, for messages.
    """

    plan: Callable[[ExampleSpec], OfRow]
    fields: FeatureNames
    optional: FeatureNames = ()
    has_rows: str = ""

    def present(self, fields: Mapping[str, Any] | FeatureNames) -> list[str]:
        """Return the fields of the objective that raw rows have, in order.

        Raises:
            ValueError: rows lack a field.
        """
        available = [field for field in self.fields if field in fields]
        missing = [field for field in self.fields if field not in (*available, *self.optional)]
        if missing:
            advice = f": {self.has_rows} has such rows" if self.has_rows else ""
            raise ValueError(
                f"data.objective={self.name!r} reads the fields {', '.join(self.fields)}, and the "
                f"task's rows lack {', '.join(missing)}{advice}"
            )
        return available


PAIR: FeatureNames = ("inputs", "targets")


def of_encoder(*features: str) -> dict[str, Any]:
    """Return the arguments of an `Objective` for an encoder, whose rows have these features too.

    The loss is on the feature `loss_weights`, if there is one.
    """
    loss_on = {"loss_on": "weights"} if "loss_weights" in features else {}
    names = ("inputs", *features)
    return {
        "features": names,
        "converters": ("encoder",),
        "converter_settings": {"features": names, **loss_on},
    }


def of_masked(*features: str) -> dict[str, Any]:
    """Return the arguments of an `Objective` of masked tokens, with further features."""
    return of_encoder("targets", "loss_weights", *features)


def text_of(raw: str | bytes) -> str:
    """Return a text of a row; UTF-8 is decoded with replacement characters for invalid bytes."""
    return raw if isinstance(raw, str) else raw.decode("utf-8", errors="replace")
