"""Languages with known answers: nats are exact, grammars hold, tasks have their base rates."""

import collections
import importlib
import itertools
import math
import pathlib

import numpy as np
import pytest
from scipy import optimize

from data.generators import persons_graph
from data.languages import (
    agreement,
    arithmetic,
    dialects,
    dictionary,
    events,
    facts,
    homonyms,
    in_context,
    language,
    names,
    persons,
    references,
)
from t5x_like.batches import knowledge_graph
from t5x_like.grain_pipeline.corpus_tasks import training_texts
from t5x_like.objectives import grouping

MODULES = sorted(
    path.stem
    for path in pathlib.Path(language.__file__).parent.glob("*.py")
    if path.stem not in ("__init__", "language")
)


class Enumerated:
    """All choices one after the other: the first options, unless a script says otherwise."""

    def __init__(self, script):
        self.script, self.taken, self.log_prob = script, [], 0.0

    def one(self, options, weights=None):
        weights = [1] * len(options) if weights is None else weights
        place = len(self.taken)
        index = self.script[place] if place < len(self.script) else 0
        self.taken.append((index, len(options)))
        self.log_prob += math.log(weights[index] / sum(weights)) if weights[index] else -math.inf
        return options[index]

    def given(self):
        self.log_prob = 0.0


def enumerate_all(made):
    """Each possible row with its log-probability."""
    script = []
    while True:
        draw = Enumerated(script)
        row = made(draw)
        yield row, draw.log_prob
        taken = draw.taken
        while taken and taken[-1][0] + 1 == taken[-1][1]:
            taken.pop()
        if not taken:
            return
        script = [index for index, _ in taken[:-1]] + [taken[-1][0] + 1]


SMALL = {
    "agreement": lambda draw: agreement.document(draw, sentences=1, clause=0.3, deepest=1),
    "arithmetic": lambda draw: arithmetic.document(draw, steps=2),
    "dialects": lambda draw: dialects.document(
        draw, dialects=3, words=5, next_words=2, world=0, length=6
    ),
    "dictionary": lambda draw: {
        "text": " ".join(dictionary.north(dictionary.meaning(draw, adjective=0.4)))
    },
    "events": lambda draw: events.document(draw, topics=3, events=5, ways=2, chosen=3),
    "facts": lambda draw: facts.document(
        draw, names=language.invented(3), facts=facts.facts_of(3, world=0), sentences=2
    ),
    "homonyms": lambda draw: homonyms.document(draw, sentences=1, around=1, before=0),
    "in_context": lambda draw: in_context.document(draw, examples=3, new=0.3),
    "names": lambda draw: names.document(draw, names=12, sentences=1, around=2),
    "persons": lambda draw: persons.document(draw, persons=2, sentences=1, words=1),
    "references": lambda draw: references.document(draw, names=1, distance=2, asked=1),
}


SMALL["dictionary with preferences"] = lambda draw: {
    "text": " ".join(
        dictionary.south(dictionary.meaning(draw, adjective=0.4, preference=2.0), shared=0.5)
    )
}


@pytest.mark.parametrize("name", [*MODULES, "dictionary with preferences"])
def test_nats_are_the_log_likelihood_of_the_text(name, monkeypatch):
    # Small enough to go through all choices.
    monkeypatch.setattr(dictionary, "_PARTS", {"noun": 4, "verb": 3, "adjective": 2})
    for cached in (dictionary._words, dictionary._weights):
        cached.cache_clear()
    seen, total = set(), 0.0
    for row, log_prob in enumerate_all(SMALL[name]):
        if log_prob == -math.inf:
            continue
        assert row["text"] not in seen  # else its likelihood would be a sum
        seen.add(row["text"])
        total += math.exp(log_prob)
    for cached in (dictionary._words, dictionary._weights):
        cached.cache_clear()
    assert len(seen) > 100
    assert total == pytest.approx(1, abs=1e-9)


def test_the_sampled_choices_have_their_probabilities():
    draw = language.Sampled(np.random.default_rng(0))
    counts = collections.Counter(draw.one("abc", (1, 2, 5)) for _ in range(8000))
    for option, weight in zip("abc", (1, 2, 5), strict=True):
        expected = 1000 * weight
        assert abs(counts[option] - expected) < 5 * math.sqrt(expected * (1 - weight / 8))
    mean = draw.nats / 8000
    entropy = -sum(w / 8 * math.log(w / 8) for w in (1, 2, 5))
    assert abs(mean - entropy) < 0.05  # the standard deviation of the mean is 0.008


@pytest.mark.parametrize("file", MODULES)
def test_documents_are_the_same_again_and_held_out_ones_are_others(file):
    module = importlib.import_module(f"data.languages.{file}")
    for name, corpus in module.corpora(documents=20, validation=10).items():
        again = module.corpora(documents=20, validation=10)[name]
        train, held_out = (corpus.splits[split].rows for split in ("train", "validation"))
        assert [*train] == [*again.splits["train"].rows]
        assert len(train) == 20
        assert train[0] != held_out[0]
        assert set(corpus.fields) == set(train[0])
        with pytest.raises(IndexError):
            train[20]
    with pytest.raises(ValueError, match=r"data.settings.documents=0 must be 1 or more"):
        module.corpora(documents=0)


def texts(corpora, name, number=400):
    rows = corpora[name].splits["train"].rows
    return [rows[index] for index in range(number)]


def test_every_verb_agrees_with_the_noun_that_it_belongs_to():
    number_of = {}
    for word in agreement.NOUNS:
        number_of |= {agreement.noun(word, plural): plural for plural in (False, True)}
    far = 0
    for row in texts(agreement.corpora(), "agreement"):
        for sentence in row["text"].split(" . "):
            waiting = []  # the nouns whose verb has not come
            for place, word in enumerate(sentence.removesuffix(" .").split()):
                if word in number_of:
                    waiting.append((number_of[word], place))
                elif word in ("this", "that", "these", "those", "which"):
                    continue
                else:
                    plural, noun_place = waiting.pop()
                    assert word.endswith("s") != plural
                    far += place - noun_place > 4
            assert not waiting
    assert far > 100


def test_facts_are_always_the_same_and_some_entities_are_rare():
    corpora = facts.corpora()
    known = facts.facts_of(200, world=0)
    assert known != facts.facts_of(200, world=1)
    mentions = collections.Counter()
    for row in texts(corpora, "facts", 3000):
        for sentence in row["text"].removesuffix(" .").split(" . "):
            words = sentence.split()
            relation, name, value = (
                (words[1], words[3], words[5])
                if words[0] == "the"
                else (words[3], words[0], words[4])
            )
            assert known[name, relation] == value
            mentions[name] += 1
    counts = [mentions[name] for name in language.invented(200)]
    share = 1 / sum(1 / rank for rank in range(1, 201))
    assert counts[0] / 12000 == pytest.approx(share, rel=0.1)
    assert 0 < sum(counts[100:]) < 12000 * 0.2
    right = collections.Counter()
    for row in texts(corpora, "choices", 2000):
        _, relation, _, name, _ = row["text_a"].split()
        assert row["choices"][row["answer"]] == known[name, relation]
        assert len(set(row["choices"])) == 4
        right[row["answer"]] += 1
    assert all(abs(right[n] - 500) < 5 * 19.4 for n in range(4))


def test_facts_are_guessed_by_the_most_frequent_value_of_a_relation():
    corpora, known = facts.corpora(), facts.facts_of(200, world=0)
    counts = collections.Counter()
    for rank, name in enumerate(language.invented(200), start=1):
        for relation in facts.VALUES:
            counts[relation, known[name, relation]] += 1 / rank
    right = collections.Counter()
    for row in texts(corpora, "completions", 2000):
        _, relation, _, name, _ = row["inputs"].split()
        assert row["text"] == f"{row['inputs']} {known[name, relation]} ."
        assert row["targets"] == known[name, relation]
        assert tuple(row["choices"]) == facts.VALUES[relation]
        guess = max(row["choices"], key=lambda value: counts[relation, value])
        right["completions"] += guess == row["targets"]
    for row in texts(corpora, "choices", 2000):
        relation = row["text_a"].split()[1]
        guess = max(row["choices"], key=lambda value: counts[relation, value])
        right["choices"] += guess == row["choices"][row["answer"]]
    assert right["completions"] == pytest.approx(2000 * 0.25, abs=5 * 19.4)
    assert right["choices"] == pytest.approx(2000 * 0.413, abs=5 * 22)


def test_events_of_a_topic_come_in_the_order_of_its_script():
    after = collections.defaultdict(set)
    for row in texts(events.corpora(), "events", 2000):
        told = [sentence.split()[1:3] for sentence in grouping.split(row["text"])]
        [topic] = {topic for topic, _ in told}
        assert len(told) == 5
        for (_, first), (_, second) in itertools.combinations(told, 2):
            after[topic].add((first, second))
    assert len(after) == 16
    for pairs in after.values():
        assert len(pairs) == 8 * 7 / 2  # each pair of events, in one order only
        assert not pairs & {(second, first) for first, second in pairs}
    firsts = {pair for pairs in after.values() for pair in pairs}
    assert len(firsts) > 8 * 7 / 2  # the order belongs to the topic
    labels = collections.Counter()
    for row in texts(events.corpora(), "order", 2000):
        (topic, first), (other, second) = (row[name].split()[1:3] for name in ("text_a", "text_b"))
        pair = (second, first) if row["label"] else (first, second)
        assert topic == other
        assert pair in after[topic]
        labels["order", row["label"]] += 1
    for row in texts(events.corpora(), "topics", 2000):
        topic, other = (row[name].split()[1] for name in ("text_a", "text_b"))
        assert row["label"] == (topic != other)
        labels["topics", row["label"]] += 1
    assert all(abs(number - 1000) < 5 * 22 for number in labels.values())
    assert events.labels("classification", task="order") == ("before", "after")
    assert events.labels("classification", task="topics") == ("same", "other")
    assert events.labels("albert", task="events") == ()


def test_a_translation_is_certain_and_frequencies_agree():
    pairs = texts(dictionary.corpora(), "pairs", 4000)
    meaning, back = {}, {}
    counts = collections.Counter(), collections.Counter()
    for row in pairs:
        assert row["nats"] == 0
        north, south = row["inputs"].split(), row["targets"].split()
        assert len(north) == len(south)
        assert north[-1], south[-1] == (".", "!")
        assert meaning.setdefault(row["inputs"], row["targets"]) == row["targets"]
        assert back.setdefault(row["targets"], row["inputs"]) == row["inputs"]
        for words, counted in zip((north, south), counts, strict=True):
            counted.update(words)
    assert not set(counts[0]) & set(counts[1])
    common = [[n for _, n in counted.most_common(40)] for counted in counts]
    assert common[0] == common[1]


RELATED = {"words": 0.35, "shared": 0.4, "preference": 2.0, "sentences": 1}


def test_two_fifths_of_the_words_are_the_same_and_a_translation_stays_certain():
    meaning, back = {}, {}
    used = collections.defaultdict(set)
    for row in texts(dictionary.corpora(**RELATED), "pairs", 4000):
        assert row["nats"] == 0
        assert meaning.setdefault(row["inputs"], row["targets"]) == row["targets"]
        assert back.setdefault(row["targets"], row["inputs"]) == row["inputs"]
        for side in ("inputs", "targets"):
            used[side] |= {*row[side].split()[:-1]}
    assert len(used["inputs"]) == len(used["targets"]) == 21 + 10 + 7 + 1  # and an article
    assert len(used["inputs"] & used["targets"]) == 8 + 4 + 2  # two of five, of each part of speech


def profiles(name, *, seed, settings, others):
    """The number of sentences of each word, and how many of them have each of `others`, too."""
    counts = collections.Counter()
    corpora = dictionary.corpora(documents=4000, seed=seed, **settings)
    for row in texts(corpora, name, 4000):
        words = {*row["text"].split()}
        counts.update((a, b) for a in words for b in words)
    return lambda word: np.sqrt([counts[word, other] for other in (word, *others)])


def dictionary_by_counting(settings):
    """The share of the dictionary that sentences of both languages give, without pairs."""
    shared = settings.get("shared", 0)
    words = dictionary._words()
    pairs = {}
    for part, number in dictionary._PARTS.items():
        number = round(number * settings["words"])
        is_shared = np.diff(np.floor(np.arange(number + 1) * shared)) > 0
        north, south = (np.array(words[name][part][:number]) for name in ("north", "south"))
        pairs[part] = north[~is_shared], south[~is_shared], north[is_shared]
    others = [word for *_, both in pairs.values() for word in both]
    of_north, of_south = (
        profiles(name, seed=seed, settings=settings, others=others)
        for seed, name in enumerate(("north", "south"))  # other sentences, no pairs
    )
    right = total = 0
    for north, south, _ in pairs.values():
        first, second = np.stack([*map(of_north, north)]), np.stack([*map(of_south, south)])
        distances = ((first[:, None] - second) ** 2).sum(-1)
        chosen = optimize.linear_sum_assignment(distances)[1]
        right, total = right + (chosen == np.arange(len(north))).sum(), total + len(north)
    return right / total


def test_shared_words_and_preferences_give_the_dictionary_without_pairs():
    assert dictionary_by_counting(RELATED) == 1
    # By their frequencies, words of near ranks are mistaken for each other.
    assert 0.3 < dictionary_by_counting({"words": 0.35, "sentences": 1}) < 0.8


def test_only_a_new_key_of_a_mapping_costs_nats():
    for row in texts(in_context.corpora(), "in_context"):
        known, nats = {}, 0.0
        for example in row["text"].removesuffix(" ;").split(" ; "):
            key, value = example.split()
            if key not in known:
                nats -= math.log(0.25 if known else 1)
                nats += 2 * math.log(8 - len(known))  # of the key and of its value
                assert value not in known.values()
            else:
                nats += math.log(len(known)) - math.log(0.75 if len(known) < 8 else 1)
            assert known.setdefault(key, value) == value
        assert row["nats"] == pytest.approx(nats)
    assert all(row["nats"] == 0 for row in texts(in_context.corpora(shots=3), "shots"))
    no_shot = texts(in_context.corpora(shots=0), "shots", 10)
    assert all(row["nats"] == pytest.approx(math.log(8)) for row in no_shot)


def test_sums_are_right_and_answers_even():
    answers = collections.Counter()
    for row in texts(arithmetic.corpora(steps=4), "with_steps", 4000):
        first, *operations = row["inputs"].removesuffix(" :").split(" , ")
        numbers = [int(first.split()[-1])]
        for operation in operations:
            name, other = operation.split()
            result = {"add": "+", "minus": "-", "times": "*"}[name]
            numbers.append(eval(f"({numbers[-1]} {result} {other}) % 10"))
        assert row["targets"] == f"{' then '.join(map(str, numbers))} so {numbers[-1]} ."
        answers[numbers[-1]] += 1
    assert all(abs(answers[digit] - 400) < 5 * 19 for digit in range(10))


def test_questions_have_their_answer_far_before_them():
    for row in texts(references.corpora(distance=50), "references", 200):
        words = row["text"].split()
        known = {words[4 * n]: words[4 * n + 2] for n in range(4)}
        asked = words[16 + 50 :]
        assert len(known) == 4
        for place in range(0, len(asked), 6):
            assert asked[place : place + 6] == [
                "what", "is", name := asked[place + 2], "?", known[name], ".",
            ]  # fmt: skip


def test_a_dialect_has_its_own_table():
    following = collections.defaultdict(collections.Counter)
    for row in texts(dialects.corpora(dialects=4, words=16), "dialects", 3000):
        dialect, *words = row["text"].split()
        for pair in itertools.pairwise(words):
            following[dialect, pair[0]][pair[1]] += 1
    assert len(following) == 4 * 16
    share = 1 / (1 + 1 / 2 + 1 / 3 + 1 / 4)
    for counts in following.values():
        assert len(counts) == 4
        assert counts.most_common(1)[0][1] / counts.total() == pytest.approx(share, abs=0.06)


def test_a_homonym_needs_its_context():
    rows = texts(homonyms.corpora(), "senses", 4000)
    by_word, by_context = collections.defaultdict(set), collections.defaultdict(set)
    labels = collections.Counter()
    for row in rows:
        words = row["text_a"].split()
        by_word[words[3]].add(row["label"])
        labels[row["label"]] += 1
        for word in (*words[:3], *words[4:]):
            by_context[words[3], word].add(row["label"])
    assert all(found == {0, 1} for found in by_word.values())
    assert all(len(found) == 1 for found in by_context.values())
    assert abs(labels[0] - 2000) < 5 * 32
    of_word = collections.defaultdict(set)
    for row in texts(homonyms.corpora(), "fields", 4000):
        words = row["text_a"].split()
        for word in (*words[:3], *words[4:]):
            of_word[word].add(row["label"])
        of_word[words[3]].add(row["label"])
    assert collections.Counter(map(len, of_word.values())) == {1: 96, 2: 16}
    assert homonyms.labels("classification", task="fields")[7] == "field 7"
    names = collections.Counter()
    for row in texts(homonyms.corpora(), "named", 4000):
        assert of_word[row["targets"]] == of_word[row["inputs"].split()[0]]
        names[row["targets"]] += 1
    assert len(names) == 8
    assert max(names.values()) < 4000 / 8 + 5 * 21
    others = texts(homonyms.corpora(name="other"), "named", 4000)
    for meant, other in zip(texts(homonyms.corpora(), "named", 4000), others, strict=True):
        assert other["inputs"] == f". {meant['inputs']}"
        fields = of_word[meant["targets"]], of_word[other["targets"]]
        assert set().union(*fields) == of_word[meant["inputs"].split()[3]]
    assert homonyms.labels("text_to_text", task="named") == ()
    assert homonyms.labels("span_corruption", task="homonyms") == ()
    for row in texts(homonyms.corpora(), "tags", 50):
        assert [tag > 0 for tag in row["tags"]] == [False] * 3 + [True] + [False] * 3
    assert homonyms.labels("tagging", task="tags") == ("other", "first", "second")


def test_a_homonym_before_its_context():
    fields = {}
    for row in texts(homonyms.corpora(around=1), "fields", 4000):
        before, _, after = row["text_a"].split()
        fields |= {before: row["label"], after: row["label"]}
    settings = {"around": 1, "before": 0, "tag": "field"}
    seen = collections.defaultdict(set)
    for row in texts(homonyms.corpora(**settings), "tags", 4000):
        word, after = row["words"]
        assert row["tags"] == [fields[after] + 1, 0]
        seen[word].add(row["tags"][0])
    assert {len(tags) for tags in seen.values()} == {2}  # the word alone is right in half
    labels = homonyms.labels("tagging", task="tags", **settings)
    assert labels == ("other", *(f"field {number}" for number in range(8)))
    with pytest.raises(ValueError, match=r"data.settings.tag='fields' .*'field'"):
        homonyms.corpora(tag="fields")
    with pytest.raises(ValueError, match=r"data.settings.name='both' .*'other'"):
        homonyms.corpora(name="both")


def test_homonyms_with_other_answers_are_other_data():
    def identity(task, **settings):
        return homonyms.corpora(**settings)[task].splits["train"].identity

    assert identity("named") != identity("named", name="other")
    assert identity("tags") != identity("tags", tag="field")
    assert identity("senses") == identity("senses", tag="field", name="other")


def test_names_are_whole_and_of_a_topic():
    made = names.all_names(96)
    assert len(set(made)) == 96
    in_names = collections.Counter(part for name in made for part in name)
    assert min(in_names.values()) > 1  # a part alone says little
    topics = collections.defaultdict(set)
    parts = set(in_names)
    for row in texts(names.corpora(), "names", 2000):
        for sentence in row["text"].removesuffix(" .").split(" . "):
            words = sentence.split()
            name = tuple(word for word in words if word in parts)
            assert name in made
            topics[name] |= set(words) - parts
    assert all(len(words) == 10 for words in topics.values())
    labels = {
        tuple(row["text_a"].split()): row["label"] for row in texts(names.corpora(), "topics")
    }
    assert set(labels) <= set(made)
    for label in range(12):  # names with the same label have the words of one topic
        assert len({frozenset(topics[name]) for name in labels if labels[name] == label}) == 1
    assert names.labels("classification", task="topics")[11] == "topic 11"
    assert names.labels("xlnet", task="names") == ()
    with pytest.raises(ValueError, match="at most 160"):
        names.corpora(names=161)


def test_the_facts_of_persons_are_only_in_the_graph(tmp_path):
    path = tmp_path / "graphs" / "persons.tsv"
    graph = collections.defaultdict(set)
    number = persons_graph.write(path, number=2000, world=0)
    for triple in knowledge_graph.read(path):
        assert triple.relation == "sees"
        graph[triple.subject].add(triple.object)
    assert sum(map(len, graph.values())) == number
    assert {*map(len, graph.values())} == {1, 2, 3, 4}
    assert graph.keys() == {*persons.names(2000)}
    corpora = persons.corpora(words=2)
    of_label = collections.defaultdict(set)  # words of each field, as the sentences have them
    agree = 0
    for row in texts(corpora, "stated", 2000):
        person, _, *words, _, _, _, _, _, _ = row["text_a"].split()
        of_label[row["label"]] |= {*words}
        agree += graph[person] <= of_label[row["label"]]
    assert agree == pytest.approx(2000 / 8, abs=5 * 15)  # facts say nothing of the words
    assert [len(words) for words in of_label.values()] == [12] * 8
    assert len(set.union(*of_label.values())) == 96
    for row in texts(corpora, "unstated", 2000):
        person, *words = row["text_a"].split()
        assert graph[person] <= of_label[row["label"]]
        assert {*words} - graph.keys() == {"sees", "."}
    assert persons.labels("knowledge_classification", task="stated")[7] == "field 7"
    assert persons.labels("bert", task="persons") == ()


def test_a_vocabulary_sees_every_text_of_every_task():
    settings = {"documents": 2, "validation": 1}
    found = [*training_texts(homonyms, settings)]
    corpora = homonyms.corpora(**settings)
    rows = {name: corpus.splits["train"].rows for name, corpus in corpora.items()}
    assert found[:2] == [row["text"] for row in rows["homonyms"]]
    assert found[2:4] == [row["text_a"] for row in rows["senses"]]
    assert found[4:6] == [row["text_a"] for row in rows["fields"]]
    assert found[6:10] == [row[side] for row in rows["named"] for side in ("inputs", "targets")]
    assert found[10:] == [word for row in rows["tags"] for word in row["words"]]


def test_settings_that_cannot_be_are_refused():
    for call, message in [
        (lambda: events.corpora(chosen=9), "chosen=9 must be from 1 to events=8"),
        (lambda: arithmetic.corpora(steps=0), "steps=0 must be 1 or more"),
        (lambda: dialects.corpora(next_words=70), "next_words=70 must be from 1 to words=64"),
        (lambda: dictionary.corpora(shared=1.5), "words=1.0 .* shared=1.5 from 0 to 1"),
        (lambda: dictionary.corpora(words=0.0), "words=0.0 must be above 0 and at most 1"),
        (lambda: language.invented(5000), "5000 words of 2 syllables: there are 4900"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
