"""Freezes what lm-eval measures on data/harness_tasks for texts that are given: harness_tasks.json.

python -m tests.golden.make_harness_tasks    (with lm-eval 0.4.13, beside this package)

Each request for the same prompt gets another text: a chain of steps with a random answer, right in
half of the cases, or an answer alone.
"""

import collections
import json
import pathlib
import random
import zlib

import lm_eval
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

FOLDER = pathlib.Path("data/harness_tasks")
TASKS = ("sums_direct", "sums_with_steps", "sums_self_consistency")
LIMIT = 40
OPERATIONS = {"add": int.__add__, "minus": int.__sub__, "times": int.__mul__}


def text(prompt: str, number: int) -> str:
    generator = random.Random(zlib.crc32(prompt.encode()) + number)
    first, *steps = prompt.removesuffix(" :").split(" , ")
    numbers = [int(first.split()[-1])]
    for step in steps:
        operation, other = step.split()
        numbers.append(OPERATIONS[operation](numbers[-1], int(other)) % 10)
    if generator.random() < 0.5:
        numbers[-1] = generator.randrange(10)
    chain, answer = " then ".join(map(str, numbers)), f"{numbers[-1]} ."
    return answer if generator.random() < 0.2 else f"{chain} so {answer}"


class Given(LM):
    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[str, list[str]] = collections.defaultdict(list)

    def generate_until(self, requests, **unused):
        for request in requests:
            own = self.texts[request.args[0]]
            own.append(text(request.args[0], len(own)))
        asked: collections.Counter[str] = collections.Counter()
        found = []
        for request in requests:
            prompt = request.args[0]
            found.append(self.texts[prompt][asked[prompt]])
            asked[prompt] += 1
        return found

    def loglikelihood(self, requests, **unused):
        raise NotImplementedError

    loglikelihood_rolling = loglikelihood


def main() -> None:
    manager, frozen = TaskManager(include_path=str(FOLDER)), {}
    for task in TASKS:
        model = Given()
        found = lm_eval.simple_evaluate(
            model=model, tasks=[task], task_manager=manager, limit=LIMIT, bootstrap_iters=0
        )
        own = {name: value for name, value in found["results"][task].items() if "match," in name}
        frozen[task] = {"results": own, "texts": model.texts}
        print(task, own)
    file = pathlib.Path(__file__).with_name("harness_tasks.json")
    file.write_text(json.dumps(frozen, indent=0) + "\n")


if __name__ == "__main__":
    main()
