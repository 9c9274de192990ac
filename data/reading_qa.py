r"""Questions about passages, text to text: DROP, HotpotQA, TriviaQA, WikiHop, CoQA, QuAC, NQ.

    --config.data.module=data/reading_qa.py --config.data.task=hotpot_qa
    --config.data.settings="{'folder': 'questions'}"

The tasks are `drop` (Dua et al. 2019), `hotpot_qa` (Yang et al. 2018), `trivia_qa_reading` (Joshi
et al. 2017), `wiki_hop` (Welbl et al. 2018), `coqa` (Reddy et al. 2019), `quac` (Choi et al. 2018)
and `natural_questions_long` (Kwiatkowski et al. 2019). They are read from FOLDER/drop/train.jsonl
and so on, in the schema of Hugging Face, which is in the dataset scripts of huggingface/datasets,
such as datasets/drop/drop.py:

- ucinlp/drop: passage, question, answers_spans (spans, types).
- hotpotqa/hotpot_qa, distractor or fullwiki: question, answer, context (title, sentences), and for
  the labelled form supporting_facts (title, sent_id).
- mandarjoshi/trivia_qa, rc: question, answer, entity_pages (wiki_context), search_results
  (search_context). TriviaQA is also read from the output of `tfds build trivia_qa/rc`.
- wiki_hop, original: question, answer, candidates, supports. A model that ranks texts by their
  likelihood chooses among the candidates, as do heads with the objective multiple_choice or, for
  BigBird-ETC, candidates.
- stanfordnlp/coqa: story, questions, answers (input_text).
- allenai/quac: context, questions, answers (texts), orig_answers (texts).
- google-research-datasets/natural_questions: question (text), document (tokens), annotations,
  long_answer_candidates. The passage lists the candidates that are in no other candidate, "[1] Ann
  came. [2] She left.", without HTML, and the answer is a number, "[2]", or "none". The
  labelled form also reads short_answers (start_token, end_token) and yes_no_answer.

The text form follows UnifiedQA (Khashabi et al. 2020), which fine-tuned T5, except for its lower
case; "\n" there is a backslash and an n. The question of a conversation has the questions and
answers before it. Most answers are numbers, dates, "yes", "no" or free text, so that only HotpotQA
and Natural Questions have a form with spans. docs/tasks.md has all settings, and what differs from
each benchmark's own script.
"""

import collections
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from t5x_like.evaluation.metrics.long_answers import AGREE, NONE
from t5x_like.preprocessing.benchmark_tasks import Benchmark, Suite, benchmark
from t5x_like.preprocessing.benchmark_tasks.benchmark import Raw

_WORDS = ("exact_match", "f1")
_CANDIDATES = "long_answer_candidates.start_token"
_SIDES = ("start", "end")
_WITHIN = "within"  # a candidate that is in another: the passage does not list it


def _questions(inputs: str, **more: Any) -> Benchmark:
    settings = {"answers": "right", "metrics": _WORDS, **more}
    return Benchmark(inputs=inputs, targets="{target}", **settings)


def _join_spans(raw: Raw) -> Raw:
    """Make all spans the target; a single span is right too, since the rows do not group them."""
    spans = [*dict.fromkeys(benchmark.texts(raw, "answers_spans.spans"))]
    target = ", ".join(spans)
    return {**raw, "target": target, "right": [*dict.fromkeys([target, *spans])]}


def _join_paragraphs(raw: Raw) -> Raw:
    """Join the paragraphs of HotpotQA, each after its title; sentences begin with their space."""
    titles = benchmark.texts(raw, "context.title")
    paragraphs = benchmark.value(raw, "context.sentences")
    if not isinstance(paragraphs, list) or len(paragraphs) != len(titles):
        raise ValueError(f"context.sentences must have a list for each of {len(titles)} titles.")
    passage, context = [], []
    for title, sentences in zip(titles, paragraphs, strict=True):
        passage.append(f"{title}: {''.join(sentences).strip()}")
        context.append("\n".join(" ".join(line.split()) for line in (title, *sentences)))
    answer = benchmark.text(raw, "answer")
    return {
        **raw,
        "passage": " ".join(passage),
        "context": context,
        "target": answer,
        "right": [answer],
    }


def _join_documents(raw: Raw) -> Raw:
    """Join the Wikipedia pages of a question of TriviaQA, or what a search found if it has none."""
    has_pages = benchmark.value(raw, "entity_pages.wiki_context")
    field = "entity_pages.wiki_context" if has_pages else "search_results.search_context"
    return {**raw, "passage": "\n".join(benchmark.texts(raw, field))}


def _join_supports(raw: Raw) -> Raw:
    answer, candidates = benchmark.text(raw, "answer"), benchmark.texts(raw, "candidates")
    if answer not in candidates:
        raise ValueError(f"answer={answer!r} is not one of the {len(candidates)} candidates.")
    if not all(map(str.strip, candidates)):
        raise ValueError(f"candidates={candidates!r:.80} has a blank text.")
    supports = benchmark.texts(raw, "supports")
    return {
        **raw,
        "passage": " ".join(supports),
        "documents": "\n".join(" ".join(one.split()) for one in supports),
        "target": answer,
        "accepted": [answer],
        "index": candidates.index(answer),
    }


def _turns(raw: Raw, said: Sequence[str], right: Sequence[Sequence[str]]) -> Iterable[Raw]:
    """Yield a row for each question of a conversation, after the questions and answers before it.

    Raises:
        ValueError: there is not one answer for each question.
    """
    questions = benchmark.texts(raw, "questions")
    if not len(questions) == len(said) == len(right):
        raise ValueError(f"there are {len(questions)} questions and {len(said)} answers.")
    before = ""
    for question, answer, answers in zip(questions, said, right, strict=True):
        yield {**raw, "turns": f"{before}Q: {question}", "target": answer, "right": answers}
        before += f"Q: {question} A: {answer} "


def _turns_of_coqa(raw: Raw) -> Iterable[Raw]:
    answers = benchmark.texts(raw, "answers.input_text")
    return _turns(raw, answers, [[answer] for answer in answers])


def _turns_of_quac(raw: Raw) -> Iterable[Raw]:
    right = benchmark.value(raw, "answers.texts")
    if not isinstance(right, list):
        raise ValueError(f"answers.texts={right!r:.80} must have a list for each question.")
    return _turns(raw, benchmark.texts(raw, "orig_answers.texts"), right)


def _list_candidates(raw: Raw) -> Raw:
    """List the top-level candidates of a page, and the candidate that each annotator chose.

    Raises:
        ValueError: a field is missing, or its lists have different lengths.
    """
    words, spans = _page(raw)
    names = {span: f"[{number}]" for number, span in enumerate(spans, start=1)}
    passage = " ".join(
        " ".join([name, *filter(None, words[start:end])]) for (start, end), name in names.items()
    )
    chosen = [_chosen(one, names) for one in benchmark.value(raw, "annotations.long_answer")]
    has_answer = len(chosen) - chosen.count(NONE) >= min(AGREE, len(chosen))
    counts = collections.Counter(one for one in chosen if one not in (NONE, _WITHIN))
    target = counts.most_common(1)[0][0] if has_answer and counts else NONE
    return {**raw, "passage": passage, "target": target, "right": chosen}


def _page(raw: Raw) -> tuple[list[str], list[tuple[int, int]]]:
    """Return the tokens of a page, "" for HTML, and the first token and end of each paragraph."""
    tokens = benchmark.texts(raw, "document.tokens.token")
    is_html = _column(raw, "document.tokens.is_html", tokens)
    words = ["" if html else token for token, html in zip(tokens, is_html, strict=True)]
    starts, ends, top = (
        _column(raw, f"long_answer_candidates.{name}", benchmark.value(raw, _CANDIDATES))
        for name in ("start_token", "end_token", "top_level")
    )
    return words, [one[:2] for one in zip(starts, ends, top, strict=True) if one[2]]


def _number_words(raw: Raw) -> Raw:
    """Return the paragraphs of a page, and the words of each annotator's answers in them.

    Raises:
        ValueError: a field is missing, or its lists have different lengths.
    """
    words, spans = _page(raw)
    in_paragraph = {number for start, end in spans for number in range(start, end)}
    texts = ["".join(word.split()) if n in in_paragraph else "" for n, word in enumerate(words)]
    before = [*itertools.accumulate(map(bool, texts), initial=0)]

    def named(pairs: Iterable[tuple[int, int]]) -> str:
        inside = [(before[start], before[end]) for start, end in pairs if 0 <= start < end]
        return " ".join(f"{first}-{end}" for first, end in sorted(inside) if first < end) or NONE

    longs = [named([_tokens(one)]) for one in benchmark.value(raw, "annotations.long_answer")]
    shorts = [
        named(zip(*(benchmark.value(one, f"{side}_token") for side in _SIDES), strict=True))
        for one in _column(raw, "annotations.short_answers", longs)
    ]
    closed = _column(raw, "annotations.yes_no_answer", longs)
    return {
        **raw,
        "context": [" ".join(filter(None, texts[start:end])) for start, end in spans],
        "long_answers": longs,
        "short_answers": [
            span if answer < 0 else ("no", "yes")[answer]
            for span, answer in zip(shorts, closed, strict=True)
        ],
    }


def _tokens(annotation: Raw) -> tuple[int, int]:
    """Return the first token of a long answer and its end; -1 for none."""
    start, end = (benchmark.number(annotation, f"{side}_token") for side in _SIDES)
    return start, end


def _column(raw: Raw, path: str, beside: Sequence[Any]) -> list[Any]:
    """Return a field that is a list as long as another."""
    found = benchmark.value(raw, path)
    if not isinstance(found, list) or len(found) != len(beside):
        raise ValueError(f"{path}={found!r:.80} must be a list of {len(beside)} values.")
    return found


def _chosen(annotation: Raw, names: Mapping[tuple[int, int], str]) -> str:
    """Return the name of the candidate that an annotator chose."""
    start, end = _tokens(annotation)
    return NONE if start < 0 else names.get((start, end), _WITHIN)


READING = {
    "drop": _questions("{question} \\n {passage}", prepare=_join_spans),
    "hotpot_qa": _questions(
        "{question} \\n {passage}",
        prepare=_join_paragraphs,
        kind="supporting_facts",
        text_a="{question}",
        label="supporting_facts",
        metrics=("supporting_facts",),
        text_metrics=_WORDS,
    ),
    "trivia_qa_reading": Benchmark(
        inputs="{question} \\n {passage}",
        targets="{answer.value}",
        answers="answer.aliases",
        prepare=_join_documents,
        metrics=("trivia_qa_exact_match", "trivia_qa_f1"),
        prepared="trivia_qa/rc:1.1.0",
    ),
    "wiki_hop": _questions(
        "{question} \\n {passage}",
        prepare=_join_supports,
        answers="accepted",
        candidates="candidates",
        kind="multiple_choice",
        text_a="{documents}",
        text_b="{question}",
        label="index",
        choices="candidates",
        metrics=("accuracy",),
        text_metrics=_WORDS,
    ),
    "coqa": _questions("{turns} \\n {story}", for_text=_turns_of_coqa),
    "quac": _questions("{turns} \\n {context}", for_text=_turns_of_quac),
    "natural_questions_long": _questions(
        "{question.text} \\n {passage}",
        prepare=_list_candidates,
        for_labels=_number_words,
        kind="long_answers",
        text_a="{question.text}",
        metrics=("long_and_short_answers",),
        text_metrics=("long_answer",),
    ),
}

_SUITE = Suite(READING)
register, documents = _SUITE.register, _SUITE.documents
labels, measure = _SUITE.labels, _SUITE.measure
