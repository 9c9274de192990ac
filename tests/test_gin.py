"""Gin files of T5X's runs: what they mean, the configs that they become, and mistakes in them."""

import sys

import pytest

from t5x_like.experiment import command_line, gin_files
from t5x_like.experiment.run import of_config

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
        ("None", {"clip_sum": 0.5}),
        ("200", {"clip_sum": 100.0}),
        ("'NUM_REAL_TARGET_TOKENS'", {"clip_norm": 0.5}),
        ("'num_total_target_tokens'", {"clip_sum": 0.5 * 64 * 24}),
    ],
)
def test_the_global_norm_is_clipped_as_the_loss_is_normalized(parsed, factor, expected):
    threshold = "--gin.adafactor.Adafactor.global_norm_clip_threshold=0.5"
    found = parsed(threshold, f"--gin.LOSS_FACTOR={factor}").optimizer
    assert {name: found[name] for name in found if name.startswith("clip_")} == expected
    of_config(parsed(threshold))
    unlimited = parsed(f"--gin.LOSS_FACTOR={factor}").optimizer
    assert not [name for name in unlimited if name.startswith("clip_")]


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
        ("STEPS = %STAPS", r"whole.gin:8: the macro %STAPS is not defined. Did you mean 'STEPS'"),
        ("STEPS = %STEPS", r"the macro STEPS is its own value"),
        ("STEPS = %gin.REQUIRED", "whole.gin:8: STEPS has to be set: --gin.STEPS=VALUE"),
        ("STEPS = 'many'", "TRAIN_STEPS='many' must be a whole number"),
        ("STEPS = = 3", r"whole.gin:8: Unable to parse value"),
        ("STEPS = (3,", "whole.gin"),
        ("LENGTHS = {'inputs': 3}", "must have the lengths of 'inputs' and 'targets'"),
        ("script.train.train_dataset_cfg = None", "have no t5x.train.train.train_dataset_cfg"),
        ("MODEL = None", "the gin files have no MODEL"),
        ("MODEL = @models.DecoderOnlyModel()", "DecoderOnlyModel' does not exist"),
        ("network.Transformer.config = @other.Config()", "'other.Config' does not exist"),
        ("network.Transformer.config = 3", "config=3 must name a class"),
        ("network.T5Config.num_heads = 'x'", "num_heads='x' must be a int"),
        ("network.T5Config.mlp_activations = ('silu', 'linear')", "mlp_activations"),
        ("adafactor.Adafactor.weight_decay_rate = 0.1", "weight_decay_rate=0.1 has no equal"),
        ("OPTIMIZER = @optimizers.adamw()", "'optimizers.adamw' does not exist"),
        ("LOSS_FACTOR = 'AVERAGE_PER_SEQUENCE'", "loss_normalizing_factor='AVERAGE_PER_SEQUENCE'"),
        (
            "utils.create_learning_rate_scheduler.factors = 'cosine_decay'",
            "factors='cosine_decay' does not exist",
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
        gin_files.Bindings(["none.gin"])
    monkeypatch.setitem(sys.modules, "gin", None)
    with pytest.raises(ValueError, match=r"pip install 't5x_like\[gin\]'"):
        parsed()
