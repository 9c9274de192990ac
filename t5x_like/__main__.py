"""The command `t5x-like`: `t5x-like train ...` is `python -m t5x_like.train ...`."""

import os
import runpy
import sys

from t5x_like.names import choose

COMMANDS = {
    "train": "train a model as a config describes, or resume an earlier run",
    "evaluate": "evaluate a checkpoint, or a model in Hugging Face's format",
    "infer": "generate text, or predict labels, for lines of a file or at a prompt",
    "page": "look at a model in the browser",
    "inspect": "how layers change states, where heads attend, neighbours of a word by sense",
    "convert": "convert weights from and to Hugging Face's, T5X's and other formats",
    "vocabulary": "train a vocabulary",
    "tokenize": "tokenize the documents of a config once, for several trainings",
    "plan": "memory and time of a run before it starts",
    "scaling": "scaling laws: plan, run and fit",
    "study": "run a study: arms, seeds, verdicts on claims",
}


def main() -> None:
    """Run the command named by the first argument; an unknown name exits with status 2."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        width = max(map(len, COMMANDS))
        lines = (f"  {name:{width}}  {text}" for name, text in COMMANDS.items())
        sys.stdout.write("usage: t5x-like COMMAND ... (--help after a command lists its flags)\n\n")
        sys.stdout.write("\n".join(lines) + "\n")
        return
    try:
        choose("command", arguments[0], COMMANDS)
    except ValueError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    # As `python -m` does: configs and data modules import from the working directory.
    sys.path.insert(0, os.getcwd())
    sys.argv = sys.argv[1:]
    runpy.run_module(f"t5x_like.{arguments[0]}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
