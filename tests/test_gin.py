"""Gin files of T5X's scripts: what they mean, their settings here, and mistakes in them."""

import json
import sys

import flax.linen as nn
import jax
import numpy as np
import pytest

from t5x_like import convert, from_pretrained, infer, systems
from t5x_like.config import parse
from t5x_like.experiment import command_line
from t5x_like.experiment.run import of_config
from t5x_like.pretrained import t5x
from t5x_like.training import schedules
from tests.programs import command_flags

# In the schema of T5X's published files, and with its names.
NETWORK = """
from __gin__ import dynamic_registration
import seqio
from t5x import adafactor
from t5x import models
from t5x.examples.t5 import network

LOSS_FACTOR = None
RATE = %gin.REQUIRED
PIECES = @seqio.SentencePieceVocabulary()
seqio.SentencePieceVocabulary.sentencepiece_model_file = "gs://bucket/pieces.model"
OPTIMIZER = @adafactor.Adafactor()
adafactor.Adafactor:
  decay_rate = 0.7
  step_offset = 0
  logical_factor_rules = @adafactor.standard_logical_factor_rules()
MODEL = @models.EncoderDecoderModel()
models.EncoderDecoderModel:
  module = @network.Transformer()
  input_vocabulary = %PIECES
  output_vocabulary = %PIECES
  optimizer_def = %OPTIMIZER
  z_loss = 0.0002
  loss_normalizing_factor = %LOSS_FACTOR
network.Transformer.config = @network.T5Config()
network.T5Config:
  vocab_size = 384
  dtype = 'bfloat16'
  emb_dim = 48
  num_heads = 3
  num_encoder_layers = 5
  num_decoder_layers = 2
  head_dim = 8
  mlp_dim = 96
  mlp_activations = ('gelu', 'linear')
  dropout_rate = %RATE
"""
SMALLER = """
include 'nets/t5/network.gin'
network.T5Config:
  emb_dim = 32
  num_encoder_layers = 2
"""
RUN = """
from __gin__ import dynamic_registration
import __main__ as script
from t5x import partitioning
from t5x import trainer
from t5x import utils

TASK = %gin.REQUIRED
LENGTHS = %gin.REQUIRED
STEPS = %gin.REQUIRED
FOLDER = %gin.REQUIRED
script.train:
  model = %MODEL
  model_dir = %FOLDER
  train_dataset_cfg = @train/utils.DatasetConfig()
  train_eval_dataset_cfg = @train_eval/utils.DatasetConfig()
  partitioner = @partitioning.PjitPartitioner()
  total_steps = %STEPS
  eval_steps = 7
  random_seed = None
  use_hardware_rng = True
utils.DatasetConfig.batch_size = 16
train/utils.DatasetConfig:
  mixture_or_task_name = %TASK
  task_feature_lengths = %LENGTHS
  batch_size = 64
  pack = True
train_eval/utils.DatasetConfig:
  mixture_or_task_name = %TASK
  batch_size = 8
partitioning.PjitPartitioner.num_partitions = 2
utils.SaveCheckpointConfig:
  period = 50
  keep = None
trainer.Trainer:
  num_microbatches = None
  learning_rate_fn = @utils.create_learning_rate_scheduler()
utils.create_learning_rate_scheduler:
  factors = 'constant * rsqrt_decay'
  base_learning_rate = 2.0
  warmup_steps = 400
"""
WHOLE = """
include 'nets/t5/smaller.gin'
include 'runs/run.gin'
TASK = "c4_v220_span_corruption"
LENGTHS = {"inputs": 64, "targets": 24}
STEPS = 1_000
RATE = 0.1
"""


@pytest.fixture
def files(tmp_path):
    """A folder of gin files that include each other by their path in it, as T5X's do."""
    texts = {"nets/t5/network": NETWORK, "nets/t5/smaller": SMALLER, "runs/run": RUN}
    for name, text in {**texts, "examples/whole": WHOLE}.items():
        path = tmp_path / f"{name}.gin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.fixture
def parsed(files):
    """The config of the run, with these further arguments."""
    whole = files / "examples" / "whole.gin"
    return lambda *arguments: command_line.parse([f"--gin={whole}", *arguments])[0]


def test_a_run_of_t5x_is_a_config(parsed):
    config = parsed("--config.workdir=here")
    of_config(config)
    assert (config.system, config.workdir, config.initialize) == ("t5", "here", "")
    expected = {
        "vocab_size": 384,
        "d_model": 32,  # the later file's
        "heads": 3,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "d_kv": 8,
        "d_ff": 96,
        "feed_forward": "gated_gelu",
        "tied_head": False,
        "dropout": 0.1,
        "dtype": "bfloat16",
        "architecture": "encoder_decoder",
    }
    assert {name: config.model[name] for name in expected} == expected
    assert config.loss.to_dict() == {"z_loss": 2e-4, "label_smoothing": 0.0}
    data = config.data
    assert (data.module, data.task, data.objective) == ("data/c4.py", "c4_en", "span_corruption")
    assert data.lengths.to_dict() == {"inputs": 64, "targets": 24}
    assert (data.batch_size, data.pack) == (64, True)  # the scope's, not that without one
    assert data.vocabulary == "gs://bucket/pieces.model"
    assert (config.train.steps, config.train.random_bits) == (1000, "unsafe_rbg")
    assert config.mesh.model == 2
    assert (config.evaluate.every, config.evaluate.batches) == (1000, 7)  # T5X's default
    assert (config.checkpoint.every, config.checkpoint.keep_every) == (50, 50)
    optimizer = config.optimizer
    assert (optimizer.name, optimizer.decay_exponent) == ("adafactor", 0.7)
    rate = (optimizer.schedule, optimizer.learning_rate, optimizer.warmup_steps)
    assert rate == ("rsqrt", 2.0, 400)


def test_flags_bind_names_and_a_part_of_a_name_suffices(parsed):
    config = parsed(
        "--gin.STEPS=20",
        "--gin.train/DatasetConfig.batch_size=4",
        "--gin.train.eval_period=5",
        '--gin.FOLDER="there"',
        "--gin.utils.create_learning_rate_scheduler.factors='constant*linear_warmup'",
        "--gin.T5Config.mlp_activations=('relu',)",
        "--gin.T5Config.logits_via_embedding=True",
        "--config.train.log_every=3",
    )
    assert (config.train.steps, config.train.log_every, config.evaluate.every) == (20, 3, 5)
    assert (config.data.batch_size, config.workdir) == (4, "there")
    assert (config.optimizer.schedule, config.optimizer.warmup_steps) == ("constant", 400)
    assert (config.model.feed_forward, config.model.tied_head) == ("relu", True)


def test_what_is_not_used_is_listed(parsed, capsys):
    parsed("--gin.BATCH=3")
    lines = capsys.readouterr().out.splitlines()
    assert "not used: BATCH (--gin.BATCH)" in lines
    assert any(line.startswith("not used: train_eval/utils.DatasetConfig.batch") for line in lines)
    assert any("run.gin:" in line for line in lines)
    used = (
        "script.train.model ",
        "output_vocabulary",
        "T5Config",
        "create_learning",
        "not used: train/",
        "STEPS",
        "Adafactor.decay",
    )
    assert not [line for line in lines if any(name in line for name in used)]


def test_a_run_goes_on_from_a_checkpoint_with_its_state(parsed):
    flag = "--gin.utils.RestoreCheckpointConfig.path"
    config = parsed(f"{flag}='t5/checkpoint_900'")
    assert (config.initialize, config.initialize_optimizer) == ("t5x:t5/checkpoint_900", True)
    assert config.train.steps == 1000  # as in T5X, those of the checkpoint count
    with pytest.raises(ValueError, match=r"INITIAL_CHECKPOINT_PATH=\['a', 'b'\] must be one"):
        parsed(f"{flag}=['a', 'b']")
    assert not parsed(f"{flag}=[]").initialize_optimizer


def test_bytes_and_stacked_layers(files, parsed):
    config = parsed("--gin.PIECES=@seqio.ByteVocabulary()")
    assert config.data.vocabulary == "bytes:0"
    path = files / "nets" / "t5" / "network.gin"
    path.write_text(NETWORK.replace("examples.t5", "examples.scalable_t5"))
    assert parsed().system == "umt5"  # a position bias in each layer


@pytest.mark.parametrize(
    ("factor", "expected"),
    [
        # t5x/losses.py, compute_weighted_cross_entropy: None leaves the sum over the targets, a
        # number divides it, and get_loss_normalizing_factor_and_weights makes one of the names.
        ("None", {"loss_normalizing_factor": 1.0}),
        ("200", {"loss_normalizing_factor": 200.0}),
        ("'NUM_REAL_TARGET_TOKENS'", {}),
        ("'num_total_target_tokens'", {"loss_normalizing_factor": 64 * 24}),
    ],
)
def test_the_gradient_is_normalized_and_clipped_as_in_t5x(parsed, factor, expected):
    threshold = "--gin.adafactor.Adafactor.global_norm_clip_threshold=0.5"

    def found(*flags):
        config = parsed(*flags, f"--gin.LOSS_FACTOR={factor}")
        of_config(config)
        names = ("loss_normalizing_factor", "clip_norm", "clip_sum", "clip_value", "clip_sum_value")
        return {name: config.optimizer[name] for name in names if name in config.optimizer}

    assert found() == expected
    assert found(threshold) == expected | {"clip_norm": 0.5}


def test_a_task_without_an_equal_is_the_users_to_name(parsed):
    config = parsed("--gin.TASK='wmt'", "--config.data.module=data/wmt.py")
    assert (config.data.module, config.data.task) == ("data/wmt.py", "wmt")
    assert parsed("--gin.TASK='wmt'").data.module == ""


def test_nothing_of_a_file_is_run(files, parsed):
    path = files / "examples" / "whole.gin"
    path.write_text(f"import no_such_module.at_all\n{WHOLE}")
    assert parsed().train.steps == 1000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("include 'runs/none.gin'", r"whole.gin:8: include 'runs/none.gin': there is no such file"),
        ("include 'examples/whole.gin'", "includes itself"),
        ("STEPS = %STAPS", r"whole.gin:8: the macro %STAPS is not defined: give .* mean 'STEPS'"),
        ("STEPS = %STEPS", r"the macro STEPS is its own value"),
        ("STEPS = %gin.REQUIRED", "whole.gin:8: STEPS has to be set: --gin.STEPS=VALUE"),
        ("STEPS = 'many'", "TRAIN_STEPS='many' must be a whole number"),
        ("STEPS = = 3", r"whole.gin:8: Unable to parse value"),
        ("STEPS = (3,", "whole.gin"),
        ("LENGTHS = {'inputs': 3}", "must have the lengths of 'inputs' and 'targets'"),
        ("script.train.train_dataset_cfg = None", "have no t5x.train.train.train_dataset_cfg"),
        ("MODEL = None", "the gin files have no MODEL"),
        ("MODEL = @models.Other()", "MODEL='t5x.models.Other' has no equivalent here"),
        ("network.Transformer.config = @other.Config()", "'other.Config' has no equivalent here"),
        ("network.Transformer.config = 3", "config=3 must name a class"),
        ("network.T5Config.num_heads = 'x'", "num_heads='x' must be a int"),
        ("network.T5Config.mlp_activations = ('silu', 'linear')", "mlp_activations"),
        ("adafactor.Adafactor.weight_decay_rate = 0.1", "weight_decay_rate=0.1 has no equiv"),
        ("adafactor.Adafactor.beta1 = 0.9", "momentum is taken after the learning rate"),
        ("OPTIMIZER = @optimizers.sm3()", "'optimizers.sm3' has no equivalent here"),
        ("LOSS_FACTOR = 'AVERAGE_PER_SEQUENCE'", "loss_normalizing_factor='AVERAGE_PER_SEQUENCE'"),
        (
            "utils.create_learning_rate_scheduler.factors = 'cosine_decay'",
            "factors='cosine_decay' has no equivalent here",
        ),
        (
            "utils.create_learning_rate_scheduler:\n"
            "  factors = 'constant * linear_warmup * cosine_decay'\n  steps_per_cycle = 500",
            "steps_per_cycle=500: the rate starts again .*: set it to 600 or more",
        ),
        (
            "utils.RestoreCheckpointConfig.path = 'x'\nutils.RestoreCheckpointConfig.mode = 'all'",
            "mode='all' has",
        ),
        (
            "script.train.relative_steps = 5\nutils.RestoreCheckpointConfig.path = 'x'",
            "RELATIVE=5: 'x'",
        ),
    ],
)
def test_a_mistake_is_one_line(files, parsed, change, message):
    (files / "examples" / "whole.gin").write_text(f"{WHOLE}{change}\n")
    with pytest.raises(ValueError, match=message) as error:
        parsed()
    assert "\n" not in str(error.value)


def test_mistakes_in_flags(parsed, monkeypatch):
    with pytest.raises(ValueError, match=r"--gin.TASK: .*\(texts need quotes\)"):
        parsed("--gin.TASK=c4")
    with pytest.raises(ValueError, match=r"--config='configs/t5.py' and --gin="):
        parsed("--config=configs/t5.py")
    with pytest.raises(ValueError, match=r"'--gin.TASK' must be written --gin=FILE or --gin.NAME"):
        parsed("--gin.TASK")
    with pytest.raises(ValueError, match="there is no such file"):
        parsed("--gin=none.gin")
    monkeypatch.setitem(sys.modules, "gin", None)
    with pytest.raises(ValueError, match=r"pip install 't5x_like\[gin\]'"):
        parsed()


DECODER = """
include 'nets/t5/network.gin'
from t5x import decoding
from t5x.examples.decoder_only import network as decoder_only
MODEL = @models.DecoderOnlyModel()
models.DecoderOnlyModel:
  module = @decoder_only.DecoderWrapper()
  vocabulary = %PIECES
  optimizer_def = %OPTIMIZER
  decode_fn = @decoding.temperature_sample
decoding.temperature_sample:
  temperature = 0.5
  topk = 40
decoder_only.DecoderWrapper.config = @decoder_only.TransformerConfig()
decoder_only.TransformerConfig:
  vocab_size = 384
  emb_dim = 48
  num_heads = 3
  num_layers = 4
  head_dim = 8
  mlp_dim = 96
  mlp_activations = ('gelu', 'linear')
  dropout_rate = %RATE
  logits_via_embedding = True
"""


def test_a_decoder_only_model_reads_inputs_and_targets_as_one_row(files):
    (files / "nets" / "decoder.gin").write_text(DECODER)
    whole = WHOLE.replace("nets/t5/smaller.gin", "nets/decoder.gin")
    (files / "examples" / "whole.gin").write_text(whole)
    flags = [f"--gin={files}/examples/whole.gin", "--gin.TASK='wmt'"]
    config, _ = command_line.parse(flags)
    of_config(config)
    assert config.system == "t5"
    assert (config.model.architecture, config.model.decoder_layers) == ("decoder", 4)
    assert (config.model.d_model, config.model.tied_head) == (48, True)
    # t5x/models.py, DecoderOnlyModel: seqio's DecoderFeatureConverter concatenates the two.
    assert (config.data.converter, config.data.objective) == ("prefix_lm", "span_corruption")
    assert config.decode.to_dict() == {
        "max_new_tokens": 24,
        "do_sample": True,
        "temperature": 0.5,
        "top_k": 40,
        "top_p": 1.0,
    }
    bidirectional = "--gin.models.DecoderOnlyModel.inputs_bidirectional_attention=True"
    assert command_line.parse([*flags, bidirectional])[0].model.architecture == "prefix_decoder"
    only_targets, _ = command_line.parse([*flags, "--gin.LENGTHS={'targets': 32}"])
    assert (only_targets.data.converter, only_targets.data.lengths.to_dict()) == (
        "decoder",
        {"targets": 32},
    )


def test_beams_are_ranked_as_in_t5x(parsed):
    # t5x/decoding.py: alpha of beam_search is 0.6, and brevity_penalty is that of GNMT.
    decode = parsed("--gin.models.EncoderDecoderModel.predict_batch_with_aux.num_decodes=4").decode
    assert decode.to_dict() == {
        "max_new_tokens": 24,
        "num_beams": 4,
        "length_penalty": 0.6,
        "length_penalty_kind": "google_nmt",
        "early_stopping": "never",
    }


OPTAX = """
from t5x import optimizers
import optax
OPTIMIZER = @optimizers.chain()
optimizers.chain.transformations = [@optax.clip(), @optax.lion()]
optax.clip.max_delta = 1.0
optax.lion.learning_rate = @optax.warmup_cosine_decay_schedule()
optax.warmup_cosine_decay_schedule:
  init_value = 0.0
  peak_value = 5e-5
  warmup_steps = 100
  decay_steps = %STEPS
  end_value = 1e-6
"""


def test_chains_of_optax(files, parsed, capsys):
    path = files / "examples" / "whole.gin"
    path.write_text(WHOLE + OPTAX)
    config = parsed()
    of_config(config)
    assert config.optimizer.to_dict() == {
        "name": "lion",
        "b1": 0.9,
        "b2": 0.99,
        "first_moment": "float32",
        "weight_decay": 1e-3,  # optax's defaults
        "schedule": "cosine",
        "start_learning_rate": 0.0,
        "learning_rate": 5e-5,
        "warmup_steps": 100,
        "decay_steps": 1000,
        "end_learning_rate": 1e-6,
        "loss_normalizing_factor": 1.0,  # without one T5X's gradient is that of the sum
        "clip_value": 1.0,
    }
    assert "weight decay: optax decays all parameters" in capsys.readouterr().out
    adam = parsed(
        "--gin.optimizers.chain.transformations=[@optax.clip_by_global_norm(), @optax.adamw()]",
        "--gin.optax.clip_by_global_norm.max_norm=2.0",
        "--gin.optax.adamw.learning_rate=0.0001",
        "--gin.LOSS_FACTOR='NUM_REAL_TARGET_TOKENS'",
    ).optimizer
    assert (adam.name, adam.schedule, adam.learning_rate) == ("adamw", "constant", 1e-4)
    assert (adam.clip_norm, adam.weight_decay, adam.epsilon) == (2.0, 1e-4, 1e-8)
    alone = parsed("--gin.OPTIMIZER=@optimizers.adam()", "--gin.optimizers.adam.learning_rate=0.1")
    assert (alone.optimizer.name, "weight_decay" in alone.optimizer) == ("adamw", False)
    for change, message in {
        "optimizers.chain.transformations=[@optax.lion(), @optax.clip()]": "'optax.clip' has no eq",
        "optimizers.chain.transformations=[]": "must be a list of transformations",
        "optax.lion.mask=1": "optax.lion.mask=1 has no equivalent here",
        "optax.lion.learning_rate=None": "learning_rate=None has no equivalent",
        "optax.clip.max_delta=None": "optax.clip.max_delta=None must be a number",
    }.items():
        with pytest.raises(ValueError, match=message):
            parsed(f"--gin.{change}")


def test_the_network_of_contrib_gpu_is_t5_with_scaled_scores_on_request(files, parsed):
    path = files / "nets" / "t5" / "network.gin"
    path.write_text(NETWORK.replace("examples.t5", "contrib.gpu.t5"))
    assert (parsed().system, parsed().model.scaled_scores) == ("t5", False)
    assert parsed("--gin.T5Config.scale_attn_logits=True").model.scaled_scores


def test_steps_after_a_checkpoint(parsed):
    restore = "--gin.utils.RestoreCheckpointConfig.path='t5/checkpoint_900'"
    config = parsed(
        restore,
        "--gin.script.train.relative_steps=50",
        "--gin.adafactor.Adafactor.step_offset=900",
        "--gin.adafactor.Adafactor.factored=False",
    )
    assert (config.train.steps, config.optimizer.decay_offset) == (950, 900)
    assert config.optimizer.min_dim_size_to_factor == sys.maxsize
    of_config(config)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # t5x/utils.py, create_learning_rate_scheduler, at steps 0, 1, 20, 40, 90, 150, 230 with 40
        # warmup steps. Its 1e-8 at step 0, the smallest rate that it gives, is 0 here.
        (
            {"factors": "constant * linear_warmup * rsqrt_decay", "base_learning_rate": 2.0},
            [0, 0.007905694, 0.1581139, 0.3162278, 0.2108185, 0.1632993, 0.1318761],
        ),
        (
            {"factors": "constant * linear_warmup * cosine_decay", "steps_per_cycle": 1200},
            [0, 0.0075, 0.15, 0.3, 0.2987167, 0.293823, 0.2818226],
        ),
        (
            {"factors": "linear_decay", "decay_factor": 0.005},
            [0, 0.0075, 0.15, 0.3, 0.225, 0.135, 0.015],
        ),
        (
            {"factors": "constant * rsqrt_normalized_decay"},
            [0.3, 0.3, 0.3, 0.3, 0.2, 0.1549193, 0.1251087],
        ),
        (
            {"factors": "constant * linear_warmup", "step_offset": 100},
            [0, 0, 0, 0, 0, 0.3, 0.3],
        ),
        (
            {"factors": "constant * rsqrt_decay", "step_offset": 100},
            [0.04743417, 0.04743417, 0.04743417, 0.04743417, 0.04743417, 0.04242641, 0.02631174],
        ),
    ],
)
def test_rates_are_t5x_s(parsed, settings, expected):
    values = {"base_learning_rate": 0.3, "warmup_steps": 40, **settings}
    name = "--gin.utils.create_learning_rate_scheduler"
    optimizer = parsed(*(f"{name}.{key}={value!r}" for key, value in values.items())).optimizer
    names = ("warmup_steps", "decay_steps", "learning_rate", "schedule_offset")
    given = {key: optimizer[key] for key in names if key in optimizer}
    schedule = schedules.build(optimizer.schedule, **given)
    found = [float(schedule(step)) for step in (0, 1, 20, 40, 90, 150, 230)]
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-12)  # float32, a cosine


def test_flags_as_t5x_spells_them(files):
    config, rest = command_line.parse(
        [
            "--gin_file=examples/whole.gin",
            f"--gin_search_paths=nowhere,{files}",
            "--gin_bindings=STEPS = 20",
            "--gin.train/utils.DatasetConfig.batch_size=4",
            "--output=there",
        ]
    )
    assert (config.train.steps, config.data.batch_size, rest) == (20, 4, ["--output=there"])


def test_tasks_of_a_module_that_the_files_import(files, parsed):
    path = files / "examples" / "whole.gin"
    path.write_text(f"from my_project import tasks\nimport t5.data.mixtures\n{WHOLE}")
    data = parsed("--gin.TASK='my_task'").data
    assert (data.module, data.task, data.objective) == (
        "data/seqio_tasks.py",
        "my_task",
        "text_to_text",
    )
    assert data.settings.modules == ("my_project.tasks", "t5.data.mixtures")
    named = parsed("--gin.TASK='my_task'", "--gin.train/utils.DatasetConfig.module='other.tasks'")
    assert named.data.settings.modules == ("other.tasks",)


EVALUATE = """
include 'nets/t5/smaller.gin'
from __gin__ import dynamic_registration
import __main__ as script
from t5x import partitioning
from t5x import utils
CHECKPOINT = %gin.REQUIRED
SPLIT = 'test'
RATE = 0.0
script.evaluate:
  model = %MODEL
  dataset_cfg = @utils.DatasetConfig()
  partitioner = @partitioning.PjitPartitioner()
  restore_checkpoint_cfg = @utils.RestoreCheckpointConfig()
  output_dir = 'results'
utils.DatasetConfig:
  mixture_or_task_name = 'glue_v002_proportional'
  task_feature_lengths = {"inputs": 16, "targets": 8}
  split = %SPLIT
  batch_size = 8
  shuffle = False
utils.RestoreCheckpointConfig:
  path = %CHECKPOINT
  mode = 'specific'
"""


def test_evaluation_of_a_checkpoint(files):
    path = files / "evaluate.gin"
    path.write_text(EVALUATE)
    flags = [f"--gin={path}", "--gin.CHECKPOINT='t5/checkpoint_900'"]
    with pytest.raises(ValueError, match=r"split='test': evaluation here reads the split 'valid"):
        command_line.parse(flags)
    config, _ = command_line.parse([*flags, "--gin.SPLIT='validation'"])
    of_config(config)
    assert (config.initialize, config.workdir) == ("t5x:t5/checkpoint_900", "")
    assert (config.data.task, config.evaluate.batches) == ("glue", 0)
    with pytest.raises(ValueError, match=r"CHECKPOINT has to be set: --gin.CHECKPOINT=VALUE"):
        command_line.parse([flags[0], "--gin.SPLIT='validation'"])


def test_precompile_has_no_folder_and_no_steps(files):
    path = files / "precompile.gin"
    path.write_text(WHOLE + "script.precompile.model = %MODEL\n")
    text = (files / "runs" / "run.gin").read_text()
    for line in ("eval_steps = 7", "total_steps = %STEPS"):
        text = text.replace(f"  {line}\n", "")
    (files / "runs" / "run.gin").write_text(text.replace("script.train:", "script.precompile:"))
    config, _ = command_line.parse([f"--gin={path}"])
    of_config(config)
    assert (config.workdir, config.optimizer.name, config.mesh.model) == ("", "adafactor", 2)


@pytest.fixture
def checkpoint(files):
    """The folder of a T5X checkpoint of the network in the files."""
    config, _ = command_line.parse(
        [f"--gin={files}/examples/whole.gin", "--gin.T5Config.dtype='float32'"]
    )
    settings = parse(config)
    module = systems.build(settings.system, settings.model)
    params = nn.unbox(module.init(jax.random.key(0), module.example_batch()))["params"]
    t5x.save(params, files / "t5", system="t5", config=settings.model)
    return files / "t5" / "checkpoint_0"


def test_infer_answers_texts_with_a_checkpoint_of_t5x(files, checkpoint, monkeypatch, tmp_path):
    (files / "infer.gin").write_text(EVALUATE.replace("script.evaluate", "script.infer"))
    (tmp_path / "texts.txt").write_text("one text\nanother\n")
    config, _ = command_line.parse(
        [
            f"--gin={files}/infer.gin",
            f"--gin.CHECKPOINT='{checkpoint}'",
            "--gin.PIECES=@seqio.ByteVocabulary()",
        ]
    )
    output = tmp_path / "answers.jsonl"
    command_flags.give(monkeypatch, input=str(tmp_path / "texts.txt"), output=str(output))
    infer.main(parse(config))
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    assert [answer["inputs"] for answer in answers] == ["one text", "another"]


def test_the_export_script_names_what_is_converted(files, checkpoint, tmp_path, capsys):
    (files / "export.gin").write_text(
        "include 'nets/t5/smaller.gin'\nfrom t5x import export_lib\nfrom t5x import utils\n"
        "RATE = 0.25\nexport_lib.save:\n  model = %MODEL\n"
        f"  output_dir = '{tmp_path}/out'\n"
        "  restore_checkpoint_cfg = @utils.RestoreCheckpointConfig()\n"
        f"utils.RestoreCheckpointConfig.path = '{checkpoint}'\n"
    )
    gin = f"--gin={files}/export.gin"
    with pytest.raises(ValueError, match=r"export a model: t5x_like.convert --gin=FILE"):
        command_line.parse([gin])
    convert.main([gin, "--format=t5x_like"])
    assert f"t5x:{checkpoint} -> {tmp_path}/out (t5x_like" in capsys.readouterr().out
    assert from_pretrained(tmp_path / "out").config["dropout"] == 0.25
    with pytest.raises(SystemExit) as error:
        convert.main(["--to=somewhere"])
    assert error.value.code == 2
    assert "--from=FOLDER is not set" in capsys.readouterr().err
