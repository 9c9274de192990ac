"""The page of InstructGPT on documentation, from measured numbers that are known."""

import json

from benchmarks import instructgpt, instructgpt_table
from data.generators import instructions

RULES = ("answers", "right", "short", "banned", "made_up")


def measured(seed):
    """Numbers of a seed: PPO-ptx wins 3 of 4 instructions against SFT, and ties in one."""
    judged = {rule: [1, 0, 1, 0] for rule in RULES} | {"made_up": [1, 0, 0, 0]}
    scores = {"sft": [1, 2, 3, 4], instructgpt.PTX: [2, 3, 4, 4]}
    names = ["lm", "large", "sft", *instructgpt.policies()]
    models = {
        name: {
            "scores": scores.get(name, [0, 0, 0, 0]),
            "judged": {rule: [0] * 4 for rule in RULES} if name == "lm" else judged,
            "ended": 0.75,
            "held_out": 4.0 + 0.1 * (name == "ppo_0.1") + 0.001 * seed,
        }
        for name in names
    }
    point = {"step": 20, "divergence": 1.0 + seed, "gold": 2.5, "reward": 0.5}
    curves = {name: [{**point, "divergence": 0.1}, point] for name in instructgpt.policies()}
    best = [{"n": n, "divergence": 0.2 * n, "gold": 2.0, "reward": 1.0} for n in (1, 2)]
    shares = {"agreement": 0.7 + 0.1 * seed, "reward_accuracy": 0.75}
    return {"models": models, "curves": curves, "best_of": best, **shares}


def test_the_page_has_win_rates_divergences_and_verdicts(tmp_path):
    for seed in (0, 1, 2):
        (tmp_path / str(seed)).mkdir()
        (tmp_path / str(seed) / "measured.json").write_text(json.dumps(measured(seed)))
    page = instructgpt_table.write(
        tmp_path, tmp_path / "page", instructgpt.policies(), notes=instructgpt.NOTES
    )
    lines = page.read_text().splitlines()
    [row] = [line for line in lines if line.startswith("| sft | 2.50 ± 0.00 | 50.00 ± 0.00 |")]
    assert "| 88.00 |" in row  # the paper's
    wins = next(line for line in lines if line.startswith("| ppo_ptx | sft |"))
    share, interval = (cell.strip() for cell in wins.strip("|").split("|")[2:])
    assert share == "87.5 ± 0.0"
    low, high = map(float, interval.strip("[]").split(","))
    assert low < 87.5 < high <= 100
    rivals = [(name, other) for other in ("sft", "large") for name in instructgpt.policies()]
    for name, other in [*rivals, ("sft", "large")]:
        assert sum(line.startswith(f"| {name} | {other} |") for line in lines) == 1
    # The mean of the last points.
    assert "| ppo_0.5 | 2.00 ± 1.00 | 0.50 ± 0.00 | 2.50 ± 0.00 |" in lines
    assert "| best of 2 | 0.40 ± 0.00 | 1.00 ± 0.00 | 2.00 ± 0.00 |" in lines
    assert any(line.startswith("| PPO-ptx scores above SFT. | held | +0.75 |") for line in lines)
    assert any(line.startswith("| PPO costs held-out loss. | held | -0.10 |") for line in lines)
    assert (tmp_path / "page" / "instructgpt.png").stat().st_size > 1000
    kept = json.loads((tmp_path / "page" / "instructgpt.json").read_text())
    assert kept["values"]["sft"]["score"] == {"0": 2.5, "1": 2.5, "2": 2.5}
    assert kept["values"]["sft"]["made_up_of_answers"]["0"] == 50  # one of two answers
    assert kept["values"]["lm"]["made_up_of_answers"] == {}  # no answers
    text = page.read_text()
    assert "in 80.0 ± 10.0% of the pairs; the reward model orders 75.0 ± 0.0%" in text
    for words in ("moving averages of the weights (0.992", "gamma 1.0 and 2 pretraining rows"):
        assert words in text


def test_the_rules_that_the_page_lists_are_the_labelers():
    row = {"kind": "first", "text": "A", "answer": "A"}
    assert set(instructions.judge(row, "")) == set(RULES)
