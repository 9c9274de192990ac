r"""PPO and PPO-ptx: a language model trained with a reward model (Ouyang et al. 2022).

    python -m t5x_like.train --config=configs/ppo.py:runs/sft:runs/reward \
        --config.data.settings.prompts=prompts.jsonl \
        --config.data.settings.pretraining=texts.jsonl --config.workdir=runs/ppo
    python -m t5x_like.infer --config=configs/run.py:runs/ppo --interactive

The first folder has the initial policy, a model fine-tuned on demonstrations: any decoder or
encoder-decoder. The second has the reward model and its rewards.json, by which the rewards of
demonstrations are normalized to mean 0 and deviation 1 (configs/instructgpt.py:rewards). The files
are described in data/prompt_files.py. The pretraining rows of an encoder-decoder have inputs and
targets: spans of a text if the vocabulary has sentinels, otherwise the beginning and the end of a
text. PPO without pretraining gradients: --config.loss.gamma_ptx=0.0
--config.data.objective_settings.pretraining_rows=0

Instead of folders, 1_3b, 6b and 175b select the paper's models, for planning; 175b has a layout for
512 chips (docs/plans.md):

    python -m t5x_like.plan --config=configs/ppo.py:175b --topology=v5p:8x8x8

| section 3.5 and appendix C | here |
|---|---|
| 256 thousand episodes, 512 an iteration | train.steps = 256,000 / 512, data.batch_size |
| 8 minibatches of 64, one inner epoch | train.minibatches, train.inner_epochs |
| beta 0.02 of the divergence from the SFT model | loss.beta |
| pretraining gradients times 27.8 | loss.gamma_ptx |
| 8 times as many pretraining examples as episodes | data.objective_settings.pretraining_rows |
| clip 0.2, temperature 1, no discount | loss, the defaults |
| warmup over 10 iterations from a tenth, then constant | optimizer, in updates |
| moving average of the weights, 0.992 | optimizer.moving_average; a run is read as this model |
| Adam of 0.9 and 0.95 | optimizer |
| 9e-6 for the value network (5e-6 for 175B) | optimizer.learning_rate, for policy and value alike |
"""

import pathlib

import ml_collections

from configs import instructgpt
from t5x_like import systems, vocabularies
from t5x_like.config import defaults
from t5x_like.objectives import chunks, noise
from t5x_like.pretrained.weight_source import data_settings, open_source
from t5x_like.systems.instructgpt import SIZES, instructgpt_of

_LONGEST = 1024  # tokens of a prompt or a response, for a model without a table of positions
_LONGEST_TEXT = 512  # tokens of an encoder's pretraining row, as in T5


def get_config(folders: str = "175b") -> ml_collections.ConfigDict:
    """Return the config of POLICY:REWARD, the folders of both, or of one of the paper's sizes."""
    config = _ppo(rate=5e-6 if folders == "175b" else 9e-6)
    if folders in SIZES:
        config.model = dict(SIZES[folders])
        config.initialize, config.model.reward.folder = "runs/sft", "runs/reward"
        # 50,257 is odd and cannot be sharded: the embedding tables get 47 unused rows.
        for model in (config.model, config.model.policy, config.model.reward):
            model.vocab_size = 50304
        config.model.reward.trunk.vocab_size = 50304
        config.data.lengths = {"inputs": 1023, "targets": 1024, "pretraining": 2048}
        if folders == "175b":
            _lay_out(config)
        return config
    policy, _, reward = folders.partition(":")
    if not policy or not reward:
        raise ValueError(
            f"configs/ppo.py:{folders} lacks the model to start from, or the reward model: give "
            f"the folders of both, configs/ppo.py:POLICY:REWARD, or one of {', '.join(SIZES)}"
        )
    return _of_folders(config, policy, reward)


def _ppo(*, rate: float) -> ml_collections.ConfigDict:
    config = defaults()
    config.system = "instructgpt"
    config.workdir = "runs/ppo"
    config.loss = {"beta": 0.02, "gamma_ptx": 27.8, "whiten_rewards": True}
    config.data.module = "data/prompt_files.py"
    config.data.task = "prompt_files"
    config.data.settings = {"prompts": "", "pretraining": "", "held_out": 0.05, "template": "plain"}
    config.data.objective = "prompts"
    config.data.objective_settings = {"end_inputs": False, "pretraining_rows": 8}
    config.data.converter = "decoder_prompts"
    config.data.batch_size = 512
    config.train.update({"steps": 500, "minibatches": 8, "log_every": 1})
    config.optimizer = {
        "name": "adamw",
        "schedule": "constant",
        "learning_rate": rate,
        "start_learning_rate": rate / 10,
        "warmup_steps": 80,
        "b2": 0.95,
        "epsilon": 1e-5,
        "frozen": ("reference", "reward"),
        "moving_average": {"average": "policy"},
        "moving_average_decay": 0.992,
    }
    config.checkpoint.every = 50
    config.evaluate.update({"every": 50, "batches": 1})
    return config


def _lay_out(config: ml_collections.ConfigDict) -> None:
    """Lay the largest model out over 512 chips of 95 GiB.

    Sampling a token reads all weights, which `fsdp` gathers anew for each token: a larger `model`
    makes this cheaper, but the sums over `model` in the updates more expensive. With two
    microbatches a group of 16 chips has one episode and its eight pretraining rows at a time.
    """
    config.model.dtype, config.model.remat = "bfloat16", "attention"
    config.mesh.update({"data": 1, "fsdp": 32, "model": 16})
    config.train.microbatches = 2


def _of_folders(
    config: ml_collections.ConfigDict, folder: str, reward: str
) -> ml_collections.ConfigDict:
    policy, rewards = (open_source(pathlib.Path(one).expanduser()) for one in (folder, reward))
    if rewards.system != "reward_model":
        raise ValueError(
            f"configs/ppo.py:{folder}:{reward}: the second folder has a {rewards.system}, and "
            "rewards come from a reward_model"
        )
    config.initialize = folder
    data = data_settings(policy)
    config.data.vocabulary = data.get("vocabulary", folder)
    end = vocabularies.load(config.data.vocabulary).required_id("eos_id")
    # No dropout: the policy that samples and the policy that is trained must be the same.
    still = instructgpt.without_noise(policy.config)
    config.model = instructgpt_of(
        policy.system,
        {**policy.config, **still},
        {**rewards.config, **instructgpt.normalization(reward), "folder": reward},
        end_id=end,
    )
    encodes = systems.build(policy.system, policy.config).sides == ("encoder", "decoder")
    config.data.settings.template = data.get("settings", {}).get("template", "plain")
    own = data.get("objective_settings", {})
    config.data.objective_settings.end_inputs = own.get("end_inputs", encodes)
    half = policy.config.get("positions", 2 * _LONGEST) // 2
    lengths = {"inputs": half - 1, "targets": half} | data.get("lengths", {})
    config.data.lengths = {name: lengths[name] for name in ("inputs", "targets")}
    config.decode = {"max_new_tokens": config.data.lengths.targets}
    if encodes:
        config.data.converter = "encoder_prompts"
        _set_pairs(config, longest=min(half, _LONGEST_TEXT))
    else:
        config.data.lengths.pretraining = sum(config.data.lengths.values()) + 1
    return config


def _set_pairs(config: ml_collections.ConfigDict, *, longest: int) -> None:
    """Set the objective of pretraining pairs: span corruption if there are enough sentinels."""
    sizes = noise.span_sizes(rate=0.15, mean_span=3.0, final_sentinel=False, random_roll=False)
    most = sizes(chunks.fill(sizes, inputs=longest - 1, targets=longest - 1))
    spans = most.sentinels <= vocabularies.load(config.data.vocabulary).extra_ids
    config.data.objective_settings.pretraining_objective = (
        "span_corruption" if spans else "prefix_lm"
    )
    config.data.lengths.pretraining_inputs = longest
    config.data.lengths.pretraining_targets = most.targets + 1 if spans else longest
