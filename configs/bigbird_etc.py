"""BigBird-ETC, pretrained by masked words and hidden sentences of long documents.

    python -m t5x_like.train --config=configs/bigbird_etc.py:base \
        --config.workdir=runs/bigbird_etc --config.data.vocabulary=FOLDER

where FOLDER contains vocab.json and merges.txt, RoBERTa's as published or trained by
t5x_like.vocabulary. Sizes: `demo`, `base`, `large`, and for questions about documents `wikihop`,
`hotpotqa`, `natural_questions`, `wikihop_demo`, `hotpotqa_demo` (below). All but the demos follow
Zaheer et al. 2020, appendix E.1, table 8, and where marked (code) the released code of ETC (Ainslie
et al. 2020), on C4 instead of four corpora, and unless marked otherwise from random parameters:

| table 8, BigBird-etc | base | large | here |
|---|---|---|---|
| tokens of a block | 84 | 169 | model.block |
| window; random tokens | 3 blocks; none | the same | fixed |
| global tokens | 256 | 256 | model.global_tokens |
| tokens | 4096 | 4096 | data.lengths |
| layers, width, heads | 12, 768, 12 | 24, 1024, 16 | model |
| batch | 256 | 2048 | data.batch_size |
| Adam, 1e-4 after 10,000 steps, then linear | | | optimizer |
| dropout 0.1, also in attention | | | model.dropout |
| (code) a global token for each sentence, which sees only its sentence | | | model.hard_global |
| (code) relative positions up to 12 | | | model.distance |
| 15% of the tokens; here whole words | | | data.objective_settings.rate |
| share of hidden sentences: not found | | | 10% |
| weight of their loss: 0.2 to 0.8 in another implementation | | | loss.sentences=0.25 |
| weight decay, steps: not given | | | 0.01, 100,000: as the released code for BigBird |
| Adam's epsilon: not given | | | 1e-6: as the released code for BigBird |

To start from a RoBERTa, as in the paper, without its positions; the parameters of global tokens are
initialized as copies of the text's:

    python -m t5x_like.train --config=configs/bigbird_etc.py:base --config.initialize=roberta-base \
        --config.data.vocabulary=roberta-base ...

From the same file:

    --config.model.hard_global=False     global tokens see the whole document
    --config.loss.sentences=0.0          only masked words

The demo learns on documentation strings in minutes on 2 CPU cores, in rows of 16 blocks. The
held-out loss of masked words falls from log 4096 = 8.3 to 5.47 nats (unigram entropy of the
targets: 6.27); 69% of the hidden sentences are found among the hidden sentences of their row:

    python -m t5x_like.vocabulary --data=data/pydocs.py --kind=byte_bpe --size=4096 \
        --output=runs/bigbird_etc_demo/vocabulary
    python -m t5x_like.train --config=configs/bigbird_etc.py:demo

`wikihop` fine-tunes a pretrained network to choose among the candidate answers of WikiHop, whose
rows are FOLDER/wiki_hop/train.jsonl and validation.jsonl (data/reading_qa.py):

    python -m t5x_like.train --config=configs/bigbird_etc.py:wikihop \
        --config.initialize=runs/bigbird_etc_base --config.data.settings.folder=FOLDER

| appendix E.2, tables 12 and 13, BigBird-etc on WikiHop | base | large | here |
|---|---|---|---|
| global tokens | 430 | 430 | model.global_tokens |
| window; tokens | 252; 4096 | 507; 4096 | the folder's 3 blocks; data.lengths |
| most candidates | 79 | 79 | data.objective_settings.choices |
| batch | 64 | 64 | data.batch_size |
| rate | not given | 2e-5 or 5e-5 | (code) 4e-5, for base |
| epochs, of 43,738 rows | not given | 5 or 10 | (code) 15, for base |
| optimizer | not given | LAMB | (code) AdamW, decay 0.1, for base |
| (code) warmup of the first tenth, then linear decay to 0 | | | optimizer |
| (code) candidates and questions see all, sentences themselves | | | model.hard_global |

For `large`, as in table 13, start from a large network and add

    --config.optimizer.name=lamb --config.optimizer.learning_rate=5e-5 --config.train.steps=6834

`wikihop_demo` learns from random parameters on generated questions
(data/generators/generated_homes.py):

    python -m data.generators.generated_homes --output=runs/generated_homes
    python -m t5x_like.vocabulary --data=data/reading_qa.py --set folder=runs/generated_homes \
        --set tasks="('wiki_hop',)" --kind=byte_bpe --size=290 --limit_chars=200000 \
        --output=runs/bigbird_etc_wikihop_demo/vocabulary
    python -m t5x_like.train --config=configs/bigbird_etc.py:wikihop_demo

`hotpotqa` fine-tunes a pretrained network to answer HotpotQA's questions by a span, yes or no, and
to find the sentences that support the answer, in rows of FOLDER/hotpot_qa/train.jsonl and
validation.jsonl:

    python -m t5x_like.train --config=configs/bigbird_etc.py:hotpotqa \
        --config.initialize=runs/bigbird_etc_base --config.data.settings.folder=FOLDER

| appendix E.2, tables 12 and 13, BigBird-etc on HotpotQA | base | large | here |
|---|---|---|---|
| global tokens | 256 | 256 | model.global_tokens, data.objective_settings.sentences |
| window; tokens | 252; 4096 | 507; 4096 | the folder's 3 blocks; data.lengths |
| tokens of an answer (in the paper, words) | 30 | 30 | predict.longest_answer |
| batch | 32 | 32 | data.batch_size |
| rate | not given | 3e-5 | (code) 5e-5, for base |
| epochs, of 90,447 rows | not given | 5 or 9 | (code) 3, for base |
| optimizer | not given | Adam | (code) AdamW, decay 0.01, for base |
| threshold of a supporting fact | not given | not given | (code) 0.5, predict.threshold |
| (code) the mean of four losses: start, end, type, facts | | | the head supporting_facts |
| (code) warmup of the first tenth, then linear decay to 0 | | | optimizer |
| (code) [CLS] sees all, tokens of the question and sentences themselves | | | model.hard_global |

For `large`, as in table 13, start from a large network and add

    --config.optimizer.learning_rate=3e-5 --config.train.steps=14132

`hotpotqa_demo` learns from random parameters on generated questions
(data/generators/generated_homes.py):

    python -m data.generators.generated_homes --output=runs/generated_homes
    python -m t5x_like.vocabulary --data=data/reading_qa.py --set folder=runs/generated_homes \
        --set tasks="('hotpot_qa',)" --kind=wordpiece --size=140 --limit_chars=200000 \
        --output=runs/bigbird_etc_hotpotqa_demo/vocab.txt
    python -m t5x_like.train --config=configs/bigbird_etc.py:hotpotqa_demo

`natural_questions` fine-tunes a pretrained network to find the long and the short answer to a
question on a page, in rows of FOLDER/natural_questions_long/train.jsonl and validation.jsonl:

    python -m t5x_like.train --config=configs/bigbird_etc.py:natural_questions \
        --config.initialize=runs/bigbird_etc_base --config.data.settings.folder=FOLDER

| appendix E.2, tables 12 and 13, BigBird-etc on Natural Questions | base | large | here |
|---|---|---|---|
| global tokens | 230 | 230 | model.global_tokens |
| window; tokens | 252; 4096 | 507; 4096 | the folder's 3 blocks; data.lengths |
| stride of the parts of a page | 2048 | 2048 | data.objective_settings.stride |
| (code) longest question | 32 | 32 | data.objective_settings.longest_question |
| tokens of a short answer (in the paper, words) | 38 | 38 | predict.longest_answer |
| batch | 128 | 64 | data.batch_size |
| rate | not given | 5e-5 or 1e-4 | (code) 5e-5, for base |
| epochs, of 307,373 pages | not given | 3 or 5 | (code) 3, for base |
| optimizer | not given | Adam | (code) AdamW, decay 0.01, for base |
| (code) the mean of five losses: both ends of both answers, type | | | the head long_answers |
| (code) warmup of the first tenth, then linear decay to 0 | | | optimizer |

A long page has several rows; the epochs here are counted as if each page had 1 (median: 3,258
tokens). For `large` start from a large network and add

    --config.data.batch_size=64 --config.train.steps=14408
"""

import ml_collections

from t5x_like.experiment import recipes


def get_config(size: str = "base") -> ml_collections.ConfigDict:
    """Return the config of one of the sizes above."""
    own = {
        "demo": _demo,
        "wikihop": _wikihop,
        "wikihop_demo": _wikihop_demo,
        "hotpotqa": _hotpotqa,
        "hotpotqa_demo": _hotpotqa_demo,
        "natural_questions": _natural_questions,
    }
    if size in own:
        return own[size]()
    config = recipes.pretraining("bigbird_etc", size, others=own)
    recipes.masked_language_modeling(config, "etc", length=4096)
    config.loss = {"sentences": 0.25}
    config.data.objective_settings = {"hidden_rate": 0.1}
    config.data.batch_size = 2048 if size == "large" else 256
    config.train.steps = 100_000
    config.optimizer = {
        "name": "adamw",
        "epsilon": 1e-6,
        "weight_decay": 0.01,
        **recipes.linear(config, 1e-4, warmup_steps=10_000),
    }
    return config


def _demo() -> ml_collections.ConfigDict:
    config = recipes.demo(
        get_config("base"),
        vocabulary="runs/bigbird_etc_demo/vocabulary",
        block=8,
        global_tokens=16,
    )
    config.data.lengths = {"inputs": 128}
    config.data.batch_size = 16
    config.train.steps = 1200
    config.optimizer.update({"learning_rate": 1e-3, "warmup_steps": recipes.warmup(config, 100)})
    return config


def _wikihop() -> ml_collections.ConfigDict:
    """Fine-tune the pretrained network in `initialize`."""
    config = recipes.fine_tuning(
        "runs/bigbird_etc_wikihop", head="candidates", global_tokens=430, hard_global=True
    )
    _questions(config, "wiki_hop", choices=79, longest_choice=32, longest_question=64)
    config.data.batch_size = 64
    config.train.steps = 15 * 43_738 // 64
    _adamw(config, 4e-5, weight_decay=0.1)
    return config


def _hotpotqa() -> ml_collections.ConfigDict:
    """Fine-tune the pretrained network in `initialize`."""
    config = recipes.fine_tuning(
        "runs/bigbird_etc_hotpotqa", head="supporting_facts", global_tokens=256, hard_global=True
    )
    _questions(config, "hotpot_qa", sentences=256)
    config.predict = {"longest_answer": 30, "threshold": 0.5}
    config.data.batch_size = 32
    config.train.steps = 3 * 90_447 // 32
    _adamw(config, 5e-5, weight_decay=0.01)
    return config


def _natural_questions() -> ml_collections.ConfigDict:
    """Fine-tune the pretrained network in `initialize`."""
    config = recipes.fine_tuning(
        "runs/bigbird_etc_nq", head="long_answers", global_tokens=230, hard_global=True
    )
    _questions(config, "natural_questions_long", stride=2048, longest_question=32)
    config.predict = {"longest_answer": 38, "threshold": 0.0}
    config.data.batch_size = 128
    config.train.steps = 3 * 307_373 // 128
    _adamw(config, 5e-5, weight_decay=0.01)
    return config


def _questions(config: ml_collections.ConfigDict, task: str, **settings: int) -> None:
    """Read the rows of a task by the objective of the head, with settings of the objective."""
    config.data.module = "data/reading_qa.py"
    config.data.task = task
    config.data.settings = {"folder": ""}
    config.data.objective = config.model.head
    config.data.objective_settings = settings
    config.data.converter = "encoder"
    config.data.lengths = {"inputs": 4096}
    config.evaluate.every = 500
    config.evaluate.batches = 0
    config.checkpoint.keep = 1


def _adamw(config: ml_collections.ConfigDict, rate: float, *, weight_decay: float) -> None:
    config.optimizer = {
        "name": "adamw",
        "epsilon": 1e-6,
        "weight_decay": weight_decay,
        **recipes.linear(config, rate, warmup_steps=recipes.steps(config) // 10),
    }


def _questions_demo(workdir: str, vocabulary: str, **model: object) -> ml_collections.ConfigDict:
    config = recipes.demo(
        get_config("base"),
        vocabulary=f"{workdir}/{vocabulary}",
        block=8,
        d_model=64,
        d_ff=256,
        layers=3,
        initializer_range=0.2,
        **model,
    )
    config.workdir = workdir
    config.loss = {}
    return config


def _wikihop_demo() -> ml_collections.ConfigDict:
    config = _questions_demo(
        "runs/bigbird_etc_wikihop_demo",
        "vocabulary",
        head="candidates",
        global_tokens=16,
        vocab_size=290,
    )
    _questions(config, "wiki_hop", choices=4, longest_choice=4, longest_question=8)
    config.data.settings = {"folder": "runs/generated_homes"}
    config.data.lengths = {"inputs": 48}
    config.data.batch_size = 32
    config.train.steps = 600
    config.optimizer.update({"learning_rate": 2e-3, "warmup_steps": recipes.warmup(config, 50)})
    return config


def _hotpotqa_demo() -> ml_collections.ConfigDict:
    config = _questions_demo(
        "runs/bigbird_etc_hotpotqa_demo",
        "vocab.txt",
        head="supporting_facts",
        global_tokens=12,
        vocab_size=140,
    )
    _questions(config, "hotpot_qa", sentences=12)
    config.data.settings = {"folder": "runs/generated_homes"}
    config.data.lengths = {"inputs": 24}
    config.data.batch_size = 32
    config.train.steps = 1000
    config.optimizer.update({"learning_rate": 2e-3, "warmup_steps": recipes.warmup(config, 50)})
    return config
