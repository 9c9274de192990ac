"""Metrics by name, functions with seqio's interface: `METRICS[name](targets, predictions)`.

| names | compare | source |
|---|---|---|
| accuracy | classes, choices, texts | |
| matthews, f1_macro, f1_micro, f1_per_class, f1_binary | classes | as scikit-learn |
| rank_accuracy, roc_auc | scores of classes; the first also of choices | as scikit-learn |
| mean_reciprocal_rank | scores of choices | |
| ndcg, err | scores of choices, also graded | as scikit-learn; Chapelle et al. 2009 |
| pearson, spearman, mean_squared_error, mean_absolute_error | numbers | SciPy |
| tag_accuracy, entity_f1 | tags of words | conlleval |
| exact_match, f1, trivia_qa_exact_match, trivia_qa_f1 | texts | SQuAD, TriviaQA |
| long_answer | chosen candidates of several annotators | nq_eval.py |
| long_and_short_answers | the same, and short answers | nq_eval.py |
| supporting_facts | answers with the sentences that support them | hotpot_evaluate_v1.py |
| final_answer | answers at the end of texts | GSM8K in lm-eval |
| rouge_1, rouge_2, rouge_l, rouge_lsum | texts | rouge-score |
| bleu | texts | sacreBLEU |
| meteor, nist | texts | NLTK, without WordNet; as mteval-v13a |
| distinct_1, distinct_2 | predicted texts | Li et al. 2016 |
| multirc, record, referent | classes and texts in groups | SuperGLUE |
| sensibleness, specificity, interestingness, safety | labels of responses | LaMDA |
| groundedness, informativeness, citation_accuracy | labels of responses | LaMDA |
| helpfulness, role_consistency | labels of responses | LaMDA |
"""

import functools
from collections.abc import Iterable

from t5x_like.evaluation.metrics import (
    classes,
    dialog_labels,
    evidence,
    final_answers,
    groups,
    long_answers,
    rankings,
    tagged_words,
    texts,
)
from t5x_like.evaluation.metrics.metric import (
    CHOICE,
    CLASS,
    FACTS,
    LABELS,
    NUMBER,
    SPANS,
    TAGS,
    TEXT,
    Metric,
    ScoreMetric,
)

METRICS: dict[str, Metric] = {
    "accuracy": Metric((CLASS, CHOICE, TEXT), classes.accuracy, constants=classes.constants),
    "matthews": Metric((CLASS,), classes.matthews),
    "f1_macro": Metric((CLASS,), classes.f1_macro, constants=classes.constants),
    "f1_micro": Metric((CLASS,), classes.f1_micro, constants=classes.constants),
    "f1_per_class": Metric((CLASS,), classes.f1_per_class, numbers=("f1/*",)),
    "f1_binary": Metric((CLASS,), classes.f1_binary, positive=1, constants=classes.constants),
    "rank_accuracy": ScoreMetric((CLASS, CHOICE), classes.rank_accuracy),
    "roc_auc": ScoreMetric((CLASS,), classes.roc_auc),
    "mean_reciprocal_rank": ScoreMetric((CHOICE,), rankings.mean_reciprocal_rank),
    "ndcg": ScoreMetric((CHOICE,), rankings.ndcg),
    "err": ScoreMetric((CHOICE,), rankings.err),
    "pearson": Metric((NUMBER,), classes.pearson),
    "spearman": Metric((NUMBER,), classes.spearman),
    "mean_squared_error": Metric((NUMBER,), classes.mean_squared_error, smaller_is_better=True),
    "mean_absolute_error": Metric((NUMBER,), classes.mean_absolute_error, smaller_is_better=True),
    "tag_accuracy": Metric((TAGS,), tagged_words.tag_accuracy, constants=tagged_words.constants),
    "entity_f1": Metric(
        (TAGS,),
        tagged_words.entity_f1,
        numbers=("entity_precision", "entity_recall", "entity_f1", "entity_f1/*"),
    ),
    "exact_match": Metric((TEXT,), texts.squad_exact_match, constants=texts.constants),
    "f1": Metric((TEXT,), texts.squad_f1),
    "trivia_qa_exact_match": Metric(
        (TEXT,), texts.trivia_qa_exact_match, constants=texts.trivia_qa_constants
    ),
    "trivia_qa_f1": Metric((TEXT,), texts.trivia_qa_f1),
    "final_answer": Metric((TEXT,), final_answers.accuracy, constants=final_answers.constants),
    "long_answer": Metric(
        (TEXT,),
        long_answers.long_answer,
        numbers=long_answers.NAMES[:3],
    ),
    "long_and_short_answers": Metric(
        (SPANS,), long_answers.both_answers, numbers=long_answers.NAMES
    ),
    "supporting_facts": Metric((FACTS,), evidence.supporting_facts, numbers=evidence.NAMES),
    "rouge_1": Metric((TEXT,), functools.partial(texts.rouge, name="rouge_1")),
    "rouge_2": Metric((TEXT,), functools.partial(texts.rouge, name="rouge_2")),
    "rouge_l": Metric((TEXT,), functools.partial(texts.rouge, name="rouge_l")),
    "rouge_lsum": Metric((TEXT,), functools.partial(texts.rouge, name="rouge_lsum")),
    "bleu": Metric((TEXT,), texts.bleu),
    "meteor": Metric((TEXT,), texts.meteor),
    "nist": Metric((TEXT,), texts.nist),
    "distinct_1": Metric((TEXT,), functools.partial(texts.distinct, n=1)),
    "distinct_2": Metric((TEXT,), functools.partial(texts.distinct, n=2)),
    "multirc": Metric(
        (CLASS,),
        groups.multirc,
        positive=1,
        numbers=("multirc_exact_match", "multirc_f1a"),
        grouped=True,
    ),
    "record": Metric(
        (TEXT,), groups.record, numbers=("record_exact_match", "record_f1"), grouped=True
    ),
    "referent": Metric((TEXT,), groups.referent, grouped=True),
    **{
        name: Metric((LABELS,), functools.partial(dialog_labels.rated, name=name))
        for name in dialog_labels.NAMES
    },
}


def directions(names: Iterable[str]) -> dict[str, bool]:
    """Return {number: whether smaller values are better} for the numbers of some metrics."""
    return {
        number: METRICS[name].smaller_is_better
        for name in names
        for number in METRICS[name].numbers or (name,)
    }


__all__ = [
    "CHOICE",
    "CLASS",
    "FACTS",
    "LABELS",
    "METRICS",
    "NUMBER",
    "SPANS",
    "TAGS",
    "TEXT",
    "Metric",
    "ScoreMetric",
    "directions",
]
