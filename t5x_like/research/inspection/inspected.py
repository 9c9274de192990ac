"""A model with its vocabulary, whose predictions for a text become JSON values for the page."""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import flax.traverse_util
import numpy as np
from jaxtyping import Float
from tokenizers.decoders import ByteLevel

from t5x_like.batches.labelled_rows import RowWriter
from t5x_like.config.run_settings import DataSettings, RunSettings
from t5x_like.experiment import completion
from t5x_like.experiment.run import Run
from t5x_like.inference import text_model
from t5x_like.inference.predictions import TEXT
from t5x_like.inference.text_model import TextModel
from t5x_like.nn.networks import Encoder
from t5x_like.pretrained import Pretrained, from_pretrained
from t5x_like.research.inspection import layer_statistics
from t5x_like.research.inspection.network_states import NetworkStates, States
from t5x_like.vocabularies import Vocabulary

MOST_CHARACTERS = 10_000
TOP = 10  # most likely tokens per position
NEW_TOKENS = 48  # maximum tokens that are generated from a text
# {setting of a network: what the page calls it}
_SIZES = {
    "layers": "layers",
    "encoder_layers": "encoder layers",
    "decoder_layers": "decoder layers",
    "d_model": "wide",
    "heads": "heads",
    "experts": "experts",
    "vocab_size": "token ids",
}


@dataclasses.dataclass(frozen=True)
class Inspected:
    """A model to inspect.

    Attributes:
        name: shown above its predictions.
        kind: `next_tokens` of a decoder, `generated` of a model that generates a text from a text
            (an encoder-decoder, or an encoder that generates in the same row), `masks` of an
            encoder with a masked-language-model head, `replaced` of an encoder that detects
            replaced tokens, or `states` of any other encoder, whose attention only is shown.
        text: tokenizes and generates; None for the other encoders.
    """

    name: str
    kind: str
    pretrained: Pretrained
    vocabulary: Vocabulary
    states: NetworkStates
    text: TextModel | None

    def about(self) -> dict[str, Any]:
        """Return the properties of the model that the page needs before a text is entered.

        `sizes` are numbers of the network by their names, `examples` texts to try.
        """
        mask = None if self.kind != "masks" else self.vocabulary.required_id("mask_id")
        config = self.pretrained.config
        arrays = flax.traverse_util.flatten_dict(self.pretrained.params).values()
        parameters = sum(math.prod(array.shape) for array in arrays)
        sizes = {name: config[key] for key, name in _SIZES.items() if config.get(key)}
        return {
            "name": self.name,
            "system": self.pretrained.system,
            "kind": self.kind,
            "lens": self._has_lens(),
            "routes": self.states.routes,
            "mask": mask,
            "most": self.states.most,
            "sizes": {"parameters": parameters, **sizes},
            "examples": self._examples(mask),
        }

    def _has_lens(self) -> bool:
        # An encoder that generates predicts at masks, which are not in the row that is shown.
        shown = self.kind not in ("states", "replaced") and not self._in_row
        return shown and self.states.has_lens

    @property
    def _in_row(self) -> bool:
        """Whether it generates in the row of the text, without a decoder."""
        return self.kind == "generated" and len(self.pretrained.module.sides) == 1

    def _examples(self, mask: int | None) -> list[str]:
        if self.kind == "masks":
            assert mask is not None
            name = self.vocabulary.piece(mask)
            return [f"The {name} of the function is a list.", f"Paris is the {name} of France."]
        if self.kind == "generated" and self.vocabulary.sentinels:
            name = self._readable(self.vocabulary.piece(self.vocabulary.first_sentinel)).strip()
            return [f"Return the {name} of an array.", f"The {name} sat on the mat."]
        texts = {
            "next_tokens": ["Return the number of", "The cat sat on the"],
            "replaced": ["Return the number of elements in a green.", "The cat sat on the idea."],
        }
        return texts.get(self.kind, ["Return the number of elements.", "The cat sat on the mat."])

    def read(self, text: str) -> list[int]:
        """Tokenize a text, with the special tokens that the model was trained to see around it.

        Raises:
            ValueError: the text has too many characters or tokens, or none.
        """
        if len(text) > MOST_CHARACTERS:
            raise ValueError(f"a text of {len(text)} characters: at most {MOST_CHARACTERS} allowed")
        tokens = self._tokens(text)
        self.states.check_size(len(tokens))
        return tokens

    def read_line(self, where: str, text: str) -> list[int]:
        """Tokenize a text of a file like `read`; errors begin with where it is, "FILE:LINE"."""
        try:
            return self.read(text)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error

    def _tokens(self, text: str) -> list[int]:
        if self.text is None:
            return RowWriter(self.vocabulary, length=2**20).of_text(text).tokens.tolist()
        if self.text.encodes:
            return self.text.prompt(text)
        start = self.text.prompt_format.start
        ids = self.text.prompt(text) if self._in_row else self.text.tokens(text, end=False)
        return [*([] if start is None else [start]), *ids]

    def of_tokens(self, tokens: Sequence[int]) -> States:
        """Return the states of a text, and of what is generated from it.

        Args:
            tokens: the tokens of the text; see `read`.
        """
        return self.states.of(tokens, self._generated(tokens) if self.kind == "generated" else None)

    def first_hidden(self, tokens: Sequence[int]) -> Float[np.ndarray, "N+1 T D"]:
        """Return the hidden states of the side that reads a text, see `States.hidden`.

        Raises:
            ValueError: the layers return no hidden states.
        """
        side = self.pretrained.module.sides[0]
        targets = self._start(tokens) if self.kind == "generated" else None
        hidden = self.states.of(tokens, targets).hidden
        if side not in hidden:
            raise ValueError(f"the layers of this {self.pretrained.system} return no hidden states")
        return hidden[side]

    def look(self, tokens: Sequence[int], targets: Sequence[int] | None = None) -> dict[str, Any]:
        """Return the model's predictions.

        Args:
            tokens: the tokens of the text; see `read`.
            targets: the generated tokens after the token that the decoder of an encoder-decoder
                reads first, or after the last token of the text if they are in the same row; None
                to generate them greedily.

        Returns:
            `tokens`, and `targets` if a text is generated, each with `id`, `text` and `piece` (the
            vocabulary's spelling). Predicted
            tokens have `probability`, `bits` (the surprisal, -log2 p) and `top`, the most likely
            tokens at their position; with kind `replaced` each token has the probability
            `replaced`. `next` lists the most likely tokens after the last.
        """
        self._check(tokens)
        if self.kind == "generated" and targets is None:
            targets = self._generated(tokens)
        if targets is not None:
            self._check(targets)
        logits = self.states.of(tokens, targets).logits
        answer: dict[str, Any] = {"tokens": self._shown(tokens)}
        if self.kind == "generated":
            assert targets is not None
            answer["targets"] = self._shown(targets)
            answer["filled"] = self._filled(tokens, targets[1:])
        if logits is None or self.kind == "states":
            return answer
        if self.kind == "replaced":
            for token, logit in zip(answer["tokens"], logits, strict=True):
                token["replaced"] = float(1 / (1 + np.exp(-np.float64(logit))))
        elif self.kind == "masks":
            for position, token in enumerate(answer["tokens"]):
                token["top"] = self._top(_softmax(logits[position]))
        else:
            self._add_next(answer, answer.get("targets", answer["tokens"]), logits)
        return answer

    def attention(
        self,
        tokens: Sequence[int],
        targets: Sequence[int] | None,
        *,
        side: str,
        layer: int,
        head: int,
    ) -> dict[str, Any]:
        """Return the attention weights of one head, a row for each query, and the possible choices.

        Args:
            tokens, targets: see `look`.
            side: `encoder`, `decoder` or `cross`; "" for the first that the model has.
            layer, head: indices.

        Raises:
            ValueError: the model has no such weights.
        """
        weights = self._states(tokens, targets).attention
        side = self._choose_side(side, weights, "attention weights")
        layers, heads = weights[side].shape[:2]
        if not (0 <= layer < layers and 0 <= head < heads):
            raise ValueError(
                f"layer {layer}, head {head}: there are {layers} layers, {heads} heads"
            )
        queries, keys = self._sides(tokens, targets)[side]
        return {
            "sides": list(weights),
            "side": side,
            "layers": layers,
            "heads": heads,
            "queries": self._shown(queries),
            "keys": self._shown(keys),
            "weights": weights[side][layer, head].tolist(),
        }

    def lens(self, tokens: Sequence[int], targets: Sequence[int] | None) -> dict[str, Any]:
        """Return each layer's most likely token at each position (logit lens).

        Raises:
            ValueError: the output layer cannot read the states of the layers.
        """
        if not self.about()["lens"]:
            raise ValueError(f"the layers of this {self.pretrained.system} have no logit lens")
        hidden = self._states(tokens, targets).hidden[self.pretrained.module.sides[-1]]
        probabilities, ids = self.states.lens(hidden, top=1)
        layers = [
            [
                {**self._described(token), "probability": float(p)}
                for token, p in zip(*row, strict=True)
            ]
            for row in zip(ids[..., 0].tolist(), probabilities[..., 0].tolist(), strict=True)
        ]
        return {"tokens": self._shown(tokens if targets is None else targets), "layers": layers}

    def layers(
        self, tokens: Sequence[int], targets: Sequence[int] | None, *, side: str
    ) -> dict[str, Any]:
        """Return what the layers change in the states, and their heads' shares of attention.

        Args:
            tokens, targets: see `look`.
            side: `encoder`, `decoder` or `cross`; "" for the first that the model has.

        Raises:
            ValueError: the model has no such layers.
        """
        statistics = layer_statistics.of_texts([self._states(tokens, targets)]).as_json()
        side = self._choose_side(side, statistics["tokens"], "layers on the side")
        of_side = {name: statistics[name].get(side) for name in ("layers", "attention")}
        return {"sides": list(statistics["tokens"]), "side": side, **of_side}

    def experts(
        self, tokens: Sequence[int], targets: Sequence[int] | None, *, side: str, layer: int
    ) -> dict[str, Any]:
        """Return the experts that compute each token in a sparse layer, [] for a dropped token.

        Args:
            tokens, targets: see `look`.
            side: `encoder` or `decoder`; "" for the first that has sparse layers.
            layer: index among the sparse layers of the side.

        Raises:
            ValueError: the model has no such layer.
        """
        experts = self._states(tokens, targets).experts
        side = self._choose_side(side, experts, "experts on the side")
        layers, _, number = experts[side].shape
        if not 0 <= layer < layers:
            raise ValueError(f"sparse layer {layer}: there are {layers}")
        shown = self._shown(self._sides(tokens, targets)[side][0])
        for token, assigned in zip(shown, experts[side][layer], strict=True):
            token["experts"] = np.flatnonzero(assigned).tolist()
        return {
            "sides": list(experts),
            "side": side,
            "layers": layers,
            "experts": number,
            "tokens": shown,
        }

    def _choose_side(self, side: str, sides: Mapping[str, Any], what: str) -> str:
        """Return the requested side, or the first for ""; raise ValueError if it does not exist."""
        side = side or next(iter(sides), "")
        if side not in sides:
            raise ValueError(f"this {self.pretrained.system} has no {what} {side!r}")
        return side

    def _states(self, tokens: Sequence[int], targets: Sequence[int] | None) -> Any:
        for row in (tokens, targets or [0]):
            self._check(row)
        if (self.kind == "generated") != (targets is not None):
            raise ValueError("targets belong to a text that is generated, which needs them")
        return self.states.of(tokens, targets)

    def _sides(self, tokens: Sequence[int], targets: Sequence[int] | None) -> dict[str, Any]:
        if self._in_row:
            assert targets is not None
            row = [*tokens, *targets[1:]]
            return {"encoder": (row, row)}
        last = tokens if targets is None else targets
        return {"encoder": (tokens, tokens), "decoder": (last, last), "cross": (last, tokens)}

    def _add_next(self, answer: dict[str, Any], shown: list[dict[str, Any]], logits: Any) -> None:
        """Add to each token the prediction at the token before it, and `next` after the last."""
        for position, token in enumerate(shown[1:]):
            probabilities = _softmax(logits[position])
            token["probability"] = float(probabilities[token["id"]])
            token["bits"] = float(-np.log2(max(token["probability"], 1e-300)))
            token["top"] = self._top(probabilities)
        answer["next"] = self._top(_softmax(logits[-1]))

    def _generated(self, tokens: Sequence[int]) -> list[int]:
        """Return the token before the generated tokens, and these, generated greedily."""
        assert self.text is not None
        start = self._start(tokens)
        if not self._in_row:
            room = self.states.most - 1
            return [*start, *self.text.generate_tokens([tokens])[0][:room]]
        most = min(self.states.most, self.text.length + 1)
        room = min(NEW_TOKENS, most - len(tokens))
        if room < 1:
            raise ValueError(
                f"a text of {len(tokens)} tokens leaves no room for a generated text: this model "
                f"is shown {most} tokens of both together"
            )
        model = self.text.greedy().generating(batch_size=1, max_new_tokens=room)
        return [*start, *model.generate_tokens([tokens[1:]])[0]]  # `generate_tokens` adds [CLS]

    def _start(self, tokens: Sequence[int]) -> list[int]:
        """Return the token before the generated tokens, see `look`."""
        assert self.text is not None
        return [tokens[-1] if self._in_row else self.text.decode["decoder_start_token_id"]]

    def _filled(self, tokens: Sequence[int], target: Sequence[int]) -> list[dict[str, Any]]:
        """Return the text with its sentinels replaced by the spans of the target (T5)."""
        spans: dict[int, list[int]] = {}
        current: list[int] | None = None
        for token in target:
            if self._is_sentinel(token):
                current = spans.setdefault(token, [])
            elif current is not None:
                current.append(token)
        if not spans or not any(map(self._is_sentinel, tokens)):
            return []
        return [
            {**self._described(filler), "filled": self._is_sentinel(token)}
            for token in tokens
            for filler in (spans.get(token, [token]) if self._is_sentinel(token) else [token])
        ]

    def _is_sentinel(self, token: int) -> bool:
        vocabulary = self.vocabulary
        return vocabulary.vocab_size - vocabulary.sentinels <= token < vocabulary.vocab_size

    def _top(self, probabilities: np.ndarray) -> list[dict[str, Any]]:
        best = np.argsort(-probabilities[: self.vocabulary.vocab_size])[:TOP]
        return [{**self._described(int(n)), "probability": float(probabilities[n])} for n in best]

    def _shown(self, tokens: Sequence[int]) -> list[dict[str, Any]]:
        return [self._described(token) for token in tokens]

    def _described(self, token: int) -> dict[str, Any]:
        """Return a token's id, its text, and its piece, as the vocabulary spells it."""
        # A model's embedding table may have more rows than its vocabulary has pieces.
        known = token < self.vocabulary.vocab_size
        piece = (known and self.vocabulary.piece(token)) or f"<{token}>"
        return {"id": token, "text": self._readable(piece), "piece": piece}

    def _readable(self, piece: str) -> str:
        """Replace the letters that stand for blanks and bytes in a piece by these.

        A byte that is a part of a character stays a letter; control characters are escaped.
        """
        text = ByteLevel().decode([piece]) if self._spells_bytes else piece.replace("\u2581", " ")
        if "\ufffd" in text:
            return piece
        return "".join(
            character if character.isprintable() or character in "\n\t" else repr(character)[1:-1]
            for character in text
        )

    @functools.cached_property
    def _spells_bytes(self) -> bool:
        """Whether pieces are spelled in GPT-2's letters for bytes, in which a blank is U+0120."""
        pieces = map(self.vocabulary.piece, range(self.vocabulary.vocab_size))
        return any(piece.startswith("\u0120") for piece in pieces)

    def _check(self, tokens: Sequence[int]) -> None:
        size = self.pretrained.config["vocab_size"]
        if any(type(token) is not int or not 0 <= token < size for token in tokens):
            raise ValueError(f"tokens must be ids from 0 to {size - 1}")


def load(folder: str, *, weights: str = "float32") -> Inspected:
    """Load the model in a run, a checkpoint or a Hugging Face folder, with its vocabulary.

    Args:
        weights: the dtype of the weights, see `loading.WEIGHTS`.

    Raises:
        ValueError: the model or the vocabulary is missing, the model does not read tokens, or it
            has several heads.
    """
    data = DataSettings(converter="", lengths={"inputs": 0, "targets": 0}, batch_size=1)
    decode = {"max_new_tokens": NEW_TOKENS}
    run = Run(RunSettings(system="", initialize=folder, data=data, decode=decode))
    path = pathlib.Path(folder).expanduser()
    run.check_source()  # raises without a model, before the tokenizer is read
    try:
        [part] = completion.complete(run).parts
        vocabulary = part.text.vocabulary
    except ValueError as error:
        raise ValueError(f"{folder} has no tokenizer that can be read: {error}") from error
    pretrained = from_pretrained(path, param_dtype=weights)
    if "encoder_characters" in pretrained.module.example_batch():
        raise ValueError(f"{folder} holds a {pretrained.system}, which reads characters, no tokens")
    if isinstance(pretrained.config.get("head"), Mapping):
        raise ValueError(f"{folder} holds a run with several heads: the page shows models with one")
    states = NetworkStates(pretrained)
    kind = _kind(pretrained, states, generates=part.task.prediction == TEXT)
    text = text_model.build(pretrained, part) if kind in ("next_tokens", "generated") else None
    return Inspected(path.name, kind, pretrained, vocabulary, states, text)


def _kind(pretrained: Pretrained, states: NetworkStates, *, generates: bool) -> str:
    """Return the kind of view, from the network's sides and the shape of its outputs.

    Args:
        generates: whether the head generates text, as an encoder's may do.
    """
    module = pretrained.module
    if module.generates and (generates or "decoder" in module.sides):
        return "next_tokens" if module.sides == ("decoder",) else "generated"
    logits = states.of([1, 1, 1]).logits
    if logits is None or not isinstance(module, Encoder):
        return "states"
    if logits.ndim == 1:
        return "replaced"
    return "masks" if logits.shape[1] == pretrained.config["vocab_size"] else "states"


def _softmax(logits: np.ndarray) -> np.ndarray:
    """Return the probabilities at one position, in float64."""
    grown = np.exp(np.float64(logits) - logits.max())
    return grown / grown.sum()
