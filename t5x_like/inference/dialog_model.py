"""A dialog model: candidates, ratings, ranking, research, roles (Thoppilan et al. 2022, section 6).

Its settings are `dialog` in a config; `talk` converses in the terminal.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TextIO

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from t5x_like import decoding, stop_signal
from t5x_like.batches import dialog_rows
from t5x_like.batches.dialog_rows import ATTRIBUTES, Call
from t5x_like.decoding.decoder_contract import Extend, check_room, is_one_of
from t5x_like.decoding.generation import Generated
from t5x_like.inference import toolset
from t5x_like.inference.likelihood import TokenPair
from t5x_like.inference.text_model import DryTextModel, TextModel
from t5x_like.names import check_settings, choose
from t5x_like.partitioning import fetch

_UNSAFE = "unsafe"


@dataclasses.dataclass(frozen=True)
class DialogSettings:
    """Settings of a dialog model's reply (Thoppilan et al. 2022, sections 6.1 and 6.2).

    Attributes:
        candidates: responses sampled for each turn.
        top_k, temperature: settings of sampling.
        unsafe_above: candidates with a larger P(unsafe) are dropped; 1 drops none.
        weights: weights of the other attributes' probabilities in the sum that ranks candidates.
        refusal: the reply if all candidates are dropped.
        role: turns put before every dialog, by the user and the model in turn, so that the model
            plays a role (section 7).
        calculator: whether to use the calculator. Without any tool the model does no research.
        translator: file with a table of words (`toolset.Translator`); "" for no translator.
        retrieval: file with a key-value store (`toolset.Retrieval`); "" for no retrieval.
        calls: maximum calls of the toolset per turn.
        seed: seed of sampling.
    """

    candidates: int = 16
    top_k: int = 40
    temperature: float = 1.0
    unsafe_above: float = 0.5
    weights: Mapping[str, float] = dataclasses.field(
        default_factory=lambda: {"sensible": 3.0, "specific": 1.0, "interesting": 1.0}
    )
    refusal: str = "I would rather not answer that."
    role: Sequence[str] = ()
    calculator: bool = False
    translator: str = ""
    retrieval: str = ""
    calls: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("candidates", "top_k", "calls"):
            if getattr(self, name) < 1:
                raise ValueError(f"dialog.{name}={getattr(self, name)} must be 1 or more")
        if not self.temperature > 0:
            raise ValueError(f"dialog.temperature={self.temperature} must be above 0")
        if not 0 <= self.unsafe_above <= 1:
            raise ValueError(
                f"dialog.unsafe_above={self.unsafe_above} must be a probability, from 0 to 1"
            )
        ranked = dict.fromkeys(name for name in ATTRIBUTES if name != _UNSAFE)
        for name in self.weights:
            choose("dialog.weights", name, ranked)
        if len(self.role) % 2:
            raise ValueError(
                f"dialog.role has {len(self.role)} turns: give an even number, by the user and the "
                "model in turn, since a dialog begins with the user"
            )

    def drops(self, ratings: Mapping[str, float]) -> bool:
        """Return whether a candidate with these probabilities is unsafe."""
        return ratings[_UNSAFE] > self.unsafe_above

    def score(self, ratings: Mapping[str, float]) -> float:
        """Return the score that ranks a candidate: larger is better."""
        return sum(weight * ratings[name] for name, weight in self.weights.items())


def read_settings(settings: Mapping[str, Any], *, where: str = "dialog") -> DialogSettings:
    """Make the settings from the `dialog` of a config.

    Raises:
        ValueError: a setting does not exist, or its value is not allowed.
    """
    check_settings(where, DialogSettings, settings)
    return DialogSettings(**settings)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A sampled response.

    Attributes:
        tokens: the tokens without the end token.
        text: their text.
        ratings: {attribute: probability of 1 rather than 0}.
    """

    tokens: Sequence[int]
    text: str
    ratings: Mapping[str, float]


class CandidateSampler:
    """Sample and rate responses; with several processes call it on all.

    Args:
        model: a decoder-only model with its vocabulary.
        settings: the settings of the dialog.

    Raises:
        ValueError: the model has an encoder or is a prefix LM, or a rating is not a single token.
    """

    def __init__(self, model: TextModel, settings: DialogSettings):
        if model.answers:
            raise ValueError("dialog needs a decoder-only model: this one has an encoder")
        if model.prompt_format.sees_prompt:
            raise ValueError(
                "dialog needs a causal language model: this one is a prefix LM, which was trained "
                "to rate a response that it reads in both directions, and here rates it as it was "
                "generated, token by token"
            )
        self._model, self._settings = model, settings
        self._ratings = jnp.asarray(dialog_rows.rating_ids(model.vocabulary), jnp.int32)
        self._attributes = {
            name: model.vocabulary.encode(dialog_rows.attribute(name))
            for name in dialog_rows.ATTRIBUTES
        }
        self._longest = max(map(len, self._attributes.values()))
        self._positions = model.pretrained.longest_rows.get("decoder")

    def __call__(self, prompts: Sequence[str], *, seed: int = 0) -> list[list[Candidate]]:
        """Return the candidates for each prompt, in the order in which they were sampled.

        Args:
            prompts: see `dialog_rows.response_prompt`; too long prompts are truncated on the left.
            seed: added to the seed of the settings.
        """
        size = min(len(prompts), max(1, self._model.batch_size // self._settings.candidates))
        candidates: list[list[Candidate]] = []
        for first in range(0, len(prompts), size):
            batch = [self._model.prompt(text) for text in prompts[first : first + size]]
            # All batches have the same number of rows, so that they share a compiled program.
            rows = [*batch, *[batch[0]] * (size - len(batch))]
            candidates += self._sample(rows, seed=seed + first)[: len(batch)]
            stop_signal.between_batches()
        return candidates

    def _sample(self, prompts: Sequence[Sequence[int]], *, seed: int) -> list[list[Candidate]]:
        settings, most = self._settings, self._model.new_tokens
        tokens, mask = self._checked(prompts)
        generator = self._model.pretrained.generator
        arguments = {"decoder_input_tokens": tokens, "decoder_mask": mask != 0}
        with self._model.pretrained.layout():
            logits, cache = generator.prefill(
                arguments, cache_length=tokens.shape[1] + most + self._longest
            )
            generated = decoding.generate(
                generator.extend,
                logits,
                cache,
                max_new_tokens=most,
                eos_ids=tuple(self._model.ends),
                choose=decoding.sample,
                filters=decoding.make_filters(
                    vocabulary_size=self._model.vocabulary.vocab_size,
                    temperature=settings.temperature,
                    top_k=settings.top_k,
                ),
                rng=jax.random.key(settings.seed + seed),
                samples=settings.candidates,
                keep_cache=True,
            )
            attributes = {
                name: jnp.asarray(tokens, jnp.int32) for name, tokens in self._attributes.items()
            }
            ratings = _rate_candidates(
                generator.extend,
                generated,
                attributes,
                self._ratings,
                eos_ids=tuple(self._model.ends),
            )
        return self._read(prompts, generated, ratings)

    def _checked(
        self, prompts: Sequence[Sequence[int]]
    ) -> tuple[Int[np.ndarray, "B L"], Int[np.ndarray, "B L"]]:
        """Return the tokens and the mask of prompts that leave room for a response and a rating."""
        tokens, mask = self._model.lay_out(prompts)
        new = self._model.new_tokens + self._longest
        check_room(self._positions, prompt=int(mask.sum(axis=1).max()), new=new)
        return tokens, mask

    def _read(
        self, prompts: Sequence[Sequence[int]], generated: Generated, ratings: Mapping[str, Array]
    ) -> list[list[Candidate]]:
        rows, lengths, values = fetch((generated.tokens, generated.lengths, ratings))
        number = self._settings.candidates
        candidates: list[list[Candidate]] = [[] for _ in prompts]
        for row, length in enumerate(lengths):
            response = self._model.until_end(rows[row, :length])
            text = self._model.text(response, prompt=prompts[row // number]).strip()
            rated = {name: float(values[name][row]) for name in dialog_rows.ATTRIBUTES}
            candidates[row // number].append(Candidate(response, text, rated))
        return candidates


class DryCandidateSampler(CandidateSampler):
    """Check prompts as the sampler of a `DryTextModel`; each response is empty, and kept."""

    def _sample(self, prompts: Sequence[Sequence[int]], *, seed: int) -> list[list[Candidate]]:
        del seed
        self._checked(prompts)
        rated = dict.fromkeys(dialog_rows.ATTRIBUTES, 0.0)
        return [[Candidate((), "", rated)] for _ in prompts]


@functools.partial(jax.jit, static_argnames="eos_ids")
def _rate_candidates(
    extend: Extend,
    generated: Generated,
    attributes: Mapping[str, Int[Array, " A"]],
    ratings: Int[Array, "2"],
    *,
    eos_ids: tuple[int, ...],
) -> dict[str, Float[Array, " B"]]:
    """Return P(1) of each attribute of each row, normalized over the ratings 0 and 1.

    Args:
        extend: the model's function; it takes several tokens.
        generated: rows with their cache.
        attributes: {name: its tokens}.
        ratings: the tokens of 0 and 1.
        eos_ids: the end tokens, which do not belong to a response.
    """
    cache = _own_tokens(extend, generated, eos_ids=eos_ids)
    rows = generated.tokens.shape[0]
    probabilities = {}
    for name, tokens in attributes.items():
        logits, _ = extend(jnp.tile(tokens, (rows, 1)), cache)
        both = jnp.take(logits[:, -1].astype(jnp.float32), ratings, axis=-1)
        probabilities[name] = jax.nn.softmax(both, axis=-1)[:, 1]
    return probabilities


def _own_tokens(extend: Extend, generated: Generated, *, eos_ids: tuple[int, ...]) -> Any:
    """Return the cache of all tokens but the end tokens, aligned so that all rows end together."""
    tokens, lengths = generated.tokens, generated.lengths
    # The model has not read the last generated token yet.
    steps = jnp.max(lengths)
    last = jax.lax.dynamic_slice_in_dim(tokens, steps - 1, 1, axis=1)
    _, cache = extend(last, generated.cache)
    final = jnp.take_along_axis(tokens, lengths[:, None] - 1, axis=1)[:, 0]
    response_lengths = lengths - is_one_of(final, eos_ids)
    return cache.moved(steps - response_lengths)


class Dialog(NamedTuple):
    """A dialog whose last turn is rated.

    Attributes:
        context: the turns before the last.
        response: the last turn.
    """

    context: Sequence[str]
    response: str


class Rater:
    """The probabilities of the ratings of responses (Thoppilan et al. 2022, section 6.1).

    Args:
        model: a decoder-only model fine-tuned on ratings.

    Raises:
        ValueError: the model has an encoder, or a rating is not a single token.
    """

    def __init__(self, model: TextModel):
        if model.answers:
            raise ValueError("ratings need a decoder-only model: this one has an encoder")
        self._model = model
        self._ratings = dialog_rows.rating_ids(model.vocabulary)

    def __call__(self, dialogs: Sequence[Dialog]) -> list[dict[str, float]]:
        """Return P(1) of each attribute of each dialog, normalized over the ratings 0 and 1.

        A dialog that is too long is truncated on the left.
        """
        names = dialog_rows.ATTRIBUTES
        room = self._model.length - 1
        pairs = []
        for dialog in dialogs:
            for name in names:
                text = dialog_rows.rating_prompt(dialog.context, dialog.response, name)
                prompt = self._model.prompt(text)
                pairs += [
                    TokenPair(prompt[max(0, len(prompt) - room) :], [rating])
                    for rating in self._ratings
                ]
        scores = [score.total for score in self._model.score_tokens(pairs)]
        both = np.reshape(scores, (len(dialogs), len(names), len(self._ratings)))
        likely = 1 / (1 + np.exp(both[..., 0] - both[..., 1]))
        return [dict(zip(names, map(float, of_dialog), strict=True)) for of_dialog in likely]


# From prompts to the text that the model generates after each.
WriteReply = Callable[[Sequence[str]], Sequence[str]]


@dataclasses.dataclass
class Research:
    """The state of the research for one reply.

    Attributes:
        context: the dialog so far.
        base: the reply before research.
        calls: the calls of the toolset so far.
        reply: the reply to the user; None until the model writes it.
        done: whether research has ended.
    """

    context: Sequence[str]
    base: str
    calls: list[Call] = dataclasses.field(default_factory=list)
    reply: str | None = None
    done: bool = False

    @property
    def text(self) -> str:
        """The reply, or the base reply if research produced none."""
        return self.base if self.reply is None else self.reply

    def read(self, written: str, tools: Callable[[str], list[str]], *, most: int) -> None:
        """Do the step that the model wrote: call the toolset, or end.

        Args:
            written: the text that the model generated.
            tools: the toolset.
            most: maximum number of calls; a query beyond it ends research without a reply.
        """
        step = dialog_rows.read_research(written)
        if step.query and len(self.calls) < most:
            self.calls.append(Call(step.query, tools(step.query)))
            return
        self.reply = step.reply or None
        self.done = True


def research(
    contexts: Sequence[Sequence[str]],
    bases: Sequence[str],
    *,
    write: WriteReply,
    tools: Callable[[str], list[str]],
    calls: int,
) -> list[Research]:
    """Do the research for several dialogs' replies, batching each step over the dialogs.

    Args:
        contexts: the dialogs so far.
        bases: the reply of each before research.
        write: the model; it is called at most `calls` + 1 times.
        tools: the toolset, from a query to texts.
        calls: maximum calls of the toolset per dialog.
    """
    dialogs = [Research(*pair) for pair in zip(contexts, bases, strict=True)]
    while running := [dialog for dialog in dialogs if not dialog.done]:
        prompts = [
            dialog_rows.research_prompt(dialog.context, dialog.base, dialog.calls)
            for dialog in running
        ]
        for dialog, written in zip(running, write(prompts), strict=True):
            dialog.read(written, tools, most=calls)
    return dialogs


@dataclasses.dataclass(frozen=True)
class Reply:
    """The next turn of a dialog.

    Attributes:
        text: the text of the turn.
        base: the best candidate, which research may have changed; None if all were dropped.
        candidates: all sampled responses, including dropped responses.
        calls: the calls of the toolset.
    """

    text: str
    base: Candidate | None
    candidates: Sequence[Candidate]
    calls: Sequence[Call] = ()


class DialogModel:
    """Replies to dialogs with the best of several candidates.

    With several processes call it on all, with the same dialogs.

    Args:
        model: a decoder-only model fine-tuned on dialogs (configs/lamda.py).
        settings: the settings of the dialog.

    Raises:
        ValueError: the model has an encoder, a rating is not a single token of its vocabulary, or a
            tool's file is invalid.
    """

    def __init__(self, model: TextModel, settings: DialogSettings):
        self._model, self.settings = model, settings
        self._tools = toolset.build(
            calculator=settings.calculator,
            translator=settings.translator,
            retrieval=settings.retrieval,
        )
        dry = isinstance(model, DryTextModel)
        self._sample = (DryCandidateSampler if dry else CandidateSampler)(model, settings)

    def reply(self, contexts: Sequence[Sequence[str]], *, seed: int = 0) -> list[Reply]:
        """Return the next turn of each dialog.

        Args:
            contexts: the turns so far, by the user and the model in turn; the last is the user's.
            seed: added to the seed of the settings.

        Raises:
            ValueError: `contexts` is empty, or a dialog has no turn.
        """
        if not contexts or not all(contexts):
            raise ValueError("a reply needs a dialog with at least one turn")
        contexts = [[*self.settings.role, *context] for context in contexts]
        prompts = [dialog_rows.response_prompt(context) for context in contexts]
        replies = [self._choose(candidates) for candidates in self._sample(prompts, seed=seed)]
        return self._researched(contexts, replies) if self._tools else replies

    def _choose(self, candidates: Sequence[Candidate]) -> Reply:
        """Reply with the best safe candidate, the first of equally good candidates."""
        safe = [candidate for candidate in candidates if not self.settings.drops(candidate.ratings)]
        if not safe:
            return Reply(self.settings.refusal, None, candidates)
        best = max(safe, key=lambda candidate: self.settings.score(candidate.ratings))
        return Reply(best.text, best, candidates)

    def _researched(
        self, contexts: Sequence[Sequence[str]], replies: Sequence[Reply]
    ) -> list[Reply]:
        """Return the replies after research; refusals stay as they are."""
        assert self._tools is not None
        unrefused = [n for n, reply in enumerate(replies) if reply.base is not None]
        done = research(
            [contexts[n] for n in unrefused],
            [replies[n].text for n in unrefused],
            write=self._model.generate,
            tools=self._tools,
            calls=self.settings.calls,
        )
        researched = list(replies)
        for number, dialog in zip(unrefused, done, strict=True):
            researched[number] = dataclasses.replace(
                replies[number], text=dialog.text, calls=dialog.calls
            )
        return researched


_GREETING = "Your turn; an empty line begins a new dialog; Ctrl-C or Ctrl-D ends."
_PROMPT = "> "


def talk(model: DialogModel, *, lines: Iterable[str], out: TextIO) -> None:
    """Reply to each line as the next turn of a dialog, until the lines end."""
    turns: list[str] = []
    out.write(f"{_GREETING}\n{_PROMPT}")
    out.flush()
    try:
        for number, line in enumerate(lines):
            if turn := line.strip():
                [reply] = model.reply([[*turns, turn]], seed=number)
                turns += [turn, reply.text]
                out.write(_shown(reply))
            else:
                turns = []
            out.write(_PROMPT)
            out.flush()
    except KeyboardInterrupt:
        pass
    out.write("\n")


def _shown(reply: Reply) -> str:
    lines = [reply.text]
    for query, results in reply.calls:
        lines.append(f"    TS, {query} -> {' | '.join(results) or 'nothing'}")
    number = len(reply.candidates)
    if reply.base is None:
        lines.append(f"    all of {number} candidates are unsafe")
    else:
        rated = "   ".join(f"{name} {100 * p:.0f}%" for name, p in reply.base.ratings.items())
        lines.append(f"    best of {number}: {rated}")
    return "\n".join(lines) + "\n"
