"""Inspect one model, or two side by side, on a page in the browser.

    python -m t5x_like.page --from=FOLDER [--and=FOLDER] [--weights=int8] [--port=8765]

FOLDER is a run, a checkpoint or a Hugging Face folder with its tokenizer. For a decoder the page
shows the probabilities of the next token and the surprisal of each token; for T5 the spans that it
fills in; for an encoder the predictions for its mask tokens; for ELECTRA the tokens that it
considers replaced. It shows the attention of each layer and head, and each layer's own predictions
if the output layer can read its states (docs/page.md). The server listens only on 127.0.0.1, and
the page sends requests only to it. Ctrl-C stops it.
"""

import sys
from collections.abc import Sequence

from t5x_like import hub
from t5x_like.config import one_line_errors
from t5x_like.config.run_settings import WEIGHTS
from t5x_like.experiment import command_line


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    parser = command_line.ArgumentParser(__doc__, prog="python -m t5x_like.page")
    parser.add_argument("--from", dest="first", required=True, metavar="FOLDER", help="a model")
    parser.add_argument("--and", dest="second", metavar="FOLDER", help="another model beside it")
    parser.add_argument(
        "--weights", default="float32", choices=WEIGHTS, help="dtype of the weights (float32)"
    )
    parser.add_argument("--port", type=int, default=8765, help="of 127.0.0.1; 0 is any free one")
    options = parser.parse_args(arguments)
    with one_line_errors():
        folders = [folder for folder in (options.first, options.second) if folder]
        for folder in folders:
            hub.check_source(folder)
        # JAX takes seconds to import: after the arguments have been checked, and not for --help.
        from t5x_like.research.inspection import inspected, server

        models = [inspected.load(folder, weights=options.weights) for folder in folders]
        with server.make_server(models, port=options.port) as http_server:
            print(f"http://{server.ADDRESS}:{http_server.server_port}", flush=True)
            http_server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
