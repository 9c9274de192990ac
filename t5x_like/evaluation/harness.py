"""Run tasks of lm-eval, EleutherAI's Language Model Evaluation Harness, on a text model.

`HarnessModel` computes the harness's requests to a model; `run` runs tasks of the package, which
the extra `harness` installs, without PyTorch.
"""

import collections
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_like.decoding.settings import OF_SAMPLING
from t5x_like.evaluation.documents import windows
from t5x_like.inference.likelihood import TokenPair
from t5x_like.inference.text_model import TextModel
from t5x_like.names import choose, hint

_MOST_NEW = 256  # maximum generated tokens if a task does not set them
# Settings of generation in tasks that `decode` has too.
_GENERATION = ("do_sample", *OF_SAMPLING, "num_beams", "repetition_penalty")
_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_IGNORED = ("until", "max_length", *_LENGTHS)


class HarnessModel:
    """A model for the harness: log-likelihoods of continuations and texts, generated texts.

    Texts are tokenized, truncated and cut as by the harness's class for Hugging Face models
    (`lm_eval.models.huggingface`, version 0.4.13), so that the numbers can be compared.

    Args:
        model: the text model.
        hugging_face: whether the model is a Hugging Face folder. Its decoder reads a start token
            before a text if its tokenizer has a dedicated start token (LLaMA's, not GPT-2's), and
            in whole texts predicts that token too, both as in the harness. A run's decoder always
            reads its start token, as in training, and never predicts it.

    All processes get the same requests and return the same answers.
    """

    def __init__(self, model: TextModel, *, hugging_face: bool):
        prompt_format, self._vocabulary = model.prompt_format, model.vocabulary
        begins, ends = self._vocabulary.bos_id, self._vocabulary.eos_id
        first = begins if hugging_face else prompt_format.start
        self._leads: list[int] = []
        if not model.encodes and first is not None and not (hugging_face and first == ends):
            self._leads = [first]
        self._predicts_start = hugging_face
        ids = (*self._leads, begins, ends, prompt_format.start)
        self._prefix = next(token for token in ids if token is not None)
        # A decoder's start is the first token of its prompts.
        self._model = model.without_start()
        self._format = self._model.prompt_format

    def loglikelihood(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[float, bool]]:
        """Return each continuation's natural log p, and whether greedy decoding generates it.

        Args:
            pairs: (context, continuation).

        Raises:
            ValueError: a continuation has no token, or is longer than the model reads.
        """
        scores = self._model.score_tokens([self._pair(*pair) for pair in pairs])
        return [(score.total, score.greedy) for score in scores]

    def loglikelihood_rolling(self, texts: Sequence[str]) -> list[float]:
        """Return the natural log p of each whole text, in windows that predict each token once."""
        cut = [self._windows(text) for text in texts]
        scores = iter(
            self._model.score_tokens(
                [pair for document_windows in cut for pair in document_windows]
            )
        )
        return [sum(next(scores).total for _ in document_windows) for document_windows in cut]

    def generate_until(self, requests: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
        """Return the text generated after each context, up to its first stop string.

        Args:
            requests: (context, settings of generation): `until`, the stop strings; `max_gen_toks`;
                `do_sample`, `temperature` and other settings with Hugging Face's names.

        Raises:
            ValueError: a setting is unknown, or there are more new tokens than a row has.
        """
        groups = collections.defaultdict(list)
        for index, (_, settings) in enumerate(requests):
            groups[json.dumps(dict(settings), sort_keys=True)].append(index)
        texts: dict[int, str] = {}
        for indices in groups.values():
            settings = requests[indices[0]][1]
            continuations = self._generate([requests[index][0] for index in indices], settings)
            texts |= dict(zip(indices, continuations, strict=True))
        return [texts[index] for index in range(len(requests))]

    def _generate(self, contexts: Sequence[str], settings: Mapping[str, Any]) -> list[str]:
        """Generate for requests with equal settings; batches have prompts of similar length."""
        model = self._model.without_start(**_decoding(settings))
        room = model.length if model.encodes else model.length - model.new_tokens
        if room < 1:
            raise ValueError(
                f"a task of the harness generates {model.new_tokens} tokens (max_gen_toks), and a "
                f"row of this model has {model.length}: at most {model.length - 1} are possible"
            )
        prompts = [self._read(text)[-room:] for text in contexts]
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        written = model.generate_tokens([prompts[index] for index in order])
        special = {*self._vocabulary.special_ids, self._vocabulary.pad_id}
        texts = [""] * len(prompts)
        for index, tokens in zip(order, written, strict=True):
            text = self._vocabulary.decode([token for token in tokens if token not in special])
            texts[index] = _until(text, settings.get("until"))
        return texts

    def _read(self, text: str) -> list[int]:
        """Tokenize a context, with the special tokens that the model reads."""
        if self._format.ends[0]:
            return [*self._leads, *self._model.tokens(text, end=True)]
        return [*self._leads, *self._vocabulary.encode(text)]

    def _pair(self, context: str, continuation: str) -> TokenPair:
        """Tokenize a context and its continuation; spaces at the context's end move to the latter.

        For a decoder both are tokenized together, and the tokens beyond the number of the context's
        tokens are the continuation's, as in the harness. If one token spans both, so that nothing
        is left for the continuation, the harness fails; here the continuation is then tokenized
        separately.
        """
        bare = context.rstrip()
        continuation = context[len(bare) :] + continuation
        if not bare:
            after = self._vocabulary.encode(continuation)
            before = [self._prefix] if after[:1] != [self._prefix] else []
            before, after = [*before, *after][:1], [*before, *after][1:]
            return self._fitting(TokenPair(before, after), where=continuation)
        before, after = self._read(bare), []
        if not self._format.ends[0]:
            after = self._read(bare + continuation)[len(before) :]
        after = after or self._vocabulary.encode(continuation)
        return self._fitting(TokenPair(before, after), where=continuation)

    def _fitting(self, pair: TokenPair, *, where: str) -> TokenPair:
        """Truncate the prompt of a pair on the left to fit a row."""
        if not pair.continuation:
            raise ValueError(f"the continuation {where!r:.80} of a task has no token of its own")
        if len(pair.continuation) > self._format.length:
            raise ValueError(
                f"the continuation {where!r:.80} of a task has {len(pair.continuation)} tokens, "
                f"and a row of this model {self._format.length}"
            )
        return TokenPair(pair.prompt[self._format.excess(pair) :], pair.continuation)

    def _windows(self, text: str) -> list[TokenPair]:
        """Split a text into windows that predict each token once, with as much context as fits."""
        tokens, length = self._read(text), self._format.length
        if not self._predicts_start:
            tokens = tokens[len(self._leads) :]
        return windows(tokens, start=self._prefix, length=length, stride=0)


def _decoding(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a request's settings to settings of `decode`: greedy, unless it samples."""
    for name in settings:
        choose("generation_kwargs of the task", name, dict.fromkeys((*_GENERATION, *_IGNORED)))
    most = next((settings[name] for name in _LENGTHS if name in settings), _MOST_NEW)
    decode = {name: settings[name] for name in _GENERATION if settings.get(name) is not None}
    if not decode.setdefault("do_sample", decode.get("temperature", 0.0) > 0):
        decode = {name: value for name, value in decode.items() if name not in OF_SAMPLING}
    return {"num_beams": 1, **decode, "max_new_tokens": int(most)}


def _until(text: str, stops: str | Sequence[str] | None) -> str:
    """Return the text before the first stop string."""
    for stop in [stops] if isinstance(stops, str) else stops or ():
        if stop:
            text = text.partition(stop)[0]
    return text


def language_model(answers: HarnessModel) -> Any:
    """Wrap `HarnessModel` as an `lm_eval.api.model.LM`; the package must be installed."""
    from lm_eval.api.model import LM

    class Model(LM):
        """Forwards requests to `answers`, and adds their results to the harness's cache."""

        def _ask(self, kind: str, requests: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
            results = getattr(answers, kind)(arguments)
            for request, answer in zip(requests, results, strict=True):
                self.cache_hook.add_partial(kind, request.args, answer)
            return results

        def loglikelihood(self, requests: Any, **unused: Any) -> list[tuple[float, bool]]:
            return self._ask("loglikelihood", requests, [request.args for request in requests])

        def loglikelihood_rolling(self, requests: Any, **unused: Any) -> list[float]:
            return self._ask(
                "loglikelihood_rolling", requests, [request.args[0] for request in requests]
            )

        def generate_until(self, requests: Any, **unused: Any) -> list[str]:
            return self._ask("generate_until", requests, [request.args for request in requests])

    return Model()


def check_tasks(tasks: Sequence[str], *, folder: str | None) -> Any:
    """Return the harness's task manager, after checking that it knows all tasks.

    Args:
        tasks: names of tasks, groups or tags.
        folder: folder of the user's tasks, YAML files; None for only the package's tasks.

    Raises:
        ValueError: lm-eval is not installed, or the folder or a task does not exist.
    """
    try:
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise ValueError(
            "--harness needs the package lm-eval: pip install 't5x_like[harness]' (in a clone: "
            f"pip install -e '.[harness]'): {error}"
        ) from error
    if folder and not pathlib.Path(folder).is_dir():
        raise ValueError(f"--harness_folder={folder!r} is not a folder")
    manager = TaskManager(include_path=folder or None)
    known = dict.fromkeys(manager.all_tasks)
    for task in tasks:
        if task not in known:
            near = hint(task, known).partition(" Allowed: ")[0]
            raise ValueError(f"--harness has the task {task!r}, which does not exist.{near}")
    return manager


def run(
    answers: HarnessModel,
    tasks: Sequence[str],
    *,
    manager: Any,
    shots: int | None,
    limit: int | None,
) -> dict[str, dict[str, float]]:
    """Return the metrics of each task, with their names in the harness: `acc`, `acc_stderr`, ...

    Args:
        answers: the model.
        tasks: names of tasks.
        manager: from `check_tasks`.
        shots: number of examples in a prompt; None for each task's default.
        limit: number of first examples of a task to use; None for all.
    """
    from lm_eval import simple_evaluate

    results = simple_evaluate(
        model=language_model(answers),
        tasks=list(tasks),
        num_fewshot=shots,
        limit=limit,
        task_manager=manager,
        log_samples=False,
    )
    return {task: numbers(metrics) for task, metrics in results["results"].items()}


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of a task; the filter "none" is removed from names like "acc,none"."""
    return {
        name.removesuffix(",none").replace(",", "/"): float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
