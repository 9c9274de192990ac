"""Freezes what lm-eval measures on data/harness_tasks for given answers: harness_tasks.json.

python -m tests.golden.make_harness_tasks    (with lm-eval 0.4.13, beside this package)

Each request for the same prompt of the sums gets another text: a chain of steps with a random
answer, right in half of the cases, or an answer alone. The other tasks get the right answer, with
more text after it, in half of the cases. Log-likelihoods are random.
"""

import collections
import json
import os
import pathlib
import random
import tempfile
import zlib

import lm_eval
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

ROOT = pathlib.Path(__file__).parents[2]
SUMS = ("sums_direct", "sums_with_steps", "sums_self_consistency")
TAGS = ("gpt3_arithmetic", "gpt3_scrambles", "prompted_sums")
LIMITS = {**dict.fromkeys(SUMS, 40), "analogies": 12, **dict.fromkeys(TAGS, 6)}
OPERATIONS = {"add": int.__add__, "minus": int.__sub__, "times": int.__mul__}
WORDS = "apple banana cherry lemon melon orange papaya peach plums quince raisin tomato walnut"


def solution(problem: str, number: int) -> str:
    generator = random.Random(zlib.crc32(problem.encode()) + number)
    first, *steps = problem.removesuffix(" :").split(" , ")
    numbers = [int(first.split()[-1])]
    for step in steps:
        operation, other = step.split()
        numbers.append(OPERATIONS[operation](numbers[-1], int(other)) % 10)
    if generator.random() < 0.5:
        numbers[-1] = generator.randrange(10)
    chain, answer = " then ".join(map(str, numbers)), f"{numbers[-1]} ."
    return answer if generator.random() < 0.2 else f"{chain} so {answer}"


def text(row: dict, number: int) -> str:
    if row["inputs"].startswith("start with "):
        return solution(row["inputs"], number)
    is_right = zlib.crc32(row["inputs"].encode()) % 2
    return f" {row['targets']} \nand more" if is_right else f" {row['targets'][1:]}x"


class Given(LM):
    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[str, list[str]] = collections.defaultdict(list)
        self.scores: dict[str, dict[str, float]] = collections.defaultdict(dict)

    def generate_until(self, requests, **unused):
        for request in requests:
            own = self.texts[request.args[0]]
            own.append(text(request.doc, len(own)))
        asked: collections.Counter[str] = collections.Counter()
        found = []
        for request in requests:
            prompt = request.args[0]
            found.append(self.texts[prompt][asked[prompt]])
            asked[prompt] += 1
        return found

    def loglikelihood(self, requests, **unused):
        for prompt, choice in (request.args for request in requests):
            self.scores[prompt][choice] = -(zlib.crc32((prompt + choice).encode()) % 1000) / 100
        return [(self.scores[prompt][choice], False) for prompt, choice in map(_args, requests)]

    def loglikelihood_rolling(self, requests, **unused):
        raise NotImplementedError


def _args(request):
    return request.args


def measure(task: str, manager: TaskManager, *, shots: int, limit: int) -> dict:
    model = Given()
    found = lm_eval.simple_evaluate(
        model=model,
        tasks=[task],
        task_manager=manager,
        num_fewshot=shots,
        limit=limit,
        bootstrap_iters=0,
    )
    own = {
        name: value
        for name, value in found["results"][task].items()
        if "match," in name or name.startswith("acc,")
    }
    return {"results": own, "texts": model.texts} | (
        {"scores": model.scores} if model.scores else {}
    )


def main() -> None:
    manager, frozen = TaskManager(include_path=str(ROOT / "data" / "harness_tasks")), {}
    with tempfile.TemporaryDirectory() as folder:
        # Where the words of the scrambles are, beside the modules.
        os.chdir(folder)
        pathlib.Path("data").symlink_to(ROOT / "data")
        pathlib.Path("count_1w.txt").write_text(WORDS.replace(" ", "\n"))
        for name, limit in LIMITS.items():
            tasks = [name] if name not in TAGS else sorted(manager.load([name])["tasks"])
            for task in tasks:
                frozen[task] = measure(task, manager, shots=0, limit=limit)
                if name not in SUMS:
                    shown = measure(task, manager, shots=2, limit=1)
                    [frozen[task]["prompt"]] = shown["texts"] or shown["scores"]
                print(task, frozen[task]["results"])
    file = pathlib.Path(__file__).with_name("harness_tasks.json")
    file.write_text(json.dumps({"words": WORDS, "tasks": frozen}, indent=0) + "\n")


if __name__ == "__main__":
    main()
