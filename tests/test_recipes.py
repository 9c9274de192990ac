"""Recipes: in every config, numbers that follow from others follow when those are set."""

import importlib
import json
import pathlib
import pkgutil

import pytest

import configs
from configs import (
    bert,
    fine_tuning,
    gpt3,
    llama,
    own,
    palm,
    plans,
    published_runs,
    t5,
    transformer,
    xlnet,
)
from t5x_like import config, systems
from t5x_like.config import parse
from t5x_like.experiment import command_line, completion, model_side, recipes
from t5x_like.experiment.run import of_config
from t5x_like.training import schedules

PAPER_SYSTEMS = sorted(
    {info.name for info in pkgutil.iter_modules(configs.__path__)}
    # The configs of these need the folder of a policy.
    & set(systems.names()) - {"dpo", "instructgpt", "rule_model", "sparrow"}
)
# What a file has besides the sizes of its system.
OTHERS = {
    "deberta": ("v3_demo", "v3_base"),
    "bigbird_pegasus": ("xsum", "cnn_dailymail"),
    "bart": ("pairs", "translation", "translation_base", "translation_all"),
    "electra": (
        *("demo_first_stage", "demo_second_stage", "small_first_stage", "large_second_stage"),
        *("demo_adversarial", "small_adversarial"),
    ),
    "longt5": ("fine_tuning",),
    "multilingual_mass": (
        "demo_denoising",
        "demo_bert_lm",
        "demo_back_translation",
        "big_pairs",
    ),
    "gpt": ("classification", "entailment", "similarity", "multiple_choice"),
    "gpt2": ("fine_tuning",),
    "k_bert": ("tagging", "question_answering"),
    "t5": ("fine_tuning",),
    "transformer": ("d_smoothing_0.0", "d_smoothing_0.2"),
    "unilm": ("generation",),
    "fine_tuning": (
        *("classification", "regression", "tagging", "question_answering"),
        *("classification:roberta", "question_answering:roberta", "regression:electra_large"),
    ),
    "plans": tuple(plans.TOPOLOGIES),
    "published_runs": tuple(published_runs.RUNS),
}


def sizes_of(name):
    """The sizes of a file whose config needs no folder of a teacher."""
    sizes = systems.find(name).sizes if name in PAPER_SYSTEMS else ()
    if name == "llama":  # LLaMA 2, 3 and Mistral are read from folders, not pretrained
        sizes = ("7b", "13b", "33b", "65b")
    if name == "mt_dnn":  # the folder that it starts from decides the size
        sizes = ("glue",)
    demo = ("demo",) if name in PAPER_SYSTEMS and name != "distilbert" else ()
    return (*demo, *sizes, *OTHERS.get(name, ()))


FILES = [*PAPER_SYSTEMS, "fine_tuning", "plans", "published_runs"]
ALL = [(name, size) for name in FILES for size in sizes_of(name)]


def made(name, size):
    return importlib.import_module(f"configs.{name}").get_config(size)


@pytest.mark.parametrize(("name", "size"), ALL)
def test_phases_and_decay_keep_their_share_of_the_steps(name, size):
    before, after = made(name, size), made(name, size)
    of_config(before)
    scale = 3
    after.train.steps = scale * before.train.steps
    of_config(after)
    for old, new in zip(of_config(before).phases, of_config(after).phases, strict=True):
        assert new.last == scale * old.last
        assert (new.name, new.data.batch_size) == (old.name, old.data.batch_size)
    if "decay_steps" in before.optimizer:
        share = before.optimizer.decay_steps / before.train.steps
        assert 0.8 < share <= 1
        assert after.optimizer.decay_steps == pytest.approx(share * after.train.steps, abs=scale)
    if before.optimizer.schedule in ("linear", "cosine"):
        assert "decay_steps" in before.optimizer


@pytest.mark.parametrize(("name", "size"), ALL)
def test_no_number_that_follows_changes_what_it_follows_from(name, size):
    settings = made(name, size)
    steps = settings.train.steps
    for key in ("decay_steps", "warmup_steps", "end_learning_rate"):
        if key in settings.optimizer:
            rate = settings.optimizer.learning_rate
            settings.optimizer[key] = settings.optimizer[key] // 2
            mass = name in ("mass", "multilingual_mass")
            if not (mass and key == "warmup_steps"):  # its rate is a factor of their root
                assert settings.optimizer.learning_rate == rate
    assert settings.train.steps == steps


@pytest.mark.parametrize(
    ("name", "size", "share"),
    [
        ("structbert", "base", 10),
        ("distilbert", "base", 20),
        ("fine_tuning", "classification", 10),
        ("gpt", "classification", 500),
        ("bart", "translation", 10),
    ],
)
def test_a_warmup_that_a_paper_gives_as_a_share_follows_the_steps(name, size, share):
    settings = made(name, size)
    settings.train.steps = 7_000
    assert settings.optimizer.warmup_steps == 7_000 // share


# The rates of three demos do not decay, and a DistilBERT needs the folder of a teacher.
DECAYING = sorted(set(PAPER_SYSTEMS) - {"distilbert", "elmo", "palm", "transformer"})


@pytest.mark.parametrize(
    ("name", "size"), [*((name, "demo") for name in DECAYING), ("deberta", "v3_demo")]
)
def test_a_demo_of_a_few_steps_ends_its_warmup(name, size):
    settings = made(name, size)
    settings.train.steps = 30
    short = settings.optimizer.to_dict()
    assert 1 <= short["warmup_steps"] <= 30 // 4
    rates = {key: value for key, value in short.items() if key.endswith(("steps", "rate"))}
    schedule = schedules.build(short["schedule"], **rates)
    assert float(schedule(29)) < float(schedule(30 // 4))


@pytest.mark.parametrize("steps", [400, 30_000])
def test_the_warmup_of_a_longer_demo_stays(steps):
    settings = bert.get_config("demo")
    settings.train.steps = steps
    assert settings.optimizer.warmup_steps == 100


# {a file of a system, with a size: the objective, which its network can be trained on}
OWN = {
    "tests/toy_systems.py:TEACHER:toy": ("language_modeling", "decoder"),
    "t5x_like/systems/llama.py:7b": ("language_modeling", "decoder"),
    "t5x_like/systems/bert.py:base": ("roberta", "encoder"),
    "t5x_like/systems/t5.py:small": ("span_corruption", "encoder_decoder"),
}


@pytest.mark.parametrize("name", OWN)
def test_a_system_in_a_file_is_configured_by_its_size(name, monkeypatch):
    monkeypatch.chdir(pathlib.Path(__file__).parents[1])
    settings = own.get_config(name)
    assert (settings.data.objective, settings.data.converter) == OWN[name]
    file, _, size = name.rpartition(":")
    assert settings.model.to_dict() == dict(systems.find(file).sizes[size])
    assert model_side.build(of_config(settings)).module.sides[-1] in settings.data.converter


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("small", "configs/own.py:small: give a file with a System and one of its sizes"),
        ("tests/toy_systems.py:TEACHER:tiny", "='tiny' does not exist. .*toy"),
        ("tests/toy_system.py:toy", "'tests/toy_system.py' does not exist. .*toy_systems.py"),
    ],
)
def test_a_file_or_size_that_is_not_there_is_named(name, message, monkeypatch):
    monkeypatch.chdir(pathlib.Path(__file__).parents[1])
    with pytest.raises(ValueError, match=message):
        own.get_config(name)


def test_a_warmup_in_steps_stays():
    settings = bert.get_config("base")
    settings.train.steps = 20_000
    assert settings.optimizer.warmup_steps == 10_000


def test_the_last_rate_is_a_tenth_of_the_rate():
    settings = llama.get_config("7b")
    settings.optimizer.learning_rate = 2e-3
    assert settings.optimizer.end_learning_rate == 2e-4


def test_phases_share_any_number_of_steps():
    settings = gpt3.get_config("175b")
    settings.train.steps = 997
    parts = of_config(settings).phases
    assert parts[-1].last == 997
    assert all(part.first < part.last for part in parts)


def test_what_follows_is_written_as_it_is(tmp_path):
    settings = bert.get_config("base")
    settings.train.steps = 20_000
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_dict(parse(settings))))
    read = config.load(path)
    assert read.optimizer.decay_steps == 20_000
    assert [phase.last for phase in of_config(read).phases] == [18_000, 20_000]


@pytest.mark.parametrize(
    ("size", "batches"), [("8b", [256, 512]), ("62b", [512, 1024]), ("540b", [512, 1024, 2048])]
)
def test_palm_reads_780_billion_tokens_in_the_batches_of_its_table(size, batches):
    parts = of_config(palm.get_config(size)).phases
    assert [part.data.batch_size for part in parts] == batches
    tokens = sum(
        (part.last - part.first) * rows * 2048 for part, rows in zip(parts, batches, strict=True)
    )
    assert tokens == pytest.approx(780e9, rel=0.01)


# Epochs as published: GPT-3's table 2.2, LLaMA's table 1, Chinchilla's table A1.
@pytest.mark.parametrize(
    ("name", "size", "read", "epochs"),
    [
        ("gpt3", "175b", 300e9, [0.44, 2.9, 1.9, 0.43, 3.4]),
        ("llama", "65b", 1.4e12, [1.10, 1.06, 0.64, 2.45, 2.23, 1.06, 1.03]),
        ("chinchilla", "70b", 1.4e12, [1.24, 0.75, 0.77, 0.21, 0.13, 3.40]),
        ("palm", "540b", 780e9, [1.0] * 6),
        ("gopher", "280b", 300e9, [0.28, 0.14, 0.16, 0.04, 0.02, 1.5]),
    ],
)
def test_a_mixture_reads_its_corpora_as_often_as_published(name, size, read, epochs):
    settings = made(name, size)
    corpora = settings.data.settings.corpora
    tasks = [task.removeprefix("mixture_files_") for task in settings.evaluate.tasks]
    assert sorted(tasks) == sorted(corpora)
    whole = sum(corpora[task].weight for task in tasks)
    assert whole == pytest.approx(100, abs=1)
    found = [read * corpora[task].weight / whole / corpora[task].tokens for task in tasks]
    # GPT-3 rounds its weights to whole percents: 19 billion tokens read 3.4 times, not 2.9.
    assert found == pytest.approx(epochs, rel=0.2 if name == "gpt3" else 0.01, abs=0.01)


# Devlin et al. 2018, section 3.1, in millions of words; Liu et al. 2019, section 3.2, in GB.
@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("bert", {"wikipedia": 2_500, "books": 800}),
        ("left_to_right_bert", {"wikipedia": 2_500, "books": 800}),
        (
            "roberta",
            {"books_and_wikipedia": 16, "cc_news": 76, "openwebtext": 38, "stories": 31},
        ),
    ],
)
@pytest.mark.parametrize("size", ["base", "large"])
def test_an_encoder_reads_the_corpora_of_its_paper(name, size, weights):
    settings = made(name, size)
    corpora = settings.data.settings.corpora
    assert {corpus: corpora[corpus].weight for corpus in corpora} == weights
    assert all(corpora[corpus].tokens is None for corpus in corpora)  # no paper gives them
    files = [file for corpus in corpora for file in _files(corpora[corpus].files)]
    folders = {file.removeprefix("corpora/").removesuffix("/*.jsonl.gz") for file in files}
    assert folders == {"books", "wikipedia", *weights} - {"books_and_wikipedia"}
    if name == "bert":  # "approximately 40 epochs over the 3.3 billion word corpus"
        words = sum(weights.values()) * 1e6
        assert words == 3.3e9
        longest = settings.train.steps * settings.data.batch_size * 512
        assert longest / words == pytest.approx(40, abs=0.5)


def _files(files):
    return [files] if isinstance(files, str) else files


# Yang et al. 2019, section 3.1: billions of pieces, 32.89 in total.
def test_xlnet_reads_the_five_corpora_of_its_paper():
    pieces = {
        "wikipedia": 2.78,
        "books": 1.09,
        "giga5": 4.75,
        "clueweb": 4.30,
        "common_crawl": 19.97,
    }
    files = made("xlnet", "large").data.settings.files
    assert list(files) == [f"corpora/{name}/*.jsonl.gz" for name in pieces]
    total = sum(pieces.values())
    assert total == pytest.approx(32.89)
    table = {
        cells[2].removeprefix("corpora/"): (cells[3], cells[4])
        for line in xlnet.__doc__.splitlines()
        if len(cells := [cell.strip() for cell in line.split("|")]) == 6 and "corpora/" in line
    }
    assert table == {name: (f"{size:.2f}", f"{size / total:.1%}") for name, size in pieces.items()}


def test_t5_is_fine_tuned_as_in_section_3_1_2():
    settings = t5.get_config("fine_tuning")
    of_config(settings)
    assert settings.train.steps == 2**18
    assert settings.data.batch_size * settings.data.lengths.inputs == 2**16
    assert settings.optimizer.to_dict() == {
        "name": "adafactor",
        "schedule": "constant",
        "learning_rate": 1e-3,
    }
    with pytest.raises(ValueError, match="initialize is not set"):
        completion.complete(of_config(settings))


# Liu et al. 2019, table 10; Clark et al. 2020, table 7.
@pytest.mark.parametrize(
    ("size", "rate", "batch", "weight_decay", "layer_decay", "warmup"),
    [
        ("classification", 5e-5, 32, 0.01, 1.0, 1_000),
        ("multiple_choice", 2e-5, 16, 0.01, 1.0, 1_000),
        ("classification:roberta", 2e-5, 16, 0.1, 1.0, 600),
        ("multiple_choice:roberta", 1e-5, 16, 0.1, 1.0, 600),
        ("question_answering:roberta", 1.5e-5, 48, 0.01, 1.0, 600),
        ("classification:electra_small", 3e-4, 32, 0.0, 0.8, 1_000),
        ("multiple_choice:electra_base", 1e-4, 32, 0.0, 0.8, 1_000),
        ("question_answering:electra_large", 5e-5, 32, 0.0, 0.9, 1_000),
    ],
)
def test_encoders_are_fine_tuned_as_their_papers_do(
    size, rate, batch, weight_decay, layer_decay, warmup
):
    settings = fine_tuning.get_config(size)
    settings.train.steps = 10_000
    of_config(settings)
    optimizer = settings.optimizer
    assert (optimizer.learning_rate, settings.data.batch_size) == (rate, batch)
    assert (optimizer.weight_decay, optimizer.layer_decay) == (weight_decay, layer_decay)
    assert (optimizer.warmup_steps, optimizer.decay_steps) == (warmup, 10_000)


def test_a_recipe_that_there_is_not_is_named():
    with pytest.raises(ValueError, match=r"no recipe 'electra': choose bert, roberta, electra_sm"):
        fine_tuning.get_config("classification:electra")


def test_the_share_of_a_mixture_is_without_the_tasks_that_are_left_out():
    settings = t5.get_config("multi_task")
    of_config(settings)
    assert settings.tasks.glue.share == 949_098
    command_line.set_value(settings, "tasks.glue.data.settings.leave_out", "('glue_rte',)")
    assert settings.tasks.glue.share == 949_098 - 2_490
    assert config.to_dict(parse(settings))["tasks"]["glue"]["share"] == 949_098 - 2_490
    command_line.set_value(settings, "tasks.glue.share", "5.0")
    assert settings.tasks.glue.share == 5.0


def test_the_rate_of_the_transformer_follows_its_width():
    settings = transformer.get_config("base")
    settings.model.d_model = 256
    assert settings.optimizer.learning_rate == 1 / 16


def test_a_demo_is_small_and_reads_documentation_strings():
    settings = recipes.demo(llama.get_config("7b"), vocabulary="v.model", kv_heads=4)
    assert (settings.model.d_model, settings.model.kv_heads) == (128, 4)
    assert settings.data.task == "pydocs"
    assert not settings.data.settings
    assert settings.evaluate.tasks == ()
