r"""Analogies in the form of the SAT's (Brown et al. 2020, section 3.9.3), of words written here.

    python -m t5x_like.evaluate --config=configs/pretrained.py:analogies --config.initialize=gpt2

    puppy is to dog as ...  kitten is to cat / glove is to hand / loud is to quiet / ...

A question has a pair of words; of five other pairs one has the same relation. The four wrong pairs
are of four other relations, so that every pair is a right answer elsewhere: a model that only knows
which pairs are frequent is right in one of five. The paper's questions, 374 of the SAT before 2005,
may not be published; GPT-3 answered 53.7, 59.1 and 65.2% of them with 0, 1 and 20 examples, and
college applicants 57%. These are easier, and the numbers cannot be compared.
"""

from data.languages.language import Draw, Row, corpus, several, show
from t5x_like.grain_pipeline.corpus import Corpus

CHOICES = 5
RELATIONS: dict[str, str] = {
    "young": "puppy dog, kitten cat, calf cow, lamb sheep, foal horse, duckling duck, cub bear",
    "worn on": "glove hand, shoe foot, hat head, belt waist, ring finger, scarf neck, watch wrist",
    "opposite": "loud quiet, early late, rough smooth, generous stingy, ancient modern, wet dry",
    "stronger": "warm hot, big huge, cool cold, tired exhausted, hungry starving, good excellent",
    "tool of": "brush painter, hammer carpenter, scalpel surgeon, oven baker, plow farmer",
    "part of": "wheel car, page book, branch tree, petal flower, key keyboard, roof house",
    "made of": "bread flour, window glass, tire rubber, wine grapes, paper wood, cheese milk",
    "measures": "thermometer heat, clock time, scale weight, ruler length, barometer pressure",
    "place of": "nurse hospital, judge court, teacher school, chef kitchen, pilot cockpit",
    "kind of": "oak tree, violin instrument, salmon fish, emerald gem, soccer sport, ant insect",
    "group of": "flock birds, herd cattle, pack wolves, choir singers, fleet ships, swarm bees",
    "sound of": "bark dog, roar lion, chirp cricket, neigh horse, croak frog, hoot owl",
    "lives in": "bee hive, bird nest, lion den, spider web, fish aquarium, horse stable",
    "studies": "botanist plants, astronomer stars, geologist rocks, linguist language",
    "without": "desert water, vacuum air, darkness light, silence sound, famine food",
    "causes": "virus illness, drought famine, spark fire, joke laughter, insult anger",
    "prevents": "lock theft, helmet injury, umbrella soaking, vaccine disease, brake collision",
    "precedes": "seed plant, spring summer, dawn morning, engagement marriage, rehearsal concert",
    "capital": "Paris France, Rome Italy, Cairo Egypt, Tokyo Japan, Lima Peru, Oslo Norway",
    "made by": "poem poet, statue sculptor, suit tailor, symphony composer, law legislator",
}


def corpora(*, documents: int = 2000, validation: int = 374, seed: int = 0) -> dict[str, Corpus]:
    """Return the corpus "analogies", with the fields `inputs`, `targets` and `choices`.

    Args:
        documents: questions that the examples in a prompt are sampled from.
        validation: questions to ask.
        seed: see `language.corpus`.

    Raises:
        ValueError: a number is below 1.
    """
    fields = ("inputs", "targets", "choices")
    made = corpus(
        question, "analogies", documents=documents, validation=validation, seed=seed, fields=fields
    )
    return {"analogies": made}


def question(draw: Draw) -> Row:
    """Return a question, its answer and its choices in a random order."""
    relation, *others = several(draw, [*RELATIONS], CHOICES)
    asked, right = several(draw, _pairs(relation), 2)
    wrong = [draw.one(_pairs(other)) for other in others]
    choices = several(draw, [right, *wrong], CHOICES)
    draw.given()
    return {"inputs": f"{asked} as", "targets": right, "choices": choices}


def _pairs(relation: str) -> list[str]:
    return [" is to ".join(pair.split()) for pair in RELATIONS[relation].split(", ")]


if __name__ == "__main__":
    show(corpora())
