r"""Human feedback in your own files: demonstrations, and comparisons of responses.

    --config.data.module=data/preference_files.py --config.data.task=preference_files
    --config.data.settings.train=comparisons.jsonl --config.data.objective=comparisons

Each line of a .jsonl file has one of the forms below. A conversation is a list of messages {"role",
"content"} with the roles system, user and assistant; `template` sets how it is written: "plain"
(User: ..., Assistant: ...), "chatml", a string with {} for each role, or a folder or model of the
hub that has a chat template (docs/folders.md). Strings are read as they are.

| fields | content |
|---|---|
| prompt, responses, ranks | two or more responses, and the rank of each, 1 for the best |
| prompt, chosen, rejected | two responses: strings, or conversations that begin with the prompt |
| chosen, rejected | two conversations, or strings of turns "\n\nHuman: ...\n\nAssistant: ..." |
| info, summaries, choice | a post and two summaries (openai/summarize_from_feedback) |
| question, answer_0, answer_1, score_0, score_1 | two answers (openai/webgpt_comparisons) |
| prompt, response | a demonstration; also as `completion`, or as `inputs` and `targets` |
| messages | a conversation: one demonstration per assistant turn |

    {"prompt": "A pet?", "responses": [" A dog.", " No.", " Cat"], "ranks": [1, 3, 2]}
    {"prompt": "A pet?", "chosen": " A dog.", "rejected": " No."}
    {"messages": [{"role": "user", "content": "A pet?"},
                  {"role": "assistant", "content": "A dog."}]}

The rows of Anthropic/hh-rlhf and of ultrafeedback_binarized have these forms. The `question` of
webgpt_comparisons is an object with its text in `full_text`, which is written as a user turn; the
answer with the higher score is preferred, whatever the margin. Two responses of the same rank are
tied and form no pair; a line whose responses are all tied is skipped, and the number of such lines
is logged.
The objective `comparisons` reads lines with two or more responses; so does `text_to_text`, for
supervised fine-tuning, which uses the best response as the demonstration.

The lines of `validation` are for evaluation; without it, the share `held_out` of the prompts is.
All lines are checked at the start and kept in memory; an error names the file and the line.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from absl import logging

from t5x_like import reading
from t5x_like.grain_pipeline.corpus import Corpus, in_memory, is_held_out
from t5x_like.names import check_settings, hint
from t5x_like.objectives import AnyObjective
from t5x_like.vocabularies import Vocabulary
from t5x_like.vocabularies.chat import ChatTemplate, Turn, check_turns, find_template

if TYPE_CHECKING:
    from t5x_like.preprocessing.seqio_objectives import SeqioObjective

Row = dict[str, Any]  # prompt, responses, ranks

# The response fields of a demonstration, by its prompt field.
_DEMONSTRATIONS = {"prompt": ("response", "completion"), "inputs": ("targets",)}
_HUMAN, _ASSISTANT = "\n\nHuman:", "\n\nAssistant:"


def corpora(
    *, objective: AnyObjective | None = None, name: str = "preference_files", **settings: Any
) -> dict[str, Corpus]:
    """Return {name: the rows of both splits, with the fields that the objective reads}.

    Args:
        objective: comparisons or text_to_text; None to read only texts.
        name: name of the task.
        settings: arguments of `read`.

    Raises:
        ValueError: see `read`; or a line has more responses than the objective allows per example,
            or nothing to compare.
    """
    check_settings("data.settings", read, settings, given=["most"])
    most = objective.converter_settings.get("responses", 0) if objective else 0
    found = read(most, **settings)
    if objective and objective.name != "comparisons":
        found = {split: [_best(row) for row in rows] for split, rows in found.items()}
    files = {"train": settings.get("train", "")}
    files["validation"] = settings.get("validation") or files["train"]
    return {name: in_memory(found, files=files)}


def register(vocabulary: Vocabulary, objective: "SeqioObjective", **settings: Any) -> None:
    """Add the task `name` to seqio, with the splits "train" and "validation"; see `corpora`."""
    from t5x_like.preprocessing import sources  # loads TensorFlow

    made = corpora(objective=objective.plain, **settings)
    sources.add_corpora(made, vocabulary=vocabulary, objective=objective)


def documents(split: str, **settings: Any) -> Any:
    """Return the prompts and responses of a split as a tf.data dataset, {"text": string}."""
    from t5x_like.preprocessing import sources  # loads TensorFlow

    return sources.texts_of(corpora(**settings), split)


def _best(row: Row) -> dict[str, str]:
    """Return the prompt and the best response as a pair."""
    best = row["ranks"].index(min(row["ranks"]))
    return {"inputs": row["prompt"], "targets": row["responses"][best]}


def read(
    most: int = 0,
    /,
    *,
    train: str = "",
    validation: str = "",
    held_out: float = 0.05,
    template: str | dict = "plain",
) -> dict[str, Sequence[Row]]:
    """Read and check the rows of both splits.

    Args:
        most: if above 1, a line needs two to `most` responses; if 1, exactly one; if 0, one
            response (a demonstration) is enough, and any number is allowed.
        train, validation: paths; "" for a split without lines.
        held_out: the share of the prompts of `train` for validation, if `validation` is not set.
        template: how the turns of a conversation are written, see `vocabularies.chat`.

    Raises:
        ValueError: neither file is set, a file does not exist, or a line is bad.
    """
    if not train and not validation:
        raise ValueError(
            "data.settings.train is not set: give a .jsonl file (data/preference_files.py)"
        )
    if not 0 <= held_out < 1:
        raise ValueError(f"data.settings.held_out={held_out} must be a share from 0 to below 1")
    chat = find_template(template)
    files = {"train": train, "validation": validation}
    rows = {
        split: _rows(split, path, chat, most=most) if path else [] for split, path in files.items()
    }
    if validation or not held_out:
        return dict(rows)
    pairs = [(row, is_held_out(row["prompt"], fraction=held_out)) for row in rows["train"]]
    return {
        "train": [row for row, out in pairs if not out],
        "validation": [row for row, out in pairs if out],
    }


def _rows(setting: str, path: str, chat: ChatTemplate, *, most: int) -> list[Row]:
    path = reading.existing_file(f"data.settings.{setting}", path, reading.with_endings([".jsonl"]))
    rows: list[Row] = []
    ties = 0
    for where, raw in reading.json_lines(path):
        try:
            found = list(_read_row(raw, chat))
            for row in found:
                _check(row, most=most)
        except ValueError as error:
            _fail(where, str(error))
        tied = [row for row in found if len(row["ranks"]) > 1 and len(set(row["ranks"])) == 1]
        ties += len(tied)
        rows += [row for row in found if row not in tied]
    if ties:
        logging.info("%s: %d lines in which all responses are tied are left out", path, ties)
    return rows or _fail(path, f"it has no lines to learn from; {ties} ties were left out")


def _check(row: Row, *, most: int) -> None:
    """Check a row whose fields have the right types.

    Raises:
        ValueError: its ranks are invalid, or it has too many or too few responses.
    """
    responses, ranks = row["responses"], row["ranks"]
    if len(ranks) != len(responses):
        raise ValueError(f"{len(responses)} responses have {len(ranks)} ranks: each needs one")
    if any(type(rank) is not int or rank < 1 for rank in ranks) or (ranks and min(ranks) != 1):
        raise ValueError(f"ranks={ranks} must be whole numbers, 1 for the best response")
    if len(responses) < (2 if most > 1 else 1):
        raise ValueError(f"responses: {len(responses)} cannot be compared, give two or more")
    if most and len(responses) > most:
        raise ValueError(
            f"{len(responses)} responses are more than data.objective_settings.responses={most}"
        )


def _read_row(raw: Mapping[str, Any], chat: ChatTemplate) -> Iterator[Row]:
    """Yield the rows of a line.

    Raises:
        ValueError: it has none of the forms in the table above.
    """
    if "messages" in raw:
        yield from _conversation(check_turns(raw["messages"]), chat)
    elif "responses" in raw:
        yield _ranked(raw, chat)
    elif "chosen" in raw or "rejected" in raw:
        yield _pair(raw, chat)
    elif "summaries" in raw:
        yield _summaries(raw)
    elif "answer_0" in raw or "answer_1" in raw:
        yield _scored_answers(raw, chat)
    else:
        yield _demonstration(raw, chat)


def _conversation(turns: Sequence[Turn], chat: ChatTemplate) -> Iterator[Row]:
    """Yield a demonstration for each assistant turn."""
    answers = [n for n, turn in enumerate(turns) if turn["role"] == "assistant"]
    if not answers:
        raise ValueError("messages has no answer of the assistant")
    for n in answers:
        response = chat.answer(turns[: n + 1])
        yield {"prompt": chat.prompt(turns[:n]), "responses": [response], "ranks": [1]}


def _ranked(raw: Mapping[str, Any], chat: ChatTemplate) -> Row:
    responses, ranks = raw["responses"], raw.get("ranks")
    if not isinstance(responses, list):
        raise ValueError("responses is not a list")
    if not isinstance(ranks, list):
        raise ValueError("there is no list 'ranks': without a ranking no response has won")
    prompt = _prompt(raw, "prompt", chat)
    return {
        "prompt": prompt,
        "responses": [_response(one, raw["prompt"], chat) for one in responses],
        "ranks": ranks,
    }


def _pair(raw: Mapping[str, Any], chat: ChatTemplate) -> Row:
    names = ("chosen", "rejected")
    missing = [name for name in names if raw.get(name) is None]
    if missing:
        raise ValueError(f"there is no {missing[0]!r}: a comparison needs a winner and a loser")
    both = [_turns(raw[name]) for name in names]
    if all(both):
        if both[0][:-1] != both[1][:-1]:
            raise ValueError("chosen and rejected differ before the last answer")
        prompt = chat.prompt(both[0][:-1])
        responses = [chat.answer(turns) for turns in both]
    else:
        prompt = _prompt(raw, "prompt", chat)
        responses = [_response(raw[name], raw["prompt"], chat) for name in names]
    return {"prompt": prompt, "responses": responses, "ranks": [1, 2]}


def _turns(value: Any) -> Sequence[Turn]:
    """Parse a transcript that ends with an assistant turn; return [] if the text is not one."""
    if isinstance(value, str):
        if not value.startswith(_HUMAN) or _ASSISTANT not in value:
            return []
        parts = value.replace(_ASSISTANT, f"\0{_ASSISTANT}").replace(_HUMAN, f"\0{_HUMAN}")
        turns = [_turn(part) for part in parts.split("\0")[1:]]
    else:
        turns = list(check_turns(value))
    if turns[-1]["role"] != "assistant":
        raise ValueError("a conversation does not end with an answer of the assistant")
    return turns


def _turn(text: str) -> Turn:
    role, begin = ("user", _HUMAN) if text.startswith(_HUMAN) else ("assistant", _ASSISTANT)
    return {"role": role, "content": text.removeprefix(begin).strip()}


def _summaries(raw: Mapping[str, Any]) -> Row:
    """Compare two summaries of a post, formatted as in Stiennon et al. 2020."""
    info, summaries, choice = (raw.get(name) for name in ("info", "summaries", "choice"))
    if not isinstance(info, dict) or not isinstance(summaries, list) or len(summaries) != 2:
        raise ValueError("info is not an object, or summaries not a list of two")
    if choice not in (0, 1):
        raise ValueError(f"choice={choice!r} must be 0 or 1: a comparison needs a winner")
    texts = [one.get("text") if isinstance(one, dict) else None for one in summaries]
    fields = ("article",) if info.get("article") else ("subreddit", "title", "post")
    if not all(isinstance(text, str) for text in (*texts, *map(info.get, fields))):
        raise ValueError(f"summaries lack a text, or info one of {', '.join(fields)}")
    prompt = "{article}\n\nTL;DR:"
    if not info.get("article"):
        prompt = "SUBREDDIT: r/{subreddit}\n\nTITLE: {title}\n\nPOST: {post}\n\nTL;DR:"
    ranks = [1, 2] if choice == 0 else [2, 1]
    responses = [f" {text.strip()}" for text in texts if text is not None]
    return {"prompt": prompt.format(**info), "responses": responses, "ranks": ranks}


def _scored_answers(raw: Mapping[str, Any], chat: ChatTemplate) -> Row:
    """Rank two answers to a question: the answer with the higher score is better.

    Nakano et al. 2021, appendix K, train on equal scores with a soft label of 0.5; here they are a
    tie.
    """
    question = raw.get("question")
    text = question.get("full_text") if isinstance(question, dict) else None
    answers: list[Any] = [raw.get(f"answer_{n}") for n in (0, 1)]
    scores: list[Any] = [raw.get(f"score_{n}") for n in (0, 1)]
    if not all(isinstance(one, str) for one in (text, *answers)):
        raise ValueError("question.full_text, answer_0 and answer_1 are not three strings")
    first, second = scores
    if not all(type(one) in (int, float) for one in scores):
        raise ValueError(f"score_0={first!r} and score_1={second!r} are not two numbers")
    asked = [{"role": "user", "content": str(text).strip()}]
    replies = [{"role": "assistant", "content": str(answer).strip()} for answer in answers]
    return {
        "prompt": chat.prompt(asked),
        "responses": [chat.answer([*asked, reply]) for reply in replies],
        "ranks": [1 + int(first < second), 1 + int(second < first)],
    }


def _demonstration(raw: Mapping[str, Any], chat: ChatTemplate) -> Row:
    for prompt, names in _DEMONSTRATIONS.items():
        for name in names:
            if prompt in raw and name in raw:
                written = _prompt(raw, prompt, chat)
                response = _response(raw[name], raw[prompt], chat)
                return {"prompt": written, "responses": [response], "ranks": [1]}
    raise ValueError(
        f"the fields {', '.join(raw)} are neither a demonstration nor a comparison: see the table "
        "in data/preference_files.py"
    )


def _prompt(raw: Mapping[str, Any], name: str, chat: ChatTemplate) -> str:
    """Return a prompt: a string as it is, or a formatted conversation."""
    value = raw.get(name)
    if isinstance(value, str):
        return value
    if value is None:
        raise ValueError(f"there is no {name!r}.{hint(name, raw)}")
    return chat.prompt(check_turns(value))


def _response(value: Any, prompt: str | Sequence[Turn], chat: ChatTemplate) -> str:
    """Return a response: a string as it is, or one assistant message (possibly in a list).

    Args:
        value: the response.
        prompt: a text, or checked turns.
        chat: how turns are written.
    """
    if isinstance(value, str):
        return value
    turns = check_turns([value] if isinstance(value, dict) else value)
    if len(turns) != 1 or turns[0]["role"] != "assistant":
        raise ValueError("a response is a string, or one message of the assistant")
    before = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return chat.answer([*before, turns[0]])


def _fail(where: str, problem: str) -> NoReturn:
    raise ValueError(f"{where}: {problem}")
